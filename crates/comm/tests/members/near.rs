//! Tests of members that share a node: shared memory inside the node, TCP between nodes, both in one group.

use crate::group::{each, each_over, pattern};
use hotlease_comm::{Collective, Datatype, LinkChoice, Pattern};
use nix::sys::resource::{UsageWho, getrusage};
use std::time::Duration;

#[test]
fn a_group_of_several_nodes_talks_over_memory_inside_and_tcp_across() {
    // Members that choose TCP behave as if on hosts of their own.
    let is_away = |rank| rank >= 2;
    let choose = |options: &mut hotlease_comm::Options| {
        if options.rank.is_some_and(is_away) {
            options.link = LinkChoice::Tcp;
        }
    };
    let results = each_over(&LinkChoice::Direct, 4, choose, |all| {
        for round in 0..20_u32 {
            let length = [0, 8, 30, 5000, 300_000][round as usize % 5];
            let receives: Vec<_> = (0..4)
                .filter(|other| *other != all.rank())
                .map(|other| all.irecv(length, Pattern::of(other, round)).expect("begun"))
                .collect();
            for other in (0..4).filter(|other| *other != all.rank()) {
                all.send(&pattern(u64::from(all.rank()), length), other, round)
                    .expect("all are well");
            }
            for receive in receives {
                let received = receive.wait().expect("all are well");
                let from = u64::from(received.status.source);
                assert!(received.bytes == pattern(from, length), "round {round} of {from}");
            }
        }
        all.nodes().to_vec()
    });
    for nodes in results {
        assert_eq!(nodes, [0, 0, 1, 2]);
    }
}

#[test]
fn members_that_wait_leave_the_processors_to_others() {
    const SIZE: u32 = 9;
    each(
        SIZE,
        |_| (),
        |all| {
            let mut byte = [0; 1];
            if all.rank() == 0 {
                // If there is shared memory, all members switch to lanes, and then wait on the lanes.
                (1..SIZE).for_each(|rank| all.send(&[1], rank, 0).expect("sent"));
                for rank in 1..SIZE {
                    all.receive(&mut byte, Pattern::of(rank, 0)).expect("here");
                }
                std::thread::sleep(Duration::from_millis(500));
                (1..SIZE).for_each(|rank| all.send(&[2], rank, 1).expect("sent"));
                return;
            }
            all.receive(&mut byte, Pattern::of(0, 0)).expect("here");
            all.send(&[1], 0, 0).expect("sent");
            let used = || {
                let used = getrusage(UsageWho::RUSAGE_THREAD).expect("this is Linux");
                let time = used.user_time() + used.system_time();
                Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64)
            };
            let before = used();
            all.receive(&mut byte, Pattern::of(0, 1)).expect("here");
            let took = used() - before;
            assert!(
                took < Duration::from_millis(50),
                "rank {} waited for {took:?} of work",
                all.rank()
            );
        },
    );
}

#[test]
fn members_know_that_they_share_processors_over_any_link() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    if processors == 1 {
        // If this process may use only one processor, the number of processors of the node is unknown.
        return;
    }
    // The members are threads of this process, so this is not tried on the largest hosts.
    for (size, is_crowded) in [(2, false), (processors.min(15) + 1, processors < 16)] {
        each(
            size,
            |_| (),
            |all| {
                let barrier = all.collective(Collective::Barrier, Datatype::U8);
                let text = barrier.explain().expect("barriers have no arguments").to_string();
                assert_eq!(text.contains("ranks that share processors"), is_crowded, "{text}");
                all.barrier().expect("all are well");
            },
        );
    }
}

/// The test program starts itself again for this test, because other tests of this process would have lanes too.
#[test]
fn nothing_is_left_of_a_group_that_has_ended() {
    if std::env::var_os("HOTLEASE_TEST_ALONE").is_none() {
        let test = "near::nothing_is_left_of_a_group_that_has_ended";
        let status = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env("HOTLEASE_TEST_ALONE", "1")
            .status()
            .expect("it starts");
        assert!(status.success(), "{status}");
        return;
    }
    let left = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this is Linux");
        let open = std::fs::read_dir("/proc/self/fd").expect("this is Linux").count();
        (maps.matches("/memfd:hotlease").count(), open)
    };
    let before = left();
    each_over(
        &LinkChoice::Direct,
        3,
        |_| (),
        |all| {
            let (next, before) = ((all.rank() + 1) % 3, (all.rank() + 2) % 3);
            let mut theirs = vec![0; 100_000];
            for round in 0..100 {
                all.sendrecv(
                    &pattern(0, 100_000),
                    next,
                    round,
                    &mut theirs,
                    Pattern::of(before, round),
                )
                .expect("all are well");
            }
            let (lanes, _) = left();
            assert!(lanes > 0, "they talk over memory");
            all.finish().expect("everything is read");
        },
    );
    assert_eq!(left(), before);
}
