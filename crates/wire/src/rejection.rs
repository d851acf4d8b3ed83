//! Rejections and reasons of ends: the texts that every error of hotlease is made of.

pub mod objections;
#[cfg(feature = "grpc")]
mod status;

use crate::ids::{CodeHash, Epoch, JobId};
use objections::Objection;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether the function of a failed invocation ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunCertainty {
    /// The function ran to its end.
    Yes,
    /// The function did not start.
    No,
    /// The function may have started, and may have had effects.
    Unknown,
}

impl fmt::Display for RunCertainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "the function ran",
            Self::No => "the function did not run",
            Self::Unknown => "the function may have run",
        })
    }
}

/// Cause of a worker's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Killed by a signal; if it is known, while `function` was running.
    Signal {
        /// Signal number.
        signal: i32,
        /// The function that was running.
        function: Option<u16>,
    },
    /// A function wrote past its output capacity and was stopped by the guard page.
    OutputOverrun {
        /// The function that was running.
        function: Option<u16>,
        /// Capacity of the output, bytes.
        capacity: u64,
    },
    /// The process exited by itself.
    Exit {
        /// Exit status.
        status: i32,
        /// The function that was running.
        function: Option<u16>,
    },
    /// Killed by the kernel's out-of-memory killer, or stopped at the lease's memory limit.
    OutOfMemory,
    /// A function ran past its deadline and did not react to its cancel flag.
    Deadline {
        /// The function that was running.
        function: Option<u16>,
        /// Time limit of the function, microseconds.
        timeout_us: u64,
    },
    /// The lease ended, so the agent stopped the worker.
    LeaseEnded(EndReason),
    /// The agent could not start the worker.
    NotStarted {
        /// Step that failed, and why.
        why: String,
        /// Whether the cause is in the program or in the node's resources, so that the next start would fail in the
        /// same way.
        lasts: bool,
    },
    /// The agent is gone, so the cause is unknown.
    AgentGone,
}

impl Cause {
    /// Index of the function that was running in the worker, if it is known.
    pub fn function(&self) -> Option<u16> {
        match self {
            Self::Signal { function, .. }
            | Self::OutputOverrun { function, .. }
            | Self::Exit { function, .. }
            | Self::Deadline { function, .. } => *function,
            Self::OutOfMemory | Self::LeaseEnded(_) | Self::NotStarted { .. } | Self::AgentGone => None,
        }
    }

    /// Text of the cause; `name`: name of the function that was running.
    pub fn with_name<'a>(&'a self, name: Option<&'a str>) -> impl fmt::Display + 'a {
        NamedCause { cause: self, name }
    }
}

struct NamedCause<'a> {
    cause: &'a Cause,
    name: Option<&'a str>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_name(None).fmt(f)
    }
}

impl fmt::Display for NamedCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = |f: &mut fmt::Formatter<'_>, function: &Option<u16>| match (self.name, function) {
            (Some(name), Some(_)) => write!(f, " while running `{name}`"),
            (None, Some(index)) => write!(f, " while running function {index}"),
            (_, None) => Ok(()),
        };
        match self.cause {
            Cause::Signal { signal, function } => {
                write!(f, "worker was killed by signal {signal} ({})", signal_name(*signal))?;
                during(f, function)
            }
            Cause::OutputOverrun { function, capacity } => {
                write!(f, "the function wrote past its output capacity of {capacity} bytes")?;
                during(f, function)
            }
            Cause::Exit { status, function } => {
                write!(f, "worker exited with status {status}")?;
                during(f, function)
            }
            Cause::OutOfMemory => f.write_str("worker ran out of memory"),
            Cause::Deadline { timeout_us, function } => {
                write!(
                    f,
                    "the function ran past its deadline of {timeout_us} us and was killed"
                )?;
                during(f, function)
            }
            Cause::LeaseEnded(reason) => write!(f, "the lease ended: {reason}"),
            Cause::NotStarted { why, .. } => write!(f, "worker could not be started: {why}"),
            Cause::AgentGone => f.write_str("the agent that owned the worker is gone"),
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => "see kill -l",
    }
}

/// Reason of a lease's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndReason {
    /// The holder released the lease.
    Released,
    /// The lease was not renewed in time.
    Expired,
    /// The holder's session closed without releasing the lease.
    ClientGone,
    /// An operator ended the lease.
    Revoked,
    /// The agent is shutting down.
    AgentStopping,
    /// The node is given back to its owner.
    Reclaimed,
    /// The holder revoked the slots that it had lent: the lease itself may go on.
    TakenBack,
    /// The time limit of the delegation is over.
    NoLongerLent,
    /// The lease was idle, and its state was saved, so that the node can use its memory for other leases. The worker
    /// had stopped accepting requests before its state was saved.
    SwappedOut,
    /// The lease reached the longest duration that the operator of its node permits.
    DurationOver,
    /// The lease was idle for the longest time that the operator of its node permits.
    Idle,
    /// A batch job takes the resources that the lease held on its node.
    BatchJob(JobId),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "released",
            Self::Expired => "expired without renewal",
            Self::ClientGone => "its client is gone",
            Self::Revoked => "revoked by an operator",
            Self::AgentStopping => "the agent is stopping",
            Self::Reclaimed => "its node is given back",
            Self::TakenBack => "its holder has taken back the slots that it had lent",
            Self::NoLongerLent => "the time is over for which its holder had lent the slots",
            Self::SwappedOut => "nothing ran on it, and its state was saved: the next lease of that name restores it",
            Self::DurationOver => "it lasted as long as the operator of its node allows",
            Self::Idle => "nothing ran on it for longer than the operator of its node allows",
            Self::BatchJob(job) => return write!(f, "batch job {job} takes the resources of the lease"),
        })
    }
}

