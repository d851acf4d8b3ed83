//! Team of the scaling benchmark: workers, each with its lease, and client threads that call them at the same time.

use super::super::bench_platform::BenchPlatform;
use super::super::fabric::lease;
use super::super::host_info::HostInfo;
use super::super::measured_lease::{hot, locate_slot, pattern};
use super::super::pin::{Cores, allowed, pin};
use super::super::samples::{Block, Clock};
use anyhow::{Context, anyhow, ensure};
use hotlease_client::{Buffer, Error, Function, Invoker, LeaseOptions};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Unmeasured calls at the start of a block.
const WARM_UP: usize = 20;

/// Workers and their clients.
pub(super) struct Team {
    members: Vec<TeamMember>,
    clock: Clock,
    /// Whether each client and each slot has a core of its own.
    cores_each: bool,
}

/// One worker and its client.
struct TeamMember {
    invoker: Invoker,
    echo: Function,
    /// Core that the slot is pinned to.
    slot: Option<usize>,
    /// Core that the client's thread is pinned to, if there is one for it.
    client: Option<usize>,
}

/// Data that one client sends, and memory for the returned data.
pub(super) enum Payload {
    Copied { input: Vec<u8>, output: Vec<u8> },
    Registered { input: Buffer<u8>, output: Buffer<u8> },
}

/// Calls of all clients in one block.
pub(super) struct BlockResult {
    pub(super) times: Block,
    /// Calls per second of all clients together.
    pub(super) per_second: f64,
}

impl Team {
    /// Leases this number of workers. If there is a core for each slot and each client, all of them poll all the time.
    /// Otherwise slots and clients use the default, and stop polling after a while.
    pub(super) fn gather(host: &BenchPlatform, transport: &str, workers: u16) -> anyhow::Result<Self> {
        let mine = allowed();
        let workers = usize::from(workers);
        let enough = mine.len() >= 2 * workers;
        let mut members = Vec::new();
        for _ in 0..workers {
            let options = match enough {
                true => hot(),
                false => LeaseOptions::default(),
            };
            match lease(host, transport, options).and_then(TeamMember::new) {
                Ok(member) => members.push(member),
                Err(error) => {
                    // Leases that stay open would take cores from the next attempt.
                    members.into_iter().try_for_each(TeamMember::dismiss)?;
                    return Err(error);
                }
            }
        }
        let slots: Vec<Option<usize>> = members.iter().map(|member| member.slot).collect();
        let free: Vec<usize> = mine.into_iter().filter(|core| !slots.contains(&Some(*core))).collect();
        let cores_each = enough && free.len() >= workers;
        if cores_each {
            for (member, core) in members.iter_mut().zip(free) {
                member.client = Some(core);
            }
        }
        Ok(Self {
            members,
            clock: Clock::calibrate(),
            cores_each,
        })
    }

    pub(super) fn workers(&self) -> usize {
        self.members.len()
    }

    /// Whether each client and each slot has a core of its own.
    pub(super) fn has_cores_each(&self) -> bool {
        self.cores_each
    }

    pub(super) fn client_cores(&self) -> Vec<Option<usize>> {
        self.members.iter().map(|member| member.client).collect()
    }

    pub(super) fn slot_cores(&self) -> Vec<Option<usize>> {
        self.members.iter().map(|member| member.slot).collect()
    }

