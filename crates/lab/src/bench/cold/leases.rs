//! Start of a program by a lease.

use super::super::bench_platform::BenchPlatform;
use super::node;
use super::program::Program;
use super::series::Sample;
use anyhow::{Context, bail};
use hotlease_client::{ColdPhases, Error, Invoker, LeaseOptions, Python};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_sandbox::{Kind, Machine};
use hotlease_terminal::arguments::machine_arguments;
use hotlease_terminal::functions::functions;
use hotlease_terminal::platform::Platform;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::ListRequest;
use hotlease_wire::python::IMPORTS;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Largest number of leases until a lease finds a worker that the previous lease left prepared. Pauses between them
/// double, and take 5 s in all.
const TRIES: u32 = 8;
/// Largest number of tries, each with a new program and two leases at the same time, until the worker of the second
/// lease is a fork.
const FORK_TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);
/// The agent's text for a worker that came from a zygote.
const FROM_ZYGOTE: &str = "forked from a zygote that has done its imports";

/// Steps of a start, in order.
pub(super) const STEPS: [&str; 8] = [
    "grant",
    "image",
    "sandbox",
    "boot",
    "interpreter",
    "imports",
    "connect",
    "first_call",
];

/// Kind of worker that is ready when the lease is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartKind {
    /// No worker.
    First,
    /// A spare worker.
    Warm,
    /// A worker that was forked from a zygote, with its imports done.
    Zygote,
    /// A worker that must first be forked from a zygote with its imports done, because another lease has taken the
    /// waiting worker.
    Fork,
}

/// Time within which a waiting worker begins to load the library for fabrics.
const BEFORE_LOADING: Duration = Duration::from_millis(100);
/// Longest waits for the platforms to settle: in general, and if virtual machines boot.
const SETTLE_WITHIN: Duration = Duration::from_secs(3);
const BOOTED_WITHIN: Duration = Duration::from_secs(60);

/// Two platforms: the first keeps no spare workers, the second keeps spare workers.
pub(super) struct StartPlatforms {
    bare: BenchPlatform,
    keeping: BenchPlatform,
    /// Makes each program different from all others.
    number: Cell<u64>,
    is_emulated: bool,
    transport: String,
}

/// Transport of leases that are called through shared memory.
pub(super) const SHM: &str = "shm";

/// Error: no worker was waiting. Contains the agent's reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoWarmWorker(String);

impl StartPlatforms {
    /// Starts both platforms; their virtual machines are made from `machine`, and their leases are called over
    /// `transport`.
    pub(super) fn new(machine: &Machine, transport: &str) -> anyhow::Result<Self> {
        let machines = machine_arguments(machine);
        Ok(Self {
            bare: BenchPlatform::private(Some(0), &machines)?,
            keeping: BenchPlatform::private(Some(2), &machines)?,
            number: Cell::new(0),
            is_emulated: machine.emulated,
            transport: transport.to_owned(),
        })
    }

    /// Transport over which leases are called.
    pub(super) fn transport(&self) -> &str {
        &self.transport
    }

    /// Whether leases are called through shared memory.
    pub(super) fn is_local(&self) -> bool {
        self.transport == SHM
    }

