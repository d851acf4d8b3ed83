//! Measures the transport `ofi` beside raw libfabric, in turn, over every provider of this host.
//!
//! `hotlease-bench-fabric [LIBRARY [PROVIDER ...]]`: prints one JSON object a line, as all benchmarks do.
//! `hotlease-bench-fabric bandwidth [LIBRARY [PROVIDER ...]]`: measures only the bandwidth.
//! `hotlease-bench-fabric startup [LIBRARY [PROVIDER]]`: measures how long a first and a second channel take.
#![allow(clippy::print_stdout)]

mod channel;
mod startup;

use channel::Channel;
use hdrhistogram::Histogram;
use hotlease_bench_fabric::{Client, Peer};
use hotlease_fabric::clock::median;
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Libfabric, Provider, providers};
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCKS: usize = 30;
const PER_BLOCK: usize = 200;
const MIB: usize = 1 << 20;

type Failure = Box<dyn Error + Send + Sync>;

fn pin(core: usize) {
    let mut cores = nix::sched::CpuSet::new();
    // If pinning is not allowed, the figures are noisier, but still valid.
    let _ = cores
        .set(core)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cores));
}

/// Runs `serve` on core 1 until `ask` is done.
fn with_server<R>(
    serve: impl FnOnce(&AtomicBool) -> Result<(), Failure> + Send,
    ask: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(1);
            serve(&stop)
        });
        let result = ask();
        stop.store(true, Ordering::Relaxed);
        server.join().map_err(|_| "the server panicked")??;
        result
    })
}

fn timed(times: &mut Histogram<u64>, mut trip: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    // The first round trip of a block wakes caches and clocks, and is not counted.
    trip()?;
    for _ in 0..PER_BLOCK {
        let begin = Instant::now();
        trip()?;
        times.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    Ok(())
}

fn quantiles(times: &Histogram<u64>) -> serde_json::Value {
    json!({"p50": times.value_at_quantile(0.5), "p99": times.value_at_quantile(0.99)})
}

fn latency(provider: &Provider, library: &str, sleeps: bool) -> Result<(), Failure> {
    if sleeps && !provider.quirks().wait_fd {
        return Ok(());
    }
    let memory = Arc::new(Memory::create("bench", 4096)?);
    let mut peer = Peer::open(provider, &memory, sleeps)?;
    let mut client = Client::open(provider, &memory, &peer.hello()?, sleeps)?;
    peer.meet(&client.hello()?)?;
    let mut channel = Channel::open(provider, sleeps)?;
    for bytes in [1usize, 64, 1024, 4096, 8128] {
        let histogram = || Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3);
        let (mut raw, mut ours) = (histogram()?, histogram()?);
        let input = vec![7; bytes];
        let mut output = vec![0; bytes];
        for _ in 0..BLOCKS {
            with_server(
                |stop| Ok(peer.answer(stop)?),
                || timed(&mut raw, || Ok(client.echo(&input, &mut output).map(drop)?)),
            )?;
            let (asking, serving) = channel.split();
            with_server(
                |stop| serving.echo(stop),
                || timed(&mut ours, || asking.round_trip(&input, &mut output)),
            )?;
        }
        let (measured, baseline) = (quantiles(&ours), quantiles(&raw));
        let ratio = |at: &str| measured[at].as_f64().unwrap_or(0.0) / baseline[at].as_f64().unwrap_or(1.0);
        let line = json!({
            "bench": "fabric_latency",
            "params": {
                "provider": provider.name(), "library": library,
                "mode": if sleeps { "warm" } else { "hot" }, "size_bytes": bytes,
            },
            "unit": "ns", "samples": ours.len(),
            "baseline": {"name": "raw libfabric ping-pong", "p50": baseline["p50"], "p99": baseline["p99"]},
            "measured": measured, "ratio_p50": ratio("p50"), "ratio_p99": ratio("p99"),
        });
        println!("{line}");
    }
    Ok(())
}

