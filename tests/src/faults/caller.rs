//! Threads and processes that call, and the outcomes of their calls.

use super::ledger::Bill;
use super::tally::{Call, Tally};
use crate::process::Process;
use hotlease_client::{Function, Invoker, RunCertainty};
use hotlease_wire::session::UsageTotals;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Outcome of a call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Number of the call.
    pub number: u64,
    /// Start of the call.
    pub began: Instant,
    /// End of the call.
    pub ended: Instant,
    /// Text of the error, and whether the function ran according to it.
    pub failed: Option<(String, RunCertainty)>,
}

/// Makes a call and checks its answer.
///
/// # Panics
/// If the answer belongs to another call.
pub fn make(function: &Function, call: &Call) -> Outcome {
    let began = Instant::now();
    let failed = match function.call(&call.input) {
        Ok(answer) => {
            assert!(
                Tally::is_answer(call.number, &answer),
                "call {} got {answer:?}",
                call.number
            );
            None
        }
        Err(error) => Some((error.to_string(), error.ran())),
    };
    Outcome {
        number: call.number,
        began,
        ended: Instant::now(),
        failed,
    }
}

/// Compares the outcome of a call that is not idempotent with its marks.
///
/// # Panics
/// If the call ran twice, or if its client got a wrong report.
pub fn check(tally: &Tally, outcome: &Outcome) {
    let runs = tally.runs(outcome.number);
    let agrees = match &outcome.failed {
        None => runs == 1,
        Some((_, RunCertainty::Yes)) => runs == 1,
        Some((_, RunCertainty::No)) => runs == 0,
        Some((_, RunCertainty::Unknown)) => runs <= 1,
    };
    assert!(agrees, "a call that ran {runs} times came to {outcome:?}");
}

/// Pace of a caller.
#[derive(Debug, Clone)]
pub struct Steady {
    /// Longest time that a call computes, microseconds.
    pub microseconds: u32,
    /// Longest pause between two calls.
    pub pause: Duration,
    /// Timeout of each call.
    pub timeout: Option<Duration>,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for Steady {
    fn default() -> Self {
        Self {
            microseconds: 300,
            pause: Duration::from_millis(4),
            timeout: None,
            seed: 0,
        }
    }
}

/// Outcomes of calls so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CallerReport(Arc<Mutex<Vec<Outcome>>>);

impl CallerReport {
    fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, outcome: Outcome) {
        self.outcomes().push(outcome);
    }

    /// All outcomes.
    pub fn all(&self) -> Vec<Outcome> {
        self.outcomes().clone()
    }

    /// Time of the first failure after a moment.
    pub fn failure_after(&self, moment: Instant) -> Option<Instant> {
        let outcomes = self.outcomes();
        let mut failures = outcomes.iter().filter(|outcome| outcome.failed.is_some());
        failures
            .find(|outcome| outcome.ended >= moment)
            .map(|outcome| outcome.ended)
    }

    /// Time of the answer to the first call that was made after a moment and succeeded.
    pub fn success_after(&self, moment: Instant) -> Option<Instant> {
        let outcomes = self.outcomes();
        let mut answered = outcomes.iter().filter(|outcome| outcome.failed.is_none());
        answered
            .find(|outcome| outcome.began >= moment)
            .map(|outcome| outcome.ended)
    }