    /// Name of the transport; for a fabric, the provider's name.
    pub(super) fn transport(&self) -> &'static str {
        self.members.first().map_or("", |member| member.invoker.transport())
    }

    pub(super) fn machine(&self) -> HostInfo {
        let first = self.members.first();
        HostInfo::here(Cores {
            client: first.and_then(|member| member.client),
            slot: first.and_then(|member| member.slot),
        })
    }

    /// Payloads, one for each client.
    pub(super) fn payloads(&self, size: usize) -> anyhow::Result<Vec<Payload>> {
        let members = self.members.iter();
        members.map(|member| Payload::new(&member.invoker, size)).collect()
    }

    /// Runs `count` calls of each client, all clients at the same time. There is one client for each payload. A client
    /// that has finished continues with unmeasured calls until all clients have finished.
    pub(super) fn block(&self, payloads: &mut [Payload], count: usize) -> anyhow::Result<BlockResult> {
        let gate = ClientBarrier::new(payloads.len());
        let parts = thread::scope(|scope| {
            let start = |(member, payload)| {
                let gate = &gate;
                let part = move || gate.watch(|| run_client(member, payload, gate, self.clock, count));
                let thread = thread::Builder::new().name("client".into()).spawn_scoped(scope, part);
                thread.inspect_err(|_| gate.spoil())
            };
            // All threads start before the first is joined.
            let threads: Vec<_> = self.members.iter().zip(payloads).map(start).collect();
            let end = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| {
                let thread = thread.context("cannot start a client's thread")?;
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a client's thread panicked")))
            };
            threads
                .into_iter()
                .map(end)
                .collect::<Vec<anyhow::Result<ClientResult>>>()
        });
        let (mut times, mut per_second) = (Vec::new(), 0.0);
        for part in first_cause(parts)? {
            times.extend(part.times.0);
            per_second += part.per_second;
        }
        Ok(BlockResult {
            times: Block(times),
            per_second,
        })
    }

    /// Releases the leases.
    pub(super) fn dismiss(self) -> anyhow::Result<()> {
        self.members.into_iter().try_for_each(TeamMember::dismiss)
    }
}

impl TeamMember {
    fn new(invoker: Invoker) -> anyhow::Result<Self> {
        let (_, slot) = locate_slot(&invoker)?;
        Ok(Self {
            echo: invoker.function("echo")?.on_slot(0)?,
            invoker,
            slot,
            client: None,
        })
    }

    fn dismiss(self) -> anyhow::Result<()> {
        drop(self.echo);
        self.invoker.deallocate()?;
        Ok(())
    }
}

/// Result of one client in a block.
struct ClientResult {
    times: Block,
    per_second: f64,
}

fn run_client(
    member: &TeamMember,
    payload: &mut Payload,
    gate: &ClientBarrier,
    clock: Clock,
    count: usize,
) -> anyhow::Result<ClientResult> {
    if let Some(core) = member.client {
        pin(core).with_context(|| format!("cannot pin a client's thread to core {core}"))?;
    }
    payload.clear_output();
    for _ in 0..WARM_UP {
        payload.call(&member.echo)?;
    }
    gate.pass()?;
    let begin = Instant::now();
    let times = clock.block(0, count, || payload.call(&member.echo))?;
    let per_second = count as f64 / begin.elapsed().as_secs_f64().max(1e-9);
    gate.mark_done();
    while !gate.all_done() {
        payload.call(&member.echo)?;
    }
    ensure!(payload.has_echoed(), "the invocation does not echo");
    Ok(ClientResult { times, per_second })
}

/// Returns all results, or an error. Errors of clients that only stopped because another client failed are returned
/// only if there is no other error.
fn first_cause(parts: Vec<anyhow::Result<ClientResult>>) -> anyhow::Result<Vec<ClientResult>> {
    let (mut whole, mut failures) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Ok(part) => whole.push(part),
            Err(error) => failures.push(error),
        }
    }
    let cause = failures
        .iter()
        .position(|error| !error.is::<OtherClientFailed>())
        .unwrap_or(0);
    match failures.is_empty() {
        true => Ok(whole),
        false => Err(failures.swap_remove(cause)),
    }
}

impl Payload {
    /// Whether a payload of this size is copied into the ring.
    pub(super) fn is_copied(size: usize) -> bool {
        size <= LeaseOptions::default().request_bytes as usize
    }

    fn new(invoker: &Invoker, size: usize) -> anyhow::Result<Self> {
        if Self::is_copied(size) {
            return Ok(Self::Copied {
                input: pattern(size),
                output: vec![0; size],
            });
        }
        let mut input: Buffer<u8> = invoker.buffer(size)?;
        input.copy_from_slice(&pattern(size));
        Ok(Self::Registered {
            input,
            output: invoker.buffer(size)?,
        })
    }

