//! A client program for tests of the invocation path. It does one thing over the transport and manager that its
//! environment names, checks every byte, and prints `ok` or the error.
//!
//! `hotlease-test-caller LIBRARY ACTION [ARGUMENT]`, where LIBRARY is `behaved` or `misbehaved` of `fixtures/`.

use hotlease_client::{Buffer, Code, Completion, Error, Function, Invoker, LeaseOptions, Polling};
use std::io::Write;
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Errors are ignored: a test that has ended no longer reads, and kills this process anyway.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed.wrapping_mul(197)) as u8)
        .collect()
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Outcome {
    if found == expected {
        return Ok(());
    }
    let at = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    Err(format!(
        "{what}: {} bytes instead of {}, the first that differs at {at:?}",
        found.len(),
        expected.len()
    )
    .into())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [library, action] => carry_out(library, action, ""),
        [library, action, argument] => carry_out(library, action, argument),
        _ => Err("arguments: LIBRARY ACTION [ARGUMENT]".into()),
    };
    match done {
        Ok(()) => say("ok"),
        Err(error) => {
            say(&format!("failed: {error}"));
            std::process::exit(1);
        }
    }
}

fn carry_out(library: &str, action: &str, argument: &str) -> Outcome {
    let code = Code::open(library)?;
    let options = LeaseOptions {
        ttl: Duration::from_secs(2),
        ..LeaseOptions::default()
    };
    match action {
        "everything" => everything(&code, &options),
        "warm" => everything(
            &code,
            &LeaseOptions {
                polling: Polling::Warm,
                completion: Completion::Sleep,
                ..options
            },
        ),
        "large" => large(&Invoker::allocate(&code, options)?, argument.parse()?),
        "dies" => dies(&Invoker::allocate(&code, options)?, argument),
        "cut" => cut(&Invoker::allocate(&code, options)?),
        "few" => few(&Invoker::allocate(&code, options)?),
        "transfers" => transfers(&Invoker::allocate(&code, options)?, argument),
        "drops" => drops(&Invoker::allocate(&code, options)?),
        "allocate" => Ok(Invoker::allocate(&code, options).map(drop)?),
        "connections" => connections(&code, &options, argument.parse()?),
        other => Err(format!("no action {other}").into()),
    }
}

/// Gathers an input from parts of buffers, and scatters an output over parts of a buffer.
fn parts(increment: &Function, input: &Buffer<u8>, result: &mut Buffer<u8>) -> Outcome {
    let gathered = [input.slice(70_000..100_003), input.slice(5..5), input.slice(..17_001)];
    let expected: Vec<u8> = input[70_000..]
        .iter()
        .chain(&input[..17_001])
        .map(|byte| byte.wrapping_add(1))
        .collect();
    result.fill(0);
    let scattered = [
        result.slice_shared(90_000..90_001),
        result.slice_shared(3..40_003),
        result.slice_shared(50_000..60_000),
    ];
    let length = increment.invoke_buffer(&gathered[..], &scattered[..])?;
    same("the first part", &result[90_000..90_001], &expected[..1])?;
    same("the second part", &result[3..40_003], &expected[1..40_001])?;
    same(
        "the third part",
        &result[50_000..50_000 + length - 40_001],
        &expected[40_001..],
    )?;
    let outside = [
        &result[..3],
        &result[40_003..50_000],
        &result[50_000 + length - 40_001..90_000],
        &result[90_001..],
    ];
    if outside.iter().any(|bytes| bytes.iter().any(|byte| *byte != 0)) {
        return Err("a call wrote beside the parts of its output".into());
    }
    // Parts on one side, bytes or a single part in place on the other side.
    let mut bytes = vec![0; 47_004];
    let length = increment.invoke_buffer(&gathered[..], &mut bytes[..])?;
    same("parts to bytes", &bytes[..length], &expected)?;
    let length = increment.invoke_buffer(input.slice(70_000..), &scattered[..])?;
    same("a buffer to parts", &result[3..30_005], &expected[1..length])
}

