//! Batch jobs that take two nodes at random moments, as `hotlease-node` tells agents of them, while clients lease, load,
//! compute, sleep, and restore states there.

use hotlease_client::{Code, Error, Function, Invoker, LeaseOptions, Polling};
use hotlease_fabric::socket::Socket;
use hotlease_tests::faults::caller::{Outcome, check, make};
use hotlease_tests::faults::ledger::{self, Bill, Operator};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, mostly_short, random, seed, times};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::process::Process;
use hotlease_tests::swapping::Swapping;
use hotlease_tests::wait::until_true;
use hotlease_wire::RunCertainty;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use hotlease_wire::session::UsageTotals;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time within which a client is told.
const TOLD: Duration = Duration::from_millis(250);
/// Time after which `hotlease-node` kills an agent that has not answered.
const FREE: Duration = Duration::from_millis(200);
/// Number of nodes, each of two cores.
const NODES: usize = 2;
/// Longest computation of a call.
const COMPUTING_US: u32 = 20_000;

/// Moments in the life of a lease near which jobs come.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// A worker is about to start, and then loads.
    Starting,
    /// A call is about to be sent; it computes and replies.
    Computing,
    /// A slot has replied, and falls asleep.
    Asleep,
    /// A worker is about to start, and then restores a state.
    Restoring,
    /// A lease is about to end, and saves its state.
    Saving,
}

const MOMENTS: [Moment; 5] = [
    Moment::Starting,
    Moment::Computing,
    Moment::Asleep,
    Moment::Restoring,
    Moment::Saving,
];

/// Data that the clients have in common.
struct Crowd {
    tally: Tally,
    options: LeaseOptions,
    seed: u64,
    stop: AtomicBool,
    /// How often each moment was reached.
    reached: [AtomicU64; MOMENTS.len()],
}

