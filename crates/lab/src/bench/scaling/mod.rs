//! `hotlease bench scaling`: many workers at the same time, each called by its own thread.
//!
//! The round trip should stay constant, because clients share nothing on the path of a call, as long as cores, memory
//! and link are not saturated. The baseline of each number of workers is the first of these workers, called alone.
//! Blocks of all workers and of the first worker alternate, because virtual cores are near each other at one time and
//! far at another.
//!
//! * [`team`] — the leases of one number of workers, and a block of calls by all of them.

mod team;

use super::bench_platform::BenchPlatform;
use super::fabric;
use super::measured_lease::blocks;
use super::record::{Record, Target, params, print, round};
use super::samples::Pair;
use anyhow::Context;
use clap::Args;
use hotlease_client::Error;
use hotlease_fabric::clock::median;
use hotlease_fabric::ofi::Libfabric;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use hotlease_wire::Rejection;
use serde_json::json;
use std::time::{Duration, Instant};
use team::{Payload, Team};

/// Measure round trips of an echo on several workers at the same time, next to one of them called alone in the same
/// run. Payloads that fit into the ring are copied; larger ones are registered buffers in and out. Numbers of
/// workers for which the platform has too few cores are left out with a warning
#[derive(Debug, Args)]
pub(super) struct ScalingArgs {
    #[command(flatten)]
    transports: fabric::TransportArgs,
    /// Numbers of workers, each with a client's thread of its own
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16], value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// Payload sizes, bytes
    #[arg(long, value_delimiter = ',', default_values_t = [1 << 10, 1 << 20], value_parser = size)]
    sizes: Vec<usize>,
    /// Calls of each worker; fewer if they would move more than 2 GiB
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,
    /// Seconds for each number of workers and size, after which no further calls begin
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

const SIZE_MAX: usize = 64 << 20;
const BYTES_MAX: usize = 2 << 30;
/// Largest number of calls in a block, and largest number of bytes that they move together.
const BLOCK: usize = 200;
const BLOCK_BYTES: usize = 8 << 20;
/// Promised maximum, as a multiple of one worker called alone.
const FLAT: f64 = 1.10;

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 1..=SIZE_MAX) => Ok(size),
        _ => Err(format!("must be a number of bytes from 1 to {SIZE_MAX}")),
    }
}

pub(super) fn carry_out(args: &ScalingArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let shm = args.transports.shm().then_some("shm");
    for transport in shm.into_iter().chain(args.transports.fabrics()) {
        let records = measure_transport(&host, transport, args, output)?;
        if !output.is_json() {
            let title = format!("an echo on several workers at once over {transport}, beside one alone");
            print(output, &title, &records, describe)?;
        }
    }
    output.flush()
}

/// Measures one transport. Prints JSON records one by one, because with many workers each record takes long.
fn measure_transport(
    host: &BenchPlatform,
    transport: &str,
    args: &ScalingArgs,
    output: &mut Printer,
) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for workers in &args.workers {
        let team = match Team::gather(host, transport, *workers) {
            Ok(team) => team,
            Err(error) => match find_shortage(&error) {
                Some(refusal) => {
                    tracing::warn!("{workers} workers are left out: {refusal}");
                    continue;
                }
                None => return Err(error),
            },
        };
        for size in &args.sizes {
            let record = measure_size(&team, *size, args)?;
            if output.is_json() {
                output.object(&record)?;
                output.flush()?;
            }
            records.push(record);
        }
        team.dismiss()?;
    }
    Ok(records)
}

/// Returns the refusal if the error says that there are too few cores for this number of workers. The benchmark does
/// not fail then.
fn find_shortage(error: &anyhow::Error) -> Option<&Rejection> {
    let refusal = error.downcast_ref().and_then(Error::refusal);
    refusal.filter(|refusal| matches!(refusal, Rejection::NoCapacity { .. }))
}

/// Numbers of calls of each worker: in all, and in a block.
fn counts(size: usize, samples: usize) -> (usize, usize) {
    let calls = samples.min(BYTES_MAX / size).max(1);
    (calls, (BLOCK_BYTES / size).clamp(1, BLOCK).min(calls))
}

fn measure_size(team: &Team, size: usize, args: &ScalingArgs) -> anyhow::Result<Record> {
    let mut payloads = team.payloads(size)?;
    let (calls, block) = counts(size, args.samples as usize);
    let begin = Instant::now();
    let mut pair = Pair::new()?;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..blocks(calls, block) {
        let first = team.block(&mut payloads[..1], block)?;
        let all = team.block(&mut payloads, block)?;
        pair.add(&first.times, &all.times);
        alone.push(first.per_second);
        together.push(all.per_second);
        if begin.elapsed() >= Duration::from_secs(args.seconds) {
            break;
        }
    }
    let rates = Rates {
        alone: median(&alone),
        together: median(&together),
    };
    record(team, size, Payload::is_copied(size), &pair, rates)
}