/// Makes calls of every kind and size.
fn everything(code: &Code, options: &LeaseOptions) -> Outcome {
    let invoker = Invoker::allocate(code, options.clone())?;
    let echo = invoker.function("echo")?;
    let mut output = vec![0; 300_000];
    for (seed, size) in [0, 1, 8, 31, 32, 33, 64, 1000, 4000, 4096, 8128, 8129, 65_536, 300_000]
        .into_iter()
        .enumerate()
    {
        for alignment in [0, 1, 7] {
            let input = pattern(size + alignment, seed as u64);
            let length = echo.invoke(&input[alignment..], &mut output)?;
            same("echo", &output[..length], &input[alignment..])?;
        }
    }
    // More calls in flight than the ring has entries.
    let futures = (0..500u64).map(|number| echo.submit(&number.to_le_bytes()));
    for (number, future) in futures.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate() {
        same("a future", &future.wait()?, &(number as u64).to_le_bytes())?;
    }
    let (sender, results) = mpsc::channel();
    for number in 0..50u64 {
        let sender = sender.clone();
        echo.submit_then(&number.to_le_bytes(), move |result| {
            let _ = sender.send(result);
        })?;
    }
    for number in 0..50u64 {
        let result = results.recv_timeout(Duration::from_secs(20))??;
        same("a callback", &result, &number.to_le_bytes())?;
    }
    let mut pipeline = echo.pipeline()?;
    let mut eight = [0; 8];
    for number in 0..200u64 {
        if pipeline.is_full() {
            pipeline.pop(&mut eight)?;
        }
        pipeline.push(&number.to_le_bytes())?;
    }
    while pipeline.pop(&mut eight)?.is_some() {}
    same("a pipeline", &eight, &199u64.to_le_bytes())?;

    // Buffers: whole, in parts, one buffer for input and output, bytes on one side.
    let increment = invoker.function("increment")?;
    let (mut input, mut result) = (invoker.buffer::<u8>(100_003)?, invoker.buffer::<u8>(100_003)?);
    input.copy_from_slice(&pattern(100_003, 5));
    let expected: Vec<u8> = input.iter().map(|byte| byte.wrapping_add(1)).collect();
    increment.invoke_buffer(&input, &mut result)?;
    same("buffers", &result, &expected)?;
    result.fill(0);
    let length = increment.invoke_buffer(input.slice(13..50_013), result.slice_mut(7..60_000))?;
    same("a part of a buffer", &result[7..7 + length], &expected[13..50_013])?;
    if result[..7] != [0; 7] || result[50_007..].iter().any(|byte| *byte != 0) {
        return Err("a call wrote beside its part of the buffer".into());
    }
    let mut few = [0; 16];
    let length = increment.invoke_buffer(input.slice(1..9), &mut few[..])?;
    same("buffer to bytes", &few[..length], &expected[1..9])?;
    increment.invoke_buffer(&input[..9], result.slice_mut(..9))?;
    same("bytes to buffer", &result[..9], &expected[..9])?;

    parts(&increment, &input, &mut result)?;

    match invoker.function("fails")?.call(b"") {
        Err(Error::Function { code: 7, output }) => same("an error's words", &output, b"no luck today")?,
        other => return Err(format!("the function's own error came as {other:?}").into()),
    }
    let late = invoker.function("rest")?.timeout(Some(Duration::from_millis(50)));
    match late.call(&60_000u32.to_le_bytes()) {
        Err(Error::Deadline { .. }) => {}
        other => return Err(format!("a deadline came as {other:?}").into()),
    }
    // The deadline ended the worker; the next call uses another worker.
    same("after a deadline", &echo.call(b"again")?, b"again")?;
    let usage = invoker.deallocate()?;
    if usage.invocations < 700 {
        return Err(format!("only {} invocations are on the bill", usage.invocations).into());
    }
    Ok(())
}

/// Echoes `bytes` bytes from buffer to buffer.
fn large(invoker: &Invoker, bytes: usize) -> Outcome {
    let (mut input, mut output) = (invoker.buffer::<u8>(bytes)?, invoker.buffer::<u8>(bytes)?);
    input.copy_from_slice(&pattern(bytes, 3));
    invoker.function("echo")?.invoke_buffer(&input, &mut output)?;
    same("a large echo", &output, &input)
}

