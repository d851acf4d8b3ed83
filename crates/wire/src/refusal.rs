//! Why something was refused or ended: the words that every error of hotlease is made of.

use crate::ids::{CodeHash, Epoch};
use crate::objections::Objection;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether the function of a failed invocation ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ran {
    /// It ran to its end.
    Yes,
    /// It did not start.
    No,
    /// It may have started, and may have had effects.
    Unknown,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "the function ran",
            Self::No => "the function did not run",
            Self::Unknown => "the function may have run",
        })
    }
}

/// Why a worker is no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Killed by a signal, where known while running the function at this index of its worker.
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
        /// The capacity it was given, bytes.
        capacity: u64,
    },
    /// The process exited by itself.
    Exit {
        /// Exit status.
        status: i32,
        /// The function that was running.
        function: Option<u16>,
    },
    /// The kernel's out-of-memory killer, or the lease's memory limit.
    OutOfMemory,
    /// A function ran past its deadline and did not react to its cancel flag.
    Deadline {
        /// The function that was running.
        function: Option<u16>,
        /// The time it had, microseconds.
        timeout_us: u64,
    },
    /// The lease ended, so the agent stopped the worker.
    LeaseEnded(EndReason),
    /// The agent could not start it.
    NotStarted {
        /// What failed.
        why: String,
        /// Whether it lies in what was to be started, or in what the node has: the next one would fail alike.
        lasts: bool,
    },
    /// The agent is gone, and nobody can say.
    AgentGone,
}

impl Cause {
    /// The function that was running, by its index in the worker, where that is known.
    pub fn function(&self) -> Option<u16> {
        match self {
            Self::Signal { function, .. }
            | Self::OutputOverrun { function, .. }
            | Self::Exit { function, .. }
            | Self::Deadline { function, .. } => *function,
            Self::OutOfMemory | Self::LeaseEnded(_) | Self::NotStarted { .. } | Self::AgentGone => None,
        }
    }

    /// The cause in words, for somebody who knows the name of that function.
    pub fn naming<'a>(&'a self, name: Option<&'a str>) -> impl fmt::Display + 'a {
        Naming { cause: self, name }
    }
}

struct Naming<'a> {
    cause: &'a Cause,
    name: Option<&'a str>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.naming(None).fmt(f)
    }
}

impl fmt::Display for Naming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = |f: &mut fmt::Formatter<'_>, function: &Option<u16>| match (self.name, function) {
            (Some(name), Some(_)) => write!(f, " while running `{name}`"),
            (None, Some(index)) => write!(f, " while running function {index}"),
            (_, None) => Ok(()),
        };
        match self.cause {
            Cause::Signal { signal, function } => {
                write!(
                    f,
                    "worker was killed by signal {signal} ({})",
                    signal_name(*signal)
                )?;
                during(f, function)
            }
            Cause::OutputOverrun { function, capacity } => {
                write!(
                    f,
                    "the function wrote past its output capacity of {capacity} bytes"
                )?;
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

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndReason {
    /// Its holder gave it back.
    Released,
    /// It was not renewed in time.
    Expired,
    /// Its holder's session closed without releasing it.
    ClientGone,
    /// An operator ended it.
    Revoked,
    /// The agent is shutting down.
    AgentStopping,
    /// The node is given back to its owner.
    Reclaimed,
    /// The holder took back the slots that it had lent: the lease itself may go on.
    TakenBack,
    /// The time is over for which its holder had lent the slots.
    NoLongerLent,
    /// Nothing ran on it, and its state was saved, so that the node has its memory for others. Its worker had stopped to take requests
    /// before.
    SwappedOut,
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
            Self::SwappedOut => {
                "nothing ran on it, and its state was saved: the next lease of that name restores it"
            }
        })
    }
}

