//! Request for a lease, and all limits on it.
//!
//! Manager, agent, simulator and benchmarks pass a [`LeaseRequest`] to each other. Clients use its check for their
//! options, too, so its errors name the fields of `LeaseOptions`.

use hotlease_wire::Rejection;
use hotlease_wire::control::PollingPolicy;
use hotlease_wire::ids::AgentId;
use hotlease_wire::limits::{
    GPUS_PER_WORKER_MAX, LABEL_BYTES_MAX, MEMORY_BLOCK_BYTES_MAX, SLOTS_MAX, STATE_NAME_BYTES_MAX, WORKERS_MAX,
};
use hotlease_wire::state::is_state_name;
use std::collections::BTreeSet;
use std::time::Duration;

/// Shortest time to live that a lease may ask for.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// Longest time to live that a lease may ask for.
pub const TTL_MAX: Duration = Duration::from_secs(3600);
/// Longest bound that an operator may set for durations and idle times. Instead of a longer bound, no bound can be set.
const DURATION_BOUND_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Largest number of agents that a request may leave out because the client has tried them in vain.
pub const EXCLUDED_MAX: usize = 16;

/// Bounds that the operator of a node sets for its leases. `None` means that only the bound for all requests applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseBounds {
    /// Longest time to live, and so the longest time between two renewals. A request for a longer time gets this time.
    pub ttl: Option<Duration>,
    /// Longest duration, renewals included. The lease ends after this time.
    pub duration: Option<Duration>,
    /// Longest time for which no function runs on a lease. The lease ends after this time.
    pub idle: Option<Duration>,
}

impl LeaseBounds {
    /// Reduces a request's values to the bounds.
    #[must_use]
    pub fn cut(&self, request: LeaseRequest) -> LeaseRequest {
        LeaseRequest {
            ttl: self.ttl.map_or(request.ttl, |most| most.min(request.ttl)),
            ..request
        }
    }

    /// Describes the first bound that is out of range. Returns `None` if all bounds are valid.
    pub fn fault(&self) -> Option<String> {
        let fault = |name, bound: Option<Duration>, most| {
            let bound = bound.filter(|bound| !(TTL_MIN..=most).contains(bound))?;
            Some(format!(
                "the bound of {name} must be {TTL_MIN:?} to {most:?}, not {bound:?}"
            ))
        };
        fault("a lease's time to live", self.ttl, TTL_MAX)
            .or_else(|| fault("a lease's duration", self.duration, DURATION_BOUND_MAX))
            .or_else(|| fault("a lease's idle time", self.idle, DURATION_BOUND_MAX))
    }
}

/// Request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Tenant that will hold the lease, from its credentials.
    pub tenant: String,
    /// Label, shown in listings.
    pub label: String,
    /// Batch job that pays, for bills; empty if there is none.
    pub job: String,
    /// Resources that the lease is to hold.
    pub spec: LeaseSpec,
    /// Number of agents that may serve the request.
    pub spread: PlacementSpread,
    /// Agents to leave out, because the client has tried them in vain.
    pub without: BTreeSet<AgentId>,
    /// Time until the lease expires, if it is not renewed.
    pub ttl: Duration,
    /// Time for which slots poll before they sleep, nanoseconds; `u64::MAX` means no limit.
    pub hot_budget_ns: u64,
    /// Name of the state that the lease's only worker restores at its start, and saves for the next lease.
    pub state: Option<String>,
}

/// Resources of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSpec {
    /// Number of worker processes.
    pub workers: u32,
    /// Slots of each worker; 0 means memory alone: each worker is a memory server.
    pub slots_per_worker: u32,
    /// Memory of each worker, bytes; 0 means no limit. For a memory server: size of its memory block.
    pub memory_bytes: u64,
    /// GPUs of each worker.
    pub gpus: u32,
    /// Whether the lease has its cores for itself.
    pub sharing: CoreUse,
}

/// Whether a lease has its cores for itself, and so whether its slots may poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreUse {
    /// Each slot has a core for itself, and waits for requests according to this policy.
    Exclusive(PollingPolicy),
    /// Each worker has places on a core. Other workers, of this lease and of other leases, may have places on the same
    /// core. Slots sleep between invocations and claim the core for each invocation.
    Shared,
}

/// Number of agents over which the workers of a request may be spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementSpread {
    /// All workers on one agent.
    OneAgent,
    /// Over as many agents as are needed. The request is refused if fewer than `least` workers are found. Not for
    /// shared cores.
    Several {
        /// Fewest workers that are enough. If this is the number of requested workers, the client gets all workers or
        /// none.
        least: u32,
    },
}

