//! A lease to measure on, with its baseline. Both ends are pinned, and the baseline's peer runs in the leased slot.

use super::bench_platform::BenchPlatform;
use super::host_info::HostInfo;
use super::pin::{AffinityGuard, Cores};
use super::samples::{Block, Clock};
use anyhow::Context;
use hotlease_bench_baseline::{Client, RoundTripKind, memory_bytes, prepare};
use hotlease_client::{Buffer, Completion, Function, Invoker, LeaseOptions, Polling};
use hotlease_terminal::functions::functions;
use std::time::{Duration, Instant};

/// Longer than any pause within a benchmark, so that a hot slot stays hot.
const HOT_BUDGET: Duration = Duration::from_secs(10);
/// Unmeasured runs at the start of a block, because caches and branch predictors are still filled by the other series.
const WARM_UP: usize = 50;

/// A lease to measure on, with its baseline.
pub(super) struct MeasuredLease {
    pub(super) invoker: Invoker,
    pub(super) clock: Clock,
    pub(super) machine: HostInfo,
    pub(super) cores: Cores,
    /// Process of the worker.
    pub(super) worker_pid: u32,
    raw: Function,
    memory: Buffer<u64>,
    _pinned: Option<AffinityGuard>,
}

/// A lease whose slots poll all the time and whose client spins.
pub(super) fn hot() -> LeaseOptions {
    LeaseOptions {
        polling: Polling::Hot,
        hot_budget: HOT_BUDGET,
        completion: Completion::Spin,
        ..LeaseOptions::default()
    }
}

impl MeasuredLease {
    /// Leases a slot, and pins the calling thread to another core than the first slot's. Payloads of baselines can have
    /// up to `payload_bytes`.
    pub(super) fn start(host: &BenchPlatform, options: LeaseOptions, payload_bytes: usize) -> anyhow::Result<Self> {
        let options = LeaseOptions {
            // The baseline's peer reads the client's memory, so an environment variable must not choose another
            // transport.
            transport: Some("shm".into()),
            ..lease_options_on(host, options)
        };
        let invoker = Invoker::allocate(&functions()?, options)?;
        let (worker_pid, cores, pinned) = pin_apart(&invoker)?;
        Ok(Self {
            clock: Clock::calibrate(),
            machine: HostInfo::here(cores),
            cores,
            worker_pid,
            raw: invoker.function("raw")?.on_slot(0)?,
            memory: invoker.buffer(memory_bytes(payload_bytes) / size_of::<u64>())?,
            invoker,
            _pinned: pinned,
        })
    }

    /// Calls `run` with a client of the raw peer in slot 0. Meanwhile the slot runs only the peer.
    pub(super) fn with_raw<R>(
        &mut self,
        kind: RoundTripKind,
        run: impl FnOnce(&mut Client<'_>, &Clock) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        prepare(&mut self.memory);
        let words = kind.to_words().map(u64::to_le_bytes);
        let peer = self
            .raw
            .submit_buffer(words.as_flattened(), self.memory.slice_mut(..))?;
        let mut client = Client::new(&mut self.memory, kind).context("the baseline's memory is too small")?;
        let result = run(&mut client, &self.clock);
        client.stop();
        peer.wait()?;
        result
    }

    /// A block of raw round trips.
    pub(super) fn raw_block(&mut self, kind: RoundTripKind, input: &[u8], count: usize) -> anyhow::Result<Block> {
        self.with_raw(kind, |client, clock| {
            clock.echo_block(WARM_UP, count, input, |output| client.echo(input, output))
        })
    }

    /// A block of invocations of the echo function.
    pub(super) fn echo_block(&self, echo: &Function, input: &[u8], count: usize) -> anyhow::Result<Block> {
        let invoke = |output: &mut [u8]| echo.invoke(input, output).map(drop);
        self.clock.echo_block(WARM_UP, count, input, invoke)
    }
}

/// Options of a lease on the measured platform.
pub(super) fn lease_options_on(host: &BenchPlatform, options: LeaseOptions) -> LeaseOptions {
    LeaseOptions {
        runtime_dir: Some(host.runtime_dir().to_owned()),
        label: "hotlease bench".into(),
        // If lost workers were replaced, their loss would remain hidden.
        replace_lease: false,
        ..options
    }
}

/// Pins the calling thread to another core than the first slot's. Returns the worker's process id, both cores, and a
/// guard that undoes the pinning.
pub(super) fn pin_apart(invoker: &Invoker) -> anyhow::Result<(u32, Cores, Option<AffinityGuard>)> {
    let (pid, slot) = locate_slot(invoker)?;
    let (pinned, client) = slot.and_then(AffinityGuard::away_from).unzip();
    if client.is_none() {
        tracing::warn!("client and slot share a core: there is no other; figures mean little");
    }
    Ok((pid, Cores { client, slot }, pinned))
}

/// Returns the process id of the first slot's worker, and the slot's core.
pub(super) fn locate_slot(invoker: &Invoker) -> anyhow::Result<(u32, Option<usize>)> {
    let place = invoker.function("whereabouts")?.on_slot(0)?.call(&[])?;
    let [pid, core] = place.as_chunks::<8>().0 else {
        anyhow::bail!("the worker does not say where it is");
    };
    let pid = u32::try_from(u64::from_le_bytes(*pid)).context("the worker has no process id")?;
    Ok((pid, usize::try_from(i64::from_le_bytes(*core)).ok()))
}

/// Spins for this time, so that the core stays awake.
pub(super) fn spin_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Bytes that are not all equal.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + 1) as u8).collect()
}

/// Number of blocks of `block` samples that contain at least `samples` samples together; at least one block.
pub(super) fn blocks(samples: usize, block: usize) -> usize {
    samples.div_ceil(block).max(1)
}
