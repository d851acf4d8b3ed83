//! Many invocations at once: futures, callbacks, batches, maps, pipelines.

use crate::invocation::{bytes, invoker, two_slots};
use hotlease_client::{Error, LeaseOptions};
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::until;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

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
        let (output, _) = until("it is done", LIMIT, || future.try_take());
        assert_eq!(&output.unwrap(), input);
    }
    for (mut future, input) in submit().into_iter().zip(&inputs) {
        let output = future.wait_timeout(LIMIT).expect("in time").unwrap();
        assert_eq!(&output, input);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for (future, input) in submit().into_iter().zip(&inputs) {
            assert_eq!(&future.await.unwrap(), input, "awaited");
        }
    });
    let rest = invoker(&platform).function("rest").unwrap();
    let begun = Instant::now();
    let mut slow = rest.submit(&500u32.to_le_bytes()).unwrap();
    let is_early = slow.wait_timeout(Duration::from_millis(1)).is_none() && !slow.is_done();
    assert!(
        is_early || begun.elapsed() >= Duration::from_millis(500),
        "it takes 500 ms"
    );
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
    let mut seen: Vec<u32> = receiver
        .iter()
        .map(|output| u32::from_le_bytes(output.try_into().unwrap()))
        .collect();
    seen.sort();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    let (sender, receiver) = mpsc::channel();
    let fails = invoker.function("fails").unwrap();
    fails
        .submit_then(b"", move |result| sender.send(result).unwrap())
        .unwrap();
    let result = receiver.recv_timeout(LIMIT).unwrap();
    assert!(matches!(result, Err(Error::Function { code: 7, .. })), "{result:?}");
}

#[test]
fn a_batch_whose_platform_has_ended_waits_for_another_lease_only_once() {
    let mut platform = Platform::start();
    let move_within = Duration::from_millis(500);
    let options = LeaseOptions {
        move_within,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("behaved", options);
    let echo = invoker.function("echo").unwrap();
    assert_eq!(echo.call(b"there").unwrap(), b"there");
    platform.stop();
    let begun = Instant::now();
    let results = echo.batch(&[b"".as_slice(); 1000]);
    let took = begun.elapsed();
    assert!(results.iter().all(Result::is_err));
    // Each input waited for half a second: 500 s.
    assert!(took < Duration::from_secs(50), "{took:?}");
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
    let pids: HashSet<Vec<u8>> = invoker
        .function("process")
        .unwrap()
        .map(&inputs[..100])
        .map(Result::unwrap)
        .collect();
    assert_eq!(pids.len(), 2, "both workers were used");
    assert_eq!(echo.map(Vec::<Vec<u8>>::new()).count(), 0);
    // An endless input is read only as far as results are.
    let drawn = Arc::new(AtomicU32::new(0));
    let counter = drawn.clone();
    let endless = std::iter::repeat_with(move || counter.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    assert_eq!(echo.map(endless).take(10).count(), 10);
    assert!(drawn.load(Ordering::Relaxed) < 1000);
    // One failure makes one failed result.
    let produce = invoker.function("produce").unwrap();
    let sizes = [1u64, 1 << 40, 2].map(u64::to_le_bytes);
    let results: Vec<_> = produce.map(sizes).collect();
    assert!(
        results[0].is_ok() && results[1].is_err() && results[2].is_ok(),
        "{results:?}"
    );
}

#[test]
fn sixty_four_in_flight_on_a_slot_and_no_more() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let rest = invoker.function("rest").unwrap();
    // The first call runs for a second, and the other calls wait behind it: only calls that are submitted before its
    // end prove anything.
    let mut is_told = false;
    while !is_told {
        let begun = Instant::now();
        let mut futures: Vec<_> = (0..64)
            .map(|number| {
                rest.try_submit(&if number == 0 { 1000u32 } else { 0 }.to_le_bytes())
                    .unwrap()
            })
            .collect();
        match rest.try_submit(b"") {
            Err(error) => {
                assert!(matches!(error, Error::NoCredit), "{error:?}");
                assert!(error.retryable());
                is_told = true;
            }
            Ok(_) => assert!(begun.elapsed() >= Duration::from_secs(1), "one more than 64"),
        }
        // This call waits for a free entry, and gets it.
        futures.push(rest.submit(b"").unwrap());
        for future in futures {
            future.wait().unwrap();
        }
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
fn futures_that_are_not_read_yet_hold_up_nothing() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let echo = invoker.function("echo").unwrap();
    let futures: Vec<_> = (0..500u32)
        .map(|number| echo.submit(&number.to_le_bytes()).unwrap())
        .collect();
    // Other calls of this slot go on.
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
    assert_eq!(
        count.call(b"").unwrap(),
        1001u64.to_le_bytes(),
        "each of them ran, once"
    );
}