/// Calls per second of one worker alone, and of all workers together.
#[derive(Debug, Clone, Copy)]
struct Rates {
    alone: f64,
    together: f64,
}

fn record(team: &Team, size: usize, copied: bool, pair: &Pair, rates: Rates) -> anyhow::Result<Record> {
    let workers = team.workers();
    let mut params = params! {
        "transport": team.transport(),
        "mode": if team.has_cores_each() { "hot" } else { "adaptive" },
        "size_bytes": size,
        "payload": if copied { "copied" } else { "registered" },
        "workers": workers,
    };
    if team.transport() != "shm" {
        let (major, minor) = Libfabric::load().context("libfabric is gone")?.version();
        params.insert("library".into(), json!(format!("libfabric {major}.{minor}")));
    }
    let mut record = Record::of_pair("scaling", params, "one worker alone", pair, &team.machine());
    record.details = params! {
        "cores_each": team.has_cores_each(),
        "client_cores": team.client_cores(),
        "slot_cores": team.slot_cores(),
        "calls_per_second": rates.together.round(),
        "calls_per_second_alone": rates.alone.round(),
        // Counts the bytes of both directions.
        "bytes_per_second": (rates.together * 2.0 * size as f64).round(),
        "speedup": round(rates.together / rates.alone.max(f64::MIN_POSITIVE)),
    };
    record.targets = target(team.has_cores_each(), copied, workers, size, pair.ratio())
        .into_iter()
        .collect();
    Ok(record)
}

/// Target of a record. Shared cores and large payloads have no target. With large payloads, this benchmark cannot find
/// out whether they saturate memory or the link.
fn target(cores_each: bool, copied: bool, workers: usize, size: usize, ratio: f64) -> Option<Target> {
    let what = format!("{workers} workers, {size} B: median as a multiple of one alone");
    (cores_each && copied && workers > 1).then(|| Target::at_most(what, ratio, FLAT))
}

fn describe(record: &Record) -> String {
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0) as u64;
    format!(
        "{} workers, {}: {} calls/s, {}/s{}",
        record.params["workers"],
        quantity::bytes(number(&record.params["size_bytes"])),
        number(&record.details["calls_per_second"]),
        quantity::bytes(number(&record.details["bytes_per_second"])),
        match record.details["cores_each"].as_bool() {
            Some(true) => "",
            _ => " (cores are shared)",
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ScalingArgs,
    }

    fn parse(words: &[&str]) -> Result<ScalingArgs, clap::Error> {
        Line::try_parse_from([&["scaling"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn arguments_are_lists_within_bounds() {
        let default = parse(&[]).unwrap();
        assert_eq!(default.workers, [1, 2, 4, 8, 16]);
        assert_eq!(default.sizes, [1024, 1 << 20]);
        let chosen = parse(&["--transport", "shm,net", "--workers", "3,1", "--sizes", "8"]).unwrap();
        assert_eq!((chosen.workers, chosen.sizes), (vec![3, 1], vec![8]));
        assert!(chosen.transports.shm());
        assert_eq!(chosen.transports.fabrics().collect::<Vec<_>>(), ["net"]);
        for bad in [
            ["--workers", "0"],
            ["--sizes", "0"],
            ["--samples", "0"],
            ["--sizes", "67108865"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?} is taken");
        }
    }

    #[test]
    fn large_payloads_are_called_less_often() {
        assert_eq!(counts(1024, 20_000), (20_000, 200));
        assert_eq!(counts(1 << 20, 20_000), (2048, 8));
        assert_eq!(counts(SIZE_MAX, 20_000), (32, 1));
        assert_eq!(counts(1024, 50), (50, 50), "no block is larger than what was asked for");
    }

    #[test]
    fn only_copied_calls_on_cores_of_their_own_are_judged() {
        let flat = target(true, true, 4, 1024, 1.05).expect("judged");
        assert!(flat.met && flat.what.starts_with("4 workers"), "{flat:?}");
        assert!(!target(true, true, 4, 1024, 1.2).expect("judged").met);
        let unjudged = [(false, true, 4), (true, false, 4), (true, true, 1)];
        for (cores_each, copied, workers) in unjudged {
            let target = target(cores_each, copied, workers, 1024, 9.0);
            assert!(target.is_none(), "{target:?}");
        }
    }

    #[test]
    fn too_few_cores_are_told_from_faults() {
        let refusal = Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 2,
        };
        let error = anyhow::Error::new(Error::Refused(refusal));
        assert!(find_shortage(&error.context("worker 3")).is_some());
        assert!(find_shortage(&anyhow::Error::new(Error::Refused(Rejection::NoAgent))).is_none());
        assert!(find_shortage(&anyhow::anyhow!("anything")).is_none());
    }
}
