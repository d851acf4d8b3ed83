//! Starting a program by a lease.

use super::super::host::Host;
use super::node;
use super::program::Program;
use super::series::Sample;
use crate::commands::agent::machine_arguments;
use crate::platform::Platform;
use anyhow::{Context, bail};
use hotlease_client::{ColdPhases, Error, Invoker, LeaseOptions, Python};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_sandbox::{Kind, Machine};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::ListRequest;
use hotlease_wire::python::IMPORTS;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Leases after which one at last should find what the one before has left behind, with pauses that double: 5 s in all.
const TRIES: u32 = 8;
/// Programs of which two leases are had at once, until the second one's worker is forked for it.
const FORK_TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);
/// How an agent says that a worker came from one.
const FROM_ZYGOTE: &str = "forked from a zygote that has done its imports";

/// The steps of a start, in their order.
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

/// What waits for the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing.
    First,
    /// A worker.
    Warm,
    /// One that was forked from a zygote, with its imports done.
    Zygote,
    /// Such a zygote, and of its workers none: another lease has taken the one that waited.
    Fork,
}

/// After this long everything has settled, or nothing will; and where machines boot.
const SETTLE_WITHIN: Duration = Duration::from_secs(3);
const BOOTED_WITHIN: Duration = Duration::from_secs(60);

/// Two platforms: one that keeps no workers, and one that does.
pub(super) struct Leases {
    bare: Host,
    keeping: Host,
    /// So that no two programs are the same.
    number: Cell<u64>,
    is_emulated: bool,
}

/// No worker had waited.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotWarm(String);

impl Leases {
    /// With such machines.
    pub(super) fn new(machine: &Machine) -> anyhow::Result<Self> {
        let machines = machine_arguments(machine);
        Ok(Self {
            bare: Host::private(Some(0), &machines)?,
            keeping: Host::private(Some(2), &machines)?,
            number: Cell::new(0),
            is_emulated: machine.emulated,
        })
    }

    /// How rows call such sandboxes.
    pub(super) fn name(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::MicroVm if self.is_emulated => "microvm, emulated",
            kind => kind.name(),
        }
    }

    /// Until neither platform does anything that would disturb what comes.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        self.settle_within(SETTLE_WITHIN)
    }

    fn settle_within(&self, limit: Duration) -> anyhow::Result<()> {
        node::settled(&[self.bare.pid()?, self.keeping.pid()?], limit);
        Ok(())
    }

    /// Whether the platforms make such sandboxes; the inner error says why not.
    pub(super) fn available(&self, kind: Kind) -> anyhow::Result<Result<(), String>> {
        match Invoker::allocate(&super::super::host::functions()?, self.options(&self.bare, kind)) {
            Ok(invoker) => {
                invoker.deallocate()?;
                Ok(Ok(()))
            }
            Err(Error::Refused(Refusal::NoSandbox { why, .. })) => Ok(Err(why)),
            Err(error) => Err(error.into()),
        }
    }

    /// Options of a lease in such a sandbox.
    pub(super) fn options(&self, host: &Host, kind: Kind) -> LeaseOptions {
        LeaseOptions {
            runtime_dir: Some(host.runtime_dir().to_owned()),
            label: "hotlease bench".into(),
            sandbox: kind.name().into(),
            renew_lease: false,
            ..LeaseOptions::default()
        }
    }

    /// The platform that keeps nothing.
    pub(super) fn bare(&self) -> &Host {
        &self.bare
    }

    pub(super) fn start(&self, kind: Kind, start: Start, program: &Program) -> anyhow::Result<Sample> {
        match start {
            Start::First => {
                let python = program.interpreter().map(|python| self.another(python));
                return self.once(&self.bare, kind, program, python);
            }
            Start::Fork => return self.fork(kind, program),
            Start::Warm | Start::Zygote => {}
        }
        let python = program.interpreter();
        let python = match start {
            Start::Zygote => python.map(|python| with_imports(python, program)),
            _ => python,
        };
        let mut why = String::new();
        for attempt in 0..TRIES {
            let mut sample = self.once(&self.keeping, kind, program, python.clone())?;
            let expected = if start == Start::Zygote { FROM_ZYGOTE } else { "" };
            if sample.why == expected {
                // Why there was one is no reason why there was none.
                sample.why.clear();
                return Ok(sample);
            }
            why = sample.why;
            self.prepared(kind, attempt)?;
        }
        bail!(NotWarm(why))
    }

    /// Until what the lease before left behind is ready, or at least may be.
    fn prepared(&self, kind: Kind, attempt: u32) -> anyhow::Result<()> {
        self.settle_within(match kind {
            Kind::MicroVm => BOOTED_WITHIN,
            _ => SETTLE_WITHIN,
        })?;
        thread::sleep(PAUSE * 2_u32.pow(attempt));
        Ok(())
    }

    /// The second of two leases at once, of a program that has never had two. On a busy machine something else may have come between.
    fn fork(&self, kind: Kind, program: &Program) -> anyhow::Result<Sample> {
        let mut why = String::new();
        for _ in 0..FORK_TRIES {
            match self.fork_once(kind, program)? {
                Ok(sample) => return Ok(sample),
                Err(NotWarm(no_fork)) => why = no_fork,
            }
        }
        bail!(NotWarm(why))
    }

    /// The inner error says what the second one was, if not forked.
    fn fork_once(&self, kind: Kind, program: &Program) -> anyhow::Result<Result<Sample, NotWarm>> {
        let python = program.interpreter().context("a native function has no zygote")?;
        let python = with_imports(self.another(python), program);
        let mut why = String::new();
        for attempt in 0..TRIES {
            let first = self.lease(&self.keeping, kind, program, Some(python.clone()))?;
            program.call(&program.function(&first)?)?;
            why = first.phases().start.cold;
            if why == FROM_ZYGOTE {
                self.prepared(kind, 0)?;
                let sample = self.once(&self.keeping, kind, program, Some(python));
                first.deallocate()?;
                let mut sample = sample?;
                let why = sample.why.strip_prefix(FROM_ZYGOTE);
                if why.is_none_or(|why| why.is_empty() || why.contains("still being started")) {
                    return Ok(Err(NotWarm(sample.why)));
                }
                sample.why.clear();
                return Ok(Ok(sample));
            }
            first.deallocate()?;
            self.prepared(kind, attempt)?;
        }
        Ok(Err(NotWarm(why)))
    }

    fn lease(
        &self,
        host: &Host,
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

    /// Lease, first call, release.
    fn once(
        &self,
        host: &Host,
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

    /// The same interpreter, for which no spare can have been kept.
    fn another(&self, python: Python) -> Python {
        let number = self.number.get();
        self.number.set(number + 1);
        let mut environment: BTreeMap<_, _> = python.environment.clone();
        environment.insert("HOTLEASE_BENCH_START".into(), number.to_string());
        Python {
            environment,
            ..python
        }
    }
}

/// The same interpreter, whose workers do a program's imports before they serve.
fn with_imports(mut python: Python, program: &Program) -> Python {
    python.environment.insert(IMPORTS.into(), program.imports.clone());
    python
}

/// The process of a lease's only worker.
fn worker(host: &Host, lease: &str) -> anyhow::Result<u32> {
    let mut platform = Platform::connect(&RuntimeDir::at(host.runtime_dir())?)?;
    let list = platform.ask(async |client| client.list_workers(ListRequest::default()).await)?;
    let mut workers = list.workers.into_iter();
    let found = workers.find(|worker| worker.lease == lease);
    Ok(found.context("the lease's worker is not listed")?.pid)
}

/// What each step took, none of which is a part of another.
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