    #[inline]
    fn call(&mut self, echo: &Function) -> Result<(), Error> {
        match self {
            Self::Copied { input, output } => echo.invoke(input, output).map(drop),
            Self::Registered { input, output } => echo.invoke_buffer(&*input, output).map(drop),
        }
    }

    /// Overwrites the last result, so that a missing next result is noticed.
    fn clear_output(&mut self) {
        match self {
            Self::Copied { output, .. } => output.fill(0),
            Self::Registered { output, .. } => output.fill(0),
        }
    }

    fn has_echoed(&self) -> bool {
        match self {
            Self::Copied { input, output } => input == output,
            Self::Registered { input, output } => input[..] == output[..],
        }
    }
}

/// Barrier for clients. It also tells clients that another client has failed.
struct ClientBarrier {
    /// Number of clients.
    expected: usize,
    /// Number of clients that have reached the barrier.
    ready: AtomicUsize,
    /// Number of clients that have finished their measured calls.
    done: AtomicUsize,
    /// Whether a client has failed.
    spoilt: AtomicBool,
}

/// Error: another client failed before the barrier.
#[derive(Debug, thiserror::Error)]
#[error("another client failed")]
struct OtherClientFailed;

impl ClientBarrier {
    fn new(expected: usize) -> Self {
        Self {
            expected,
            ready: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            spoilt: AtomicBool::new(false),
        }
    }

    /// Runs one client's part. If it fails or panics, the other clients do not wait for this client any longer.
    fn watch<R>(&self, part: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
        struct FailOnDrop<'a>(&'a ClientBarrier, bool);
        impl Drop for FailOnDrop<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.spoil();
                }
            }
        }
        let mut watched = FailOnDrop(self, false);
        let result = part();
        watched.1 = result.is_ok();
        result
    }

    /// Records that a client has failed.
    fn spoil(&self) {
        self.spoilt.store(true, Ordering::Release);
    }

    /// Waits until all clients have reached the barrier. Yields the core meanwhile, because other clients may need it.
    fn pass(&self) -> Result<(), OtherClientFailed> {
        self.ready.fetch_add(1, Ordering::AcqRel);
        while self.ready.load(Ordering::Acquire) < self.expected {
            if self.spoilt.load(Ordering::Acquire) {
                return Err(OtherClientFailed);
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn mark_done(&self) {
        self.done.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether this client can stop its calls, because all clients are done or a client has failed.
    fn all_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.expected || self.spoilt.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_go_on_until_the_last_is_done() {
        let gate = ClientBarrier::new(2);
        let after = thread::scope(|scope| {
            let slow = scope.spawn(|| {
                gate.pass().unwrap();
                gate.mark_done();
            });
            gate.pass().unwrap();
            gate.mark_done();
            slow.join().unwrap();
            gate.all_done()
        });
        assert!(after);
        let gate = ClientBarrier::new(2);
        gate.mark_done();
        assert!(!gate.all_done(), "one of two");
    }

    #[test]
    fn failing_client_keeps_no_other_client_waiting_and_is_the_cause() {
        let gate = ClientBarrier::new(2);
        let parts = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                gate.watch(|| {
                    gate.pass()?;
                    Ok(ClientResult {
                        times: Block(Vec::new()),
                        per_second: 1.0,
                    })
                })
            });
            let failed = gate.watch(|| Err::<ClientResult, _>(anyhow!("no such worker")));
            vec![waiting.join().unwrap(), failed]
        });
        assert!(gate.all_done(), "no client is waited for");
        let cause = first_cause(parts).err().expect("a failure");
        assert_eq!(cause.to_string(), "no such worker");
    }

    #[test]
    fn small_payloads_are_copied() {
        assert!(Payload::is_copied(1024));
        assert!(!Payload::is_copied(1 << 20));
    }
}
