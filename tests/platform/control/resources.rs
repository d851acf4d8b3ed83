//! Leaks: memory, descriptors, threads and processes do not grow.

use hotlease_client::{Completion, LeaseOptions, Polling};
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::process::Process;
use hotlease_tests::wait::{in_time, until_true};
use std::fmt;
use std::time::{Duration, Instant};

/// Resources that must not grow.
#[derive(Clone, Copy)]
struct Footprint {
    anonymous_bytes: u64,
    descriptors: usize,
    mappings: usize,
    threads: usize,
}

impl Footprint {
    fn of(process: &Process) -> Self {
        Self {
            anonymous_bytes: process.anonymous_bytes(),
            descriptors: process.descriptors(),
            mappings: process.mappings(),
            threads: process.cores_of_threads().len(),
        }
    }

    /// Allocators keep freed memory and grow in steps: growth up to this is no leak. A leak of one byte for each of a
    /// million invocations is more.
    const MARGIN_BYTES: u64 = 768 << 10;
    /// The daemons start threads for blocking work when they need them, and keep them for a while. Each thread has a
    /// few mappings.
    const MARGIN_THREADS: usize = 4;
    /// Descriptors that the agent has open for one worker: the pool may be filled between two measurements.
    const MARGIN_DESCRIPTORS: usize = 4;

    /// Name of a resource that has grown between two measurements.
    fn grown(&self, later: &Self) -> Option<&'static str> {
        let mappings = 4 + 4 * Self::MARGIN_THREADS;
        let grown = [
            (
                "memory",
                later.anonymous_bytes > self.anonymous_bytes + Self::MARGIN_BYTES,
            ),
            (
                "descriptors",
                later.descriptors > self.descriptors + Self::MARGIN_DESCRIPTORS,
            ),
            ("threads", later.threads > self.threads + Self::MARGIN_THREADS),
            ("mappings", later.mappings > self.mappings + mappings),
        ];
        grown.into_iter().find(|(_, has)| *has).map(|(what, _)| what)
    }
}

/// Repeats an action until these processes have not grown by it, three times at most: other tests run in this process
/// meanwhile, and their memory does not grow three times in a row, as a leak does.
///
/// # Panics
/// If they have grown three times.
fn stays_flat(processes: &[(&str, Process)], mut again: impl FnMut()) {
    let footprints = || -> Vec<Footprint> { processes.iter().map(|(_, process)| Footprint::of(process)).collect() };
    let mut grown = Vec::new();
    for _ in 0..3 {
        let before = footprints();
        again();
        // Memory that is freed in the background takes a moment.
        let begun = Instant::now();
        loop {
            let after = footprints();
            let all = processes.iter().zip(before.iter().zip(&after));
            grown = all
                .filter_map(|((whose, _), (before, after))| {
                    let what = before.grown(after)?;
                    Some(format!("{what} of the {whose}: {before}, then {after}"))
                })
                .collect();
            if grown.is_empty() {
                return;
            }
            if begun.elapsed() > SOON {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{grown:?}");
    }
    panic!("three times there was more: {grown:?}");
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            anonymous_bytes,
            descriptors,
            mappings,
            threads,
        } = self;
        write!(
            f,
            "{} KiB, {descriptors} descriptors, {mappings} mappings, {threads} threads",
            anonymous_bytes >> 10
        )
    }
}