fn in_a_row(count: usize, mut step: impl FnMut() -> Result<(), Failure>) -> Result<Vec<Duration>, Failure> {
    let timed = |_| {
        let begin = Instant::now();
        step().map(|()| begin.elapsed())
    };
    (0..count).map(timed).collect()
}

fn bandwidth(provider: &Provider, library: &str) -> Result<(), Failure> {
    // Datagrams in software: a megabyte takes a second.
    let sizes: &[usize] = if provider.name() == "udp;ofi_rxd" {
        &[1]
    } else {
        &[1, 16, 256]
    };
    let largest = sizes.last().copied().unwrap_or(1) * MIB;
    let memory = || Memory::create("bench", largest as u64).map(Arc::new);
    let (raw_from, raw_to) = (memory()?, memory()?);
    let mut peer = Peer::open(provider, &raw_to, false)?;
    let mut client = Client::open(provider, &raw_from, &peer.hello()?, false)?;
    peer.meet(&client.hello()?)?;
    let mut channel = Channel::open(provider, false)?;
    let (from, to) = (memory()?, memory()?);
    let spans = channel.lend(&from, &to)?;
    for &mebibytes in sizes {
        let bytes = mebibytes * MIB;
        let rounds = (512 / mebibytes).clamp(4, 40);
        // Several in a row, so that the start of a thread is not measured.
        let row = (16 / mebibytes).max(1);
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            // When the other end answers, its thread has started.
            let raw = with_server(
                |stop| Ok(peer.answer(stop)?),
                || {
                    client.echo(&[1; 8], &mut [0; 8])?;
                    in_a_row(row, || Ok(client.write(bytes, MIB)?))
                },
            )?;
            let (asking, serving) = channel.split();
            let written = with_server(
                |stop| serving.echo(stop),
                || {
                    asking.round_trip(&[1; 8], &mut [0; 8])?;
                    in_a_row(row, || asking.write(&spans, bytes as u64))
                },
            )?;
            let read = with_server(
                |stop| serving.read(&spans, bytes as u64, stop),
                || {
                    asking.round_trip(&[1; 8], &mut [0; 8])?;
                    in_a_row(row, || asking.round_trip(&[1; 8], &mut [0; 8]))
                },
            )?;
            for (times, took) in times.iter_mut().zip([raw, written, read]) {
                times.extend(took.iter().map(Duration::as_secs_f64));
            }
        }
        let [raw, ours @ ..] = times.map(|times| bytes as f64 / median(&times));
        for (direction, ours) in ["written", "read"].into_iter().zip(ours) {
            let line = json!({
                "bench": "fabric_bandwidth",
                "params": {
                    "provider": provider.name(), "library": library, "mode": direction, "size_bytes": bytes,
                },
                "unit": "B/s", "samples": rounds * row,
                "baseline": {"name": "raw libfabric write", "per_second": raw.round()},
                "measured": {"per_second": ours.round()},
                "ratio_p50": ours / raw,
            });
            println!("{line}");
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut first = arguments.next();
    if first.as_deref() == Some("startup") {
        let path = arguments.next().unwrap_or_else(|| "libfabric.so.1".into());
        return startup::startup(Path::new(&path), arguments.next().as_deref());
    }
    let only_bandwidth = first.as_deref() == Some("bandwidth");
    if only_bandwidth {
        first = arguments.next();
    }
    let library = match first.take() {
        Some(path) => Libfabric::load_from(Path::new(&path))?,
        None => Libfabric::load()?,
    };
    let (major, minor) = library.version();
    let version = format!("libfabric {major}.{minor}");
    let wanted: Vec<String> = arguments.collect();
    pin(0);
    for provider in providers(&library, Some("127.0.0.1".parse()?)) {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == provider.name()) {
            continue;
        }
        let latencies = (!only_bandwidth).then_some([false, true]).into_iter().flatten();
        let latencies = latencies.map(|sleeps| latency(&provider, &version, sleeps));
        for result in latencies.chain(std::iter::once_with(|| bandwidth(&provider, &version))) {
            if let Err(error) = result {
                eprintln!("{provider:?}: {error}");
            }
        }
    }
    Ok(())
}
