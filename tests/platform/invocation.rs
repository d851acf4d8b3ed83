//! Invoking through the client library: every way of calling, every size, every mode.

use hotlease_client::{Completion, EndReason, Error, Invoker, LeaseOptions, Polling, Ran};
use hotlease_tests::platform::Platform;
use hotlease_tests::process::Process;
use hotlease_tests::wait::{until, until_true};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + size) as u8).collect()
}

fn invoker(platform: &Platform) -> Invoker {
    platform.invoker("behaved")
}

fn two_slots(platform: &Platform) -> Invoker {
    platform.invoker_with("behaved", LeaseOptions { workers: 2, ..platform.lease_options() })
}

#[test]
fn every_size_arrives_and_returns_whole() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let edges = [0, 1, 7, 8, 31, 32, 33, 55, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8192, 65_535, 65_536, 70_000];
    for name in ["echo", "echo_context"] {
        let echo = invoker.function(name).unwrap().output_bytes(70_000);
        for size in edges.into_iter().chain((0..70_000).step_by(1777)) {
            let input = bytes(size);
            assert_eq!(echo.call(&input).unwrap(), input, "{name} of {size} bytes");
            // The output's room is exactly what is needed.
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
    for (wanted, room) in [(1u64, 0usize), (33, 32), (4097, 4096), (100_000, 50_000), (u64::MAX, 100)] {
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
    assert_eq!((error.ran(), error.billed(), error.retryable()), (Ran::Yes, true, false));
    assert!(error.to_string().contains("no luck today"), "{error}");
}

#[test]
fn function_knows_its_tenant_place_state_and_scratch() {
    let platform = Platform::start();
    let invoker = two_slots(&platform);
    let call = |name: &str, slot| invoker.function(name).unwrap().on_slot(slot).unwrap().call(b"").unwrap();
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
        let options = LeaseOptions { workers, slots, ..platform.lease_options() };
        let invoker = platform.invoker_with("behaved", options);
        assert_eq!(invoker.slots(), 2);
        let place = |slot| {
            let answer = invoker.function("place").unwrap().on_slot(slot).unwrap().call(b"").unwrap();
            let words: Vec<i32> = answer.chunks(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
            assert_eq!(words[1], i32::from(slots));
            words[2]
        };
        let cores: HashSet<u32> = [place(0), place(1)].into_iter().map(|core| core as u32).collect();
        assert_eq!(cores, platform.cores().iter().copied().collect(), "{workers} workers of {slots} slots");
        let process = invoker.function("process").unwrap();
        let pids: HashSet<_> = (0..2).map(|slot| process.clone().on_slot(slot).unwrap().call(b"").unwrap()).collect();
        assert_eq!(pids.len(), usize::from(workers));
        let error = process.on_slot(2).unwrap_err();
        assert!(matches!(error, Error::NoSuchSlot { index: 2, slots: 2 }), "{error:?}");
    }
    // Slots of one worker share its memory: both must be inside at once.
    let options = LeaseOptions { slots: 2, ..platform.lease_options() };
    let meet = platform.invoker_with("behaved", options).function("meet").unwrap();
    let results = meet.batch(&[&2u32.to_le_bytes(), &2u32.to_le_bytes()]);
    for result in results {
        assert_eq!(result.unwrap(), [1], "the other slot was not running");
    }
}

#[test]
fn futures_resolve_in_any_order() {
    let platform = Platform::start();
    let echo = invoker(&platform).function("echo").unwrap().output_bytes(5000);
    let inputs: Vec<Vec<u8>> = (0..50).map(|number| bytes(number * 100)).collect();
    let submit = || -> Vec<_> { inputs.iter().map(|input| echo.submit(input).unwrap()).collect() };
    for (future, input) in submit().into_iter().zip(&inputs).rev() {
        assert_eq!(&future.wait().unwrap(), input, "harvested backwards");
    }
    for (mut future, input) in submit().into_iter().zip(&inputs) {
        let (output, _) = until("it is done", SOON, || future.try_take());
        assert_eq!(&output.unwrap(), input);
    }
    for (mut future, input) in submit().into_iter().zip(&inputs) {
        let output = future.wait_timeout(SOON).expect("in time").unwrap();
        assert_eq!(&output, input);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for (future, input) in submit().into_iter().zip(&inputs) {
            assert_eq!(&future.await.unwrap(), input, "awaited");
        }
    });
    let mut slow = invoker(&platform).function("rest").unwrap().submit(&50u32.to_le_bytes()).unwrap();
    assert!(slow.wait_timeout(Duration::from_millis(1)).is_none(), "it takes 50 ms");
    assert!(!slow.is_done());
    slow.wait().unwrap();
}

#[test]
fn callbacks_come_once_each_and_a_panic_in_one_ends_nothing() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let echo = invoker.function("echo").unwrap();
    let (sender, receiver) = mpsc::channel();
    for number in 0..200u32 {
        let sender = sender.clone();
        let then = move |result: Result<Vec<u8>, Error>| {
            sender.send(result.unwrap()).unwrap();
            assert!(number != 100, "as planned");
        };
        echo.submit_then(&number.to_le_bytes(), then).unwrap();
    }
    drop(sender);
    let mut seen: Vec<u32> = receiver.iter().map(|output| u32::from_le_bytes(output.try_into().unwrap())).collect();
    seen.sort();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    let (sender, receiver) = mpsc::channel();
    let fails = invoker.function("fails").unwrap();
    fails.submit_then(b"", move |result| sender.send(result).unwrap()).unwrap();
    let result = receiver.recv_timeout(SOON).unwrap();
    assert!(matches!(result, Err(Error::Function { code: 7, .. })), "{result:?}");
}

