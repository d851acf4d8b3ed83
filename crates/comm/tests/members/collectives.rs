//! Tests of schedules over shared memory and over TCP: a few simple schedules, to show that schedules run, and small
//! collectives whose members call late.

use crate::group::{each, each_over, links, seal};
use hotlease_comm::{
    Area, AreaSpan, Communicator, Datatype, Error, Operator, Pattern, Rank, Reduction, Request, Round, Schedule, Step,
    lend, lend_mut,
};
use std::sync::Arc;

/// Sum of 64-bit numbers.
fn sums() -> Option<Reduction> {
    Some(Operator::Sum.of(Datatype::U64).expect("there are sums of these"))
}

fn bytes(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Allreduce around a ring: the partial sum moves from rank 0 to the last rank, then the sum moves on to all ranks.
fn allreduce(me: Rank, size: Rank, count: usize) -> Arc<Schedule> {
    let (input, output) = (
        AreaSpan::first(Area::Input, count),
        AreaSpan::first(Area::Output, count),
    );
    let scratch = AreaSpan::first(Area::Scratch, count);
    let mut rounds = Vec::new();
    let mut round = |transfers: Vec<Step>, local: Vec<Step>| rounds.push(Round { transfers, local });
    if me == 0 {
        round(
            vec![],
            vec![Step::Copy {
                from: input,
                into: output,
            }],
        );
    } else {
        round(
            vec![Step::Receive {
                from: me - 1,
                into: scratch,
            }],
            vec![Step::Reduce {
                left: scratch,
                right: input,
                into: output,
            }],
        );
    }
    let last = size - 1;
    if me < last {
        round(
            vec![Step::Send {
                to: me + 1,
                from: output,
            }],
            vec![],
        );
        round(
            vec![Step::Receive {
                from: last,
                into: output,
            }],
            vec![],
        );
    } else if size > 1 {
        let to_all = (0..last).map(|to| Step::Send { to, from: output });
        round(to_all.collect(), vec![]);
    }
    Arc::new(Schedule { scratch: count, rounds })
}

fn mine(rank: Rank, count: usize) -> Vec<u8> {
    bytes((0..count as u64).map(|number| number + 1000 * u64::from(rank)))
}

fn expected(size: Rank, count: usize) -> Vec<u8> {
    let ranks = u64::from(size);
    bytes((0..count as u64).map(|number| ranks * number + 1000 * ranks * (ranks - 1) / 2))
}

fn reduced(all: &Communicator, count: usize) -> Result<Vec<u8>, Error> {
    let mut output = vec![0; 8 * count];
    let schedule = allreduce(all.rank(), all.size(), count);
    all.run(schedule, 8, &mine(all.rank(), count), &mut output, sums())?;
    Ok(output)
}

#[test]
fn schedules_run_for_one_to_nine_ranks() {
    for size in 1..=9 {
        each(
            size,
            |options| seal(options, size == 4),
            |all| {
                for count in [1, 1000, 3000, 200_000] {
                    let input = mine(all.rank(), count);
                    let output = reduced(&all, count).expect("all are well");
                    assert!(output == expected(size, count), "{count} numbers of {size} ranks");
                    assert!(input == mine(all.rank(), count), "the input is as it was");
                }
            },
        );
    }
}

/// Small collectives run in the calling thread while messages arrive soon. A member that waits longer hands its
/// collective over to the protocol, in any round. Another thread of the member sends and receives, and takes in
/// messages of the collective.
#[test]
fn small_collectives_are_right_however_late_members_come() {
    const ROUNDS: u32 = 300;
    each(
        4,
        |_| (),
        |all| {
            let (rank, size) = (all.rank(), all.size());
            let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..ROUNDS {
                        let mut message = [0; 4];
                        let pattern = Pattern::of(left, 7);
                        let sent = all.sendrecv(&number.to_le_bytes(), right, 7, &mut message, pattern);
                        assert_eq!(sent.map(|status| status.bytes).ok(), Some(4));
                        assert_eq!(u32::from_le_bytes(message), number);
                    }
                });
                for number in 0..ROUNDS {
                    // In every second round one member is late, each time another one.
                    if number % 2 == 0 && number / 2 % size == rank {
                        std::thread::sleep(std::time::Duration::from_micros(u64::from(number) * 5));
                    }
                    let mut sum = [0u32; 3];
                    let mine = [number, rank, 1];
                    all.allreduce(&mine, &mut sum, &Operator::Sum).expect("all are well");
                    assert_eq!(sum, [number * size, size * (size - 1) / 2, size]);
                    let mut parts = [0u32; 4];
                    let given: Vec<u32> = (0..size).map(|to| number + 10 * rank + to).collect();
                    all.alltoall(&given, &mut parts).expect("all are well");
                    assert_eq!(parts, std::array::from_fn(|from| number + 10 * from as u32 + rank));
                    let mut before = [0u32; 1];
                    all.scan(&[rank], &mut before, &Operator::Max).expect("all are well");
                    assert_eq!(before, [rank]);
                }
            });
        },
    );
}

/// A message may depend on a collective that another thread waits for, or that the same thread waits for later.
#[test]
fn a_collective_goes_on_while_its_member_waits_for_something_else() {
    const COUNT: usize = 50_000;
    each(
        3,
        |_| (),
        |all| {
            let (rank, size) = (all.rank(), all.size());
            let mut output = vec![0; 8 * COUNT];
            lend(&mine(rank, COUNT), |input| {
                lend_mut(&mut output, |output| {
                    let schedule = allreduce(rank, size, COUNT);
                    let collective = all.start_lent(schedule, 8, input, output, sums()).expect("begun");
                    let finish = |collective: Request| collective.wait().expect("all are well");
                    if rank == 1 {
                        // Rank 0 sends this message when the collective has ended. To end it, this rank must reduce and
                        // send.
                        all.receive(&mut [0; 1], Pattern::of(0, 5)).expect("it comes");
                        finish(collective);
                    } else {
                        finish(collective);
                        if rank == 0 {
                            all.send(&[1], 1, 5).expect("sent");
                        }
                    }
                });
            });
            assert!(output == expected(size, COUNT));
        },
    );
}

#[test]
fn messages_that_no_member_receives_do_not_hold_up_a_collective() {
    each(
        2,
        |_| (),
        |all| {
            let other = 1 - all.rank();
            // More messages than there is credit for.
            let sends: Vec<_> = (0..10_000)
                .map(|_| all.isend(vec![1; 100], other, 3).expect("begun"))
                .collect();
            assert!(reduced(&all, 1000).expect("all are well") == expected(2, 1000));
            let mut message = [0; 100];
            for _ in 0..10_000 {
                all.receive(&mut message, Pattern::of(other, 3)).expect("here");
            }
            hotlease_comm::wait_all(sends).expect("sent");
        },
    );
}

#[test]
fn counts_that_do_not_match_are_an_error_at_all_ranks() {
    for link in links() {
        let errors = each_over(
            &link,
            3,
            |_| (),
            |all| reduced(&all, if all.rank() == 1 { 7 } else { 8 }).expect_err("rank 1 has fewer"),
        );
        let Error::Mismatch {
            source_rank: 0,
            sent: 64,
            expected: 56,
            ..
        } = errors[1]
        else {
            panic!("{errors:?}");
        };
        for rank in [0, 2] {
            let is_told = matches!(errors[rank], Error::CollectiveFailed { rank: 1, .. });
            assert!(is_told, "{errors:?}");
        }
    }
}
