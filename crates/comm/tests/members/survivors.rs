//! Tests of members that are killed in the middle of each collective: the others are told in time, and continue
//! without them, then with new members.
//!
//! The victim is a process of its own: this test program, started again to run `victim`.

use crate::group::{self, each, options, rendezvous, until};
use hotlease_comm::rendezvous::Server;
use hotlease_comm::{Blocks, Communicator, Error, Operator, Options, Pattern, Rank};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SIZE: Rank = 4;
/// A rank in the middle, so that the ranks of other members change.
const VICTIM: Rank = 1;
const BOUND: Duration = Duration::from_secs(4);
/// Extra time beyond the bound on a busy host.
const SLACK: Duration = Duration::from_secs(3);

/// Small messages, and large messages for which the receiver asks first.
const COUNTS: [usize; 2] = [100, 20_000];

type Act = fn(&Communicator, &[u64], &mut [u64]) -> Result<(), Error>;

const ACTS: [(&str, Act); 14] = [
    ("barrier", |all, _, _| all.barrier()),
    ("broadcast", |all, _, output| all.broadcast(output, 2)),
    ("gather", |all, input, output| {
        let part = &input[..input.len() / SIZE as usize];
        all.gather(part, output, 2)
    }),
    ("gatherv", |all, input, output| {
        let blocks = Blocks::Equal(input.len() / SIZE as usize);
        all.gatherv(&input[..input.len() / SIZE as usize], output, blocks, 2)
    }),
    ("scatter", |all, input, output| {
        all.scatter(input, &mut output[..input.len() / SIZE as usize], 2)
    }),
    ("scatterv", |all, input, output| {
        let count = input.len() / SIZE as usize;
        all.scatterv(input, Blocks::Equal(count), &mut output[..count], 2)
    }),
    ("allgather", |all, input, output| {
        all.allgather(&input[..input.len() / SIZE as usize], output)
    }),
    ("reduce", |all, input, output| {
        all.reduce(input, output, &Operator::Sum, 2)
    }),
    ("allreduce", |all, input, output| {
        all.allreduce(input, output, &Operator::Sum)
    }),
    ("reduce_scatter", |all, input, output| {
        let part = &mut output[..input.len() / SIZE as usize];
        all.reduce_scatter_block(input, part, &Operator::Sum)
    }),
    ("scan", |all, input, output| all.scan(input, output, &Operator::Sum)),
    ("exscan", |all, input, output| all.exscan(input, output, &Operator::Sum)),
    ("alltoall", |all, input, output| all.alltoall(input, output)),
    ("alltoallv", |all, input, output| {
        let blocks = Blocks::Equal(input.len() / SIZE as usize);
        all.alltoallv(input, blocks, output, blocks)
    }),
];

/// Repeats the collective with both sizes until it fails.
fn act(all: &Communicator, act: Act) -> Error {
    let input = vec![1; COUNTS[1]];
    let mut output = vec![0; COUNTS[1]];
    loop {
        for count in COUNTS {
            if let Err(error) = act(all, &input[..count], &mut output[..count]) {
                return error;
            }
        }
    }
}

fn member(server: &str, name: &str) -> Options {
    let mut options = Options::new(name, SIZE, server, group::secret());
    options.join_timeout = group::PATIENCE;
    options.failure_bound = BOUND;
    options
}

/// Not a test: the member that is killed.
#[test]
#[ignore = "started by the other tests"]
fn victim() {
    let Ok(address) = std::env::var("HOTLEASE_TEST_RENDEZVOUS") else {
        return;
    };
    let name = std::env::var("HOTLEASE_TEST_NAME").unwrap();
    let mut options = member(&address, &name);
    options.rank = Some(VICTIM);
    let all = Communicator::join(&options).expect("all come");
    let chosen = ACTS.iter().find(|(act, _)| *act == name).expect("one of them");
    act(&all, chosen.1);
}

fn start_victim(server: &Server, name: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "survivors::victim", "--ignored", "--nocapture"])
        .env("HOTLEASE_TEST_RENDEZVOUS", server.address().to_string())
        .env("HOTLEASE_TEST_NAME", name)
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts")
}

fn sum(all: &Communicator, mine: u64) -> Result<u64, Error> {
    let mut total = [0];
    all.allreduce(&[mine], &mut total, &Operator::Sum)?;
    Ok(total[0])
}