impl Crowd {
    fn reach(&self, moment: Moment) {
        self.reached[moment as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn times_reached(&self, moment: Moment) -> u64 {
        self.reached[moment as usize].load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for a lease: jobs have the nodes now and then.
    fn lease(&self, name: &str, options: LeaseOptions) -> Result<Invoker, Error> {
        let code = Code::open(library(name)).expect("a library");
        let patient = LeaseOptions {
            patience: LIMIT,
            move_within: LIMIT,
            ..options
        };
        Invoker::allocate(&code, patient)
    }
}

/// A call with its outcome.
struct CallRecord {
    outcome: Outcome,
    microseconds: u32,
    may_repeat: bool,
}

impl CallRecord {
    /// Compares the call's outcome with the marks that its runs have left.
    fn check(&self, tally: &Tally) {
        if !self.may_repeat {
            return check(tally, &self.outcome);
        }
        let runs = tally.runs(self.outcome.number);
        let agrees = match &self.outcome.failed {
            None | Some((_, RunCertainty::Yes)) => runs >= 1,
            Some((_, RunCertainty::No)) => runs == 0,
            Some((_, RunCertainty::Unknown)) => true,
        };
        assert!(agrees, "a call that ran {runs} times came to {:?}", self.outcome);
    }
}

/// Observations of a client.
#[derive(Default)]
struct Account {
    calls: Vec<CallRecord>,
    /// Usage at the end of its leases.
    told: Bill,
    /// Leases that were refused, or that ended while they started: the time and the reason.
    not_leased: Vec<(Instant, String)>,
    /// Calls that leave no mark.
    unmarked: u64,
    /// Numbers of states that were restored, and that were lost.
    states: (u64, u64),
}

impl Account {
    fn give_back(&mut self, invoker: Invoker) {
        let lease = invoker.lease().to_string();
        if let Ok(usage) = invoker.deallocate() {
            self.told.insert(lease, usage);
        }
    }

    fn not_leased(&mut self, error: &Error) {
        assert_eq!(error.ran(), RunCertainty::No, "no call was made: {error}");
        self.not_leased.push((Instant::now(), error.to_string()));
    }

    fn call(&mut self, crowd: &Crowd, function: &Function, microseconds: u32) {
        let call = crowd.tally.call(microseconds);
        let outcome = make(function, &call);
        self.calls.push(CallRecord {
            outcome,
            microseconds,
            may_repeat: function.is_idempotent(),
        });
    }

    fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.told.extend(other.told);
        self.not_leased.extend(other.not_leased);
        self.unmarked += other.unmarked;
        self.states.0 += other.states.0;
        self.states.1 += other.states.1;
    }
}

/// A client: fills its account until the crowd is told to stop.
type Client = fn(&Crowd, &mut StdRng, &mut Account);

/// Makes calls that must not run twice, on one lease that moves.
fn compute(crowd: &Crowd, random: &mut StdRng, account: &mut Account) {
    let invoker = crowd.lease("tally", crowd.options.clone()).expect("a lease");
    let function = invoker.function("tally").expect("it is there").idempotent(false);
    while !crowd.is_over() {
        crowd.reach(Moment::Computing);
        account.call(crowd, &function, random.random_range(0..COMPUTING_US));
        thread::sleep(random.random_range(Duration::ZERO..Duration::from_millis(3)));
    }
    drop(function);
    account.give_back(invoker);
}

/// Short leases; several calls each, most of which wait behind others.
fn start(crowd: &Crowd, random: &mut StdRng, account: &mut Account) {
    while !crowd.is_over() {
        crowd.reach(Moment::Starting);
        let options = LeaseOptions {
            replace_lease: random.random_bool(0.5),
            ..crowd.options.clone()
        };
        let invoker = match crowd.lease("tally", options) {
            Ok(invoker) => invoker,
            Err(error) => {
                account.not_leased(&error);
                continue;
            }
        };
        let function = invoker.function("tally").expect("it is there").idempotent(false);
        for _ in 0..random.random_range(0..4) {
            account.call(crowd, &function, random.random_range(0..COMPUTING_US / 4));
        }
        drop(function);
        account.give_back(invoker);
    }
}

/// Calls that may run again, on a lease whose slot sleeps between them.
fn sleep(crowd: &Crowd, random: &mut StdRng, account: &mut Account) {
    let options = LeaseOptions {
        polling: Polling::Warm,
        ..crowd.options.clone()
    };
    let invoker = crowd.lease("tally", options).expect("a lease");
    let function = invoker.function("tally").expect("it is there").idempotent(true);
    while !crowd.is_over() {
        account.call(crowd, &function, random.random_range(0..COMPUTING_US / 4));
        crowd.reach(Moment::Asleep);
        thread::sleep(random.random_range(Duration::ZERO..Duration::from_millis(20)));
    }
    drop(function);
    account.give_back(invoker);
}

/// Leases with a state: each finds the state of an earlier lease, or none.
fn keep_state(crowd: &Crowd, random: &mut StdRng, account: &mut Account) {
    let mut put = 0_u64;
    // The state of the last lease, if this lease ended well.
    let mut is_sure = false;
    while !crowd.is_over() {
        crowd.reach(Moment::Restoring);
        let options = LeaseOptions {
            state: "text".into(),
            replace_lease: false,
            ..crowd.options.clone()
        };
        let invoker = match crowd.lease("stateful", options) {
            Ok(invoker) => invoker,
            Err(error) => {
                account.not_leased(&error);
                continue;
            }
        };
        let (get, next) = (
            invoker.function("get").expect("there"),
            invoker.function("put").expect("there"),
        );
        account.unmarked += 2;
        if let Ok(text) = get.call(b"") {
            let text = String::from_utf8(text).expect("the state is a text");
            match text.as_str() {
                "nothing" => account.states.1 += u64::from(is_sure),
                text => {
                    let found: u64 = text.parse().unwrap_or_else(|_| panic!("the state is {text:?}"));
                    assert!((1..=put).contains(&found), "state {found} was not put before {put}");
                    account.states.0 += 1;
                }
            }
            put += 1;
            is_sure = next.call(put.to_string().as_bytes()).is_ok();
        }
        thread::sleep(random.random_range(Duration::ZERO..Duration::from_millis(5)));
        drop((get, next));
        crowd.reach(Moment::Saving);
        account.give_back(invoker);
    }
}

/// Clients that run.
struct Clients {
    crowd: Arc<Crowd>,
    running: Vec<JoinHandle<Account>>,
}

impl Clients {
    fn start(nodes: &Nodes, seed: u64) -> Self {
        let crowd = Arc::new(Crowd {
            tally: Tally::new(),
            options: nodes.lease_options(),
            seed,
            stop: AtomicBool::new(false),
            reached: Default::default(),
        });
        let clients: [Client; 4] = [compute, start, sleep, keep_state];
        let running = clients.into_iter().zip(1..).map(|(client, number)| {
            let crowd = Arc::clone(&crowd);
            thread::spawn(move || {
                let mut account = Account::default();
                client(&crowd, &mut random(crowd.seed, u32::MAX - number), &mut account);
                account
            })
        });
        let running = running.collect();
        Self { crowd, running }
    }

    /// Ends the calls; returns what all clients have seen.
    fn finish(self) -> (Arc<Crowd>, Account) {
        self.crowd.stop.store(true, Ordering::Relaxed);
        until_true("all calls are resolved", LIMIT, || {
            self.running.iter().all(JoinHandle::is_finished)
        });
        let mut all = Account::default();
        for client in self.running {
            all.add(client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        (self.crowd, all)
    }
}

/// Two nodes with the jobs that came to them.
struct Site {
    swapping: Swapping,
    /// Time of each job's request.
    jobs: Mutex<BTreeMap<u64, Instant>>,
}

impl Site {
    fn nodes(&self) -> &Nodes {
        &self.swapping.nodes
    }

    fn ask(&self, node: usize, request: NodeRequest) -> NodeAnswer {
        let path = self.nodes().nodes[node].directory().join("node.sock");
        let (answers, answered) = mpsc::channel();
        thread::spawn(move || {
            let socket = Socket::connect(&path).expect("the node socket");
            socket.send(&request, &[]).expect("a request");
            let (answer, _) = socket.receive().expect("an answer").expect("an answer");
            // The receiver is gone if the test has failed.
            let _ = answers.send(answer);
        });
        let answer = answered.recv_timeout(LIMIT);
        answer.unwrap_or_else(|_| panic!("no answer of node {node}:\n{}", self.nodes().log()))
    }

    /// A job takes a node, computes there alone, and ends.
    fn job(&self, node: usize, number: u64, lasts: Duration, row: &mut Row) -> u32 {
        let job = BatchJob {
            user: "ada".into(),
            ..BatchJob::unknown(JobId(number))
        };
        let begin = Instant::now();
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, begin);
        let answer = self.ask(node, NodeRequest::Yield(Box::new(job)));
        let took = begin.elapsed();
        let NodeAnswer::Free { leases } = answer else {
            panic!("job {number} of node {node}: {answer:?}");
        };
        let left = self.nodes().nodes[node].process().descendants();
        let left: Vec<String> = left.iter().map(Process::describe).collect();
        assert_eq!(left, [""; 0], "job {number} does not have node {node} alone");
        row.took("node free in", Some(FREE), took);
        thread::sleep(lasts);
        assert_eq!(self.ask(node, NodeRequest::Retake(JobId(number))), NodeAnswer::Retaken);
        leases
    }

    /// Adds the times from a job's request to the errors that name it.
    fn add_told(&self, account: &Account, row: &mut Row) -> usize {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = account.calls.iter().map(|made| &made.outcome);
        let failed = calls.filter_map(|outcome| Some((outcome.ended, outcome.failed.as_ref()?.0.as_str())));
        let starts = account.not_leased.iter().map(|(at, words)| (*at, words.as_str()));
        let mut told = 0;
        for (at, words) in failed.chain(starts) {
            if let Some(begun) = job_of(words).and_then(|job| jobs.get(&job)) {
                row.took("told in", Some(TOLD), at.saturating_duration_since(*begun));
                told += 1;
            }
        }
        told
    }
}

impl Operator for Site {
    fn run(&self, arguments: &[&str]) -> Output {
        self.nodes().hotlease(arguments).output().expect("hotlease runs")
    }

    fn journals(&self) -> Vec<String> {
        let journal = |directory: &Path| directory.join("state/agent").display().to_string();
        let nodes = self.nodes().nodes.iter();
        nodes.map(|node| journal(node.directory())).collect()
    }
}

/// Number of the job that an error names.
fn job_of(words: &str) -> Option<u64> {
    let rest = words.split_once("batch job ")?.1;
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Checks that each answered call is billed with the time that it computed, that nothing else is billed, and that no
/// lease is billed for more than its time.
fn check_bill(site: &Site, crowd: &Crowd, account: &Account, start: Instant) {
    let bill = ledger::until_billed(site, &account.told);
    let cores = (NODES * 2) as u32;
    ledger::not_over_billed(&bill, crowd.tally.total() + account.unmarked, cores, start);
    let answered = account.calls.iter().filter(|made| made.outcome.failed.is_none());
    let (mut calls, mut computed) = (0, Duration::ZERO);
    for made in answered {
        calls += 1;
        computed += Duration::from_micros(made.microseconds.into());
    }
    let billed = ledger::total(&bill);
    // Two thousandths for the clocks.
    let least = computed.as_nanos() as u64 / 1000 * 998;
    assert!(
        billed.invocations >= calls && billed.compute_ns >= least,
        "{calls} answered calls computed for {computed:?}, and {billed:?} is billed"
    );
    for (lease, used) in &bill {
        let UsageTotals {
            allocated_ns,
            hot_ns,
            compute_ns,
            ..
        } = used;
        assert!(
            compute_ns + hot_ns <= allocated_ns + allocated_ns / 500 + 1_000_000,
            "lease {lease} had less time than it used: {used:?}"
        );
    }
}

#[test]
fn every_call_that_a_batch_job_interrupts_is_told_or_moves_and_is_billed() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "a batch job takes a node: workers starting, loading, computing, replying, asleep, saving and restoring a state",
            "node free; client told in 250 ms; calls that may move do; none is lost or runs twice; all that was used is billed",
            "yields::every_call_that_a_batch_job_interrupts_is_told_or_moves_and_is_billed",
            seed,
        )
    };
    let start = Instant::now();
    let site = Site {
        swapping: Swapping::start(NODES, &[]),
        jobs: Mutex::default(),
    };
    let clients = Clients::start(site.nodes(), seed);
    let crowd = Arc::clone(&clients.crowd);
    let ended = AtomicU64::new(0);
    let runs = Runs {
        lanes: NODES as u32,
        runs: times(COUNTS.yields),
        seed,
    };
    let mut row = runs.make(
        new_row,
        |lane| lane as usize,
        |node, run, row| {
            let mut random = random(seed, run);
            let short = Duration::from_micros(100);
            thread::sleep(mostly_short(&mut random, short, Duration::from_millis(300)));
            // The job arrives near one of the moments; the moment may also come soon after it.
            let moment = MOMENTS[run as usize % MOMENTS.len()];
            let before = crowd.times_reached(moment);
            let begun = Instant::now();
            while crowd.times_reached(moment) == before && begun.elapsed() < Duration::from_millis(100) {
                thread::sleep(Duration::from_micros(50));
            }
            thread::sleep(mostly_short(&mut random, short, Duration::from_millis(30)));
            let lasts = mostly_short(&mut random, short, Duration::from_millis(200));
            let leases = site.job(*node, 1 + u64::from(run), lasts, row);
            ended.fetch_add(leases.into(), Ordering::Relaxed);
        },
        |_, _| (),
    );
    let (crowd, account) = clients.finish();
    for made in &account.calls {
        made.check(&crowd.tally);
    }
    let told = site.add_told(&account, &mut row);
    check_bill(&site, &crowd, &account, start);
    let moved = account
        .calls
        .iter()
        .filter(|made| crowd.tally.runs(made.outcome.number) > 1);
    eprintln!(
        "{} leases ended, {} calls: {told} were told of a job, {} ran again; {} states were there again, {} not",
        ended.load(Ordering::Relaxed),
        account.calls.len(),
        moved.count(),
        account.states.0,
        account.states.1
    );
    assert!(ended.load(Ordering::Relaxed) > 0, "no job met a lease");
    row.finish();
}