/// A rejected control-plane request, with the reason. A rejected request changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// No agent has enough free cores.
    #[error(
        "no agent has enough free cores (asked for: {asked}, free: {free}, offered: {offered}); wait longer (option `patience`: `Executor(patience=60)` in Python, `options.patience` in C++, `hotlease run --wait 60`), ask for fewer, or see `hotlease leases`"
    )]
    NoCapacity {
        /// Number of requested cores.
        asked: u32,
        /// Largest number of cores free on one agent.
        free: u32,
        /// Largest number of cores offered by one agent.
        offered: u32,
    },
    /// No agent is registered.
    #[error("no agent is registered with the manager; start one with `hotlease agent` or `hotlease up`")]
    NoAgent,
    /// The token is malformed or its MAC is wrong.
    #[error("the token is not valid")]
    BadToken,
    /// The token belongs to an earlier boot of the agent or an earlier epoch.
    #[error("the token is of epoch {token}, the lease is at {current}")]
    StaleEpoch {
        /// Epoch of the token.
        token: Epoch,
        /// Epoch of the lease.
        current: Epoch,
    },
    /// The lease is over.
    #[error("the lease has ended: {0}")]
    LeaseEnded(EndReason),
    /// There is no such lease here.
    #[error("no such lease")]
    UnknownLease,
    /// The caller is not the tenant that holds the lease.
    #[error("the lease belongs to another tenant")]
    WrongTenant,
    /// The caller may not do this.
    #[error("not permitted: {what}")]
    NotPermitted {
        /// The operation, and why it is not permitted.
        what: String,
    },
    /// The lease has no such worker.
    #[error("the lease has no worker {index}; it has {workers}")]
    UnknownWorker {
        /// Requested index.
        index: u16,
        /// Number of the lease's workers.
        workers: u16,
    },
    /// The worker has no such slot.
    #[error("the worker has no slot {index}; it has {slots}")]
    UnknownSlot {
        /// Requested index.
        index: u16,
        /// Number of the worker's slots.
        slots: u16,
    },
    /// A limit was reached.
    #[error("too many {what}: the limit is {limit}")]
    TooMany {
        /// Kind of the objects that are too many.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The request is invalid.
    #[error("bad request: {what}")]
    BadRequest {
        /// The invalid part, and why.
        what: String,
    },
    /// The bytes of the library with this hash must be sent first.
    #[error("function library {0} is not on this node; send its bytes")]
    NeedCode(CodeHash),
    /// The bytes do not have the hash with which they were announced.
    #[error("the function library's bytes do not have the announced hash")]
    CodeMismatch,
    /// The library cannot be loaded.
    #[error("the function library cannot be loaded: {why}")]
    CodeRejected {
        /// Error text of the loader.
        why: String,
    },
    /// The worker is dead.
    #[error("{cause}{}", last_output(.output))]
    WorkerDied {
        /// Cause of the worker's death.
        cause: Cause,
        /// End of its output.
        output: String,
    },
    /// Client and daemon do not have the same protocol version.
    #[error("protocol version {theirs} is not {ours}; install the same hotlease on both sides")]
    Version {
        /// Version of the rejected peer.
        theirs: u32,
        /// Version of this side.
        ours: u32,
    },
    /// A party did not answer in time.
    #[error("{what} did not answer within {after_ms} ms")]
    Timeout {
        /// The party that did not answer.
        what: String,
        /// Time limit, milliseconds.
        after_ms: u64,
    },
    /// The agent or manager cannot be reached.
    #[error("unavailable: {what}")]
    Unavailable {
        /// The party that is unavailable, and why.
        what: String,
    },
    /// The agent has no sandbox for this tenant's code.
    #[error(
        "tenant {tenant} is not served by this agent, which serves {served}; its operator names tenants with `hotlease agent --tenant`"
    )]
    TenantNotServed {
        /// Tenant of the request.
        tenant: String,
        /// Tenants that the agent serves.
        served: String,
    },
    /// Descriptors cannot go to another host.
    #[error("{what} is shared memory, and the worker is on another host; channels between hosts go over a fabric")]
    NeedsSharedMemory {
        /// Kind of the memory.
        what: String,
    },
    /// The request exceeds the tenant's quota.
    #[error(
        "tenant {tenant} has {used} {what} of the {limit} that its quota allows; release some, ask for less, or ask \
         an operator: `hotlease admin tenant show {tenant}`"
    )]
    QuotaExceeded {
        /// Tenant of the quota.
        tenant: String,
        /// Resource: cores, leases, bytes of memory, GPUs, core-seconds.
        what: String,
        /// The quota.
        limit: u64,
        /// Amount that is held or used already.
        used: u64,
    },
    /// The caller has shown no credentials, or credentials that are not valid (any more).
    #[error("not authenticated: {why}")]
    NotAuthenticated {
        /// Reason.
        why: String,
    },
    /// No agent has enough room for warm slots on shared cores.
    #[error(
        "no agent has enough free places for warm slots (asked for: {asked}, free: {free}, offered: {offered}); wait longer (option `patience`: `Executor(patience=60)` in Python, `options.patience` in C++, `hotlease run --wait 60`), ask for fewer, or see `hotlease agents`"
    )]
    NoPlaces {
        /// Number of requested slots.
        asked: u32,
        /// Largest number of places free on one agent.
        free: u32,
        /// Largest number of places offered by one agent.
        offered: u32,
    },
    /// The agents together have too few free cores for a request that may be spread over them. Parts that some agents
    /// had granted were released.
    #[error(
        "there is room for {found} of {asked} workers; wait longer (option `patience`: `Executor(patience=60)` in Python, `options.patience` in C++, `hotlease run --wait 60`), ask for fewer, or see `hotlease leases`"
    )]
    NotTogether {
        /// Least number of requested workers.
        asked: u32,
        /// Number of workers for which there was room.
        found: u32,
    },
    /// No agent that offers the cores has enough free GPUs.
    #[error(
        "no agent that offers the cores has enough free GPUs (asked for: {asked}, free: {free}, offered: {offered}); wait longer (option `patience`: `Executor(patience=60)` in Python, `options.patience` in C++, `hotlease run --wait 60`), ask for fewer, or see `hotlease agents`"
    )]
    NoGpus {
        /// Number of requested GPUs.
        asked: u32,
        /// Largest number of GPUs free on one agent.
        free: u32,
        /// Largest number of GPUs offered by one agent.
        offered: u32,
    },
    /// The agent cannot, or may not, run this lease's code in such a sandbox.
    #[error("no sandbox of kind {kind}: {why}")]
    NoSandbox {
        /// Kind of sandbox that was requested, or that the site has set.
        kind: String,
        /// The missing part, and a remedy.
        why: String,
    },
    /// The agent cannot fetch, or mount, the environment that the lease names.
    #[error("no environment for this lease: {why}")]
    NoEnvironment {
        /// Hash of the environment.
        environment: String,
        /// The defect, and a remedy.
        why: String,
    },
    /// The lease requests something outside its sandbox that the site does not grant, or that does not exist.
    #[error("functions may not reach {what} on {node}: {why}")]
    OutOfReach {
        /// A directory and the access to it, or the network.
        what: String,
        /// Node of the agent.
        node: String,
        /// The site's grants, and a remedy.
        why: String,
    },
    /// Every agent that could serve the lease rejects it for a reason that waiting does not change, and the reasons
    /// differ.
    #[error("no agent serves this lease, and nothing ran{}", reasons_text(.reasons))]
    NoSuitableAgent {
        /// The reasons; empty if every agent was known beforehand to reject the request.
        reasons: Vec<Objection>,
    },
}

