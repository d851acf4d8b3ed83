//! Bytes per second over a fabric.

use super::super::bench_platform::BenchPlatform;
use super::super::measured_lease::{blocks, hot, pattern};
use super::super::record::{Figures, Record, Target, params, print, round};
use super::super::samples::Pair;
use super::fabric_lease::FabricLease;
use super::tcp::Tcp;
use anyhow::ensure;
use hotlease_client::Buffer;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;

const MIB: usize = 1 << 20;
const SIZES: [usize; 3] = [MIB, 16 * MIB, 256 * MIB];
/// Sizes for datagrams in software (`udp;ofi_rxd`), where megabytes take a second.
const SIZES_SLOW: [usize; 1] = [MIB];
const BLOCK_BYTES: usize = 16 * MIB;
/// Size of one raw write. All writes of a transfer are in flight at the same time.
const CHUNK: usize = MIB;
const PERCENT_95: f64 = 0.95;

/// Direction in which an invocation moves the buffer's bytes.
#[derive(Debug, Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Measures these sizes, or the default sizes if there are none.
pub(in crate::bench) fn measure(
    host: &BenchPlatform,
    transport: &str,
    sizes: &[usize],
    bytes: u64,
    output: &mut Printer,
) -> anyhow::Result<()> {
    let stage = FabricLease::set(host, transport, hot())?;
    let slow = stage.provider.name() == "udp;ofi_rxd";
    let (default, bytes) = match slow {
        true => (&SIZES_SLOW[..], bytes >> 5),
        false => (&SIZES[..], bytes),
    };
    let sizes = if sizes.is_empty() { default } else { sizes };
    let mut records = Vec::new();
    for size in sizes {
        records.extend(by_size(&stage, *size, bytes)?);
    }
    let title = format!("bytes per second over {} ({})", stage.provider.name(), stage.library());
    stage.invoker.deallocate()?;
    print(output, &title, &records, |record| {
        let size = quantity::bytes(record.params["size_bytes"].as_u64().unwrap_or(0));
        match record.params["mode"].as_str() {
            Some("in") => format!("{size} to the function"),
            _ => format!("{size} from the function"),
        }
    })
}

fn by_size(stage: &FabricLease, size: usize, bytes: u64) -> anyhow::Result<Vec<Record>> {
    let (touch, produce) = (stage.invoker.function("touch")?, stage.invoker.function("produce")?);
    let source = pattern(size);
    let mut buffer: Buffer<u8> = stage.invoker.buffer(size)?;
    buffer.copy_from_slice(&source);
    let mut raw = stage.raw(false, size)?;
    let tcp = Tcp::new(stage)?;
    let count = (BLOCK_BYTES / size).max(1);
    let (mut over_raw, mut over_tcp) = ([Pair::new()?, Pair::new()?], [Pair::new()?, Pair::new()?]);
    for _ in 0..blocks(usize::try_from(bytes)?, count * size) {
        let writes = raw.with(|client| Ok(stage.clock.block(1, count, || client.write(size, CHUNK))?))?;
        let mut first = [0; 1];
        let inward = stage
            .clock
            .block(1, count, || touch.invoke_buffer(&buffer, &mut first[..]).map(drop))?;
        ensure!(first[0] == source[0], "the function has not got the buffer");
        let outward = stage.clock.block(1, count, || {
            produce.invoke_buffer(&[0; 8][..], buffer.slice_mut(..)).map(drop)
        })?;
        // `produce` leaves its own first byte in the buffer, and the next round must find the pattern.
        buffer[0] = source[0];
        let copies = tcp.block(&stage.clock, &source, count)?;
        for (way, measured) in [inward, outward].iter().enumerate() {
            over_raw[way].add(&writes, measured);
            over_tcp[way].add(&copies, measured);
        }
    }
    let mut records = Vec::new();
    for (way, direction) in [Direction::In, Direction::Out].into_iter().enumerate() {
        let raw = record(stage, size, direction, "raw RMA writes", &over_raw[way]);
        let what = format!("{}: as a part of raw RMA", quantity::bytes(size as u64));
        let target = Target::at_least(what, raw.ratio_p50.unwrap_or(0.0), PERCENT_95);
        records.push(Record {
            targets: vec![target],
            ..raw
        });
        records.push(record(
            stage,
            size,
            direction,
            "copy through one TCP connection",
            &over_tcp[way],
        ));
    }
    Ok(records)
}

fn record(stage: &FabricLease, size: usize, direction: Direction, baseline: &str, pair: &Pair) -> Record {
    let params = params! {
        "transport": stage.provider.name(), "library": stage.library(),
        "mode": match direction { Direction::In => "in", Direction::Out => "out" },
        "size_bytes": size, "workers": 1,
    };
    let rate = |samples| Figures::of_transfers(size, samples);
    let mut record = Record::new("bandwidth", params, "B", rate(&pair.measured), &stage.machine);
    record.samples = pair.measured.len();
    record.compare(baseline, rate(&pair.baseline));
    // The quotient of neighbouring blocks is inverted, because the pair contains times and the record contains rates.
    record.ratio_p50 = (pair.ratio() > 0.0).then(|| round(1.0 / pair.ratio()));
    record
}
