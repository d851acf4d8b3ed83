//! Getting a lease: the request is checked, and the agents are asked one after the other.
//!
//! The registry only orders the candidates. Its figures are as old as the last heartbeat; whether cores
//! are free, the agent alone knows, and a refusal of its costs one round trip on a local socket.

use crate::links::answer;
use crate::membership::warn_of;
use crate::records::{bad, totals};
use crate::state::State;
use hotlease_lease::manager::Capacity;
use hotlease_store::{LeaseRecord, LeaseState, LedgerRow, Report};
use hotlease_wire::grpc::{AcquireRequest, Grant, Polling, ReleaseReply, ReleaseRequest};
use hotlease_wire::ids::{AgentId, Epoch, LeaseId};
use hotlease_wire::limits::{LABEL_BYTES_MAX, SLOTS_MAX, WORKERS_MAX};
use hotlease_wire::{EndReason, Refusal};

const TTL_MS_DEFAULT: u64 = 5_000;
const TTL_MS_MIN: u64 = 100;
const TTL_MS_MAX: u64 = 3_600_000;
/// Words of a [`ReleaseRequest`]: its holder gives a lease back, an operator takes it.
const RELEASED: &str = "released";
const REVOKED: &str = "revoked";
const SANDBOX_DEFAULT: &str = "process";

/// The request with its defaults filled in and the caller's own name on it; nothing in it is out of
/// bounds any more.
pub(crate) fn checked(mut request: AcquireRequest, tenant: String) -> Result<AcquireRequest, Refusal> {
    let between = |what: &str, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(bad(format!(
            "{what} is {value}; it must be from {least} to {most}"
        )))
    };
    between("workers", request.workers.into(), 1, WORKERS_MAX.into())?;
    between(
        "slots per worker",
        request.slots_per_worker.into(),
        1,
        SLOTS_MAX.into(),
    )?;
    if request.ttl_ms == 0 {
        request.ttl_ms = TTL_MS_DEFAULT;
    }
    between("ttl (ms)", request.ttl_ms, TTL_MS_MIN, TTL_MS_MAX)?;
    if request.gpus > 0 {
        return Err(bad("GPUs are asked for, and no agent of this version offers any"));
    }
    if request.sandbox.is_empty() {
        request.sandbox = SANDBOX_DEFAULT.into();
    }
    if request.sandbox != SANDBOX_DEFAULT {
        return Err(bad(
            "the sandbox kind is not known; this version has only \"process\"",
        ));
    }
    if Polling::try_from(request.polling).is_err() {
        return Err(bad("the polling mode is none of adaptive, hot and warm"));
    }
    between(
        "label length",
        request.label.len() as u64,
        0,
        LABEL_BYTES_MAX as u64,
    )?;
    between("job length", request.job.len() as u64, 0, LABEL_BYTES_MAX as u64)?;
    if request
        .label
        .chars()
        .chain(request.job.chars())
        .any(char::is_control)
    {
        return Err(bad("the label or the job holds control characters"));
    }
    request.tenant = tenant;
    Ok(request)
}

/// Asks the agents in the registry's order for what [`checked`] let through.
pub(crate) async fn acquire(state: &State, request: AcquireRequest) -> Result<Grant, Refusal> {
    // At most WORKERS_MAX x SLOTS_MAX: no overflow.
    let cores = request.workers * request.slots_per_worker;
    let candidates = {
        let now = state.now();
        let mut registry = state.registry();
        registry.tick(now);
        let order = registry.candidates(cores);
        let known = order.into_iter().filter_map(|id| registry.agent(id));
        known.map(|(record, ..)| record.clone()).collect::<Vec<_>>()
    };
    let mut refusals = Refusals::default();
    for agent in candidates {
        // Before it can grant: what it bills is held against the time since then.
        let granted_ms = state.unix_ms();
        let asked = async {
            let mut client = state.links.client(&agent)?;
            let grant = client.grant(request.clone());
            answer(agent.id, state.config.grant_timeout, grant).await
        };
        match asked.await {
            Ok(grant) => {
                note(state, agent.id, &request, &grant, granted_ms).await?;
                tracing::debug!(lease = %grant.lease, agent = %agent.id, cores, "lease granted");
                return Ok(grant);
            }
            Err(refusal) => {
                tracing::debug!(agent = %agent.id, %refusal, "agent refused a lease");
                refusals.add(refusal)?;
            }
        }
    }
    let anybody = !state.reachable_agents().is_empty();
    Err(refusals.sum_up(cores, anybody, state.registry().capacity()))
}

/// What the agents answered instead of a grant.
#[derive(Default)]
struct Refusals {
    /// The largest figures of agents that have no room; they know better than the registry.
    full: Option<Capacity>,
    /// Another reason, of the agent asked last.
    other: Option<Refusal>,
}

impl Refusals {
    /// Goes on to the next agent, except where that one would say the same.
    fn add(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        match refusal {
            Refusal::NoCapacity { free, offered, .. } => {
                let most = self.full.get_or_insert_default();
                most.free = most.free.max(free);
                most.offered = most.offered.max(offered);
            }
            Refusal::BadRequest { .. } => return Err(refusal),
            refusal => self.other = Some(refusal),
        }
        Ok(())
    }

