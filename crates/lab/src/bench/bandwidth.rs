//! `hotlease bench bandwidth`: throughput of large data, in place and copied.

use super::bench_platform::BenchPlatform;
use super::fabric;
use super::measured_lease::{MeasuredLease, blocks, hot, pattern};
use super::record::{Figures, Record, params, print};
use super::samples::{Block, Clock, Samples};
use anyhow::ensure;
use clap::Args;
use hotlease_client::Buffer;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;

/// Measure bytes per second: a function that reads every byte of a registered buffer in place, and an echo whose
/// input and output are ordinary memory, which the library must copy; both next to a plain memcpy of as many bytes.
/// Over a fabric: from a registered buffer to the function and back, next to raw RMA writes and a copy through TCP.
#[derive(Debug, Args)]
pub(super) struct BandwidthArgs {
    #[command(flatten)]
    transports: fabric::TransportArgs,
    /// Sizes, bytes [default: 64 KiB, 1 MiB, 16 MiB, 100 MiB; over fabrics 1, 16 and 256 MiB]
    #[arg(long, value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,
    /// Least number of bytes to move in each series
    #[arg(long, default_value_t = 2 << 30)]
    bytes: u64,
}

const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 100 << 20];
const SIZE_MAX: usize = 1 << 30;

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 8..=SIZE_MAX) => Ok(size),
        _ => Err(format!("must be a number of bytes from 8 to {SIZE_MAX}")),
    }
}

/// Bytes that one block moves. A block has at least one run, even if that moves more.
const BLOCK_BYTES: usize = 64 << 20;

pub(super) fn carry_out(args: &BandwidthArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    for transport in args.transports.fabrics() {
        fabric::bandwidth::measure(&host, transport, &args.sizes, args.bytes, output)?;
    }
    if !args.transports.shm() {
        return output.flush();
    }
    let stage = MeasuredLease::start(&host, hot(), 0)?;
    let mut records = Vec::new();
    let sizes = if args.sizes.is_empty() { &SIZES[..] } else { &args.sizes };
    for size in sizes {
        records.extend(measure(&stage, *size, args.bytes)?);
    }
    stage.invoker.deallocate()?;
    print(output, "bytes per second", &records, |record| {
        let size = quantity::bytes(record.params["size_bytes"].as_u64().unwrap_or(0));
        match record.params["mode"].as_str() {
            Some("in-place") => format!("{size} read in place"),
            _ => format!("{size} copied there and back"),
        }
    })?;
    output.flush()
}

fn measure(stage: &MeasuredLease, size: usize, bytes: u64) -> anyhow::Result<Vec<Record>> {
    let (sum, echo) = (stage.invoker.function("sum")?, stage.invoker.function("echo")?);
    let source = pattern(size);
    let mut target = vec![1; size];
    let mut buffer: Buffer<u8> = stage.invoker.buffer(size)?;
    buffer.copy_from_slice(&source);
    let expected = wrapping_sum(&source);

    let count = (BLOCK_BYTES / size).max(1);
    let (mut plain, mut in_place, mut copied) = (Samples::new()?, Samples::new()?, Samples::new()?);
    for _ in 0..blocks(usize::try_from(bytes)?, count * size) {
        plain.add_block(&copy_block(&stage.clock, count, &source, &mut target)?);
        let mut result = [0; 8];
        in_place.add_block(
            &stage
                .clock
                .block(1, count, || sum.invoke_buffer(&buffer, &mut result[..]).map(drop))?,
        );
        ensure!(
            u64::from_le_bytes(result) == expected,
            "the function has not read every byte"
        );
        copied.add_block(
            &stage
                .clock
                .block(1, count, || echo.invoke(&source, &mut target).map(drop))?,
        );
        ensure!(target == source, "the copy is not a copy");
    }
    let record = |mode: &str, moved: &Samples| {
        let params = params! { "transport": "shm", "mode": mode, "size_bytes": size, "workers": 1 };
        let mut record = Record::new(
            "bandwidth",
            params,
            "B",
            Figures::of_transfers(size, moved),
            &stage.machine,
        );
        record.samples = moved.len();
        record.compare("plain memcpy", Figures::of_transfers(size, &plain));
        record
    };
    Ok(vec![record("in-place", &in_place), record("copied", &copied)])
}

fn copy_block(clock: &Clock, count: usize, source: &[u8], target: &mut [u8]) -> anyhow::Result<Block> {
    clock.block(1, count, || {
        // `black_box` keeps the compiler from removing the copy.
        std::hint::black_box(&mut *target).copy_from_slice(std::hint::black_box(source));
        Ok(())
    })
}

fn wrapping_sum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}
