//! Tests of the progress of requests: by a waiting thread, or else by the courier's thread.

use crate::each;
use crate::group::pattern;
use crate::redis::Redis;
use hotlease_comm::Pattern;
use std::sync::Barrier;

/// A member that is busy elsewhere does not keep others waiting: the operations that it has begun make progress.
#[test]
fn operations_over_redis_progress_while_the_program_is_busy() {
    let Some(redis) = Redis::start() else { return };
    // The body has several pieces: a single write does not suffice.
    let body = pattern(1, 24 << 20);
    let is_read = Barrier::new(2);
    each(2, &redis.link(), |all| {
        if all.rank() == 0 {
            let send = all.isend(body.clone(), 1, 0).expect("begun");
            let sum = all.iallreduce(vec![1_u32], &hotlease_comm::Operator::Sum);
            // This member makes no call of its communicator meanwhile.
            is_read.wait();
            send.wait().expect("sent");
            assert_eq!(sum.expect("begun").wait().expect("done"), [2]);
        } else {
            let mut read = vec![0; body.len()];
            all.receive(&mut read, Pattern::of(0, 0)).expect("it came");
            assert!(read == body);
            let mut sum = [0];
            all.allreduce(&[1_u32], &mut sum, &hotlease_comm::Operator::Sum)
                .expect("done");
            is_read.wait();
        }
    });
    assert_eq!(redis.keys(), 0);
}

/// A thread that runs tasks of tokio cannot run another runtime, so the courier's thread drives.
#[test]
fn members_within_tasks_of_tokio_talk_over_redis() {
    let Some(redis) = Redis::start() else { return };
    each(3, &redis.link(), |all| {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let (next, before) = ((all.rank() + 1) % 3, (all.rank() + 2) % 3);
            for round in 0..20 {
                all.send(&pattern(round, 100), next, 0).expect("sent");
                let mut bytes = vec![0; 100];
                all.receive(&mut bytes, Pattern::of(before, 0)).expect("it came");
                assert_eq!(bytes, pattern(round, 100));
            }
            all.barrier().expect("all come");
        });
    });
    assert_eq!(redis.keys(), 0);
}

/// Rank 1 begins the collective last, after a message from rank 0. Rank 0 sends this message after it has received a
/// message from rank 2, while rank 0 itself waits for the collective.
#[test]
fn a_member_that_waits_for_a_collective_over_redis_receives_messages_meanwhile() {
    let Some(redis) = Redis::start() else { return };
    each(4, &redis.link(), |all| {
        for round in 0..10_u32 {
            let mine = vec![all.rank() + round];
            if all.rank() == 1 {
                all.receive(&mut [0; 1], Pattern::of(0, round)).expect("told");
            }
            let gathered = all.iallgather(mine).expect("begun");
            match all.rank() {
                0 => {
                    // Two receives at a time; the message for the second receive arrives first.
                    let [late, soon] = [3, 2].map(|from| all.irecv(1, Pattern::of(from, round)));
                    soon.expect("begun").wait().expect("it came");
                    all.send(&[1], 3, round).expect("sent");
                    late.expect("begun").wait().expect("it came");
                    all.send(&[1], 1, round).expect("sent");
                }
                2 => all.send(&[1], 0, round).expect("sent"),
                3 => {
                    all.receive(&mut [0; 1], Pattern::of(0, round)).expect("told");
                    all.send(&[1], 0, round).expect("sent");
                }
                _ => {}
            }
            let gathered = gathered.wait().expect("all came");
            assert_eq!(gathered, [0, 1, 2, 3].map(|rank| rank + round));
        }
    });
    assert_eq!(redis.keys(), 0);
}
