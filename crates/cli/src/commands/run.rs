//! `hotlease run`: leases workers, calls one function on them, and prints its output.

use crate::commands::leases::usage_text;
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use hotlease_client::{
    Code, Directory, Function, Invoker, LeaseOptions, Placement, Polling, Reach, Sharing, Spread, StoragePlace,
};
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::SiteArgs;
use hotlease_terminal::quantity;
use hotlease_wire::limits::{ENTRY_BYTES_DEFAULT, ENTRY_BYTES_MAX};
use hotlease_wire::session::UsageTotals;
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Call one function of a shared library on a leased worker
///
/// The library is read on this host, and its code runs only in the worker. Stdin is the input and stdout the
/// output, as bytes. With `--json`, prints one object: function, lease, input_bytes, output_bytes, output_base64
/// (null with `--output`), invocations, cold_us {total, acquire, attach, load, connect, open}, call_ns {min, p50,
/// p99, max}, usage {allocated_ns, hot_ns, compute_ns, invocations}.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A shared library (`cc -shared -fPIC`)
    #[arg(value_name = "LIB.so")]
    library: PathBuf,
    /// Exported function to call; `hotlease functions LIB.so` lists them
    function: String,
    /// Read the input from a file instead of stdin
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write the output to a file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Slots (threads on cores of their own) of each worker
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: u16,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u16,
    /// GPUs of each worker; functions find their numbers in $HOTLEASE_GPUS
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpus: u16,
    /// Allow workers on several agents, if at least LEAST workers are found [default: all on one agent]
    #[arg(long, value_name = "LEAST")]
    spread: Option<u16>,
    /// Request the lease from agents without the manager; the agents must run with `--direct`
    #[arg(long, conflicts_with = "spread")]
    direct: bool,
    /// Wait at most this time for a lease if there is no room or the manager is away, such as 30s [default: try
    /// once]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    wait: Option<Duration>,
    /// Longest time of each call, such as 100ms or 1s (without a unit: milliseconds); then the call is cancelled
    /// [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    timeout: Option<Duration>,
    /// Largest number of output bytes of a call, such as 4096 or 10M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = quantity::parse_bytes)]
    output_bytes: usize,
    /// Number of calls with the same input, spread over the slots; the output of one call is written
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// How slots wait for the next call
    #[arg(long, value_enum, default_value_t = PollingArg::Adaptive)]
    polling: PollingArg,
    /// Share cores with other leases: slots sleep between calls, and take turns
    #[arg(long, conflicts_with = "polling")]
    shared: bool,
    /// Isolation of the function: process, namespace, container or microvm [default: the site's]
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    sandbox: String,
    /// Directory of the node that the function sees: PATH[:INSIDE][:rw], if its site grants it; may be given more
    /// than once
    #[arg(long = "mount", value_name = "MOUNT")]
    mounts: Vec<Directory>,
    /// Object storage that the function may use, with keys of its own: s3://BUCKET[/PREFIX][:ro|:rw], if its site
    /// grants it; may be given more than once
    #[arg(long = "storage", value_name = "PLACE")]
    storage: Vec<StoragePlace>,
    /// Let the function use the node's network, if its site grants that
    #[arg(long)]
    network: bool,
    /// Restore the state that functions saved under this name, and keep it for the next lease with that name
    /// (HOTLEASE_STATE_SAVE)
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    state: String,
    /// Print durations and usage on stderr
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    site: SiteArgs,
}

/// `Polling` as a command-line value.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PollingArg {
    /// Poll while calls keep coming, then sleep
    Adaptive,
    /// Poll for the whole hot budget
    Hot,
    /// Sleep at once
    Warm,
}

impl From<PollingArg> for Polling {
    fn from(polling: PollingArg) -> Self {
        match polling {
            PollingArg::Adaptive => Self::Adaptive,
            PollingArg::Hot => Self::Hot,
            PollingArg::Warm => Self::Warm,
        }
    }
}

#[derive(Serialize)]
struct RunSummary {
    function: String,
    lease: String,
    input_bytes: usize,
    output_bytes: usize,
    output_base64: Option<String>,
    invocations: u64,
    cold_us: ColdTimes,
    call_ns: CallTimes,
    usage: UsageTotals,
}

/// Durations of the steps until the first call, microseconds.
#[derive(Serialize)]
struct ColdTimes {
    total: u64,
    acquire: u64,
    attach: u64,
    load: u64,
    connect: u64,
    open: u64,
}

