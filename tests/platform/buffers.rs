//! Registered memory: nothing is copied.

use crate::invocation::{bytes, invoker};
use hotlease_client::Error;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;

#[test]
fn buffers_are_read_and_written_in_place() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let increment = invoker.function("increment").unwrap();
    let (mut input, mut output) = (
        invoker.buffer::<u8>(1 << 20).unwrap(),
        invoker.buffer::<u8>(1 << 20).unwrap(),
    );
    input.copy_from_slice(&bytes(1 << 20));
    assert_eq!(increment.invoke_buffer(&input, &mut output).unwrap(), 1 << 20);
    assert!(
        input
            .iter()
            .zip(output.iter())
            .all(|(from, to)| from.wrapping_add(1) == *to)
    );
    // Parts; what stands beside them is not touched.
    output.fill(0);
    assert_eq!(
        increment
            .invoke_buffer(input.slice(1000..1100), output.slice_mut(5..105))
            .unwrap(),
        100
    );
    assert!(
        output[5..105]
            .iter()
            .zip(&input[1000..1100])
            .all(|(to, from)| from.wrapping_add(1) == *to)
    );
    assert!(output[..5].iter().chain(&output[105..]).all(|byte| *byte == 0));
    // Bytes on one side.
    let mut little = [0; 10];
    assert_eq!(
        increment
            .invoke_buffer(input.slice(..10), &mut little[..])
            .unwrap(),
        10
    );
    assert_eq!(
        increment
            .invoke_buffer(&[1, 2, 3][..], output.slice_mut(..))
            .unwrap(),
        3
    );
    assert_eq!(output[..3], [2, 3, 4]);
    let error = increment
        .invoke_buffer(input.slice(..10), output.slice_mut(..9))
        .unwrap_err();
    assert!(matches!(error, Error::Function { .. }), "{error:?}");
    // Later.
    let future = increment.submit_buffer(&input, output.slice_mut(..)).unwrap();
    assert_eq!(future.wait().unwrap(), 1 << 20);
    assert_eq!(output[12345], input[12345].wrapping_add(1));
    let future = invoker
        .function("first_byte")
        .unwrap()
        .submit_from_buffer(&input)
        .unwrap();
    assert_eq!(future.wait().unwrap(), [input[0]]);
}

#[test]
fn large_buffer_is_copied_by_nobody() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let pid = u32::from_le_bytes(
        invoker
            .function("process")
            .unwrap()
            .call(b"")
            .unwrap()
            .try_into()
            .unwrap(),
    );
    let worker = Process::of(pid as i32).unwrap();
    let ours = Process::of(std::process::id() as i32).unwrap();
    const SIZE: u64 = 256 << 20;
    let mut buffer = invoker.buffer::<u8>(SIZE as usize).unwrap();
    buffer[0] = 77;
    let (before, ours_before) = (worker.rss_bytes(), ours.rss_bytes());
    assert_eq!(
        invoker
            .function("first_byte")
            .unwrap()
            .invoke_buffer(&buffer, &mut [0; 1][..])
            .unwrap(),
        1
    );
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
    until_true("it is gone", LIMIT, || !worker.is_alive());
    let mut output = first.buffer::<u8>(100).unwrap();
    let increment = first.function("increment").unwrap().idempotent(true);
    increment.invoke_buffer(&buffer, &mut output).unwrap();
    assert_eq!(output[99], 6);
}
