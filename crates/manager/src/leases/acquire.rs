//! Requests to get and to end leases: checked here, decided by the machine.

use crate::records::{bad_request, lease_note, usage};
use crate::state::ManagerState;
use crate::state::driver::{RELEASED, REVOKED, unexpected_answer};
use crate::state::machine::LeaseRequest;
use hotlease_lease::agent::CoreUse as Whose;
use hotlease_lease::client::EXCLUDED_MAX;
use hotlease_lease::manager::{ClusterAnswer, ClusterEvent, EndRequest, LeaseNote, PlacementSpread};
use hotlease_store::RowKey;
use hotlease_wire::grpc::{
    AcquireRequest, Grant, Polling, ReleaseReply, ReleaseRequest, Sharing, VouchReply, VouchRequest,
};
use hotlease_wire::ids::{Epoch, LeaseId};
use hotlease_wire::limits::{GPUS_PER_WORKER_MAX, LABEL_BYTES_MAX, SLOTS_MAX, WORKERS_MAX};
use hotlease_wire::state::is_state_name;
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TTL_MS_DEFAULT: u64 = 5_000;
const TTL_MS_MIN: u64 = 100;
const TTL_MS_MAX: u64 = 3_600_000;
const SANDBOXES: [&str; 4] = ["process", "namespace", "container", "microvm"];

/// Fills in the request's defaults and sets its tenant. Checks all its bounds.
pub(crate) fn check_request(mut request: AcquireRequest, tenant: String) -> Result<AcquireRequest, Rejection> {
    let between = |what: &str, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(bad_request(format!(
            "{what} is {value}; it must be from {least} to {most}"
        )))
    };
    between("workers", request.workers.into(), 1, WORKERS_MAX.into())?;
    between("slots per worker", request.slots_per_worker.into(), 1, SLOTS_MAX.into())?;
    between(
        "least number of workers",
        request.spread_least.into(),
        0,
        request.workers.into(),
    )?;
    if request.spread_least > 0 && Sharing::try_from(request.sharing) == Ok(Sharing::Shared) {
        return Err(bad_request(
            "shared cores are found on one agent: only a lease of cores of its own is spread",
        ));
    }
    if request.ttl_ms == 0 {
        request.ttl_ms = TTL_MS_DEFAULT;
    }
    between("ttl (ms)", request.ttl_ms, TTL_MS_MIN, TTL_MS_MAX)?;
    between(
        "GPUs of each worker",
        request.gpus.into(),
        0,
        GPUS_PER_WORKER_MAX.into(),
    )?;
    if !request.state.is_empty() && !is_state_name(&request.state) {
        return Err(bad_request(
            "the name of its state has other characters than letters, digits, '.', '_' and '-', or too many",
        ));
    }
    // Empty: the agent's site decides the kind.
    if !request.sandbox.is_empty() && !SANDBOXES.contains(&request.sandbox.as_str()) {
        return Err(bad_request(
            "the sandbox kind is none of process, namespace, container and microvm",
        ));
    }
    if Polling::try_from(request.polling).is_err() {
        return Err(bad_request("the polling mode is none of adaptive, hot and warm"));
    }
    match Sharing::try_from(request.sharing) {
        Err(_) => return Err(bad_request("the way of sharing is neither exclusive nor shared")),
        Ok(Sharing::Shared) if request.polling == i32::from(Polling::Hot) => {
            return Err(bad_request(
                "slots of shared cores cannot poll: a hot slot owns its core; ask for an exclusive lease",
            ));
        }
        Ok(_) => {}
    }
    between("label length", request.label.len() as u64, 0, LABEL_BYTES_MAX as u64)?;
    between("job length", request.job.len() as u64, 0, LABEL_BYTES_MAX as u64)?;
    if request.label.chars().chain(request.job.chars()).any(char::is_control) {
        return Err(bad_request("the label or the job holds control characters"));
    }
    between(
        "agents to leave out",
        request.without.len() as u64,
        0,
        EXCLUDED_MAX as u64,
    )?;
    request.tenant = tenant;
    Ok(request)
}