/// Makes calls of each kind, few enough for a bad network.
fn few(invoker: &Invoker) -> Outcome {
    let echo = invoker.function("echo")?;
    let mut output = vec![0; 300_000];
    for (seed, size) in [0, 1, 32, 33, 1000, 4096, 8128, 65_536, 300_000]
        .into_iter()
        .enumerate()
    {
        let input = pattern(size, seed as u64);
        let length = echo.invoke(&input, &mut output)?;
        same("echo", &output[..length], &input)?;
    }
    let futures = (0..100u64).map(|number| echo.submit(&pattern(2000, number)));
    for (number, future) in futures.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate() {
        same("a future", &future.wait()?, &pattern(2000, number as u64))?;
    }
    large(invoker, 1 << 20)
}

/// Moves bytes to the worker (`in`) or from it (`out`) forever, by RMA; prints when calls succeed, and when they fail.
fn transfers(invoker: &Invoker, direction: &str) -> Outcome {
    const BYTES: usize = 32 << 20;
    let mut buffer = invoker.buffer::<u8>(BYTES)?;
    let first = invoker.function("first_byte")?.idempotent(false);
    let produce = invoker.function("produce")?.idempotent(false);
    say("ready");
    loop {
        let start = Instant::now();
        let done = match direction {
            "in" => first.invoke_buffer(&buffer, &mut [0u8; 16][..]),
            _ => produce.invoke_buffer(&(BYTES as u64).to_le_bytes()[..], &mut buffer),
        };
        match done {
            Ok(_) => say(&format!("called in {} ms", start.elapsed().as_millis())),
            Err(error) => say(&format!("failed after {} ms: {error}", start.elapsed().as_millis())),
        }
    }
}

/// Drops buffers while the worker still uses them: their memory must stay until the worker has finished.
fn drops(invoker: &Invoker) -> Outcome {
    const BYTES: usize = 8 << 20;
    let increment = invoker.function("increment")?;
    let mapped = || std::fs::read_to_string("/proc/self/maps").map(|maps| maps.matches("hotlease-buffer").count());
    let before = mapped()?;
    for round in 0..5 {
        let (mut input, mut output) = (invoker.buffer::<u8>(BYTES)?, invoker.buffer::<u8>(BYTES)?);
        input.fill(round);
        let future = increment.submit_buffer(&input, output.slice_mut(..))?;
        drop((input, output));
        if future.wait()? != BYTES {
            return Err("the call came to nothing".into());
        }
    }
    let start = Instant::now();
    while mapped()? > before {
        if start.elapsed() > Duration::from_secs(10) {
            return Err(format!("{before} buffers mapped before, {} after", mapped()?).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    few(invoker)
}

/// Calls a function that ends its worker; prints the error, and the time until the error.
fn dies(invoker: &Invoker, function: &str) -> Outcome {
    let function = invoker.function(function)?;
    for _ in 0..3 {
        let start = Instant::now();
        match function.call(&[0; 4]) {
            Err(error @ Error::WorkerDied { .. }) => {
                say(&format!("died after {} ms: {error}", start.elapsed().as_millis()));
            }
            other => return Err(format!("the death came as {other:?}").into()),
        }
    }
    Ok(())
}

/// Prints when calls succeed, and when they fail.
fn cut(invoker: &Invoker) -> Outcome {
    // Not idempotent, so that the client does not repeat the call: the test wants the error itself.
    let rest = invoker.function("rest")?.idempotent(false);
    say("ready");
    loop {
        let start = Instant::now();
        match rest.call(&100u32.to_le_bytes()) {
            Ok(_) => say("called"),
            Err(error) => say(&format!("failed after {} ms: {error}", start.elapsed().as_millis())),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes and releases leases; descriptors and memory must not grow.
fn connections(code: &Code, options: &LeaseOptions, count: u32) -> Outcome {
    let one = || -> Result<(), Error> {
        let invoker = Invoker::allocate(code, options.clone())?;
        invoker.function("echo")?.call(b"x")?;
        invoker.deallocate().map(drop)
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    for _ in 0..3 {
        one()?;
    }
    let before = descriptors()?;
    for _ in 0..count {
        one()?;
    }
    // A session is closed in the background: on a busy machine the last sessions may still be open. If a descriptor
    // leaks for each lease, the number stays high.
    let start = Instant::now();
    let mut after = descriptors()?;
    while after > before + 2 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
        after = descriptors()?;
    }
    if after > before + 2 {
        return Err(format!("{before} descriptors before {count} leases, {after} after").into());
    }
    Ok(())
}
