//! Options of a lease, and of the client's behaviour on it.

mod label;
pub(crate) mod python;
pub(crate) mod reach;

use crate::Error;
use crate::code::Code;
use crate::options::python::Python;
use crate::options::reach::Reach;
use hotlease_fabric::shm::RingLayout;
use hotlease_lease::LeaseRequest;
use hotlease_net::Credential;
use hotlease_wire::Rejection;
use hotlease_wire::connection::RingShape;
use hotlease_wire::grpc::{self, AcquireRequest};
use hotlease_wire::limits::{
    ENTRY_BYTES_DEFAULT, ENTRY_BYTES_MAX, LABEL_BYTES_MAX, REGIONS_MAX, RING_BYTES_MAX, RING_DEPTH_DEFAULT,
    RING_DEPTH_MAX, SLOTS_MAX,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const ENTRY_BYTES_MIN: u32 = 64;
const REGISTERED_BYTES_DEFAULT: u64 = 16 << 30;

/// How a slot of the worker waits for its next request. On a core that other threads want, each policy sleeps at once,
/// and polls again some milliseconds later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Polling {
    /// Polls as long as recent arrivals make it worth while, at most for the hot budget, then sleeps. Default.
    #[default]
    Adaptive,
    /// Polls for the whole hot budget after each invocation, then sleeps.
    Hot,
    /// Sleeps at once: no polling is billed, each call pays for a wake-up.
    Warm,
}

/// Whether slots have cores of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Each slot has a core of its own. Default.
    #[default]
    Exclusive,
    /// The slots of a worker take turns on one core with each other and with slots of other leases. They sleep
    /// between invocations ([`Polling::Warm`]), and claim the core for each invocation. A slot that does not get
    /// the core refuses at once, and the library turns to another slot. No invocation lasts longer than the agent's
    /// operator allows (10 s unless configured otherwise).
    Shared,
}

/// How the client waits for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completion {
    /// Spins until the reply has arrived: lowest latency, one core busy. Slow if other threads want that core.
    Spin,
    /// Spins for up to 100 us, then sleeps. Spins less if recent calls took longer than 100 us, or if other threads
    /// want the core. Default.
    #[default]
    Adaptive,
    /// Sleeps at once: no processor time is spent waiting, each call pays for a wake-up.
    Sleep,
}

