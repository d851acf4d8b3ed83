//! Tests of members that are killed, stopped, or panic: all other members are told in time.
//!
//! The victim is a process of its own: this test program, started again to run `victim`.

use crate::group::{self, links, options, rendezvous, until};
use crate::struck;
use hotlease_comm::rendezvous::Server;
use hotlease_comm::{
    Area, AreaSpan, Communicator, Error, LinkChoice, Loss, Options, Pattern, Rank, Round, Schedule, Step,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SIZE: Rank = 4;
const VICTIM: Rank = 3;
/// Longer than a busy host delays a healthy member.
const BOUND: Duration = Duration::from_secs(4);
/// Extra time beyond the bound on a busy host.
const SLACK: Duration = Duration::from_secs(3);

/// Barrier: each member sends a message to every other member.
fn barrier(all: &Communicator) -> Result<(), Error> {
    let others = (0..all.size()).filter(|rank| *rank != all.rank());
    let byte = |offset| AreaSpan {
        area: Area::Scratch,
        offset,
        count: 1,
    };
    let transfers = others.flat_map(|rank| {
        let own = byte(all.rank() as usize);
        let theirs = byte(rank as usize);
        [
            Step::Send { to: rank, from: own },
            Step::Receive {
                from: rank,
                into: theirs,
            },
        ]
    });
    let round = Round {
        transfers: transfers.collect(),
        local: Vec::new(),
    };
    let schedule = Schedule {
        scratch: all.size() as usize,
        rounds: if all.size() > 1 { vec![round] } else { Vec::new() },
    };
    all.run(Arc::new(schedule), 1, &[], &mut [], None)
}

/// Activity of the members when the victim is struck.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Workload {
    /// Waiting for a message from the victim, or from any member.
    Receiving,
    /// Sending large messages to the victim, and receiving some.
    Streaming,
    /// One collective after the other.
    Collectives,
    /// Computing, without a call.
    Computing,
}

const SCENES: [Workload; 4] = [
    Workload::Receiving,
    Workload::Streaming,
    Workload::Collectives,
    Workload::Computing,
];

fn act(scene: Workload, all: &Communicator, is_over: &dyn Fn() -> bool) -> Error {
    let acted = || -> Result<(), Error> {
        match (scene, all.rank()) {
            (Workload::Receiving, VICTIM) => {
                all.receive(&mut [0; 8], Pattern::of(0, 99))?;
            }
            (Workload::Receiving, 0) => {
                all.receive(&mut [0; 8], Pattern::ANY)?;
            }
            (Workload::Receiving, _) => {
                all.receive(&mut [0; 8], Pattern::of(VICTIM, 1))?;
            }
            (Workload::Streaming, VICTIM) => {
                let mut bytes = vec![0; 8 << 20];
                loop {
                    all.receive(&mut bytes, Pattern::ANY)?;
                    all.send(&bytes, 1, 0)?;
                }
            }
            (Workload::Streaming, 1) => {
                let mut bytes = vec![0; 8 << 20];
                loop {
                    all.receive(&mut bytes, Pattern::of(VICTIM, 0))?;
                }
            }
            (Workload::Streaming, _) => {
                let bytes = vec![1; 8 << 20];
                loop {
                    all.send(&bytes, VICTIM, 0)?;
                }
            }
            (Workload::Collectives, _) => loop {
                barrier(all)?;
            },
            (Workload::Computing, VICTIM) => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            (Workload::Computing, _) => {
                while !is_over() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                // The failure was reported before this call.
                all.send(&[], VICTIM, 0)?;
            }
        }
        Ok(())
    };
    acted().expect_err("it cannot end well")
}

/// Not a test: the member that is struck.
#[test]
#[ignore = "started by the other tests"]
fn victim() {
    let Ok(address) = std::env::var("HOTLEASE_TEST_RENDEZVOUS") else {
        return;
    };
    let number: usize = std::env::var("HOTLEASE_TEST_SCENE").unwrap().parse().unwrap();
    let mut options = hotlease_comm::Options::new("scene", SIZE, address, group::secret());
    options.rank = Some(VICTIM);
    options.failure_bound = BOUND;
    let link = std::env::var("HOTLEASE_TEST_LINK").unwrap();
    options.link = link.parse().expect("one of the links");
    let all = Communicator::join(&options).expect("all come");
    let error = act(SCENES[number], &all, &|| false);
    // A member that was stopped for too long is told so when it continues, unless so much data is under way that there
    // is no room for the message.
    let is_told = match error {
        Error::Outcast { rank, loss, .. } => rank == VICTIM && loss == Loss::Silent,
        Error::MemberLost { .. } => SCENES[number] == Workload::Streaming,
        _ => false,
    };
    assert!(is_told, "{error}");
}