    /// Name of a sandbox kind in rows.
    pub(super) fn name(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::MicroVm if self.is_emulated => "microvm, emulated",
            kind => kind.name(),
        }
    }

    /// Waits until both platforms are at rest, so that they do not disturb the next measurement.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        if !self.is_local() {
            thread::sleep(BEFORE_LOADING);
        }
        self.settle_within(SETTLE_WITHIN)
    }

    fn settle_within(&self, limit: Duration) -> anyhow::Result<()> {
        node::wait_until_settled(&[self.bare.pid()?, self.keeping.pid()?], limit);
        Ok(())
    }

    /// Checks whether the platforms can make this kind of sandbox. The inner error says why they cannot.
    pub(super) fn available(&self, kind: Kind) -> anyhow::Result<Result<(), String>> {
        match Invoker::allocate(&functions()?, self.options(&self.bare, kind)) {
            Ok(invoker) => {
                invoker.deallocate()?;
                Ok(Ok(()))
            }
            Err(Error::Refused(Rejection::NoSandbox { why, .. })) => Ok(Err(why)),
            Err(error) => Err(error.into()),
        }
    }

    /// Options of a lease in this kind of sandbox.
    pub(super) fn options(&self, host: &BenchPlatform, kind: Kind) -> LeaseOptions {
        LeaseOptions {
            runtime_dir: Some(host.runtime_dir().to_owned()),
            label: "hotlease bench".into(),
            sandbox: kind.name().into(),
            replace_lease: false,
            transport: Some(self.transport.clone()),
            ..LeaseOptions::default()
        }
    }

    /// Platform that keeps no spare workers.
    pub(super) fn bare(&self) -> &BenchPlatform {
        &self.bare
    }

    pub(super) fn start(&self, kind: Kind, start: StartKind, program: &Program) -> anyhow::Result<Sample> {
        match start {
            StartKind::First => {
                let python = program.interpreter().map(|python| self.unique_interpreter(python));
                return self.start_once(&self.bare, kind, program, python);
            }
            StartKind::Fork => return self.fork(kind, program),
            StartKind::Warm | StartKind::Zygote => {}
        }
        let python = program.interpreter();
        let python = match start {
            StartKind::Zygote => python.map(|python| with_imports(python, program)),
            _ => python,
        };
        let mut why = String::new();
        for attempt in 0..TRIES {
            let mut sample = self.start_once(&self.keeping, kind, program, python.clone())?;
            let expected = if start == StartKind::Zygote { FROM_ZYGOTE } else { "" };
            if sample.why == expected {
                // Here the text says that the worker came from a zygote, but `Sample::why` is only for reasons why no
                // worker was waiting.
                sample.why.clear();
                return Ok(sample);
            }
            why = sample.why;
            self.wait_until_prepared(kind, attempt)?;
        }
        bail!(NoWarmWorker(why))
    }

    /// Waits until the worker or zygote that the previous lease left behind is probably ready.
    fn wait_until_prepared(&self, kind: Kind, attempt: u32) -> anyhow::Result<()> {
        self.settle_within(match kind {
            Kind::MicroVm => BOOTED_WITHIN,
            _ => SETTLE_WITHIN,
        })?;
        thread::sleep(PAUSE * 2_u32.pow(attempt));
        Ok(())
    }

    /// Measures the start of a lease while another lease of the same program is held. The program has never had two
    /// leases at the same time before, so only one worker waits. Repeats the attempt if it fails, because other work on
    /// a busy host may disturb it.
    fn fork(&self, kind: Kind, program: &Program) -> anyhow::Result<Sample> {
        let mut why = String::new();
        for _ in 0..FORK_TRIES {
            match self.fork_once(kind, program)? {
                Ok(sample) => return Ok(sample),
                Err(NoWarmWorker(no_fork)) => why = no_fork,
            }
        }
        bail!(NoWarmWorker(why))
    }

    /// Makes one attempt. The inner error says how the second worker started instead.
    fn fork_once(&self, kind: Kind, program: &Program) -> anyhow::Result<Result<Sample, NoWarmWorker>> {
        let python = program.interpreter().context("a native function has no zygote")?;
        let python = with_imports(self.unique_interpreter(python), program);
        let mut why = String::new();
        for attempt in 0..TRIES {
            let first = self.lease(&self.keeping, kind, program, Some(python.clone()))?;
            program.call(&program.function(&first)?)?;
            why = first.phases().start.cold;
            if why == FROM_ZYGOTE {
                self.wait_until_prepared(kind, 0)?;
                let sample = self.start_once(&self.keeping, kind, program, Some(python));
                first.deallocate()?;
                let mut sample = sample?;
                let why = sample.why.strip_prefix(FROM_ZYGOTE);
                if why.is_none_or(|why| why.is_empty() || why.contains("still being started")) {
                    return Ok(Err(NoWarmWorker(sample.why)));
                }
                sample.why.clear();
                return Ok(Ok(sample));
            }
            first.deallocate()?;
            self.wait_until_prepared(kind, attempt)?;
        }
        Ok(Err(NoWarmWorker(why)))
    }

    fn lease(
        &self,
        host: &BenchPlatform,
        kind: Kind,
        program: &Program,
        python: Option<Python>,
    ) -> anyhow::Result<Invoker> {
        let options = LeaseOptions {
            python,
            ..self.options(host, kind)
        };
        Ok(Invoker::allocate(&program.code, options)?)
    }

    /// Requests a lease, makes the first call, releases the lease.
    fn start_once(
        &self,
        host: &BenchPlatform,
        kind: Kind,
        program: &Program,
        python: Option<Python>,
    ) -> anyhow::Result<Sample> {
        let begin = Instant::now();
        let invoker = self.lease(host, kind, program, python)?;
        let leased = begin.elapsed();
        program.call(&program.function(&invoker)?)?;
        let total = begin.elapsed();
        let phases = invoker.phases();
        let private_bytes = node::private_bytes(worker(host, &invoker.lease().to_string())?);
        invoker.deallocate()?;
        Ok(Sample {
            total,
            phases: steps(&phases, total - leased),
            why: phases.start.cold,
            private_bytes,
        })
    }

    /// Returns the interpreter with a new environment, for which no spare worker can exist.
    fn unique_interpreter(&self, python: Python) -> Python {
        let number = self.number.get();
        self.number.set(number + 1);
        let mut environment: BTreeMap<_, _> = python.environment.clone();
        environment.insert("HOTLEASE_BENCH_START".into(), number.to_string());
        Python { environment, ..python }
    }
}

/// Returns the interpreter with a setting that makes its workers do a program's imports before they serve.
fn with_imports(mut python: Python, program: &Program) -> Python {
    python.environment.insert(IMPORTS.into(), program.imports.clone());
    python
}

/// Process id of a lease's only worker.
fn worker(host: &BenchPlatform, lease: &str) -> anyhow::Result<u32> {
    let mut platform = Platform::connect(&RuntimeDir::at(host.runtime_dir())?)?;
    let list = platform.request(async |client| client.list_workers(ListRequest::default()).await)?;
    let mut workers = list.workers.into_iter();
    let found = workers.find(|worker| worker.lease == lease);
    Ok(found.context("the lease's worker is not listed")?.pid)
}

/// Duration of each step; the steps do not overlap.
fn steps(phases: &ColdPhases, first_call: Duration) -> Vec<(&'static str, Duration)> {
    let start = &phases.start;
    let us = Duration::from_micros;
    let native = (phases.worker_load > Duration::ZERO).then_some(phases.worker_load);
    let connect = (phases.load + phases.open).saturating_sub(phases.worker_load);
    let took = [
        Some(us(start.grant_us + start.configure_us)),
        start.steps.image_us.map(us),
        start.steps.sandbox_us.map(us),
        start.steps.boot_us.map(us),
        start.steps.interpreter_us.map(us),
        start.steps.imports_us.map(us).or(native),
        Some(connect),
        Some(first_call),
    ];
    let all = STEPS.into_iter().zip(took);
    all.filter_map(|(name, took)| Some((name, took?))).collect()
}