    fn sum_up(self, asked: u32, anybody: bool, registered: Capacity) -> Refusal {
        match (self.full, self.other) {
            _ if !anybody => Refusal::NoAgent,
            (None, Some(other)) => other,
            (full, _) => {
                let capacity = full.unwrap_or(registered);
                Refusal::NoCapacity {
                    asked,
                    free: capacity.free,
                    offered: capacity.offered.max(registered.offered),
                }
            }
        }
    }
}

/// Writes the new lease down, so that it is listed and can be released before the first heartbeat that
/// names it. A lease that cannot be written down is given back.
async fn note(
    state: &State,
    agent: AgentId,
    request: &AcquireRequest,
    grant: &Grant,
    granted_ms: u64,
) -> Result<(), Refusal> {
    let noted = async {
        let id: LeaseId = grant.lease.parse().map_err(|_| Refusal::Unavailable {
            what: format!("agent {agent} granted a lease without a usable id"),
        })?;
        let known = state.registry().agent(agent).map(|(record, ..)| record.boot);
        let boot = known.ok_or(Refusal::Unavailable {
            what: format!("agent {agent} left just now"),
        })?;
        let lease = LeaseRecord {
            id,
            agent,
            boot,
            tenant: request.tenant.clone(),
            label: request.label.clone(),
            job: request.job.clone(),
            epoch: Epoch(grant.epoch),
            cores: grant.cores.clone(),
            // What was asked for, not what the agent says: it is what the agent may bill.
            slots: request.workers * request.slots_per_worker,
            memory_bytes: request.memory_bytes.saturating_mul(request.workers.into()),
            granted_ms,
            state: LeaseState::Active,
        };
        let at_ms = state.unix_ms();
        state.store(move |store| store.open_lease(lease, at_ms)).await
    };
    let Err(refusal) = noted.await else {
        return Ok(());
    };
    let back = ReleaseRequest {
        lease: grant.lease.clone(),
        tenant: request.tenant.clone(),
        reason: RELEASED.into(),
    };
    if let Err(error) = end_at(state, agent, back).await {
        tracing::warn!(lease = %grant.lease, %error, "a lease that was not handed out has to expire");
    }
    Err(refusal)
}

/// Ends a lease: at the agent that granted it where that is known, else wherever it is found (the
/// manager may have been started just now).
pub(crate) async fn release(state: &State, request: ReleaseRequest) -> Result<ReleaseReply, Refusal> {
    let id: LeaseId = request
        .lease
        .parse()
        .map_err(|_| bad("lease id is not 16 hexadecimal digits"))?;
    let known = state.store(move |store| store.lease(id)).await?;
    let own = known.as_ref().is_none_or(|lease| lease.tenant == request.tenant);
    let (reason, word) = match (request.reason.as_str(), own) {
        ("" | RELEASED, true) => (EndReason::Released, RELEASED),
        ("" | RELEASED | REVOKED, _) => (EndReason::Revoked, REVOKED),
        _ => {
            return Err(bad(format!(
                "the reason is neither \"{RELEASED}\" nor \"{REVOKED}\""
            )));
        }
    };
    let request = ReleaseRequest {
        reason: word.into(),
        ..request
    };
    let agents = match &known {
        Some(lease) => vec![lease.agent],
        None => state
            .reachable_agents()
            .into_iter()
            .map(|agent| agent.id)
            .collect(),
    };
    let mut refused = Refusal::UnknownLease;
    for agent in agents {
        match end_at(state, agent, request.clone()).await {
            Ok(reply) => {
                if let Some(lease) = known {
                    settle(state, lease, &reply, reason).await?;
                }
                return Ok(reply);
            }
            Err(Refusal::UnknownLease) => {}
            Err(refusal) => refused = refusal,
        }
    }
    Err(refused)
}

async fn end_at(state: &State, agent: AgentId, request: ReleaseRequest) -> Result<ReleaseReply, Refusal> {
    let record = state.registry().agent(agent).map(|(record, ..)| record.clone());
    let record = record.ok_or(Refusal::Unavailable {
        what: format!("agent {agent} is gone"),
    })?;
    let mut client = state.links.client(&record)?;
    answer(agent, state.config.end_timeout, client.end_lease(request)).await
}

/// The final total is acknowledged to the caller, so it is in the ledger first.
async fn settle(
    state: &State,
    lease: LeaseRecord,
    reply: &ReleaseReply,
    reason: EndReason,
) -> Result<(), Refusal> {
    let row = LedgerRow {
        key: lease.key(),
        tenant: lease.tenant.clone(),
        usage: totals(reply.usage),
        settled: true,
    };
    let lease = LeaseRecord {
        state: LeaseState::Ended {
            why: reason.to_string(),
        },
        ..lease
    };
    let report = Report {
        agent: lease.agent,
        boot: lease.boot,
        at_ms: state.unix_ms(),
        leases: vec![lease],
        usage: vec![row],
        missing_before: None,
    };
    let reported = state.store(move |store| store.report(report)).await?;
    warn_of(&reported);
    Ok(())
}