/// Kills the victim in the middle of a collective; each other member calls `then` after it was told.
fn kill_in(name: &str, chosen: Act, then: impl Fn(&Communicator, &Options) + Sync) {
    let server = rendezvous();
    let mut victim = start_victim(&server, name);
    let began = Instant::now();
    let killed_us = AtomicU64::new(u64::MAX);
    let here = AtomicU64::new(0);
    scope(|scope| {
        for rank in (0..SIZE).filter(|rank| *rank != VICTIM) {
            let mut options = member(&server.address().to_string(), name);
            options.rank = Some(rank);
            let (killed_us, here, then) = (&killed_us, &here, &then);
            scope.spawn(move || {
                let all = Communicator::join(&options).expect("all come");
                here.fetch_add(1, Ordering::SeqCst);
                let error = act(&all, chosen);
                let killed = Duration::from_micros(killed_us.load(Ordering::SeqCst));
                let took = began.elapsed().saturating_sub(killed);
                let is_told = matches!(error, Error::MemberLost { rank: VICTIM, .. });
                assert!(is_told, "{name}: rank {rank}: {error}");
                assert!(took < BOUND + SLACK, "{name}: rank {rank} was told after {took:?}");
                then(&all, &options);
            });
        }
        until("all have come", || here.load(Ordering::SeqCst) == u64::from(SIZE - 1));
        // This waits until the members are in the middle of the collective.
        std::thread::sleep(Duration::from_millis(30));
        killed_us.store(began.elapsed().as_micros() as u64, Ordering::SeqCst);
        victim.kill().expect("it runs");
        victim.wait().expect("it ends");
    });
}

/// New ranks of the remaining members, by their old ranks.
const LEFT: [Rank; 4] = [0, 99, 1, 2];

#[test]
fn a_member_killed_in_a_collective_is_told_to_all_in_time_and_the_others_go_on_without_it() {
    for (name, chosen) in ACTS {
        kill_in(name, chosen, |all, _| {
            let left = all.shrink().expect("the others are well");
            assert_eq!(
                (left.rank(), left.size()),
                (LEFT[all.rank() as usize], SIZE - 1),
                "{name}"
            );
            assert_eq!(sum(&left, u64::from(all.rank())), Ok(5), "{name}");
        });
    }
}

/// Splits into even and odd ranks.
fn part(all: &Communicator) {
    let part = all
        .split(Some(all.rank() % 2), 0)
        .expect("all are well")
        .expect("a part");
    assert_eq!((part.rank(), part.size()), (all.rank() / 2, 2));
    assert_eq!(sum(&part, 1), Ok(2));
}

#[test]
fn a_communicator_shrinks_and_grows_again() {
    let (name, chosen) = ACTS[8];
    kill_in(name, chosen, |all, options| {
        let error = all.grow(1).expect_err("not all are here");
        assert!(matches!(error, Error::MemberLost { rank: VICTIM, .. }), "{error}");
        let left = all.shrink().expect("the others are well");
        assert_eq!(sum(&left, 1), Ok(3));
        let grown = scope(|scope| {
            // One of the members starts the newcomer.
            let newcomer = (left.rank() == 0).then(|| {
                let mut options = options.clone();
                (options.rank, options.is_newcomer) = (None, true);
                scope.spawn(move || {
                    let all = Communicator::join(&options).expect("the others grow");
                    assert_eq!((all.rank(), all.size()), (SIZE - 1, SIZE));
                    assert_eq!(sum(&all, 1000), Ok(1006));
                    part(&all);
                })
            });
            let grown = left.grow(1).expect("a newcomer comes");
            assert_eq!((grown.rank(), grown.size()), (left.rank(), SIZE));
            assert_eq!(sum(&grown, u64::from(grown.rank()) + 1), Ok(1006));
            part(&grown);
            if let Some(newcomer) = newcomer {
                newcomer.join().expect("it is well");
            }
            grown
        });
        drop(grown);
    });
}

#[test]
fn a_part_shrinks_by_itself() {
    each(
        4,
        |_| (),
        |all| {
            let part = all.split((all.rank() > 0).then_some(1), 0).expect("all are well");
            match (part, all.rank()) {
                (None, _) => all.barrier().expect("all are well"),
                (Some(part), 2) => {
                    drop(part);
                    all.barrier().expect("all are well");
                }
                (Some(part), rank) => {
                    // Rank 2, which is rank 1 in the part, leaves the part.
                    let error = part.receive(&mut [], Pattern::of(1, 0)).expect_err("it leaves");
                    assert!(matches!(error, Error::MemberLeft { rank: 1, .. }), "{error}");
                    let left = part.shrink().expect("two are left");
                    assert_eq!((left.rank(), left.size()), (rank / 2, 2));
                    assert_eq!(sum(&left, 1), Ok(2));
                    all.barrier().expect("all are well");
                }
            }
        },
    );
}

#[test]
fn a_member_that_goes_while_the_others_meet_is_not_waited_for() {
    let server = rendezvous();
    let options = options(&server, "meet", 3);
    scope(|scope| {
        for rank in 0..3 {
            let (mut options, server) = (options.clone(), &server);
            options.rank = Some(rank);
            scope.spawn(move || {
                let all = Communicator::join(&options).expect("all come");
                all.barrier().expect("all are well");
                if rank == 2 {
                    until("the others wait for this one", || server.waiting() == 2);
                    return;
                }
                let left = all.shrink().expect("two are left");
                assert_eq!((left.rank(), left.size()), (rank, 2));
                assert_eq!(sum(&left, 1), Ok(2));
            });
        }
    });
}
