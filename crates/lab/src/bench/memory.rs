//! `hotlease bench memory`: reads and writes of remote memory.

use super::bench_platform::BenchPlatform;
use super::fabric::{self, FabricLease};
use super::host_info::HostInfo;
use super::measured_lease::{blocks, lease_options_on, pattern};
use super::pin::Cores;
use super::record::{Figures, Record, Target, params, print};
use super::samples::{Clock, Pair};
use anyhow::ensure;
use clap::Args;
use hotlease_bench_fabric::Rma;
use hotlease_client::{Completion, Error, LeaseOptions, MemoryOptions, Polling, RemoteMemory};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;

/// Measure reads and writes of leased memory by size: on this node next to memcpy in a region of the same size, over a
/// fabric next to raw RMA of the same provider, each write complete when the other end has its bytes
#[derive(Debug, Args)]
pub(super) struct MemoryArgs {
    #[command(flatten)]
    transports: fabric::TransportArgs,
    /// Sizes, bytes [default: 8, 64, 512, 4 KiB, 64 KiB, 1 MiB, 16 MiB, 64 MiB]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Copies of each size, at least
    #[arg(long, default_value_t = 20_000)]
    samples: usize,
    /// Bytes of all copies of a size, at most
    #[arg(long, default_value_t = 4 << 30)]
    bytes: usize,
}

const SIZES: [usize; 8] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const SIZE_MAX: usize = 1 << 30;
/// Size of the memory whose places are copied in turn; more than the caches have.
const REGION: usize = 256 << 20;
/// Distance of two places that are copied one after the other: a prime number of cache lines.
const STEP: usize = 64 * 10_007;
/// Length of one raw operation.
const CHUNK: usize = 1 << 20;
const BLOCK: usize = 100;
/// How much slower than raw RMA small copies may be, nanoseconds.
const SLOWER_NS: f64 = 1000.0;
const PERCENT_90: f64 = 0.9;

#[derive(Debug, Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// Copies `target` from a place of the memory, or `source` to it.
    fn copy(self, memory: &RemoteMemory, at: usize, source: &[u8], target: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::Read => memory.read(at as u64, target),
            Self::Write => memory.write(at as u64, source),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "written",
        }
    }
}

pub(super) fn carry_out(args: &MemoryArgs, output: &mut Printer) -> anyhow::Result<()> {
    let sizes = if args.sizes.is_empty() { &SIZES[..] } else { &args.sizes };
    let of_size = |size: usize| (1..=SIZE_MAX).contains(&size);
    ensure!(
        sizes.iter().all(|size| of_size(*size)),
        "sizes are 1 to {SIZE_MAX} bytes"
    );
    let host = BenchPlatform::find_or_start()?;
    let region = REGION.max(sizes.iter().copied().max().unwrap_or(0) + STEP);
    if args.transports.shm() {
        let memory = allocate(&host, "shm", region)?;
        let machine = HostInfo::here(Cores {
            client: None,
            slot: None,
        });
        let records = on_node(args, sizes, (&memory, region), &machine)?;
        memory.deallocate()?;
        show(output, "memory of this node", &records)?;
    }
    for transport in args.transports.fabrics() {
        let records = over_fabric(args, sizes, (&host, region), transport)?;
        show(output, &format!("memory over {transport}"), &records)?;
    }
    output.flush()
}

fn allocate(host: &BenchPlatform, transport: &str, region: usize) -> anyhow::Result<RemoteMemory> {
    let mut options = MemoryOptions::default();
    options.lease = LeaseOptions {
        transport: Some(transport.to_owned()),
        completion: Completion::Spin,
        ..lease_options_on(host, LeaseOptions::default())
    };
    Ok(RemoteMemory::allocate(region as u64, options)?)
}

/// Places of a region, one after the other.
fn places(region: usize, size: usize) -> impl FnMut() -> usize {
    let mut at = 0;
    move || {
        at = (at + STEP) % (region - size);
        at
    }
}

/// Number of blocks for a size, and copies of each.
fn effort(args: &MemoryArgs, size: usize) -> (usize, usize) {
    let samples = args.samples.min(args.bytes / size).max(10);
    let block = BLOCK.min(samples / 5).max(1);
    (blocks(samples, block), block)
}