/// Resources to lease, and how to use them. All fields have defaults:
///
/// ```
/// use hotlease_client::LeaseOptions;
/// let options = LeaseOptions { workers: 2, ..LeaseOptions::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Worker processes. Default: 1.
    pub workers: u16,
    /// Slots (threads on cores of their own) of each worker. Default: 1.
    pub slots: u16,
    /// Whether the manager or the agents are asked for the lease. Default: the manager.
    pub placement: Placement,
    /// Number of agents over which the workers may be spread. If agents are asked directly, all workers are on one
    /// agent. Default: all on one agent.
    pub spread: Spread,
    /// Limit on the memory of each worker, with the processes that it starts, bytes; 0: the node's share. Default: 0.
    pub memory_bytes: u64,
    /// GPUs of each worker: counted devices; functions find the numbers of their worker's devices in `$HOTLEASE_GPUS`.
    /// Default: 0; at most 64.
    pub gpus: u16,
    /// Kind of sandbox that isolates the functions: `process`, `namespace`, `container` or `microvm`; empty: the kind
    /// that the site has set for this tenant. Not every node has each kind, and a site may refuse a weaker kind than
    /// its own. Default: empty.
    pub sandbox: String,
    /// Resources beyond the sandbox that the functions may use. Default: none.
    pub reach: Reach,
    /// Environment variables of the workers, by name. They are set before a library is loaded, and replace inherited
    /// variables of the same name; `LD_PRELOAD` and the like act on the worker alone, in its sandbox. Names are
    /// letters, digits and `_`, and do not begin with `HOTLEASE_`; at most 256, and 64 KiB. Not for secrets. Default:
    /// none.
    pub variables: BTreeMap<String, String>,
    /// A name for the state that functions leave in the lease's one worker and slot. The state is saved when the lease
    /// ends, and restored by the next lease of this tenant, program and name, on any node with the same swap directory.
    /// The library (`HOTLEASE_STATE_SAVE` in `hotlease/function.h`) or a Python module defines how state is saved.
    /// Default: empty, no state is saved.
    pub state: String,
    /// Whether slots have cores of their own. Default: exclusive.
    pub sharing: Sharing,
    /// On shared cores: whether an invocation for which no slot has a core waits until a slot gets a core, or until the
    /// deadline. If `false`, the invocation fails with [`Error::NoCore`] once each worker has refused it; if a core of
    /// the node idles, a worker is then moved to that core within a second. Default: true.
    pub wait_for_core: bool,
    /// How slots wait; on shared cores always warm. Default: adaptive.
    pub polling: Polling,
    /// Longest time that a slot polls after its last invocation, in real time. It is billed as hot time. Default: 1 ms,
    /// which covers arrival gaps up to a few hundred microseconds without a wake-up. With [`Polling::Hot`] and 1 s or
    /// more, a slot that is reached over a fabric sets up nothing to sleep on, which makes it faster; if the slot does
    /// sleep, it wakes every 50 us to look for requests.
    pub hot_budget: Duration,
    /// How long the lease lives without renewal; the library renews it. Default: 5 s; 100 ms to 1 h.
    pub ttl: Duration,
    /// Deadline of each invocation, unless the [`crate::Function`] has another. Default: none.
    pub timeout: Option<Duration>,
    /// Invocations in flight on one slot: a power of two. Default: 64; at most 4096.
    pub depth: u32,
    /// Largest input in bytes that is sent through the ring. Larger inputs are staged in registered memory by the
    /// library. Default: 8128, which is two pages with the header; 64 to 4 MiB.
    pub request_bytes: u32,
    /// Largest output in bytes that is sent through the ring, and the output capacity of calls that do not set another.
    /// Default: 8128, which is two pages with the header; 64 to 4 MiB.
    pub reply_bytes: u32,
    /// Largest number of buffers that are registered with a worker at a time, including the library's buffers for large
    /// inputs and outputs. Beyond that, buffers not used lately are closed, and registered again by their next use.
    /// Default: 1024, which is also the maximum.
    pub registered_buffers: u32,
    /// Largest number of bytes of buffers that are registered with a worker at a time, over a fabric; most network
    /// cards need such memory locked. (On one node nothing is locked, and only the number of buffers is limited.)
    /// Default: 16 GiB.
    pub registered_bytes: u64,
    /// How the client waits for a reply. Default: adaptive.
    pub completion: Completion,
    /// How often an invocation of an idempotent function is run again after its worker died. Other functions are
    /// never run twice. Default: 1.
    pub retries: u32,
    /// Whether another lease is taken when one was lost: its node was given back, its agent died or fell silent, or it
    /// expired. Invocations that had not run, and invocations that may run again, are then sent to the new lease.
    /// Default: true.
    pub replace_lease: bool,
    /// Whether the library renews the lease until it is released. Otherwise the lease ends when its `ttl` has passed
    /// since its workers were ready, and is not replaced: calls fail with [`Error::LeaseEnded`]. Default: true.
    pub renew_lease: bool,
    /// How long the library looks for another lease after one was lost, with pauses that grow up to 1 s; an invocation
    /// waits for the new lease no longer than its own timeout. 0: one attempt. If batch jobs take nodes, the nodes come
    /// back after minutes or hours: `Duration::MAX` waits without a limit. Default: 5 s.
    pub move_within: Duration,
    /// How long the library waits for the first lease if there is no room, with pauses that grow. A refusal that
    /// waiting does not change is reported at once: code that cannot be loaded, or a request that no node can serve, or
    /// is permitted to grant. Default: 0, one attempt.
    pub patience: Duration,
    /// How bytes reach the workers: `shm`, the name of a libfabric provider like `tcp;ofi_rxm`, or `ofi` for the best
    /// provider that works. Default (`None`): `$HOTLEASE_TRANSPORT`, else `shm` for workers of this host and `ofi` for
    /// workers of other hosts.
    pub transport: Option<String>,
    /// Label of the lease in listings and refusals; at most 64 bytes. Default: the script or program, and its pid.
    pub label: String,
    /// The batch job that pays, for `hotlease bill --by job`; at most 64 bytes. Default: `$HOTLEASE_JOB`, else the job
    /// that Slurm, PBS or LSF names; empty if there is none.
    pub job: String,
    /// A manager on another host, `https://HOST:PORT`. Default (`None`): `$HOTLEASE_MANAGER` if `runtime_dir` is
    /// not set, else the manager of this host.
    pub manager: Option<String>,
    /// Identity shown to a manager on another host: the folder that `hotlease identity issue --role client` made.
    /// Default (`None`): `$HOTLEASE_IDENTITY`, else `$XDG_CONFIG_HOME/hotlease/identity`, else
    /// `~/.config/hotlease/identity`.
    pub identity: Option<PathBuf>,
    /// Credential shown to a manager on another host instead of an identity. Default (`None`): the credential that
    /// `$HOTLEASE_KEY_FILE`, `$HOTLEASE_TOKEN_FILE` or `$HOTLEASE_MUNGE` names, if `identity` is not set.
    pub credential: Option<Credential>,
    /// The site's `ca.pem`, the authority to trust without an identity. Default (`None`): `$HOTLEASE_CA_FILE`, else
    /// `$XDG_CONFIG_HOME/hotlease/ca.pem`, else `~/.config/hotlease/ca.pem`.
    pub authority: Option<PathBuf>,
    /// Directory of the platform's sockets. Default (`None`): `$HOTLEASE_RUNTIME_DIR`, else
    /// `$XDG_RUNTIME_DIR/hotlease`, else `/tmp/hotlease-UID`.
    pub runtime_dir: Option<PathBuf>,
    /// Python interpreters as workers, each with one slot, for [`crate::Code::python`]. Default: none, workers are
    /// native.
    pub python: Option<Python>,
}