impl Rejection {
    /// Whether the same request may be accepted later: when a resource becomes free, or a party can be reached again.
    /// Otherwise the same party will reject the request again. An agent's rejection is about that agent only, and other
    /// agents may accept the request.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NoCapacity { .. } | Self::NoPlaces { .. } | Self::NoGpus { .. } | Self::NotTogether { .. } => true,
            Self::NoAgent | Self::TooMany { .. } | Self::Timeout { .. } | Self::Unavailable { .. } => true,
            Self::LeaseEnded(_) | Self::UnknownLease => true,
            Self::WorkerDied { cause, .. } => !matches!(cause, Cause::NotStarted { lasts: true, .. }),
            Self::BadToken | Self::StaleEpoch { .. } | Self::WrongTenant | Self::NotPermitted { .. } => false,
            Self::UnknownWorker { .. } | Self::UnknownSlot { .. } | Self::BadRequest { .. } => false,
            Self::NeedCode(_) | Self::CodeMismatch | Self::CodeRejected { .. } | Self::Version { .. } => false,
            Self::TenantNotServed { .. } | Self::QuotaExceeded { .. } | Self::NotAuthenticated { .. } => false,
            Self::NeedsSharedMemory { .. } | Self::NoSandbox { .. } | Self::NoEnvironment { .. } => false,
            Self::OutOfReach { .. } | Self::NoSuitableAgent { .. } => false,
        }
    }
}

fn reasons_text(reasons: &[Objection]) -> String {
    let reasons: Vec<String> = reasons.iter().map(Objection::to_string).collect();
    match reasons.is_empty() {
        true => String::new(),
        false => format!(": {}", reasons.join("; ")),
    }
}

fn last_output(output: &str) -> String {
    match output.trim_end() {
        "" => String::new(),
        text => format!("; its last output: {text}"),
    }
}
