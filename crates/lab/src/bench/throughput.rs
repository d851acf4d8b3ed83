//! `hotlease bench throughput`: invocations per second, pipelined.

use super::bench_platform::BenchPlatform;
use super::measured_lease::{MeasuredLease, blocks, hot};
use super::record::{Figures, Record, Target, params, print};
use clap::Args;
use hotlease_bench_baseline::RoundTripKind;
use hotlease_client::{LeaseOptions, Pipeline};
use hotlease_fabric::clock::median;
use hotlease_terminal::output::Printer;
use std::time::Instant;

/// Measure no-op invocations of 8 bytes, next to raw round trips of a cache line, one at a time
#[derive(Debug, Args)]
pub(super) struct ThroughputArgs {
    /// Invocations in flight on a slot
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64], value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: Vec<u32>,
    /// Invocations of each series
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
}

const INPUT: [u8; 8] = [7; 8];
/// Number of invocations of a block. It is so small that even a busy host mostly completes a block before it gives the
/// core to another process.
const BLOCK: usize = 2_000;
const RAW_BLOCK: usize = 2_000;
const TARGET_IN_FLIGHT: u32 = 64;
const TARGET_PER_SECOND: f64 = 5e6;

/// Operations per second, block by block.
#[derive(Default)]
struct Rate {
    count: usize,
    per_second: Vec<f64>,
}

impl Rate {
    fn add(&mut self, count: usize, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let start = Instant::now();
        run()?;
        self.per_second
            .push(count as f64 / start.elapsed().as_secs_f64().max(1e-9));
        self.count += count;
        Ok(())
    }

    /// Returns the median, which ignores blocks in which another process had the core.
    fn figures(&self) -> Figures {
        Figures::Rate {
            per_second: median(&self.per_second),
        }
    }
}

pub(super) fn carry_out(args: &ThroughputArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let samples = args.samples as usize;
    let mut records = Vec::new();
    for in_flight in &args.in_flight {
        records.push(measure(&host, 1, *in_flight, samples)?);
    }
    // One slot less than there are cores, so that the client has its own core.
    let slots = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    if slots > 1 {
        records.push(measure(&host, slots, TARGET_IN_FLIGHT, samples)?);
    }
    print(output, "no-op invocations per second, 8 bytes", &records, |record| {
        format!(
            "{} in flight, slots: {}",
            record.params["in_flight"], record.params["slots"]
        )
    })?;
    output.flush()
}

fn measure(host: &BenchPlatform, slots: usize, in_flight: u32, samples: usize) -> anyhow::Result<Record> {
    let options = LeaseOptions {
        slots: u16::try_from(slots)?,
        depth: in_flight.next_power_of_two(),
        ..hot()
    };
    let mut stage = MeasuredLease::start(host, options, INPUT.len())?;
    let noop = stage.invoker.function("noop")?;
    let pipelines = (0..slots).map(|slot| noop.clone().on_slot(slot)?.pipeline());
    let mut pipelines = pipelines.collect::<Result<Vec<_>, _>>()?;
    let (mut baseline, mut measured) = (Rate::default(), Rate::default());
    run(&mut pipelines, in_flight as usize, BLOCK)?;
    for _ in 0..blocks(samples, BLOCK) {
        stage.with_raw(RoundTripKind::Line { words: 1 }, |client, _| {
            let mut sink = [0; 8];
            baseline.add(RAW_BLOCK, || {
                Ok((0..RAW_BLOCK).try_for_each(|_| client.echo(&INPUT, &mut sink))?)
            })
        })?;
        measured.add(BLOCK, || run(&mut pipelines, in_flight as usize, BLOCK))?;
    }
    let params = params! {
        "transport": "shm",
        "mode": "hot",
        "size_bytes": INPUT.len(),
        "workers": 1,
        "slots": slots,
        "in_flight": in_flight,
    };
    let mut record = Record::new("throughput", params, "inv", measured.figures(), &stage.machine);
    record.unit = "invocations";
    record.samples = measured.count as u64;
    record.compare("raw cache-line ping-pong, one at a time", baseline.figures());
    if let (1, TARGET_IN_FLIGHT, Figures::Rate { per_second }) = (slots, in_flight, record.measured) {
        let what = "64 in flight through one slot: invocations per second";
        record
            .targets
            .push(Target::at_least(what, per_second, TARGET_PER_SECOND));
    }
    drop(pipelines);
    stage.invoker.deallocate()?;
    Ok(record)
}

/// Runs `count` invocations over all pipelines, `in_flight` in each, until all have resolved.
fn run(pipelines: &mut [Pipeline], in_flight: usize, count: usize) -> anyhow::Result<()> {
    let mut output = [0; 8];
    for turn in turns(count, pipelines.len()) {
        for pipeline in &mut pipelines[..turn] {
            if pipeline.len() >= in_flight {
                pipeline.pop(&mut output)?;
            }
            pipeline.push(&INPUT)?;
        }
    }
    for pipeline in pipelines {
        while pipeline.pop(&mut output)?.is_some() {}
    }
    Ok(())
}

/// Number of pipelines that get an invocation in each turn: all, except that the last turn has only the remaining
/// invocations.
fn turns(count: usize, pipelines: usize) -> impl Iterator<Item = usize> {
    (0..count)
        .step_by(pipelines)
        .map(move |begun| pipelines.min(count - begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_issued_invocation_is_recorded() {
        assert_eq!(turns(BLOCK, 3).sum::<usize>(), BLOCK);
        assert_eq!(turns(7, 3).collect::<Vec<_>>(), [3, 3, 1]);
        assert_eq!(turns(2, 3).collect::<Vec<_>>(), [2]);
    }
}