#[test]
fn batch_and_map_use_both_slots_and_keep_the_order() {
    let platform = Platform::start();
    let invoker = two_slots(&platform);
    let echo = invoker.function("echo").unwrap();
    let inputs: Vec<Vec<u8>> = (0..1000).map(|number| bytes(number % 300)).collect();
    let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    for (result, input) in echo.batch(&slices).into_iter().zip(&inputs) {
        assert_eq!(&result.unwrap(), input);
    }
    let results: Result<Vec<_>, _> = echo.map(&inputs).collect();
    assert_eq!(results.unwrap(), inputs);
    let pids: HashSet<Vec<u8>> = invoker.function("process").unwrap().map(&inputs[..100]).map(Result::unwrap).collect();
    assert_eq!(pids.len(), 2, "both workers were used");
    assert_eq!(echo.map(Vec::<Vec<u8>>::new()).count(), 0);
    // An endless input is drawn only as far as results are.
    let drawn = Arc::new(AtomicU32::new(0));
    let counter = drawn.clone();
    let endless = std::iter::repeat_with(move || counter.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    assert_eq!(echo.map(endless).take(10).count(), 10);
    assert!(drawn.load(Ordering::Relaxed) < 1000);
    // One failure is one result.
    let produce = invoker.function("produce").unwrap();
    let sizes = [1u64, 1 << 40, 2].map(u64::to_le_bytes);
    let results: Vec<_> = produce.map(sizes).collect();
    assert!(results[0].is_ok() && results[1].is_err() && results[2].is_ok(), "{results:?}");
}

#[test]
fn buffers_are_read_and_written_in_place() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let increment = invoker.function("increment").unwrap();
    let (mut input, mut output) = (invoker.buffer::<u8>(1 << 20).unwrap(), invoker.buffer::<u8>(1 << 20).unwrap());
    input.copy_from_slice(&bytes(1 << 20));
    assert_eq!(increment.invoke_buffer(&input, &mut output).unwrap(), 1 << 20);
    assert!(input.iter().zip(output.iter()).all(|(from, to)| from.wrapping_add(1) == *to));
    // Parts; what stands beside them is not touched.
    output.fill(0);
    assert_eq!(increment.invoke_buffer(input.slice(1000..1100), output.slice_mut(5..105)).unwrap(), 100);
    assert!(output[5..105].iter().zip(&input[1000..1100]).all(|(to, from)| from.wrapping_add(1) == *to));
    assert!(output[..5].iter().chain(&output[105..]).all(|byte| *byte == 0));
    // Bytes on one side.
    let mut little = [0; 10];
    assert_eq!(increment.invoke_buffer(input.slice(..10), &mut little[..]).unwrap(), 10);
    assert_eq!(increment.invoke_buffer(&[1, 2, 3][..], output.slice_mut(..)).unwrap(), 3);
    assert_eq!(output[..3], [2, 3, 4]);
    let error = increment.invoke_buffer(input.slice(..10), output.slice_mut(..9)).unwrap_err();
    assert!(matches!(error, Error::Function { .. }), "{error:?}");
    // Later.
    let future = increment.submit_buffer(&input, output.slice_mut(..)).unwrap();
    assert_eq!(future.wait().unwrap(), 1 << 20);
    assert_eq!(output[12345], input[12345].wrapping_add(1));
    let future = invoker.function("first_byte").unwrap().submit_from_buffer(&input).unwrap();
    assert_eq!(future.wait().unwrap(), [input[0]]);
}

