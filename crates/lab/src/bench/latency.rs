//! `hotlease bench latency`: duration of one invocation at a time.

use super::bench_platform::BenchPlatform;
use super::fabric;
use super::measured_lease::{MeasuredLease, blocks, hot, pattern};
use super::record::{Record, Target, params, print};
use super::samples::Pair;
use super::warm;
use clap::{Args, ValueEnum};
use hotlease_bench_baseline::RoundTripKind;
use hotlease_client::{Buffer, Function, LeaseOptions};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;

/// Measure round trips, one at a time. Hot: next to a raw round trip between the same two cores that moves the same
/// bytes. Up to 32 bytes the raw round trip is a cache line each way; above, a contiguous payload that is copied in
/// and out. Over a fabric: next to a ping-pong written directly on libfabric, hot by size, and warm next to its
/// blocking variant.
#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    transports: fabric::TransportArgs,
    /// Kind of invocation to measure [default: all]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Payload sizes of hot invocations, bytes, at most 4096 [default: 1 to 4096; fewer over fabrics]
    #[arg(long, value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,
    /// Samples of each size
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,
    /// Entries of the rings of hot invocations, a power of two
    #[arg(long, default_value_t = LeaseOptions::default().depth)]
    depth: u32,
    /// Samples of each warm series
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    warm_samples: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The slot polls: round trips by size
    Hot,
    /// The slot polls: data of any size in registered buffers
    InPlace,
    /// The slot sleeps: round trips by idle gap
    Warm,
    /// The slot polls as long as polling pays, which is the default: round trips by idle gap
    Adaptive,
}

const SIZES: [usize; 11] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const SIZE_MAX: usize = 4096;
const BLOCK: usize = 1000;
const IN_PLACE: [usize; 3] = [64 << 10, 1 << 20, 100 << 20];

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=SIZE_MAX) => Ok(size),
        _ => Err(format!("must be a number of bytes from 1 to {SIZE_MAX}")),
    }
}

pub(super) fn carry_out(args: &LatencyArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let wanted = |mode| args.mode.is_none_or(|only| only == mode);
    for transport in args.transports.fabrics() {
        if wanted(Mode::Hot) {
            let sizes = or_default(&args.sizes, &fabric::SIZES);
            fabric::latency::hot(&host, transport, sizes, args.samples as usize, output)?;
        }
        if wanted(Mode::Warm) {
            fabric::latency::warm(&host, transport, args.warm_samples as usize, output)?;
        }
    }
    if !args.transports.shm() {
        return output.flush();
    }
    if wanted(Mode::Hot) {
        let records = by_size(&host, args)?;
        print(output, "hot invocations, echo, by size", &records, |record| {
            format!("{} bytes", record.params["size_bytes"])
        })?;
    }
    if wanted(Mode::InPlace) {
        let records = in_place(&host, args.samples as usize / 10)?;
        print(
            output,
            "invocations on a buffer in place, touching one byte",
            &records,
            |record| quantity::bytes(record.params["size_bytes"].as_u64().unwrap_or(0)),
        )?;
    }
    for (mode, polling) in [
        (Mode::Warm, warm::SlotPolling::Never),
        (Mode::Adaptive, warm::SlotPolling::Adaptive),
    ] {
        if wanted(mode) {
            warm::measure(&host, polling, args.warm_samples as usize, output)?;
        }
    }
    output.flush()
}

fn or_default<'a>(sizes: &'a [usize], default: &'a [usize]) -> &'a [usize] {
    if sizes.is_empty() { default } else { sizes }
}

fn by_size(host: &BenchPlatform, args: &LatencyArgs) -> anyhow::Result<Vec<Record>> {
    let LatencyArgs { samples, depth, .. } = args;
    let sizes = or_default(&args.sizes, &SIZES);
    let options = LeaseOptions { depth: *depth, ..hot() };
    let mut stage = MeasuredLease::start(host, options, SIZE_MAX)?;
    let echo = stage.invoker.function("echo")?;
    let mut pairs = Pair::several(sizes.len())?;
    for _ in 0..blocks(*samples as usize, BLOCK) {
        for (size, pair) in sizes.iter().zip(&mut pairs) {
            let input = pattern(*size);
            let baseline = stage.raw_block(baseline(*size), &input, BLOCK)?;
            pair.add(&baseline, &stage.echo_block(&echo, &input, BLOCK)?);
        }
    }
    let mut records = Vec::new();
    for (size, pair) in sizes.iter().zip(&pairs) {
        let params = params! { "transport": "shm", "mode": "hot", "size_bytes": size, "workers": 1 };
        let name = match baseline(*size) {
            RoundTripKind::Line { .. } => "raw cache-line ping-pong",
            _ => "raw copy-in/copy-out ping-pong",
        };
        let mut record = Record::of_pair("latency", params, name, pair, &stage.machine);
        record.targets = targets(*size, pair);
        if let Some(target) = neighbours(*size, sizes, &pairs) {
            record.targets.push(target);
        }
        records.push(record);
    }
    stage.invoker.deallocate()?;
    Ok(records)
}