impl LeaseRequest {
    /// Makes a request for these resources on one agent, with all options off.
    pub fn new(tenant: impl Into<String>, spec: LeaseSpec, ttl: Duration) -> Self {
        Self {
            tenant: tenant.into(),
            label: String::new(),
            job: String::new(),
            spec,
            spread: PlacementSpread::OneAgent,
            without: BTreeSet::new(),
            ttl,
            hot_budget_ns: 0,
            state: None,
        }
    }

    /// Part of the request for which one agent is asked: this number of workers.
    #[must_use]
    pub fn part(self, workers: u32) -> Self {
        Self {
            spec: self.spec.with_workers(workers),
            spread: PlacementSpread::OneAgent,
            ..self
        }
    }

    /// Refuses a request that no agent could grant. (Only the agent checks the tenant's name, which clients do not
    /// choose.)
    pub fn check(&self) -> Result<(), Rejection> {
        let bad = |what: String| Err(Rejection::BadRequest { what });
        let LeaseSpec {
            workers,
            slots_per_worker: slots,
            gpus,
            sharing,
            ..
        } = self.spec;
        if !(1..=WORKERS_MAX).contains(&workers) {
            return bad(format!("workers must be 1 to {WORKERS_MAX}, not {workers}"));
        }
        if self.spec.is_memory_alone() {
            self.check_memory_alone()?;
        } else if !(1..=SLOTS_MAX).contains(&slots) {
            return bad(format!("slots must be 1 to {SLOTS_MAX}, not {slots}"));
        }
        if gpus > GPUS_PER_WORKER_MAX {
            return bad(format!(
                "gpus must be at most {GPUS_PER_WORKER_MAX} for each worker, not {gpus}"
            ));
        }
        if let PlacementSpread::Several { least } = self.spread {
            if sharing == CoreUse::Shared {
                return bad("spread needs exclusive cores: a lease has shared cores on one agent only".into());
            }
            if !(1..=workers).contains(&least) {
                return bad(format!(
                    "spread must be 1 to {workers} workers, the number of workers that are asked for, not {least}"
                ));
            }
        }
        if self.without.len() > EXCLUDED_MAX {
            let named = self.without.len();
            return bad(format!("at most {EXCLUDED_MAX} agents can be left out, not {named}"));
        }
        if !(TTL_MIN..=TTL_MAX).contains(&self.ttl) {
            return bad(format!("ttl must be 100 ms to 1 h, not {:?}", self.ttl));
        }
        if let Some(name) = &self.state {
            if !is_state_name(name) {
                return bad(format!(
                    "state must be a name of up to {STATE_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', not {name:?}"
                ));
            }
            if (workers, slots) != (1, 1) {
                return bad("state needs exactly one worker with one slot".into());
            }
        }
        for (name, text) in [("label", &self.label), ("job", &self.job)] {
            if text.len() > LABEL_BYTES_MAX {
                return bad(format!("{name} must be at most {LABEL_BYTES_MAX} bytes"));
            }
            if text.chars().any(char::is_control) {
                return bad(format!("{name} must not hold control characters"));
            }
        }
        Ok(())
    }

    /// Refuses a request for memory alone that asks for something that only slots have.
    fn check_memory_alone(&self) -> Result<(), Rejection> {
        let bad = |what: &str| Err(Rejection::BadRequest { what: what.into() });
        if self.spec.gpus > 0 {
            return bad("gpus needs slots: a lease of memory alone has none");
        }
        if self.spec.sharing == CoreUse::Shared {
            return bad("sharing must be exclusive for a lease of memory alone, which has no cores to share");
        }
        if self.spec.memory_bytes > MEMORY_BLOCK_BYTES_MAX {
            return bad(&format!(
                "memory must be at most {MEMORY_BLOCK_BYTES_MAX} bytes on each node, not {}",
                self.spec.memory_bytes
            ));
        }
        Ok(())
    }
}

