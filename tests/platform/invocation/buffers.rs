//! Buffers in registered memory: no byte is copied.

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
    // Parts of buffers; bytes beside them are not touched.
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
    // A buffer on one side and bytes on the other.
    let mut little = [0; 10];
    assert_eq!(increment.invoke_buffer(input.slice(..10), &mut little[..]).unwrap(), 10);
    assert_eq!(
        increment.invoke_buffer(&[1, 2, 3][..], output.slice_mut(..)).unwrap(),
        3
    );
    assert_eq!(output[..3], [2, 3, 4]);
    let error = increment
        .invoke_buffer(input.slice(..10), output.slice_mut(..9))
        .unwrap_err();
    assert!(matches!(error, Error::Function { .. }), "{error:?}");
    // The same call as a future.
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
fn several_parts_are_one_input_and_one_output() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let increment = invoker.function("increment").unwrap();
    let mut input = invoker.buffer::<u8>(1 << 20).unwrap();
    input.copy_from_slice(&bytes(1 << 20));
    let output = invoker.buffer::<u8>(1 << 20).unwrap();
    let gathered = [input.slice(500_000..700_000), input.slice(..1)];
    let scattered = [output.slice_shared(9..10), output.slice_shared(100_000..400_000)];
    let length = increment.invoke_buffer(&gathered[..], &scattered[..]).unwrap();
    assert_eq!(length, 200_001);
    let expected = input[500_000..700_000].iter().chain(&input[..1]);
    let written = output[9..10].iter().chain(&output[100_000..300_000]);
    assert!(expected.zip(written).all(|(from, to)| from.wrapping_add(1) == *to));
    let beside = [&output[..9], &output[10..100_000], &output[300_000..]];
    assert!(beside.iter().all(|part| part.iter().all(|byte| *byte == 0)));
    // The capacity is the sum over all parts.
    let error = increment.invoke_buffer(&gathered[..], &scattered[..1]).unwrap_err();
    assert!(matches!(error, Error::Function { .. }), "{error:?}");
    let many = vec![input.slice(..1); hotlease_client::PARTS_MAX + 1];
    let error = increment.invoke_buffer(&many[..], &mut [0; 32][..]).unwrap_err();
    assert!(
        matches!(error, Error::TooManyParts { parts: 17, limit: 16 }),
        "{error:?}"
    );
    let length = increment.invoke_buffer(&many[1..], &mut [0; 32][..]);
    assert_eq!(length.unwrap(), 16);
    // By a future, and with a function that returns its output in a reply entry of the ring.
    let future = increment.submit_from_buffer(&gathered[..]);
    assert!(
        future.is_ok_and(|future| future.wait().is_err()),
        "200001 bytes into one reply entry"
    );
}

#[test]
fn large_buffer_is_copied_by_neither_side() {
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
    // A copy, or a touch of every page, would show here.
    assert!(worker.rss_bytes() < before + SIZE / 8);
    assert!(ours.rss_bytes() < ours_before + SIZE / 8);
}

#[test]
fn gibibyte_in_one_buffer_comes_back_whole() {
    const BYTES: usize = 1 << 30;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    if available < 4 << 20 {
        return eprintln!("skipped: {available} KiB of memory are available, and 4 GiB are needed");
    }
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let (mut input, mut output) = (
        invoker.buffer::<u64>(BYTES / 8).unwrap(),
        invoker.buffer::<u64>(BYTES / 8).unwrap(),
    );
    for (page, words) in (1..).zip(input.chunks_exact_mut(512)) {
        (words[0], words[511]) = (page, !page);
    }
    let echo = invoker.function("echo").unwrap();
    assert_eq!(echo.invoke_buffer(&input, &mut output).unwrap(), BYTES);
    assert!(output[..] == input[..], "it came back otherwise");
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