/// Why a control-plane request was refused. Nothing was changed by a refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Not enough free cores anywhere.
    #[error(
        "no agent has {asked} free cores (free: {free}, offered: {offered}); wait, ask for fewer, or see `hotlease leases`"
    )]
    NoCapacity {
        /// Cores asked for.
        asked: u32,
        /// Most cores free on one agent.
        free: u32,
        /// Most cores offered by one agent.
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
        /// The token's.
        token: Epoch,
        /// The lease's.
        current: Epoch,
    },
    /// The lease is over.
    #[error("the lease has ended: {0}")]
    LeaseEnded(EndReason),
    /// No such lease here.
    #[error("no such lease")]
    UnknownLease,
    /// The caller is not the tenant that holds the lease.
    #[error("the lease belongs to another tenant")]
    WrongTenant,
    /// The caller may not do this.
    #[error("not permitted: {what}")]
    NotPermitted {
        /// What.
        what: String,
    },
    /// The lease has no such worker.
    #[error("the lease has no worker {index}; it has {workers}")]
    UnknownWorker {
        /// Asked for.
        index: u16,
        /// The lease's.
        workers: u16,
    },
    /// The worker has no such slot.
    #[error("the worker has no slot {index}; it has {slots}")]
    UnknownSlot {
        /// Asked for.
        index: u16,
        /// The worker's.
        slots: u16,
    },
    /// A limit was reached.
    #[error("too many {what}: the limit is {limit}")]
    TooMany {
        /// Of what.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The request makes no sense.
    #[error("bad request: {what}")]
    BadRequest {
        /// Which part, and why.
        what: String,
    },
    /// The code with this hash must be sent first.
    #[error("function library {0} is not on this node; send its bytes")]
    NeedCode(CodeHash),
    /// The bytes do not have the hash they were announced with.
    #[error("the function library's bytes do not have the announced hash")]
    CodeMismatch,
    /// The library cannot be loaded.
    #[error("the function library cannot be loaded: {why}")]
    CodeRejected {
        /// The loader's words.
        why: String,
    },
    /// The worker is dead.
    #[error("{cause}{}", last_output(.output))]
    WorkerDied {
        /// Why.
        cause: Cause,
        /// The end of what it printed.
        output: String,
    },
    /// Client and daemon do not speak the same protocol version.
    #[error("protocol version {theirs} is not {ours}; install the same hotlease on both sides")]
    Version {
        /// The refused peer's.
        theirs: u32,
        /// This side's.
        ours: u32,
    },
    /// Something did not answer in time.
    #[error("{what} did not answer within {after_ms} ms")]
    Timeout {
        /// Who.
        what: String,
        /// The limit.
        after_ms: u64,
    },
    /// The agent or manager cannot be reached.
    #[error("unavailable: {what}")]
    Unavailable {
        /// What, and why.
        what: String,
    },
    /// The agent has no sandbox for this tenant's code.
    #[error(
        "tenant {tenant} is not served by this agent, which serves {served}; its operator names tenants with `hotlease agent --tenant`"
    )]
    TenantNotServed {
        /// Who asked.
        tenant: String,
        /// Whom it serves.
        served: String,
    },
    /// Descriptors were to go to another host.
    #[error(
        "{what} is shared memory, and the worker is on another host; channels between hosts go over a fabric"
    )]
    NeedsSharedMemory {
        /// What.
        what: String,
    },
    /// The tenant may not hold or use so much.
    #[error(
        "tenant {tenant} has {used} {what} of the {limit} that its quota allows; release some, ask for less, or ask \
         an operator: `hotlease admin tenant show {tenant}`"
    )]
    QuotaExceeded {
        /// Whose quota.
        tenant: String,
        /// Of what: cores, leases, bytes of memory, GPUs, core-seconds.
        what: String,
        /// The quota.
        limit: u64,
        /// What is held or used already.
        used: u64,
    },
    /// Who asks did not say who it is, or what it said is not valid (any more).
    #[error("not authenticated: {why}")]
    NotAuthenticated {
        /// Why.
        why: String,
    },
    /// Not enough room for warm slots on shared cores anywhere.
    #[error(
        "no agent has {asked} free places for warm slots (free: {free}, offered: {offered}); wait, ask for fewer, or see `hotlease agents`"
    )]
    NoPlaces {
        /// Slots asked for.
        asked: u32,
        /// Most places free on one agent.
        free: u32,
        /// Most places offered by one agent.
        offered: u32,
    },
    /// The agents together have too few free cores for a request that may be spread over them. What some of them had
    /// granted for it was given back.
    #[error(
        "the agents together have room for {found} of {asked} workers; wait, ask for fewer, or see `hotlease leases`"
    )]
    NotTogether {
        /// Workers, at least.
        asked: u32,
        /// How many there was room for.
        found: u32,
    },
    /// Not enough free GPUs on any agent that offers the cores, too.
    #[error(
        "no agent that offers the cores has {asked} free GPUs (free: {free}, offered: {offered}); wait, ask for fewer, or see `hotlease agents`"
    )]
    NoGpus {
        /// GPUs asked for.
        asked: u32,
        /// Most GPUs free on one agent.
        free: u32,
        /// Most GPUs offered by one agent.
        offered: u32,
    },
    /// The agent cannot, or may not, run this lease's code in such a sandbox.
    #[error("no sandbox of kind {kind}: {why}")]
    NoSandbox {
        /// Which was asked for, or is the site's.
        kind: String,
        /// What is missing, and what to do about it.
        why: String,
    },
    /// The agent cannot have, or mount, the environment that the lease names.
    #[error("no environment for this lease: {why}")]
    NoEnvironment {
        /// Its hash.
        environment: String,
        /// What is wrong, and what to do about it.
        why: String,
    },
    /// The lease asks for something outside of its sandbox that the site does not grant, or that is not there.
    #[error("functions may not reach {what} on {node}: {why}")]
    OutOfReach {
        /// A directory and how, or the network.
        what: String,
        /// The agent's machine.
        node: String,
        /// What is granted, and what to do about it.
        why: String,
    },
    /// Every agent that could serve the lease has a reason not to, which no waiting changes, and they differ.
    #[error("no agent serves this lease, and nothing ran{}", told(.reasons))]
    Nowhere {
        /// None: there is no agent but those that are known to have one.
        reasons: Vec<Objection>,
    },
}

impl Refusal {
    /// Whether time alone may change it: something becomes free, or comes back. Else whoever said it says it again; an agent's
    /// word is its own, and others may say otherwise.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NoCapacity { .. }
            | Self::NoPlaces { .. }
            | Self::NoGpus { .. }
            | Self::NotTogether { .. } => true,
            Self::NoAgent | Self::TooMany { .. } | Self::Timeout { .. } | Self::Unavailable { .. } => true,
            Self::LeaseEnded(_) | Self::UnknownLease => true,
            Self::WorkerDied { cause, .. } => !matches!(cause, Cause::NotStarted { lasts: true, .. }),
            Self::BadToken | Self::StaleEpoch { .. } | Self::WrongTenant | Self::NotPermitted { .. } => false,
            Self::UnknownWorker { .. } | Self::UnknownSlot { .. } | Self::BadRequest { .. } => false,
            Self::NeedCode(_) | Self::CodeMismatch | Self::CodeRejected { .. } | Self::Version { .. } => {
                false
            }
            Self::TenantNotServed { .. } | Self::QuotaExceeded { .. } | Self::NotAuthenticated { .. } => {
                false
            }
            Self::NeedsSharedMemory { .. } | Self::NoSandbox { .. } | Self::NoEnvironment { .. } => false,
            Self::OutOfReach { .. } | Self::Nowhere { .. } => false,
        }
    }
}

fn told(reasons: &[Objection]) -> String {
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