/// The party that is asked for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// The manager.
    #[default]
    Managed,
    /// The agents themselves, in a random order (2021 paper): agents that are started with `--direct`. The client asks
    /// the manager for the list of agents every 30 s, and reports the lease to the manager afterwards; while the
    /// manager is away, the last list is used.
    Direct,
}

/// Number of agents over which the workers of a lease are placed. Each agent's share is a part, which is lost and
/// replaced independently of the other parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Spread {
    /// All workers on one agent.
    #[default]
    OneAgent,
    /// On as few agents as possible, at most 64; either all of the workers are granted, or none.
    AllOrNothing,
    /// On as few agents as possible, at most 64; this many of the workers are enough. [`crate::Invoker::slots`] returns
    /// how many slots were granted. When a part is lost, as many of its workers are replaced as there is room for, at
    /// least this many (or all, if the part had fewer). Its other workers are replaced when a call needs them and there
    /// is room.
    AtLeast(u16),
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            slots: 1,
            memory_bytes: 0,
            gpus: 0,
            sandbox: String::new(),
            reach: Reach::default(),
            variables: BTreeMap::new(),
            state: String::new(),
            sharing: Sharing::default(),
            wait_for_core: true,
            polling: Polling::default(),
            hot_budget: Duration::from_millis(1),
            ttl: Duration::from_secs(5),
            timeout: None,
            depth: RING_DEPTH_DEFAULT,
            request_bytes: ENTRY_BYTES_DEFAULT,
            reply_bytes: ENTRY_BYTES_DEFAULT,
            registered_buffers: REGIONS_MAX,
            registered_bytes: REGISTERED_BYTES_DEFAULT,
            completion: Completion::default(),
            retries: 1,
            replace_lease: true,
            renew_lease: true,
            placement: Placement::Managed,
            spread: Spread::OneAgent,
            move_within: Duration::from_secs(5),
            patience: Duration::ZERO,
            transport: None,
            label: label::of_this_process(),
            job: batch_job(),
            manager: None,
            identity: None,
            credential: None,
            authority: None,
            runtime_dir: None,
            python: None,
        }
    }
}

impl LeaseOptions {
    /// Options for Python workers that run this interpreter; all else by default.
    pub fn python(python: Python) -> Self {
        Self {
            python: Some(python),
            ..Self::default()
        }
    }