fn start_victim(server: &Server, scene: Workload, link: &LinkChoice) -> Child {
    let number = SCENES.iter().position(|other| *other == scene).expect("one of them");
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "faults::victim", "--ignored", "--nocapture"])
        .env("HOTLEASE_TEST_RENDEZVOUS", server.address().to_string())
        .env("HOTLEASE_TEST_SCENE", number.to_string())
        .env("HOTLEASE_TEST_LINK", link.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Strikes the victim in the middle of an activity; returns how long each other member took to be told, and its error.
fn strike(scene: Workload, signal: Signal, link: &LinkChoice) -> Vec<(Duration, Error)> {
    let server = rendezvous();
    let mut options = options(&server, "scene", SIZE);
    options.failure_bound = BOUND;
    options.link = link.clone();
    let mut victim = start_victim(&server, scene, link);
    let pid = Pid::from_raw(victim.id() as i32);
    let began = Instant::now();
    let struck_us = AtomicU64::new(u64::MAX);
    let here = AtomicU64::new(0);
    let told = scope(|scope| {
        let members: Vec<_> = (0..VICTIM)
            .map(|rank| {
                let mut options = options.clone();
                options.rank = Some(rank);
                let (struck_us, here, began) = (&struck_us, &here, &began);
                scope.spawn(move || {
                    let all = Communicator::join(&options).expect("all come");
                    here.fetch_add(1, Ordering::SeqCst);
                    let since = || {
                        let struck = Duration::from_micros(struck_us.load(Ordering::SeqCst));
                        began.elapsed().saturating_sub(struck)
                    };
                    let error = act(scene, &all, &|| since() > BOUND + SLACK / 2);
                    (since(), error)
                })
            })
            .collect();
        until("all have come", || here.load(Ordering::SeqCst) == u64::from(VICTIM));
        // This waits until the members are in the middle of their activity.
        std::thread::sleep(Duration::from_millis(200));
        struck_us.store(began.elapsed().as_micros() as u64, Ordering::SeqCst);
        kill(pid, signal).expect("it runs");
        let told = members.into_iter().map(|member| member.join().unwrap());
        told.collect()
    });
    if signal == Signal::SIGSTOP {
        kill(pid, Signal::SIGCONT).expect("it is stopped");
        // In one of the activities the victim computes, and is not told.
        if scene == Workload::Computing {
            victim.kill().expect("it runs");
        }
        let status = victim.wait().expect("it ends");
        assert!(status.success() || scene == Workload::Computing, "{scene:?}: {status}");
    } else {
        victim.wait().expect("it ends");
    }
    told
}

fn hold(scene: Workload, signal: Signal, link: &LinkChoice, losses: &[Loss]) {
    let told = strike(scene, signal, link);
    let longest = told.iter().map(|(took, _)| *took).max().expect("three");
    eprintln!("{signal}, {scene:?}, {link}: all told in {longest:?}");
    for (took, error) in told {
        let Error::MemberLost { rank, loss, .. } = &error else {
            panic!("{scene:?}: {error}");
        };
        assert_eq!(*rank, VICTIM, "{scene:?}: {error}");
        assert!(losses.contains(loss), "{scene:?}: {error}");
        assert!(took <= BOUND + SLACK, "{scene:?}: told after {took:?}");
    }
}

/// Runs the test over all links at once: most of the time is spent waiting.
fn hold_over_all(scene: Workload, signal: Signal, losses: &[Loss]) {
    scope(|scope| {
        for link in links() {
            scope.spawn(move || hold(scene, signal, &link, losses));
        }
    });
}

#[test]
fn a_member_that_is_killed_is_told_to_all_with_rank_and_cause() {
    for scene in SCENES {
        hold_over_all(scene, Signal::SIGKILL, &[Loss::Closed]);
    }
}

#[test]
fn a_member_that_stands_still_is_told_to_all_with_rank_and_cause() {
    for scene in SCENES {
        hold_over_all(scene, Signal::SIGSTOP, &[Loss::Silent]);
    }
}

/// Not a test: all members that are struck in a collective.
#[test]
#[ignore = "started by the other tests"]
fn victim_of_collectives() {
    struck::victim(|_| ());
}

/// Runs the test over every link, and over the relay of the rendezvous, at once: most of the time is spent waiting.
fn hold_in_every_collective(signal: Signal, losses: &[Loss]) {
    let hold = |link: &LinkChoice, change: &(dyn Fn(&mut Options) + Sync)| {
        struck::hold("faults::victim_of_collectives", signal, link, change, 3000, losses);
    };
    scope(|scope| {
        for link in links() {
            scope.spawn(move || hold(&link, &|_| ()));
        }
        scope.spawn(|| hold(&LinkChoice::Tcp, &group::hidden));
    });
}

#[test]
fn a_member_that_is_killed_in_any_collective_is_told_to_all_in_time() {
    hold_in_every_collective(Signal::SIGKILL, &[Loss::Closed, Loss::Unrelayed]);
}

#[test]
fn a_member_that_stands_still_in_any_collective_is_told_to_all_in_time() {
    hold_in_every_collective(Signal::SIGSTOP, &[Loss::Silent]);
}

#[test]
fn a_member_that_panics_announces_its_end() {
    let server = rendezvous();
    let options = options(&server, "panics", 2);
    scope(|scope| {
        let member = |rank| {
            let mut options = options.clone();
            options.rank = Some(rank);
            move || {
                let all = Communicator::join(&options).expect("all come");
                assert_ne!(rank, 0, "on purpose");
                all.receive(&mut [0; 8], Pattern::of(0, 0)).expect_err("it panics")
            }
        };
        let panics = scope.spawn(member(0));
        let error = scope.spawn(member(1)).join().unwrap();
        assert!(panics.join().is_err());
        let expected = Loss::GaveUp;
        assert!(
            matches!(error, Error::MemberLost { rank: 0, loss, .. } if loss == expected),
            "{error}"
        );
    });
}

#[test]
fn a_program_that_computes_for_long_is_not_taken_for_dead() {
    let lasts = 2 * BOUND;
    group::each(
        3,
        |options| options.failure_bound = BOUND,
        |all| {
            if all.rank() == 0 {
                // This member makes no call in all this time.
                std::thread::sleep(lasts);
            }
            barrier(&all).expect("all are well");
        },
    );
}
