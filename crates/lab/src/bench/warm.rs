//! Warm invocations: the slot sleeps when the request arrives, and must be woken.
//!
//! They are compared with a bare futex round trip with a sleeping peer, for several idle times before the request.
//! After a long idle time, the host must wake the virtual core itself, which hotlease cannot avoid.

use super::bench_platform::BenchPlatform;
use super::measured_lease::{MeasuredLease, blocks, spin_for};
use super::record::{Record, Target, params, print};
use super::samples::{Block, Clock, Pair};
use hotlease_bench_baseline::RoundTripKind;
use hotlease_client::{Completion, LeaseOptions, Polling};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use std::thread;
use std::time::Duration;

/// Polling of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotPolling {
    /// The slot sleeps at once.
    Never,
    /// The slot polls adaptively, which is the default.
    Adaptive,
}

/// Idle time before each invocation.
const GAPS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(20),
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(10),
];
/// With a shorter gap, the baseline's peer is not asleep yet if the client spins.
const ASLEEP_AFTER: Duration = Duration::from_micros(20);
const BLOCK: usize = 25;
const INPUT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

pub(super) fn measure(
    host: &BenchPlatform,
    polled: SlotPolling,
    samples: usize,
    output: &mut Printer,
) -> anyhow::Result<()> {
    let mut records = Vec::new();
    for client_sleeps in [true, false] {
        records.extend(by_gap(host, polled, client_sleeps, samples)?);
    }
    let title = match polled {
        SlotPolling::Never => "warm invocations, 8 bytes, by idle gap before each",
        SlotPolling::Adaptive => "adaptive polling (the default), 8 bytes, by idle gap before each",
    };
    print(output, title, &records, |record| {
        let gap_us = record.params["gap_us"].as_u64().unwrap_or(0);
        let client = record.params["client"].as_str().unwrap_or_default();
        format!("{} idle, client {client}", quantity::nanoseconds(gap_us * 1000))
    })
}

fn by_gap(
    host: &BenchPlatform,
    polled: SlotPolling,
    client_sleeps: bool,
    samples: usize,
) -> anyhow::Result<Vec<Record>> {
    let options = LeaseOptions {
        polling: match polled {
            SlotPolling::Never => Polling::Warm,
            SlotPolling::Adaptive => Polling::Adaptive,
        },
        completion: if client_sleeps {
            Completion::Sleep
        } else {
            Completion::Spin
        },
        ..LeaseOptions::default()
    };
    let mut stage = MeasuredLease::start(host, options, INPUT.len())?;
    let echo = stage.invoker.function("echo")?;
    let gaps = GAPS.into_iter().filter(|gap| client_sleeps || *gap >= ASLEEP_AFTER);
    let mut series = gaps
        .map(|gap| Ok((gap, Pair::new()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..blocks(samples, BLOCK) {
        for (gap, pair) in &mut series {
            let mut sink = INPUT;
            let baseline = stage.with_raw(RoundTripKind::Futex { client_sleeps }, |client, clock| {
                Ok(after_gaps(clock, *gap, client_sleeps, || {
                    client.echo(&INPUT, &mut sink)
                })?)
            })?;
            let measured = after_gaps(&stage.clock, *gap, client_sleeps, || {
                echo.invoke(&INPUT, &mut sink).map(drop)
            })?;
            pair.add(&baseline, &measured);
        }
    }
    let mut records = Vec::new();
    for (gap, pair) in &series {
        let params = params! {
            "transport": "shm",
            "mode": if polled == SlotPolling::Never { "warm" } else { "adaptive" },
            "size_bytes": INPUT.len(),
            "workers": 1,
            "gap_us": gap.as_micros() as u64,
            "client": if client_sleeps { "sleeps" } else { "spins" },
        };
        let name = "bare futex round trip, peer asleep";
        let mut record = Record::of_pair("latency", params, name, pair, &stage.machine);
        if polled == SlotPolling::Never {
            record.targets = targets(*gap, client_sleeps, pair);
        }
        records.push(record);
    }
    stage.invoker.deallocate()?;
    Ok(records)
}

fn targets(gap: Duration, client_sleeps: bool, pair: &Pair) -> Vec<Target> {
    let client = if client_sleeps { "sleeps" } else { "spins" };
    let what = |what: &str| format!("{gap:?} idle, client {client}: {what}");
    let mut targets = vec![Target::at_most(
        what("median as a multiple of the futex"),
        pair.ratio(),
        1.3,
    )];
    let tail = |samples: &super::samples::Samples| samples.quantile(0.99) as f64 / samples.quantile(0.5).max(1) as f64;
    // The limit is promised only if the baseline itself is within the limit on this host.
    if tail(&pair.baseline) <= 3.0 {
        targets.push(Target::at_most(
            what("p99 as a multiple of the median"),
            tail(&pair.measured),
            3.0,
        ));
    }
    targets
}

/// Times a block of single runs, each after an idle time in which the client sleeps or spins.
pub(super) fn after_gaps<E>(
    clock: &Clock,
    gap: Duration,
    client_sleeps: bool,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<Block, E> {
    let mut times = Vec::with_capacity(BLOCK);
    clock.block(3, 0, &mut run)?;
    for _ in 0..BLOCK {
        match client_sleeps {
            _ if gap.is_zero() => {}
            true => thread::sleep(gap),
            false => spin_for(gap),
        }
        times.extend(clock.block(0, 1, &mut run)?.0);
    }
    Ok(Block(times))
}