/// Gets a lease for a request that [`check_request`] accepted.
pub(crate) async fn acquire(state: &Arc<ManagerState>, mut request: AcquireRequest) -> Result<Grant, Rejection> {
    let without = std::mem::take(&mut request.without).into_iter();
    let without = without.map(|agent| agent.parse().map_err(|_| bad_request("not an agent's id")));
    let without = without.collect::<Result<_, _>>()?;
    // At most WORKERS_MAX x SLOTS_MAX: no overflow.
    let wanted = hotlease_lease::manager::LeaseSpec {
        workers: request.workers,
        cores: request.slots_per_worker,
        gpus: request.gpus,
        sharing: match Sharing::try_from(request.sharing) {
            Ok(Sharing::Shared) => Whose::Shared,
            _ => Whose::Exclusive,
        },
        spread: match request.spread_least {
            0 => PlacementSpread::OneAgent,
            least => PlacementSpread::Several { least },
        },
    };
    let (tenant, label) = (request.tenant.clone(), request.label.clone());
    let allowance = state.directory.allowance(&tenant, &request);
    let acquire = |request| ClusterEvent::Acquire {
        request,
        tenant,
        label,
        wanted,
        without,
        allowance,
    };
    let begun = Instant::now();
    let answered = state.ask(Some(request), acquire).await;
    state.metrics.count_acquire(begun.elapsed(), &answered);
    match answered? {
        (ClusterAnswer::Granted { .. }, Some(grant)) => Ok(*grant),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

/// Longest time before its message for which a client may say that it held a lease; it pays for that time.
const HELD_MAX: Duration = Duration::from_secs(24 * 3600);

/// Opens the account of a lease that an agent granted directly. The holder itself announces the lease, and its tenant
/// pays: no agent can bill a tenant that has not announced the lease.
pub(crate) async fn vouch(
    state: &Arc<ManagerState>,
    request: VouchRequest,
    tenant: String,
) -> Result<VouchReply, Rejection> {
    let terms = AcquireRequest {
        workers: request.workers,
        slots_per_worker: request.slots_per_worker,
        memory_bytes: request.memory_bytes,
        gpus: request.gpus,
        label: request.label,
        job: request.job,
        ..AcquireRequest::default()
    };
    let terms = check_request(terms, tenant)?;
    if request.cores.len() != (terms.workers * terms.slots_per_worker) as usize {
        return Err(bad_request("a lease has one core for each slot"));
    }
    let lease: LeaseId = request.lease.parse().map_err(|_| bad_request("not a lease id"))?;
    let note = LeaseNote {
        agent: request.agent.parse().map_err(|_| bad_request("not an agent's id"))?,
        boot: request.boot.parse().map_err(|_| bad_request("not a boot id"))?,
        tenant: terms.tenant.clone(),
        label: terms.label.clone(),
        epoch: Epoch(request.epoch),
        memory_bytes: terms.memory_bytes.saturating_mul(terms.workers.into()),
        gpus: terms.gpus.saturating_mul(terms.workers),
        cores: request.cores,
    };
    let key = RowKey {
        agent: note.agent,
        boot: note.boot,
        lease,
    };
    let known = state.store(move |store| store.rows(&[key])).await?;
    match known.into_iter().flatten().next() {
        Some(row) if row.tenant != note.tenant => return Err(Rejection::WrongTenant),
        Some(row) if !row.disputed => return Ok(VouchReply {}),
        _ => {}
    }
    let held = Duration::from_millis(request.held_ms).min(HELD_MAX);
    let wanted = LeaseRequest {
        request: Arc::new(terms),
        granted_ms: state.unix_ms().saturating_sub(held.as_millis() as u64),
    };
    let vouch = |request| ClusterEvent::Vouch { request, lease, note };
    match state.note_lease(lease, wanted, vouch).await? {
        (ClusterAnswer::Vouched, _) => Ok(VouchReply {}),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

/// Ends a lease, at the agent that granted it if that is known, else wherever it is found (the manager may have just
/// started). `any`: the lease may belong to another tenant.
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
        // An empty name means that the manager itself wants it.
        tenant: match any && !own {
            true => String::new(),
            false => request.tenant,
        },
        reason,
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
