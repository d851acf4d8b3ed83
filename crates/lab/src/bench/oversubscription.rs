//! `hotlease bench oversubscription`: cost and throughput of shared cores.
//!
//! Answers three questions, each compared with its baseline in the same run. How much time does the claim of a shared
//! core add to a warm call? How soon does a slot answer that its core is taken? How do eight warm slots on two cores
//! perform, compared with two slots with a core each?

use super::bench_platform::BenchPlatform;
use super::host_info::HostInfo;
use super::pin::{AffinityGuard, Cores};
use super::record::{Figures, Record, Target, params, print};
use super::samples::{Block, Clock, Pair};
use anyhow::{Context, ensure};
use clap::Args;
use hotlease_client::{Completion, Error, Invoker, LeaseOptions, Polling, Sharing};
use hotlease_terminal::functions::functions;
use hotlease_terminal::output::Printer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Measure shared cores. Needs two free cores, and four warm slots on each shared core, which is the default
#[derive(Debug, Args)]
pub(super) struct OversubscriptionArgs {
    /// Calls of each kind
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    samples: u32,
    /// Blocks of half a second of full load on each kind of lease
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

const BLOCK: usize = 25;
const INPUT: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Bytes that each call reads under full load; a call takes about 50 us.
const LOAD_BYTES: usize = 512 << 10;
/// Bytes that the call which occupies a core reads; it takes about 10 ms.
const LONG_BYTES: usize = 64 << 20;
const LOAD_TIME: Duration = Duration::from_millis(500);

pub(super) fn carry_out(args: &OversubscriptionArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let machine = HostInfo::here(Cores::default());
    let mut records = claims(&host, args.samples as usize, &machine)?;
    records.push(throughput(&host, args.rounds, &machine)?);
    print(output, "shared cores", &records, |record| {
        record.params["what"].as_str().unwrap_or_default().to_owned()
    })?;
    output.flush()
}

fn lease(host: &BenchPlatform, workers: u16, sharing: Sharing) -> anyhow::Result<Invoker> {
    Ok(Invoker::allocate(&functions()?, options(host, workers, sharing))?)
}

fn options(host: &BenchPlatform, workers: u16, sharing: Sharing) -> LeaseOptions {
    LeaseOptions {
        workers,
        sharing,
        polling: Polling::Warm,
        completion: Completion::Sleep,
        runtime_dir: Some(host.runtime_dir().to_owned()),
        ..LeaseOptions::default()
    }
}

/// Compares a warm call on an exclusive core with a call that claims its core, and with a call that is refused.
fn claims(host: &BenchPlatform, samples: usize, machine: &HostInfo) -> anyhow::Result<Vec<Record>> {
    let clock = Clock::calibrate();
    let own = lease(host, 1, Sharing::Exclusive)?;
    let shared = lease(host, 2, Sharing::Shared)?;
    let plain = own.function("echo")?;
    let claiming = shared.function("echo")?.on_slot(0)?;
    let mut claimed = Pair::new()?;
    let mut sink = INPUT;
    let (own_core, shared_core) = (core_of(&own, 0)?, core_of(&shared, 0)?);
    for _ in 0..samples.div_ceil(BLOCK) {
        // In both cases the client's core is not the slot's core, because the cost of a wake-up depends on that.
        let pinned = AffinityGuard::away_from(own_core);
        let baseline = clock.block(3, BLOCK, || plain.invoke(&INPUT, &mut sink).map(drop))?;
        drop(pinned);
        let _pinned = AffinityGuard::away_from(shared_core);
        let measured = clock.block(3, BLOCK, || claiming.invoke(&INPUT, &mut sink).map(drop))?;
        claimed.add(&baseline, &measured);
    }
    shared.deallocate()?;
    let options = LeaseOptions {
        wait_for_core: false,
        polling: LeaseOptions::default().polling,
        ..options(host, 2, Sharing::Shared)
    };
    let shared = Invoker::allocate(&functions()?, options)?;
    let refused = refused(&clock, (&plain, own_core), &shared, samples)?;
    own.deallocate()?;
    shared.deallocate()?;
    let record = |what: &str, pair: &Pair| {
        let params = params! { "what": what, "transport": "shm", "mode": "warm", "size_bytes": INPUT.len() };
        Record::of_pair(
            "oversubscription",
            params,
            "warm call on a core of its own",
            pair,
            machine,
        )
    };
    let mut claim = record("claim", &claimed);
    claim.targets.push(Target::at_most(
        "nanoseconds that the claim adds to a warm call",
        claimed.difference(),
        2_000.0,
    ));
    Ok(vec![claim, record("refusal", &refused)])
}

/// Core that a slot runs on.
fn core_of(invoker: &Invoker, slot: usize) -> anyhow::Result<usize> {
    let place = invoker.function("whereabouts")?.on_slot(slot)?.call(b"")?;
    let core = place.as_chunks::<8>().0.get(1).context("no whereabouts")?;
    Ok(u64::from_le_bytes(*core) as usize)
}

/// Times calls of a slot whose core another slot occupies. Calls that find the core free do not count.
fn refused(
    clock: &Clock,
    (plain, own_core): (&hotlease_client::Function, usize),
    shared: &Invoker,
    samples: usize,
) -> anyhow::Result<Pair> {
    let keeping = shared.function("sum")?.on_slot(0)?;
    let trying = shared.function("echo")?.on_slot(1)?;
    let long = shared.buffer::<u8>(LONG_BYTES)?;
    let over = AtomicBool::new(false);
    let mut pair = Pair::new()?;
    let shared_core = core_of(shared, 0)?;
    thread::scope(|scope| {
        let keeper = scope.spawn(|| -> Result<(), Error> {
            let mut sum = [0; 8];
            while !over.load(Ordering::Relaxed) {
                match keeping.invoke_buffer(&long, &mut sum[..]) {
                    Ok(_) | Err(Error::NoCore) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let mut measure = || -> anyhow::Result<()> {
            let until = Instant::now() + Duration::from_secs(120);
            let mut sink = INPUT;
            for _ in 0..samples.div_ceil(BLOCK) {
                let pinned = AffinityGuard::away_from(own_core);
                let baseline = clock.block(3, BLOCK, || plain.invoke(&INPUT, &mut sink).map(drop))?;
                drop(pinned);
                let _pinned = AffinityGuard::away_from(shared_core);
                let mut times = Vec::with_capacity(BLOCK);
                while times.len() < BLOCK {
                    ensure!(Instant::now() < until, "hardly any call was refused");
                    let mut refused = false;
                    let Block(time) = clock.block(0, 1, || match trying.invoke(&INPUT, &mut sink) {
                        Ok(_) => Ok(()),
                        Err(Error::NoCore) => {
                            refused = true;
                            Ok(())
                        }
                        Err(error) => Err(error),
                    })?;
                    if refused {
                        times.extend(time);
                    }
                }
                pair.add(&baseline, &Block(times));
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        let kept = keeper.join();
        measured?;
        kept.ok().context("the thread that keeps the core failed")??;
        anyhow::Ok(())
    })?;
    Ok(pair)
}

/// Compares the calls per second of eight slots that share two cores with those of two slots with a core each. The two
/// kinds of lease alternate.
fn throughput(host: &BenchPlatform, rounds: u32, machine: &HostInfo) -> anyhow::Result<Record> {
    let mut rates = [0.0; 2];
    for _ in 0..rounds {
        for (rate, (workers, sharing)) in rates.iter_mut().zip([(2, Sharing::Exclusive), (8, Sharing::Shared)]) {
            let invoker = lease(host, workers, sharing)?;
            *rate += load(&invoker)? / f64::from(rounds);
            invoker.deallocate()?;
        }
    }
    let params =
        params! { "what": "8 warm slots on 2 cores", "transport": "shm", "mode": "warm", "size_bytes": LOAD_BYTES };
    let figures = |per_second| Figures::Rate { per_second };
    let mut record = Record::new("oversubscription", params, "invocations", figures(rates[1]), machine);
    record.compare("2 warm slots with a core each", figures(rates[0]));
    Ok(record)
}

/// Calls per second while one thread for each slot calls it without pauses.
fn load(invoker: &Invoker) -> anyhow::Result<f64> {
    let input = invoker.buffer::<u8>(LOAD_BYTES)?;
    let (calls, begun) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        let callers: Vec<_> = (0..invoker.slots())
            .map(|slot| {
                let (input, calls) = (&input, &calls);
                scope.spawn(move || -> Result<(), Error> {
                    let sum = invoker.function("sum")?.on_slot(slot)?;
                    let mut output = [0; 8];
                    while begun.elapsed() < LOAD_TIME {
                        sum.invoke_buffer(input, &mut output[..])?;
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        for caller in callers {
            caller.join().ok().context("a calling thread failed")??;
        }
        anyhow::Ok(())
    })?;
    Ok(calls.into_inner() as f64 / begun.elapsed().as_secs_f64())
}
