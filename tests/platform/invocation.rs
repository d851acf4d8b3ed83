//! Invocations through the client library: every size, every slot, every mode.

mod buffers;
mod children;
mod functions;
mod futures;
mod gangs;
mod invokers;
mod libraries;
mod logs;
mod registrations;
mod retries;
mod surroundings;

use hotlease_client::{Completion, Error, Invoker, LeaseOptions, Polling, RunCertainty};
use hotlease_tests::platform::Platform;
use std::collections::HashSet;
use std::time::Duration;

/// This many bytes, different for each size.
pub fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + size) as u8).collect()
}

/// A lease of one slot with well-behaved functions.
pub fn invoker(platform: &Platform) -> Invoker {
    platform.invoker("behaved")
}

/// A lease of two workers of one slot each.
pub fn two_slots(platform: &Platform) -> Invoker {
    platform.invoker_with(
        "behaved",
        LeaseOptions {
            workers: 2,
            ..platform.lease_options()
        },
    )
}

#[test]
fn every_size_arrives_and_returns_whole() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let edges = [
        0, 1, 7, 8, 31, 32, 33, 55, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8192, 65_535, 65_536, 70_000,
    ];
    for name in ["echo", "echo_context"] {
        let echo = invoker.function(name).unwrap().output_bytes(70_000);
        for size in edges.into_iter().chain((0..70_000).step_by(1777)) {
            let input = bytes(size);
            assert_eq!(echo.call(&input).unwrap(), input, "{name} of {size} bytes");
            // The output buffer has exactly the needed size.
            let mut output = vec![0; size];
            assert_eq!(echo.invoke(&input, &mut output).unwrap(), size);
            assert_eq!(output, input, "{name} of {size} bytes into as many");
        }
    }
}

#[test]
fn output_larger_than_its_room_is_an_error_with_both_sizes() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let produce = invoker.function("produce").unwrap();
    for (wanted, room) in [
        (1u64, 0usize),
        (33, 32),
        (4097, 4096),
        (100_000, 50_000),
        (u64::MAX, 100),
    ] {
        let error = produce.invoke(&wanted.to_le_bytes(), &mut vec![0; room]).unwrap_err();
        let Error::OutputTooLarge { produced, capacity } = error else {
            panic!("{error:?}");
        };
        assert_eq!((produced, capacity), (wanted, room as u64));
    }
    assert_eq!(produce.call(&10u64.to_le_bytes()).unwrap(), b"xxxxxxxxxx");
}

#[test]
fn error_of_the_function_itself_arrives_with_number_and_words() {
    let platform = Platform::start();
    let error = invoker(&platform).function("fails").unwrap().call(b"").unwrap_err();
    let Error::Function { code: 7, output } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(output, b"no luck today");
    assert_eq!(
        (error.ran(), error.billed(), error.retryable()),
        (RunCertainty::Yes, true, false)
    );
    assert!(error.to_string().contains("no luck today"), "{error}");
}

#[test]
fn function_knows_its_tenant_place_state_and_scratch() {
    let platform = Platform::start();
    let invoker = two_slots(&platform);
    let call = |name: &str, slot| {
        invoker
            .function(name)
            .unwrap()
            .on_slot(slot)
            .unwrap()
            .call(b"")
            .unwrap()
    };
    assert_eq!(call("tenant", 0), format!("uid:{}", nix::unistd::getuid()).as_bytes());
    for slot in 0..2 {
        for expected in 1..=3u64 {
            assert_eq!(call("count", slot), expected.to_le_bytes(), "state of slot {slot}");
        }
        let scratch = u64::from_le_bytes(call("scratch", slot).try_into().unwrap());
        assert!(scratch >= 64 << 10, "{scratch} bytes of scratch");
        assert_eq!(call("aligned", slot), [1]);
    }
}

#[test]
fn slots_run_on_distinct_granted_cores_at_the_same_time() {
    let platform = Platform::start();
    let shapes = [(2, 1), (1, 2)];
    for (workers, slots) in shapes {
        let options = LeaseOptions {
            workers,
            slots,
            ..platform.lease_options()
        };
        let invoker = platform.invoker_with("behaved", options);
        assert_eq!(invoker.slots(), 2);
        let place = |slot| {
            let answer = invoker
                .function("place")
                .unwrap()
                .on_slot(slot)
                .unwrap()
                .call(b"")
                .unwrap();
            let words: Vec<i32> = answer
                .chunks(4)
                .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
                .collect();
            assert_eq!(words[1], i32::from(slots));
            words[2]
        };
        let cores: HashSet<u32> = [place(0), place(1)].into_iter().map(|core| core as u32).collect();
        assert_eq!(
            cores,
            platform.cores().iter().copied().collect(),
            "{workers} workers of {slots} slots"
        );
        let process = invoker.function("process").unwrap();
        let pids: HashSet<_> = (0..2)
            .map(|slot| process.clone().on_slot(slot).unwrap().call(b"").unwrap())
            .collect();
        assert_eq!(pids.len(), usize::from(workers));
        let error = process.on_slot(2).unwrap_err();
        assert!(matches!(error, Error::NoSuchSlot { index: 2, slots: 2 }), "{error:?}");
    }
    // Slots of one worker share its memory: both calls must be running at once.
    let options = LeaseOptions {
        slots: 2,
        ..platform.lease_options()
    };
    let meet = platform.invoker_with("behaved", options).function("meet").unwrap();
    let results = meet.batch(&[&2u32.to_le_bytes(), &2u32.to_le_bytes()]);
    for result in results {
        assert_eq!(result.unwrap(), [1], "the other slot was not running");
    }
}

#[test]
fn many_threads_and_several_leases_get_their_own_answers() {
    let platform = Platform::start();
    let invokers = [invoker(&platform), invoker(&platform)];
    assert_ne!(invokers[0].lease(), invokers[1].lease());
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let echo = invokers[thread % 2].function("echo").unwrap().output_bytes(5000);
            scope.spawn(move || {
                for number in 0..300 {
                    let input = bytes(number * 16 + thread);
                    assert_eq!(echo.call(&input).unwrap(), input, "thread {thread}, number {number}");
                    let future = echo.submit(&input).unwrap();
                    assert_eq!(future.wait().unwrap(), input, "thread {thread}, number {number}");
                }
            });
        }
    });
}

#[test]
fn every_mode_of_polling_and_waiting_answers() {
    let platform = Platform::start();
    for polling in [Polling::Hot, Polling::Warm, Polling::Adaptive] {
        for completion in [Completion::Spin, Completion::Sleep, Completion::Adaptive] {
            let options = LeaseOptions {
                polling,
                completion,
                ..platform.lease_options()
            };
            let invoker = platform.invoker_with("behaved", options);
            let echo = invoker.function("echo").unwrap();
            for number in 0..300u32 {
                assert_eq!(echo.call(&number.to_le_bytes()).unwrap(), number.to_le_bytes());
                // Some pauses are longer than the slot's polling budget, so that the slot has gone to sleep.
                if number % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        }
    }
}