#[test]
fn large_buffer_is_copied_by_nobody() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let pid = u32::from_le_bytes(invoker.function("process").unwrap().call(b"").unwrap().try_into().unwrap());
    let worker = Process::of(pid as i32).unwrap();
    let ours = Process::of(std::process::id() as i32).unwrap();
    const SIZE: u64 = 256 << 20;
    let mut buffer = invoker.buffer::<u8>(SIZE as usize).unwrap();
    buffer[0] = 77;
    let (before, ours_before) = (worker.rss_bytes(), ours.rss_bytes());
    assert_eq!(invoker.function("first_byte").unwrap().invoke_buffer(&buffer, &mut [0; 1][..]).unwrap(), 1);
    // A copy, or a touch of every page, would show.
    assert!(worker.rss_bytes() < before + SIZE / 8);
    assert!(ours.rss_bytes() < ours_before + SIZE / 8);
}

#[test]
fn buffer_of_another_lease_or_a_replaced_worker_is_registered_by_its_first_use() {
    let platform = Platform::start();
    let (first, second) = (invoker(&platform), invoker(&platform));
    let mut buffer = first.buffer::<u8>(100).unwrap();
    buffer.fill(5);
    for invoker in [&first, &second] {
        let mut output = invoker.buffer::<u8>(100).unwrap();
        let increment = invoker.function("increment").unwrap();
        increment.invoke_buffer(&buffer, &mut output).unwrap();
        assert_eq!(output[99], 6);
    }
    let pid = first.function("process").unwrap().call(b"").unwrap();
    let worker = Process::of(u32::from_le_bytes(pid.try_into().unwrap()) as i32).unwrap();
    worker.signal(nix::sys::signal::Signal::SIGKILL);
    until_true("it is gone", SOON, || !worker.is_alive());
    let mut output = first.buffer::<u8>(100).unwrap();
    let increment = first.function("increment").unwrap().idempotent(true);
    increment.invoke_buffer(&buffer, &mut output).unwrap();
    assert_eq!(output[99], 6);
}