#[cfg(feature = "grpc")]
impl LeaseRequest {
    /// Makes the request of a message. Refuses a request that no agent could grant. `ttl` is the time to live if the
    /// message names none.
    pub fn of(message: &hotlease_wire::grpc::AcquireRequest, ttl: Duration) -> Result<Self, Rejection> {
        use hotlease_wire::grpc::{Polling, Sharing};
        let bad = |what: &str| Rejection::BadRequest { what: what.into() };
        let polling = match Polling::try_from(message.polling) {
            Ok(Polling::Adaptive) => PollingPolicy::Adaptive,
            Ok(Polling::Hot) => PollingPolicy::Hot,
            Ok(Polling::Warm) => PollingPolicy::Warm,
            Err(_) => return Err(bad("polling must be adaptive, hot or warm")),
        };
        let sharing = match (Sharing::try_from(message.sharing), polling) {
            (Ok(Sharing::Exclusive), polling) => CoreUse::Exclusive(polling),
            (Ok(Sharing::Shared), PollingPolicy::Hot) => {
                let what = "polling must not be hot where cores are shared: a hot slot owns its core";
                return Err(bad(what));
            }
            (Ok(Sharing::Shared), PollingPolicy::Adaptive | PollingPolicy::Warm) => CoreUse::Shared,
            (Err(_), _) => return Err(bad("sharing must be exclusive or shared")),
        };
        if message.python.is_some() && message.slots_per_worker != 1 {
            return Err(bad(&format!(
                "slots must be 1 where workers are Python interpreters, not {}: ask for more workers",
                message.slots_per_worker
            )));
        }
        hotlease_wire::limits::variables::check(&message.variables).map_err(|what| bad(&what))?;
        let without = message.without.iter();
        let without = without.map(|agent| agent.parse().map_err(|_| bad("not an agent's id")));
        let request = Self {
            tenant: message.tenant.clone(),
            label: message.label.clone(),
            job: message.job.clone(),
            spec: LeaseSpec {
                workers: message.workers,
                slots_per_worker: message.slots_per_worker,
                memory_bytes: message.memory_bytes,
                gpus: message.gpus,
                sharing,
            },
            spread: match message.spread_least {
                0 => PlacementSpread::OneAgent,
                least => PlacementSpread::Several { least },
            },
            without: without.collect::<Result<_, _>>()?,
            ttl: match message.ttl_ms {
                0 => ttl,
                ttl_ms => Duration::from_millis(ttl_ms),
            },
            hot_budget_ns: message.hot_budget_us.saturating_mul(1000),
            state: Some(message.state.clone()).filter(|state| !state.is_empty()),
        };
        request.check()?;
        Ok(request)
    }

    /// Terms of the request that listings show; all other fields have their defaults.
    pub fn listing(&self) -> hotlease_wire::grpc::LeaseInfo {
        hotlease_wire::grpc::LeaseInfo {
            tenant: self.tenant.clone(),
            label: self.label.clone(),
            shared: self.spec.sharing == CoreUse::Shared,
            ..Default::default()
        }
    }
}

impl LeaseSpec {
    /// Workers whose slots have cores for themselves; no GPUs, no limit of memory.
    pub fn exclusive(workers: u32, slots_per_worker: u32) -> Self {
        Self {
            workers,
            slots_per_worker,
            memory_bytes: 0,
            gpus: 0,
            sharing: CoreUse::Exclusive(PollingPolicy::Adaptive),
        }
    }

    /// Whether the lease is one of memory alone: its workers are memory servers, which have no cores.
    pub fn is_memory_alone(&self) -> bool {
        self.slots_per_worker == 0 && self.memory_bytes > 0
    }

    /// The same resources for another number of workers.
    #[must_use]
    pub fn with_workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// Slots of all workers.
    pub fn all_slots(&self) -> u32 {
        self.workers.saturating_mul(self.slots_per_worker)
    }

    /// GPUs of all workers.
    pub fn all_gpus(&self) -> u32 {
        self.workers.saturating_mul(self.gpus)
    }

    /// Memory of all workers, bytes; 0 means no limit.
    pub fn all_memory_bytes(&self) -> u64 {
        self.memory_bytes.saturating_mul(self.workers.into())
    }

    /// Largest number of cores on which an agent may let the lease compute at the same time: one for each slot, or on
    /// shared cores one for each worker, because the agent may move workers to idle cores.
    pub fn busy_cores(&self) -> u32 {
        match self.sharing {
            CoreUse::Exclusive(_) => self.all_slots(),
            CoreUse::Shared => self.workers,
        }
    }

    /// Largest number of cores that an agent may bill if it granted the cores `granted`: one for each slot, or on
    /// shared cores at most one for each worker.
    pub fn billable_cores(&self, granted: &[u32]) -> u32 {
        match self.sharing {
            CoreUse::Exclusive(_) => self.all_slots(),
            CoreUse::Shared => {
                let distinct: BTreeSet<&u32> = granted.iter().collect();
                (distinct.len() as u32).clamp(1, self.workers.max(1))
            }
        }
    }
}

impl CoreUse {
    /// How slots wait for requests.
    pub fn polling(self) -> PollingPolicy {
        match self {
            Self::Exclusive(polling) => polling,
            Self::Shared => PollingPolicy::Warm,
        }
    }
}

#[cfg(test)]
mod tests;
