//! Round trips over a fabric.

use super::super::bench_platform::BenchPlatform;
use super::super::measured_lease::{blocks, hot as polling, pattern};
use super::super::record::{Record, Target, params, print};
use super::super::samples::{Pair, Samples};
use super::super::warm::after_gaps;
use super::fabric_lease::FabricLease;
use hotlease_client::{Completion, LeaseOptions, Polling};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use std::time::Duration;

const BLOCK: usize = 200;
/// Warm blocks are short, because each call waits for its gap first.
const BLOCK_WARM: usize = 25;
const GAPS: [Duration; 3] = [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(1)];
const INPUT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Promised maximum of the time above the raw ping-pong: 5 % of the ping-pong, or this time if it is longer.
const DIFFERENCE_NS: f64 = 300.0;

/// Round trips while slot and client poll.
pub(in crate::bench) fn hot(
    host: &BenchPlatform,
    transport: &str,
    sizes: &[usize],
    samples: usize,
    output: &mut Printer,
) -> anyhow::Result<()> {
    let stage = FabricLease::set(host, transport, polling())?;
    let mut raw = stage.raw(false, 4096)?;
    let echo = stage.invoker.function("echo")?;
    let mut pairs = Pair::several(sizes.len())?;
    for _ in 0..blocks(samples, BLOCK) {
        for (size, pair) in sizes.iter().zip(&mut pairs) {
            let input = pattern(*size);
            let baseline = raw.block(&stage.clock, &input, BLOCK)?;
            pair.add(&baseline, &stage.echo_block(&echo, &input, BLOCK)?);
        }
    }
    let mut records = Vec::new();
    for (size, pair) in sizes.iter().zip(&pairs) {
        let params = params! {
            "transport": stage.provider.name(), "library": stage.library(),
            "mode": "hot", "size_bytes": size, "workers": 1,
        };
        let mut record = Record::of_pair("latency", params, "raw libfabric ping-pong", pair, &stage.machine);
        let limit = (0.05 * pair.baseline.quantile(0.5) as f64).max(DIFFERENCE_NS);
        let what = format!("{size} B: median above raw, ns (5 % or 300)");
        record.targets = vec![Target::at_most(what, pair.difference(), limit.round())];
        records.push(record);
    }
    let title = format!(
        "hot invocations over {} ({}), echo, by size",
        stage.provider.name(),
        stage.library()
    );
    stage.invoker.deallocate()?;
    print(output, &title, &records, |record| {
        format!("{} bytes", record.params["size_bytes"])
    })
}

/// Round trips while slot and client sleep.
pub(in crate::bench) fn warm(
    host: &BenchPlatform,
    transport: &str,
    samples: usize,
    output: &mut Printer,
) -> anyhow::Result<()> {
    let options = LeaseOptions {
        polling: Polling::Warm,
        completion: Completion::Sleep,
        ..LeaseOptions::default()
    };
    let stage = FabricLease::set(host, transport, options)?;
    // If the provider's queue has no descriptor to wait for, the raw ends can only poll.
    let sleeps = stage.provider.quirks().wait_fd;
    let mut raw = stage.raw(sleeps, 4096)?;
    let echo = stage.invoker.function("echo")?;
    let mut series = GAPS
        .into_iter()
        .map(|gap| Ok((gap, Pair::new()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..blocks(samples, BLOCK_WARM) {
        for (gap, pair) in &mut series {
            let mut sink = INPUT;
            let baseline = raw.with(|client| {
                Ok(after_gaps(&stage.clock, *gap, true, || {
                    client.echo(&INPUT, &mut sink).map(drop)
                })?)
            })?;
            let measured = after_gaps(&stage.clock, *gap, true, || echo.invoke(&INPUT, &mut sink).map(drop))?;
            pair.add(&baseline, &measured);
        }
    }
    let mut records = Vec::new();
    for (gap, pair) in &series {
        let params = params! {
            "transport": stage.provider.name(), "library": stage.library(),
            "mode": "warm", "size_bytes": INPUT.len(), "workers": 1,
            "gap_us": gap.as_micros() as u64, "client": "sleeps",
        };
        let name = match sleeps {
            true => "raw libfabric ping-pong, both ends asleep",
            false => "raw libfabric ping-pong, polling: it cannot sleep",
        };
        let mut record = Record::of_pair("latency", params, name, pair, &stage.machine);
        if sleeps {
            record.targets = targets(*gap, pair);
        }
        records.push(record);
    }
    let title = format!(
        "warm invocations over {} ({}), 8 bytes, by idle gap before each",
        stage.provider.name(),
        stage.library()
    );
    stage.invoker.deallocate()?;
    print(output, &title, &records, |record| {
        let gap_us = record.params["gap_us"].as_u64().unwrap_or(0);
        format!("{} idle", quantity::nanoseconds(gap_us * 1000))
    })
}

fn targets(gap: Duration, pair: &Pair) -> Vec<Target> {
    let tail = |samples: &Samples| samples.quantile(0.99) as f64;
    let tails = tail(&pair.measured) / tail(&pair.baseline).max(1.0);
    vec![
        Target::at_most(format!("{gap:?} idle: median as a multiple of raw"), pair.ratio(), 1.1),
        Target::at_most(format!("{gap:?} idle: p99 as a multiple of raw p99"), tails, 1.5),
    ]
}