    /// Waits for a success after a moment; returns the time from the moment to the answer.
    ///
    /// # Panics
    /// If no call succeeds within `limit`.
    pub fn until_success_after(&self, moment: Instant, limit: Duration) -> Duration {
        loop {
            if let Some(at) = self.success_after(moment) {
                return at - moment;
            }
            assert!(
                moment.elapsed() < limit,
                "no call succeeds within {limit:?}; the last was {:?}",
                self.outcomes().last()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Time of the last answer before a moment, if there was one.
    pub fn last_success_before(&self, moment: Instant) -> Option<Instant> {
        let outcomes = self.outcomes();
        let answered = outcomes.iter().filter(|outcome| outcome.failed.is_none());
        answered
            .map(|outcome| outcome.ended)
            .filter(|ended| *ended < moment)
            .max()
    }

    /// Longest time between two answers after a moment.
    pub fn longest_gap_after(&self, moment: Instant) -> Duration {
        let outcomes = self.outcomes();
        let answered = outcomes.iter().filter(|outcome| outcome.failed.is_none());
        let mut last = moment;
        let mut longest = Duration::ZERO;
        for outcome in answered.filter(|outcome| outcome.ended >= moment) {
            longest = longest.max(outcome.ended - last);
            last = outcome.ended;
        }
        longest
    }

    /// Longest time of a call that ended after a moment.
    pub fn longest_call_after(&self, moment: Instant) -> Duration {
        let outcomes = self.outcomes();
        let later = outcomes.iter().filter(|outcome| outcome.ended >= moment);
        later
            .map(|outcome| outcome.ended - outcome.began)
            .max()
            .unwrap_or_default()
    }

    fn checked(self, tally: &Tally) -> Vec<Outcome> {
        let told = self.all();
        for outcome in &told {
            check(tally, outcome);
        }
        told
    }
}

/// Calls a function until `stop` is set.
pub fn keep_calling(
    function: &Function,
    how: &Steady,
    stop: &AtomicBool,
    mut next: impl FnMut(u32) -> Call,
    mut tell: impl FnMut(Outcome),
) {
    let mut random = StdRng::seed_from_u64(how.seed);
    while !stop.load(Ordering::Relaxed) {
        let call = next(random.random_range(0..=how.microseconds));
        let outcome = make(function, &call);
        let failed = outcome.failed.is_some();
        tell(outcome);
        let pause = random.random_range(Duration::ZERO..=how.pause);
        // Limits the rate of calls that are refused.
        std::thread::sleep(if failed {
            pause.max(Duration::from_millis(2))
        } else {
            pause
        });
    }
}

/// A thread that calls a function, which is not idempotent, until [`Caller::finish`].
pub struct Caller {
    stop: Arc<AtomicBool>,
    told: CallerReport,
    thread: JoinHandle<()>,
    tally: Arc<Tally>,
    invoker: Invoker,
}

impl Caller {
    /// Starts the calls.
    ///
    /// # Panics
    /// If the library has no such function.
    pub fn start(invoker: Invoker, tally: &Arc<Tally>, how: &Steady) -> Self {
        let (stop, told) = (Arc::new(AtomicBool::new(false)), CallerReport::default());
        let function = invoker.function("tally").expect("it is there");
        let function = function.idempotent(false).timeout(how.timeout);
        let thread = {
            let (stop, told, tally, how) = (Arc::clone(&stop), told.clone(), Arc::clone(tally), how.clone());
            std::thread::spawn(move || {
                let next = |microseconds| tally.call(microseconds);
                keep_calling(&function, &how, &stop, next, |outcome| told.add(outcome));
            })
        };
        Self {
            stop,
            told,
            thread,
            tally: Arc::clone(tally),
            invoker,
        }
    }

    /// Lease on which the thread calls.
    pub fn invoker(&self) -> &Invoker {
        &self.invoker
    }

    /// Outcomes of the thread's calls.
    pub fn told(&self) -> &CallerReport {
        &self.told
    }

    /// Ends the calls, and compares each call with its marks; returns the outcomes, and the invoker.
    ///
    /// # Panics
    /// If a call does not end within half a minute, ran twice, or was reported wrongly.
    pub fn finish(self) -> (Vec<Outcome>, Invoker) {
        self.stop.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(
                start.elapsed() < RESOLVED,
                "a call is not resolved; the last that was is {:?}",
                self.told.outcomes().last()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (self.told.checked(&self.tally), self.invoker)
    }
}

/// Longest time that a call may take, with any fault.
const RESOLVED: Duration = Duration::from_secs(30);

/// A client that calls from a separate process: `hotlease-test-tally`. Killed when dropped.
pub struct Client {
    child: Child,
    told: CallerReport,
    /// Usage by lease, which the client prints at the end.
    reader: Option<JoinHandle<Bill>>,
    tally: Arc<Tally>,
}

impl Client {
    /// Starts a client, and waits until it has a lease. `command` is the program, on its host and with its environment.
    ///
    /// # Panics
    /// If the client does not start.
    pub fn start(mut command: Command, tally: &Arc<Tally>, how: &Steady) -> Self {
        let (numbers, path) = tally.reserve(NUMBERS);
        let timeout = how.timeout.unwrap_or_default();
        command
            .arg(crate::library::library("tally"))
            .arg(path)
            .args([numbers.start, numbers.end].map(|number| number.to_string()))
            .arg(how.microseconds.to_string())
            .args([how.pause, timeout].map(|time| time.as_micros().to_string()))
            .arg(how.seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let told = CallerReport::default();
        let reader = {
            let told = told.clone();
            let now = (Instant::now(), monotonic());
            std::thread::spawn(move || {
                let mut bill = Bill::new();
                for line in lines.lines().map_while(Result::ok) {
                    match line.strip_prefix("told ") {
                        Some(usage) => bill.extend(parse_usage(usage)),
                        None => told.add(Outcome::parse(&line, now)),
                    }
                }
                bill
            })
        };
        Self {
            child,
            told,
            reader: Some(reader),
            tally: Arc::clone(tally),
        }
    }

    /// The client's process.
    ///
    /// # Panics
    /// If the client has ended.
    pub fn process(&self) -> Process {
        Process::of(self.child.id() as i32).expect("the client runs")
    }

    /// Outcomes of the client's calls.
    pub fn told(&self) -> &CallerReport {
        &self.told
    }

    /// Ends the calls, and compares each call with its marks; returns the outcomes, and the usage of its
    /// leases, as the client was told.
    ///
    /// # Panics
    /// If the client does not end, or a call ran twice or was reported wrongly.
    pub fn finish(mut self) -> (Vec<Outcome>, Bill) {
        drop(self.child.stdin.take());
        let start = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            assert!(
                start.elapsed() < RESOLVED,
                "the client does not end; its last call was {:?}",
                self.told.outcomes().last()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let bill = self.reader.take().expect("it reads").join().expect("its words");
        (self.told.clone().checked(&self.tally), bill)
    }

    /// Kills the client with -9, and compares each call that has ended with its marks.
    ///
    /// # Panics
    /// As [`Client::finish`].
    pub fn kill(mut self) -> Vec<Outcome> {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        self.reader.take().expect("it reads").join().expect("its words");
        self.told.clone().checked(&self.tally)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls that one client may make.
const NUMBERS: u64 = 200_000;

/// Nanoseconds of a clock that all processes of a machine share.
pub fn monotonic() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

impl Outcome {
    /// The outcome as a line of the client's output. `now` is the same moment on both clocks.
    pub fn line(&self, (instant, ns): (Instant, u64)) -> String {
        let at = |moment: Instant| ns + moment.saturating_duration_since(instant).as_nanos() as u64;
        let (verdict, words) = match &self.failed {
            None => ("ok", ""),
            Some((words, RunCertainty::Yes)) => ("yes", words.as_str()),
            Some((words, RunCertainty::No)) => ("no", words.as_str()),
            Some((words, RunCertainty::Unknown)) => ("unknown", words.as_str()),
        };
        let words = words.replace('\n', " ");
        format!(
            "{} {} {} {verdict} {words}",
            self.number,
            at(self.began),
            at(self.ended)
        )
    }

    fn parse(line: &str, (instant, ns): (Instant, u64)) -> Self {
        let fields: Vec<&str> = line.splitn(5, ' ').collect();
        let [number, began, ended, verdict, words] = fields[..] else {
            panic!("the client said {line:?}");
        };
        let at = |text: &str| {
            let told: u64 = text.parse().expect("a time");
            match told.checked_sub(ns) {
                Some(later) => instant + Duration::from_nanos(later),
                None => instant - Duration::from_nanos(ns - told),
            }
        };
        let failed = |ran| Some((words.to_owned(), ran));
        Self {
            number: number.parse().expect("a number"),
            began: at(began),
            ended: at(ended),
            failed: match verdict {
                "ok" => None,
                "yes" => failed(RunCertainty::Yes),
                "no" => failed(RunCertainty::No),
                "unknown" => failed(RunCertainty::Unknown),
                _ => panic!("the client said {line:?}"),
            },
        }
    }
}

/// Line of the client's output with the usage of a lease.
pub fn usage_line(lease: &str, usage: &UsageTotals) -> String {
    let UsageTotals {
        allocated_ns,
        hot_ns,
        compute_ns,
        invocations,
    } = usage;
    format!("told {lease} {allocated_ns} {hot_ns} {compute_ns} {invocations}")
}

fn parse_usage(line: &str) -> Option<(String, UsageTotals)> {
    let mut fields = line.split(' ');
    let lease = fields.next()?.to_owned();
    let mut number = || fields.next()?.parse().ok();
    let usage = UsageTotals {
        allocated_ns: number()?,
        hot_ns: number()?,
        compute_ns: number()?,
        invocations: number()?,
    };
    Some((lease, usage))
}
