//! Requests to get and to end leases: checked here, and decided by the state machine.

use crate::records::{bad_request, lease_note, usage};
use crate::state::ManagerState;
use crate::state::driver::{RELEASED, REVOKED, unexpected_answer};
use hotlease_lease::manager::{ClusterAnswer, ClusterEvent, EndRequest, LeaseNote};
use hotlease_lease::{LeaseRequest, LeaseSpec};
use hotlease_store::RowKey;
use hotlease_wire::grpc::{AcquireRequest, Grant, ReleaseReply, ReleaseRequest, VouchReply, VouchRequest};
use hotlease_wire::ids::{Epoch, LeaseId};
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time to live of a lease whose request names none.
const TTL_DEFAULT: Duration = Duration::from_secs(5);
const SANDBOXES: [&str; 4] = ["process", "namespace", "container", "microvm"];

/// Gets a lease for a tenant.
pub(crate) async fn acquire(
    state: &Arc<ManagerState>,
    message: AcquireRequest,
    tenant: String,
) -> Result<Grant, Rejection> {
    // Empty: the agent's site decides the kind.
    if !message.sandbox.is_empty() && !SANDBOXES.contains(&message.sandbox.as_str()) {
        return Err(bad_request(
            "the sandbox kind is none of process, namespace, container and microvm",
        ));
    }
    let message = AcquireRequest { tenant, ..message };
    let wanted = LeaseRequest::of(&message, TTL_DEFAULT)?;
    // The message in the form in which agents get it.
    let message = AcquireRequest {
        ttl_ms: wanted.ttl.as_millis() as u64,
        without: Vec::new(),
        ..message
    };
    let asked = (message.waiting != 0).then(|| message.clone());
    let allowance = state.directory.allowance(&wanted.tenant);
    let acquire = |request| ClusterEvent::Acquire {
        request,
        wanted,
        allowance,
    };
    let begun = Instant::now();
    let answered = state.ask(Some(message), acquire).await;
    state.metrics.count_acquire(begun.elapsed(), &answered);
    if let Some(asked) = asked {
        state.waiting.note(&asked, answered.as_ref().err(), state.now());
    }
    match answered? {
        (ClusterAnswer::Granted { .. }, Some(grant)) => Ok(*grant),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

/// Limit of the time for which a client has held a lease when it announces the lease. The client pays for that time.
const HELD_MAX: Duration = Duration::from_secs(24 * 3600);

/// Opens the account of a lease that an agent granted directly. The holder itself announces the lease, and its tenant
/// pays: no agent can bill a tenant that has not announced the lease.
pub(crate) async fn vouch(
    state: &Arc<ManagerState>,
    request: VouchRequest,
    tenant: String,
) -> Result<VouchReply, Rejection> {
    let spec = LeaseSpec {
        memory_bytes: request.memory_bytes,
        gpus: request.gpus,
        ..LeaseSpec::exclusive(request.workers, request.slots_per_worker)
    };
    let terms = LeaseRequest {
        label: request.label,
        job: request.job,
        ..LeaseRequest::new(tenant, spec, TTL_DEFAULT)
    };
    terms.check()?;
    if request.cores.len() != spec.all_slots() as usize {
        return Err(bad_request("a lease has one core for each slot"));
    }
    let lease: LeaseId = request.lease.parse().map_err(|_| bad_request("not a lease id"))?;
    let held = Duration::from_millis(request.held_ms).min(HELD_MAX);
    let note = LeaseNote {
        agent: request.agent.parse().map_err(|_| bad_request("not an agent's id"))?,
        boot: request.boot.parse().map_err(|_| bad_request("not a boot id"))?,
        tenant: terms.tenant,
        label: terms.label,
        job: terms.job,
        epoch: Epoch(request.epoch),
        billable_cores: spec.all_slots(),
        busy_cores: spec.all_slots(),
        memory_bytes: spec.all_memory_bytes(),
        gpus: spec.all_gpus(),
        cores: request.cores,
        granted_ms: state.unix_ms().saturating_sub(held.as_millis() as u64),
    };
    let key = RowKey {
        agent: note.agent,
        boot: note.boot,
        lease,
    };
    let known = state.store(move |store| Ok((store.rows(&[key])?, store.lease(lease)?)));
    let (known, elsewhere) = known.await?;
    // The ledger has a lease of this id from another agent or run. The announced lease would overwrite that record,
    // even if the recorded lease has ended.
    if elsewhere.is_some_and(|lease| lease.key() != key) {
        return Err(bad_request(
            "another agent, or another run of it, has granted this lease",
        ));
    }
    match known.into_iter().flatten().next() {
        Some(row) if row.tenant != note.tenant => return Err(Rejection::WrongTenant),
        Some(row) if !row.disputed => return Ok(VouchReply {}),
        _ => {}
    }
    let vouch = |request| ClusterEvent::Vouch { request, lease, note };
    match state.ask(None, vouch).await? {
        (ClusterAnswer::Vouched, _) => Ok(VouchReply {}),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

/// Ends a lease. The request is sent to the agent that granted the lease. If that agent is not known, because the
/// manager has just started, the agents are asked one after another until the lease is found. `any`: the lease may
/// belong to another tenant.
pub(crate) async fn release(
    state: &Arc<ManagerState>,
    request: ReleaseRequest,
    any: bool,
) -> Result<ReleaseReply, Rejection> {
    let lease: LeaseId = request
        .lease
        .parse()
        .map_err(|_| bad_request("lease id is not 16 hexadecimal digits"))?;
    let known = state.store(move |store| store.lease(lease)).await?;
    let own = known.as_ref().is_none_or(|lease| lease.tenant == request.tenant);
    let reason = match (request.reason.as_str(), own) {
        ("" | RELEASED, true) => EndReason::Released,
        ("" | RELEASED | REVOKED, _) => EndReason::Revoked,
        _ => {
            return Err(bad_request(format!(
                "the reason is neither \"{RELEASED}\" nor \"{REVOKED}\""
            )));
        }
    };
    let release = EndRequest {
        lease,
        // An empty name means that the manager itself ends the lease.
        tenant: match any && !own {
            true => String::new(),
            false => request.tenant,
        },
        reason,
        unused: false,
    };
    let known = known.map(lease_note);
    let ask = |request| ClusterEvent::Release {
        request,
        release,
        known,
    };
    match state.ask(None, ask).await? {
        (ClusterAnswer::Released { usage: used }, _) => Ok(ReleaseReply {
            usage: Some(usage(used)),
        }),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}
