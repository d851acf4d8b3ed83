//! Tests of a member that is killed or stopped in the middle of each collective: all others are told in time.
//!
//! There is a group for each collective. The victims of all groups are threads of one process, this test program
//! started again; the signal strikes all of them at once.

use crate::group::{options, rendezvous, secret, until};
use hotlease_comm::{
    Blocks, Collective, Communicator, Datatype, Error, LinkChoice, Loss, Operation, Operator, Options, Rank,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SIZE: Rank = 4;
const VICTIM: Rank = 2;
/// Longer than a busy host delays a healthy member.
const BOUND: Duration = Duration::from_secs(4);
/// Extra time beyond the bound on a busy host.
const SLACK: Duration = Duration::from_secs(3);
/// Pause between two calls of the other members.
const PAUSE: Duration = Duration::from_millis(3);
/// Number of collectives that each group completes before the signal.
const ROUNDS: usize = 3;
/// Message of the victims' process after these rounds. Other members cannot report this, because a member that only
/// sends to the victim may complete its rounds before the victim has joined.
const GOES_ROUND: &str = "every victim goes round";

/// Collectives that are run repeatedly: each operation, with a healthy root, and, if it has a root, with the victim as
/// root.
fn scenes() -> impl Iterator<Item = (Operation, Rank)> {
    let is_rooted = |operation: &Operation| collective(*operation, 0, 1, Blocks::Equal(1)).root().is_some();
    let operations = || Operation::NAMES.into_iter().map(|(operation, _)| operation);
    let well = operations().map(|operation| (operation, 0));
    well.chain(operations().filter(is_rooted).map(|operation| (operation, VICTIM)))
}

fn collective(operation: Operation, root: Rank, count: usize, blocks: Blocks<'_>) -> Collective<'_> {
    let (mine, operator) = (count, &Operator::Sum);
    match operation {
        Operation::Barrier => Collective::Barrier,
        Operation::Broadcast => Collective::Broadcast { root, count },
        Operation::Gather => Collective::Gather { root, blocks },
        Operation::Gatherv => Collective::Gatherv { root, mine, blocks },
        Operation::Scatter => Collective::Scatter { root, blocks },
        Operation::Scatterv => Collective::Scatterv { root, mine, blocks },
        Operation::Allgather => Collective::Allgather { blocks },
        Operation::Reduce => Collective::Reduce { root, count, operator },
        Operation::Allreduce => Collective::Allreduce { count, operator },
        Operation::ReduceScatter => Collective::ReduceScatter { blocks, operator },
        Operation::Scan => Collective::Scan { count, operator },
        Operation::Exscan => Collective::Exscan { count, operator },
        Operation::Alltoall => Collective::Alltoall { count },
        Operation::Alltoallv => Collective::Alltoallv {
            sent: blocks,
            received: blocks,
        },
    }
}

/// Runs one collective after the other until one fails.
fn act(all: &Communicator, (operation, root): (Operation, Rank), count: usize, done: &AtomicUsize) -> Error {
    let collective = collective(operation, root, count, Blocks::Equal(count));
    let collective = all.collective(collective, Datatype::U64);
    let [read, written] = collective.lengths().expect("a call that makes sense");
    let (input, mut output) = (vec![1; read], vec![0; written]);
    loop {
        if let Err(error) = collective.run(&input, &mut output) {
            return error;
        }
        done.fetch_add(1, Ordering::Relaxed);
        // The victim waits for the others, so that the signal strikes it in a call; and no member gets far ahead of
        // the others.
        if all.rank() != VICTIM {
            std::thread::sleep(PAUSE);
        }
    }
}

fn of_scene(options: &Options, (operation, root): (Operation, Rank), rank: Rank) -> Options {
    let mut options = options.clone();
    options.name = format!("{operation} of root {root}");
    options.rank = Some(rank);
    options
}

/// Not a test: the process that is struck. The test that is started as this process calls this function,
/// with the same `change` of the options as [`hold`].
pub fn victim(change: impl Fn(&mut Options)) {
    let Ok(address) = std::env::var("HOTLEASE_TEST_RENDEZVOUS") else {
        return;
    };
    let variable = |name: &str| std::env::var(name).expect("the one that started this");
    let mut options = Options::new("", SIZE, address, secret());
    change(&mut options);
    options.link = variable("HOTLEASE_TEST_LINK").parse().expect("a link");
    options.address = variable("HOTLEASE_TEST_ADDRESS").parse().ok();
    let bound = variable("HOTLEASE_TEST_BOUND_MS").parse();
    options.failure_bound = Duration::from_millis(bound.expect("a number"));
    let count = variable("HOTLEASE_TEST_COUNT").parse().expect("a number");
    let done: Vec<_> = scenes().map(|_| AtomicUsize::new(0)).collect();
    scope(|scope| {
        for (scene, done) in scenes().zip(&done) {
            let options = of_scene(&options, scene, VICTIM);
            scope.spawn(move || {
                let all = Communicator::join(&options).expect("all come");
                act(&all, scene, count, done);
            });
        }
        let all_act = || done.iter().all(|done| done.load(Ordering::Relaxed) >= ROUNDS);
        until("every collective goes round", all_act);
        write!(std::io::stdout(), "\n{GOES_ROUND}\n").expect("the test listens");
    });
}

/// Sends the signal in the middle of every collective of `count` elements, over this link, with options changed by
/// `change`. `victim` is the test that calls [`victim`].
pub fn hold(
    victim: &str,
    signal: Signal,
    link: &LinkChoice,
    change: impl Fn(&mut Options),
    count: usize,
    losses: &[Loss],
) {
    let server = rendezvous();
    let mut options = options(&server, "", SIZE);
    options.failure_bound = BOUND;
    options.link = link.clone();
    change(&mut options);
    let address = options.address.map(|address| address.to_string());
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", victim, "--ignored", "--nocapture"])
        .env("HOTLEASE_TEST_RENDEZVOUS", &options.rendezvous)
        .env("HOTLEASE_TEST_LINK", link.to_string())
        .env("HOTLEASE_TEST_ADDRESS", address.unwrap_or_default())
        .env("HOTLEASE_TEST_COUNT", count.to_string())
        .env("HOTLEASE_TEST_BOUND_MS", options.failure_bound.as_millis().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(process.stdout.take().expect("piped"));
    let pid = Pid::from_raw(process.id() as i32);
    let done: Vec<_> = scenes().map(|_| AtomicUsize::new(0)).collect();
    let struck = OnceLock::new();
    let told: Vec<_> = scope(|scope| {
        let mut members = Vec::new();
        for (scene, done) in scenes().zip(&done) {
            for rank in (0..SIZE).filter(|rank| *rank != VICTIM) {
                let (options, struck) = (of_scene(&options, scene, rank), &struck);
                members.push(scope.spawn(move || {
                    let all = Communicator::join(&options).expect("all come");
                    let error = act(&all, scene, count, done);
                    (scene, rank, error, struck.get().map(Instant::elapsed))
                }));
            }
        }
        let all_act = || {
            let enough = (SIZE as usize - 1) * ROUNDS;
            done.iter().all(|done| done.load(Ordering::Relaxed) >= enough)
        };
        until("every collective goes round", all_act);
        let mut said = said.lines().map_while(Result::ok);
        assert!(said.any(|line| line == GOES_ROUND), "the victims end");
        struck.set(Instant::now()).expect("once");
        kill(pid, signal).expect("it runs");
        let members = members.into_iter().map(|member| member.join().expect("no panic"));
        members.collect()
    });
    process.kill().expect("it is ours");
    process.wait().expect("it ends");
    let mut longest = Duration::ZERO;
    for ((operation, root), rank, error, took) in told {
        let what = format!("{signal} over {link}, {operation} of root {root}, rank {rank}: {error}");
        let took = took.unwrap_or_else(|| panic!("before anything happened: {what}"));
        let is_told = matches!(&error, Error::MemberLost { rank: VICTIM, loss, .. } if losses.contains(loss));
        assert!(is_told, "{what}");
        assert!(took <= options.failure_bound + SLACK, "after {took:?}: {what}");
        longest = longest.max(took);
    }
    eprintln!("{signal} in every collective over {link}: all told in {longest:?}");
}