/// Durations of the calls, nanoseconds.
#[derive(Serialize)]
struct CallTimes {
    min: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

pub(crate) fn carry_out(args: RunArgs, output: &mut Printer) -> anyhow::Result<()> {
    let code = Code::open(&args.library)?;
    let input = read_input(args.input.as_deref())?;
    let invoker = Invoker::allocate(&code, lease_options(&args, input.len()))?;
    let function = invoker.function(&args.function)?;
    let mut done = call(&function, &input, &args)?;
    done.output.truncate(done.length);

    let (lease, phases) = (invoker.lease(), invoker.phases());
    let usage = invoker.deallocate()?;
    let us = |phase: Duration| phase.as_micros() as u64;
    let in_json = output.is_json() && args.output.is_none();
    let ran = RunSummary {
        function: args.function,
        lease: lease.to_string(),
        input_bytes: input.len(),
        output_bytes: done.output.len(),
        output_base64: in_json.then(|| STANDARD.encode(&done.output)),
        invocations: args.repeat,
        cold_us: ColdTimes {
            total: us(phases.total()),
            acquire: us(phases.acquire),
            attach: us(phases.attach),
            load: us(phases.load),
            connect: us(phases.connect),
            open: us(phases.open),
        },
        call_ns: CallTimes {
            min: done.times.min(),
            p50: done.times.value_at_quantile(0.5),
            p99: done.times.value_at_quantile(0.99),
            max: done.times.max(),
        },
        usage,
    };
    if let Some(path) = &args.output {
        std::fs::write(path, &done.output).with_context(|| format!("cannot write {}", path.display()))?;
    } else if !output.is_json() {
        output.bytes(&done.output)?;
        output.flush()?;
    }
    if output.is_json() {
        output.object(&ran)?;
    } else if args.verbose || args.repeat > 1 {
        tell(&ran);
    }
    Ok(())
}

fn lease_options(args: &RunArgs, input_bytes: usize) -> LeaseOptions {
    let entry = |bytes: usize| {
        let bytes = bytes.clamp(ENTRY_BYTES_DEFAULT as usize, ENTRY_BYTES_MAX as usize);
        bytes.next_power_of_two() as u32
    };
    LeaseOptions {
        workers: args.workers,
        gpus: args.gpus,
        spread: args.spread.map_or(Spread::OneAgent, Spread::AtLeast),
        placement: if args.direct {
            Placement::Direct
        } else {
            Placement::Managed
        },
        slots: args.slots,
        sandbox: args.sandbox.clone(),
        reach: Reach {
            directories: args.mounts.clone(),
            network: args.network,
            storage: args.storage.clone(),
        },
        state: args.state.clone(),
        polling: args.polling.into(),
        sharing: if args.shared {
            Sharing::Shared
        } else {
            Sharing::Exclusive
        },
        timeout: args.timeout,
        patience: args.wait.unwrap_or_default(),
        // Each slot has one call at a time: few, but large entries, so that most data fits in them.
        depth: 2,
        manager: args.site.manager.clone().filter(|manager| !manager.is_empty()),
        identity: args.site.identity.clone(),
        credential: args.site.credential(),
        authority: args.site.ca_file.clone(),
        request_bytes: entry(input_bytes),
        reply_bytes: entry(args.output_bytes),
        ..LeaseOptions::default()
    }
}

/// Prints durations and usage to stderr, because stdout has the function's output.
fn tell(ran: &RunSummary) {
    let ns = quantity::nanoseconds;
    eprintln!(
        "{}: {} calls, median {}, p99 {}, fastest {}, slowest {}; cold start {}",
        ran.function,
        ran.invocations,
        ns(ran.call_ns.p50),
        ns(ran.call_ns.p99),
        ns(ran.call_ns.min),
        ns(ran.call_ns.max),
        ns(ran.cold_us.total * 1000),
    );
    eprintln!("lease {}: {}", ran.lease, usage_text(&ran.usage));
}

fn read_input(file: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let mut input = Vec::new();
    match file {
        Some(path) => {
            let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            file.read_to_end(&mut input)
                .with_context(|| format!("cannot read {}", path.display()))?;
        }
        None => {
            if io::stdin().is_terminal() {
                eprintln!("hotlease: reading the input from the terminal; end it with Ctrl-D");
            }
            io::stdin()
                .lock()
                .read_to_end(&mut input)
                .context("cannot read stdin")?;
        }
    }
    Ok(input)
}

/// Longest duration that is recorded as it is, nanoseconds: an hour. Longer ones count as an hour.
const CALL_NS_MAX: u64 = 3_600_000_000_000;

/// Output and durations of the calls.
struct CallResults {
    output: Vec<u8>,
    /// Bytes of `output` that the last call wrote.
    length: usize,
    times: Histogram<u64>,
}

/// Zeroed memory for an output of the requested size.
fn output_memory(bytes: usize) -> anyhow::Result<Vec<u8>> {
    // Reserves memory once to see whether there is enough: a failure of `vec!` would end the process. `vec!` then gets
    // zeroed memory that is not touched before use.
    let probe = Vec::<u8>::new().try_reserve_exact(bytes);
    probe.with_context(|| {
        let bytes = quantity::bytes(bytes as u64);
        format!("cannot get memory for an output of {bytes}; ask for less with `--output-bytes`")
    })?;
    Ok(vec![0; bytes])
}

/// Calls the function `args.repeat` times. Each slot is kept busy by a thread of its own; after the first error no
/// thread begins another call.
fn call(function: &Function, input: &[u8], args: &RunArgs) -> anyhow::Result<CallResults> {
    let slots = u64::from(args.slots) * u64::from(args.workers);
    let left = AtomicU64::new(args.repeat);
    let caller = || {
        let mut done = CallResults {
            output: output_memory(args.output_bytes)?,
            length: 0,
            times: Histogram::new_with_bounds(1, CALL_NS_MAX, 3)?,
        };
        let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        while take().is_ok() {
            let start = Instant::now();
            let called = function.invoke(input, &mut done.output);
            let took = start.elapsed();
            done.length = called.inspect_err(|_| left.store(0, Ordering::Relaxed))?;
            done.times.saturating_record(took.as_nanos() as u64);
        }
        anyhow::Ok(done)
    };
    if slots.min(args.repeat) == 1 {
        return caller();
    }
    thread::scope(|scope| {
        let callers: Vec<_> = (0..slots.min(args.repeat)).map(|_| scope.spawn(caller)).collect();
        let mut all: Option<CallResults> = None;
        for caller in callers {
            let Ok(done) = caller.join() else {
                anyhow::bail!("a calling thread failed");
            };
            let done = done?;
            match &mut all {
                Some(all) => all.times.add(&done.times)?,
                // A thread that got no call has no output.
                None if done.times.is_empty() => {}
                None => all = Some(done),
            }
        }
        all.context("no call was made")
    })
}