#[test]
fn sixty_four_in_flight_on_a_slot_and_no_more() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let rest = invoker.function("rest").unwrap();
    let mut futures: Vec<_> = (0..64).map(|_| rest.try_submit(&5u32.to_le_bytes()).unwrap()).collect();
    let error = rest.try_submit(b"").unwrap_err();
    assert!(matches!(error, Error::NoCredit), "{error:?}");
    assert!(error.retryable());
    // Waits for room, and finds it.
    futures.push(rest.submit(b"").unwrap());
    for future in futures {
        future.wait().unwrap();
    }
    let mut pipeline = invoker.function("echo").unwrap().pipeline().unwrap();
    let mut output = [0; 8];
    for number in 0..10_000u64 {
        if pipeline.is_full() {
            assert_eq!(pipeline.pop(&mut output).unwrap(), Some(8));
            assert_eq!(u64::from_le_bytes(output), number - 64, "in order");
        }
        pipeline.push(&number.to_le_bytes()).unwrap();
    }
    assert_eq!(pipeline.len(), 64);
    while pipeline.pop(&mut output).unwrap().is_some() {}
    assert_eq!(u64::from_le_bytes(output), 9_999);
}

#[test]
fn futures_that_nobody_harvests_yet_hold_up_nothing() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let echo = invoker.function("echo").unwrap();
    let futures: Vec<_> = (0..500u32).map(|number| echo.submit(&number.to_le_bytes()).unwrap()).collect();
    // Other calls of the same slot go on.
    assert_eq!(echo.call(b"between").unwrap(), b"between");
    for (number, future) in futures.into_iter().enumerate().rev() {
        assert_eq!(future.wait().unwrap(), (number as u32).to_le_bytes());
    }
}

#[test]
fn dropped_futures_run_and_take_no_room() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let count = invoker.function("count").unwrap();
    for _ in 0..1000 {
        drop(count.submit(b"").unwrap());
    }
    assert_eq!(count.call(b"").unwrap(), 1001u64.to_le_bytes(), "each of them ran, once");
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
            let options = LeaseOptions { polling, completion, ..platform.lease_options() };
            let invoker = platform.invoker_with("behaved", options);
            let echo = invoker.function("echo").unwrap();
            for number in 0..300u32 {
                assert_eq!(echo.call(&number.to_le_bytes()).unwrap(), number.to_le_bytes());
                // Past the slot's budget now and then, so that it has gone to sleep.
                if number % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        }
    }
}

#[test]
fn bill_counts_what_was_done() {
    let platform = Platform::start_alone();
    let options = LeaseOptions { polling: Polling::Hot, hot_budget: Duration::from_millis(20), ..platform.lease_options() };
    let start = Instant::now();
    let invoker = platform.invoker_with("behaved", options);
    let compute = invoker.function("compute").unwrap();
    let mut last = invoker.usage().unwrap();
    for _ in 0..5 {
        compute.call(&20u32.to_le_bytes()).unwrap();
        let now = invoker.usage().unwrap();
        assert!(now.allocated_ns >= last.allocated_ns && now.hot_ns >= last.hot_ns, "{last:?}, then {now:?}");
        assert!(now.compute_ns >= last.compute_ns && now.invocations >= last.invocations, "{last:?}, then {now:?}");
        last = now;
    }
    let error = invoker.function("fails").unwrap().call(b"").unwrap_err();
    assert!(error.billed());
    let bill = invoker.deallocate().unwrap();
    let whole = start.elapsed().as_nanos() as u64;
    println!("{bill:?} of {whole} ns");
    assert_eq!(bill.invocations, 6);
    assert!((100_000_000..200_000_000).contains(&bill.compute_ns), "five times 20 ms: {bill:?}");
    assert!(bill.allocated_ns >= bill.compute_ns + bill.hot_ns, "one slot: {bill:?}");
    assert!(bill.allocated_ns <= whole, "{bill:?} of {whole} ns");
    assert!(bill.hot_ns > 0, "it polled: {bill:?}");
    assert!(last.invocations <= bill.invocations && last.allocated_ns <= bill.allocated_ns);
}