fn on_node(
    args: &MemoryArgs,
    sizes: &[usize],
    (memory, region): (&RemoteMemory, usize),
    machine: &HostInfo,
) -> anyhow::Result<Vec<Record>> {
    let clock = Clock::calibrate();
    let mut near = pattern(region);
    let mut records = Vec::new();
    for size in sizes {
        let source = pattern(*size);
        let mut target = vec![0; *size];
        let (count, block) = effort(args, *size);
        for direction in Direction::ALL {
            let (mut pair, mut place) = (Pair::new()?, places(region, *size));
            for _ in 0..count {
                let plain = clock.block(1, block, || {
                    let at = place();
                    // `black_box` keeps the compiler from removing the copy.
                    let here = std::hint::black_box(&mut near[at..at + size]);
                    match direction {
                        Direction::Read => std::hint::black_box(&mut target[..]).copy_from_slice(here),
                        Direction::Write => here.copy_from_slice(std::hint::black_box(&source)),
                    }
                    anyhow::Ok(())
                })?;
                let ours = clock.block(1, block, || direction.copy(memory, place(), &source, &mut target))?;
                pair.add(&plain, &ours);
            }
            check(memory, &source, &mut target)?;
            records.push(record(("shm", "memcpy"), (*size, direction), &pair, machine));
        }
    }
    Ok(records)
}

fn over_fabric(
    args: &MemoryArgs,
    sizes: &[usize],
    (host, region): (&BenchPlatform, usize),
    transport: &str,
) -> anyhow::Result<Vec<Record>> {
    // The raw peer runs in a slot, which must not poll while the memory server works.
    let sleeping = LeaseOptions {
        polling: Polling::Warm,
        ..LeaseOptions::default()
    };
    let stage = FabricLease::set(host, transport, sleeping)?;
    let memory = allocate(host, stage.provider.name(), region)?;
    let mut raw = stage.raw(true, region)?;
    let mut records = Vec::new();
    for size in sizes {
        let source = pattern(*size);
        let mut target = vec![0; *size];
        let (count, block) = effort(args, *size);
        for (direction, rma) in Direction::ALL.into_iter().zip([Rma::Read, Rma::WriteDelivered]) {
            let (mut pair, mut place) = (Pair::new()?, places(region, *size));
            for _ in 0..count {
                let plain = raw.with(|client| {
                    Ok(stage
                        .clock
                        .block(1, block, || client.copy(rma, place(), *size, CHUNK))?)
                })?;
                let ours = stage
                    .clock
                    .block(1, block, || direction.copy(&memory, place(), &source, &mut target))?;
                pair.add(&plain, &ours);
            }
            check(&memory, &source, &mut target)?;
            let names = (stage.provider.name(), "raw RMA");
            records.push(record(names, (*size, direction), &pair, &stage.machine));
        }
    }
    memory.deallocate()?;
    stage.invoker.deallocate()?;
    Ok(records)
}

fn check(memory: &RemoteMemory, source: &[u8], target: &mut [u8]) -> anyhow::Result<()> {
    memory.write(0, source)?;
    memory.read(0, target)?;
    ensure!(target == source, "the memory has other bytes than were written");
    Ok(())
}

fn record(
    (transport, baseline): (&str, &str),
    (size, direction): (usize, Direction),
    pair: &Pair,
    machine: &HostInfo,
) -> Record {
    let params = params! { "transport": transport, "mode": direction.word(), "size_bytes": size };
    let mut record = Record::of_pair("memory", params, baseline, pair, machine);
    let what = format!("{} {}", quantity::bytes(size as u64), direction.word());
    let ratio = record.ratio_p50.unwrap_or(0.0);
    record.targets = match size {
        // A mean of many copies per second would hide slow copies, so the ratio of medians is compared.
        _ if size > 64 << 10 => vec![Target::at_least(
            format!("{what}: rate as a part of {baseline}"),
            if ratio > 0.0 { 1.0 / ratio } else { 0.0 },
            PERCENT_90,
        )],
        _ => vec![Target::at_most(
            format!("{what}: slower than {baseline}, ns"),
            record.difference_p50.unwrap_or(f64::MAX),
            SLOWER_NS,
        )],
    };
    let rate = Figures::of_transfers(size, &pair.measured);
    if let Figures::Rate { per_second } = rate {
        record.details.insert("bytes_per_second".into(), per_second.into());
    }
    record
}

fn show(output: &mut Printer, title: &str, records: &[Record]) -> anyhow::Result<()> {
    print(output, title, records, |record| {
        let size = quantity::bytes(record.params["size_bytes"].as_u64().unwrap_or(0));
        format!("{size} {}", record.params["mode"].as_str().unwrap_or_default())
    })
}