fn baseline(size: usize) -> RoundTripKind {
    match size {
        0..=32 => RoundTripKind::Line {
            words: size.div_ceil(8).max(1),
        },
        _ => RoundTripKind::Copy { bytes: size },
    }
}

fn targets(size: usize, pair: &Pair) -> Vec<Target> {
    if size > 32 {
        let what = format!("{size} B: median within 10 % of raw copy in and out, ratio");
        return vec![Target::at_most(what, pair.ratio(), 1.10)];
    }
    let p99_ratio = pair.measured.quantile(0.99) as f64 / pair.baseline.quantile(0.99).max(1) as f64;
    vec![
        Target::at_most(format!("{size} B: median above raw, ns"), pair.difference(), 60.0),
        Target::at_most(format!("{size} B: p99 as a multiple of raw p99"), p99_ratio, 2.0),
    ]
}

/// Checks that 128 bytes take no longer than 64 or 256 bytes, whichever is slower.
fn neighbours(size: usize, sizes: &[usize], pairs: &[Pair]) -> Option<Target> {
    let median = |size| {
        let index = sizes.iter().position(|other| *other == size)?;
        Some(pairs[index].measured.quantile(0.5) as f64)
    };
    if size != 128 {
        return None;
    }
    let slower = median(64)?.max(median(256)?);
    Some(Target::at_most(
        "128 B: as a multiple of its slower neighbour",
        median(128)? / slower,
        1.0,
    ))
}

fn in_place(host: &BenchPlatform, samples: usize) -> anyhow::Result<Vec<Record>> {
    const INPUT: [u8; 8] = [1; 8];
    const BLOCK: usize = 200;
    let mut stage = MeasuredLease::start(host, hot(), INPUT.len())?;
    let touch = stage.invoker.function("touch")?;
    let largest = IN_PLACE[IN_PLACE.len() - 1];
    let mut buffer = stage.invoker.buffer::<u8>(largest)?;
    // Writes all pages first, because page faults are not part of an invocation.
    buffer.fill(7);
    let mut pairs = Pair::several(IN_PLACE.len())?;
    for _ in 0..blocks(samples, BLOCK) {
        for (size, pair) in IN_PLACE.iter().zip(&mut pairs) {
            let baseline = stage.raw_block(baseline(INPUT.len()), &INPUT, BLOCK)?;
            let measured = stage
                .clock
                .block(BLOCK / 4, BLOCK, || touch_first(&touch, &buffer, *size))?;
            pair.add(&baseline, &measured);
        }
    }
    let smallest = pairs[0].measured.quantile(0.5) as f64;
    let mut records = Vec::new();
    for (size, pair) in IN_PLACE.iter().zip(&pairs) {
        let params = params! { "transport": "shm", "mode": "in-place", "size_bytes": size, "workers": 1 };
        let name = "raw cache-line ping-pong, 8 bytes";
        let mut record = Record::of_pair("latency", params, name, pair, &stage.machine);
        let multiple = pair.measured.quantile(0.5) as f64 / smallest.max(1.0);
        if *size != IN_PLACE[0] {
            let what = format!("{} in place: as a multiple of 64 KiB", quantity::bytes(*size as u64));
            record.targets.push(Target::at_most(what, multiple, 1.1));
        }
        records.push(record);
    }
    stage.invoker.deallocate()?;
    Ok(records)
}

fn touch_first(touch: &Function, buffer: &Buffer<u8>, size: usize) -> Result<(), hotlease_client::Error> {
    touch.invoke_buffer(buffer.slice(..size), &mut [0; 1][..]).map(drop)
}