#[test]
fn warm_slot_bills_no_polling() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker_with("behaved", LeaseOptions { polling: Polling::Warm, ..platform.lease_options() });
    let echo = invoker.function("echo").unwrap();
    for _ in 0..50 {
        echo.call(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let bill = invoker.deallocate().unwrap();
    assert!(bill.hot_ns < bill.allocated_ns / 20, "{bill:?}");
}

#[test]
fn new_lease_is_taken_by_the_next_call_when_one_has_ended() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let process = invoker.function("process").unwrap();
    let (lease, pid) = (invoker.lease(), process.call(b"").unwrap());
    platform.manager().revoke(&lease.to_string()).unwrap();
    let again = process.call(b"").unwrap();
    assert_ne!(again, pid, "another worker");
    assert_ne!(invoker.lease(), lease, "another lease");

    let options = LeaseOptions { renew_lease: false, ..platform.lease_options() };
    let invoker = platform.invoker_with("behaved", options);
    platform.manager().revoke(&invoker.lease().to_string()).unwrap();
    let echo = invoker.function("echo").unwrap();
    let (error, _) = until("the end is known", SOON, || echo.call(b"").err());
    assert!(matches!(error, Error::LeaseEnded { ran: Ran::No, .. }), "{error:?}");
}

#[test]
fn deallocated_invoker_refuses_calls() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let (clone, echo) = (invoker.clone(), invoker.function("echo").unwrap());
    echo.call(b"x").unwrap();
    let resting = invoker.function("rest").unwrap().submit(&60_000u32.to_le_bytes()).unwrap();
    let bill = invoker.deallocate().unwrap();
    assert!(bill.invocations >= 1);
    let error = resting.wait().unwrap_err();
    assert!(matches!(error, Error::LeaseEnded { reason: EndReason::Released, .. }), "{error:?}");
    for _ in 0..3 {
        let error = echo.call(b"x").unwrap_err();
        assert!(matches!(error, Error::LeaseEnded { reason: EndReason::Released, ran: Ran::No }), "{error:?}");
    }
    clone.deallocate().unwrap_err();
    assert_eq!(platform.free_cores(), 2);
}

#[test]
fn calls_resolve_within_a_second_when_the_platform_is_killed_and_go_on_when_it_is_back() {
    let mut platform = Platform::start_alone();
    let invoker = invoker(&platform);
    let rest = invoker.function("rest").unwrap().idempotent(false);
    let echo = invoker.function("echo").unwrap();
    echo.call(b"x").unwrap();
    let in_flight = rest.submit(&60_000u32.to_le_bytes()).unwrap();
    let queued = rest.submit(&0u32.to_le_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    platform.kill();
    let killed = Instant::now();
    let error = in_flight.wait().unwrap_err();
    println!("{error} after {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    assert_eq!(error.ran(), Ran::Unknown, "{error:?}");
    // It stood behind the other; but nobody is left who could say that the worker did not go on.
    let error = queued.wait().unwrap_err();
    assert_eq!(error.ran(), Ran::Unknown, "{error:?}");
    let error = echo.call(b"x").unwrap_err();
    assert!(matches!(error, Error::NotRunning { .. }), "{error:?}");
    assert!(error.to_string().contains("hotlease up"), "{error}");
    platform.nothing_runs(Duration::from_secs(1));
    platform.up_again();
    assert_eq!(echo.call(b"again").unwrap(), b"again");
}

#[test]
fn lease_without_capacity_is_refused_at_once_and_given_later() {
    let platform = Platform::start();
    let both = two_slots(&platform);
    let code = both.code().clone();
    let start = Instant::now();
    let error = Invoker::allocate(&code, platform.lease_options()).unwrap_err();
    assert!(
        matches!(error, Error::Refused(hotlease_client::Refusal::NoCapacity { asked: 1, free: 0, offered: 2 })),
        "{error:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(error.retryable());
    drop(both);
    let later = Invoker::allocate(&code, platform.lease_options()).expect("dropping gave the cores back");
    later.function("echo").unwrap().call(b"x").unwrap();
}