    /// Refuses options of workers that no agent could grant, before any request is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.slots {
            0 => Err(Error::Options {
                what: format!("slots must be 1 to {SLOTS_MAX}, not 0: memory alone is leased by RemoteMemory"),
            }),
            _ => self.check_lease(),
        }
    }

    /// Refuses options that no agent could grant.
    pub(crate) fn check_lease(&self) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Options { what });
        let request = self.request(self.workers, String::new());
        // A time to live of 0 is refused here, because in a request 0 stands for the site's default.
        LeaseRequest::of(&request, Duration::ZERO).map_err(|refusal| match refusal {
            Rejection::BadRequest { what } => Error::Options { what },
            other => other.into(),
        })?;
        if self.placement == Placement::Direct && self.spread != Spread::OneAgent {
            return fail("spread needs the manager: agents that are asked directly grant all workers or none".into());
        }
        if self.spread == Spread::AtLeast(0) {
            return fail("spread must be at least 1 worker, not 0".into());
        }
        if let Some(python) = &self.python {
            python.check()?;
        }
        self.reach.check()?;
        if !self.depth.is_power_of_two() || self.depth > RING_DEPTH_MAX {
            return fail(format!(
                "depth must be a power of two up to {RING_DEPTH_MAX}, not {}",
                self.depth
            ));
        }
        for (name, bytes) in [("request_bytes", self.request_bytes), ("reply_bytes", self.reply_bytes)] {
            // An entry must at least hold the spans of an invocation whose input and output are both in buffers.
            if !(ENTRY_BYTES_MIN..=ENTRY_BYTES_MAX).contains(&bytes) {
                return fail(format!(
                    "{name} must be {ENTRY_BYTES_MIN} to {ENTRY_BYTES_MAX}, not {bytes}"
                ));
            }
            let shape = RingShape {
                depth: self.depth,
                entry_bytes: bytes,
            };
            if RingLayout::of(shape).is_none() {
                return fail(format!(
                    "depth {} times {name} {bytes} is over the {RING_BYTES_MAX} bytes that a ring may have",
                    self.depth
                ));
            }
        }
        if self.registered_buffers == 0 || self.registered_buffers > REGIONS_MAX {
            return fail(format!(
                "registered_buffers must be 1 to {REGIONS_MAX}, not {}",
                self.registered_buffers
            ));
        }
        if self.registered_bytes == 0 {
            return fail("registered_bytes must not be 0".into());
        }
        if self.manager.is_some() && self.runtime_dir.is_some() {
            return fail("manager and runtime_dir name two platforms; set one of them".into());
        }
        Ok(())
    }

    /// Whether a lost lease is replaced; a lease that is not renewed is never replaced.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replace_lease && self.renew_lease
    }

    pub(crate) fn request_shape(&self) -> RingShape {
        RingShape {
            depth: self.depth,
            entry_bytes: self.request_bytes,
        }
    }

    pub(crate) fn reply_shape(&self) -> RingShape {
        RingShape {
            depth: self.depth,
            entry_bytes: self.reply_bytes,
        }
    }

    /// The request for `workers` workers with this code.
    pub(crate) fn acquire_request(&self, workers: u16, code: &Code) -> AcquireRequest {
        let state_format = match self.state.is_empty() {
            true => String::new(),
            false => code.state_format().unwrap_or_default().to_owned(),
        };
        self.request(workers, state_format)
    }

    fn request(&self, workers: u16, state_format: String) -> AcquireRequest {
        let polling = match self.polling {
            Polling::Adaptive => grpc::Polling::Adaptive,
            Polling::Hot => grpc::Polling::Hot,
            Polling::Warm => grpc::Polling::Warm,
        };
        AcquireRequest {
            workers: workers.into(),
            slots_per_worker: self.slots.into(),
            memory_bytes: self.memory_bytes,
            gpus: self.gpus.into(),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            hot_budget_us: u64::try_from(self.hot_budget.as_micros()).unwrap_or(u64::MAX),
            polling: polling.into(),
            sandbox: self.sandbox.clone(),
            tenant: String::new(),
            label: self.label.clone(),
            job: self.job.clone(),
            sharing: match self.sharing {
                Sharing::Exclusive => grpc::Sharing::Exclusive.into(),
                Sharing::Shared => grpc::Sharing::Shared.into(),
            },
            spread_least: match self.spread {
                Spread::OneAgent => 0,
                Spread::AllOrNothing => workers.into(),
                Spread::AtLeast(least) => least.into(),
            },
            python: self.python.as_ref().map(Python::request),
            reach: self.reach.request(),
            state: self.state.clone(),
            without: Vec::new(),
            state_format,
            waiting: 0,
            variables: self.variables.clone().into_iter().collect(),
        }
    }
}

/// Variables with the job that a process belongs to: the first variable is for processes without a batch system.
const JOB_VARIABLES: [&str; 4] = ["HOTLEASE_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// The job that this process belongs to, cut to the length that a lease may carry; empty if it belongs to none.
fn batch_job() -> String {
    let found = JOB_VARIABLES.iter().filter_map(|name| std::env::var(name).ok());
    let mut job = found.into_iter().find(|job| !job.is_empty()).unwrap_or_default();
    job.retain(|c| !c.is_control());
    while job.len() > LABEL_BYTES_MAX {
        job.pop();
    }
    job
}

#[cfg(test)]
mod tests;