#[test]
fn million_invocations_leak_nothing() {
    let platform = Platform::start_alone();
    let options = LeaseOptions {
        polling: Polling::Hot,
        completion: Completion::Spin,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("behaved", options);
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
    let (agent, ours) = (platform.process(), Process::of(std::process::id() as i32).unwrap());
    let echo = invoker.function("echo").unwrap();
    let calls = |rounds: u32| {
        let mut output = [0; 64];
        let mut pipeline = echo.pipeline().unwrap();
        for number in 0..rounds {
            let input = [number as u8; 64];
            if pipeline.is_full() {
                pipeline.pop(&mut output).unwrap();
            }
            pipeline.push(&input[..number as usize % 65]).unwrap();
            // Every way of calling is used.
            if number % 10 == 0 {
                while pipeline.pop(&mut output).unwrap().is_some() {}
                echo.invoke(&input, &mut output).unwrap();
                if number % 100 == 0 {
                    echo.submit(&input).unwrap().wait().unwrap();
                    drop(echo.submit(&input).unwrap());
                }
            }
        }
        while pipeline.pop(&mut output).unwrap().is_some() {}
    };
    calls(50_000);
    let all = [("worker", worker), ("agent", agent), ("client", ours)];
    stays_flat(&all, || calls(1_000_000));
    assert!(invoker.deallocate().unwrap().invocations >= 1_100_000);
}

#[test]
fn buffers_that_come_and_go_leak_nothing() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker("behaved");
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
    let increment = invoker.function("increment").unwrap();
    let rounds = |count: usize| {
        for _ in 0..count {
            let (input, mut output) = (
                invoker.buffer::<u8>(100_000).unwrap(),
                invoker.buffer::<u8>(100_000).unwrap(),
            );
            increment.invoke_buffer(&input, &mut output).unwrap();
            assert_eq!(output[99_999], 1);
            // The library stages this input.
            increment.clone().output_bytes(50_000).call(&[0; 50_000]).unwrap();
        }
    };
    rounds(20);
    until_true("buffers of the first rounds are forgotten", LIMIT, || {
        worker.mappings() < 200
    });
    // More buffers than a connection may have at a time.
    stays_flat(&[("worker", worker), ("client", ours)], || rounds(1500));
}

#[test]
fn fifty_leases_leak_no_process_and_no_descriptor() {
    let platform = Platform::start_alone();
    let (agent, ours) = (platform.process(), Process::of(std::process::id() as i32).unwrap());
    let cycle = |count: usize| {
        for number in 0..count {
            let workers = 1 + (number % 2) as u16;
            let invoker = platform.invoker_with(
                "behaved",
                LeaseOptions {
                    workers,
                    ..platform.lease_options()
                },
            );
            invoker.function("echo").unwrap().call(b"x").unwrap();
            if number % 3 == 0 {
                invoker.deallocate().unwrap();
            }
        }
        // Workers are started and ended in the background.
        until_true("only the pool is left", LIMIT, || {
            let workers = platform.manager().workers().unwrap();
            workers.len() == 1 && workers[0].state == "pooled" && platform.workers().len() == 1
        });
    };
    cycle(10);
    stays_flat(&[("agent", agent), ("client", ours)], || cycle(50));
}

#[test]
fn crashes_leak_no_process_and_no_descriptor() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker("misbehaved");
    let (agent, ours) = (platform.process(), Process::of(std::process::id() as i32).unwrap());
    let dies = invoker.function("aborts").unwrap();
    let crash = |count: usize| {
        for _ in 0..count {
            dies.call(b"").unwrap_err();
        }
        invoker.function("echo").unwrap().call(b"x").unwrap();
        until_true("one worker and the pool are left", LIMIT, || {
            platform.workers().len() == 2
        });
    };
    crash(5);
    stays_flat(&[("agent", agent), ("client", ours)], || crash(40));
}

#[test]
fn idle_worker_is_under_five_megabytes() {
    let platform = Platform::start();
    let pooled = platform.workers()[0].rss_bytes();
    let invoker = platform.invoker("behaved");
    invoker.function("echo").unwrap().call(b"x").unwrap();
    let pid = u32::from_le_bytes(
        invoker
            .function("process")
            .unwrap()
            .call(b"")
            .unwrap()
            .try_into()
            .unwrap(),
    );
    let serving = Process::of(pid as i32).unwrap().rss_bytes();
    eprintln!("{pooled} bytes in the pool, {serving} bytes with a lease");
    assert!(pooled > 0 && pooled < 5_000_000, "{pooled} bytes in the pool");
    assert!(serving < 5_000_000, "{serving} bytes with a lease");
}

#[test]
fn idle_platform_uses_no_processor_time() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker("behaved");
    invoker.function("echo").unwrap().call(b"x").unwrap();
    let all: Vec<Process> = platform.workers().into_iter().chain([platform.process()]).collect();
    // Longer than any polling budget.
    std::thread::sleep(Duration::from_millis(300));
    let time = || all.iter().map(Process::processor_time).sum::<Duration>();
    in_time("processor time in 2 s", Duration::from_millis(60), || {
        let before = time();
        std::thread::sleep(Duration::from_secs(2));
        time() - before
    });
}
