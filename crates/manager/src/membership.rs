//! Agents come, report and go.
//!
//! A heartbeat carries every lease with its cumulative usage; it is acknowledged only after the usage is
//! in the ledger, so an agent that got no answer sends the same totals again.
//!
//! An agent names a lease that ended as such for a while. A lease that it stops naming without that
//! ended unheard (reports were lost for longer than the agent remembers); it is noted as ended when two
//! heartbeats in a row lack it. One is not enough: it may have been written while the lease was granted.

use crate::records::{agent_ids, agent_record, bad, lease_record};
use crate::state::State;
use hotlease_lease::manager::AgentState;
use hotlease_net::Peer;
use hotlease_store::{AgentRecord, LeaseRecord, LeaseState, Store, StoreError};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{HeartbeatReply, HeartbeatRequest, RegisterReply, RegisterRequest};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use std::collections::BTreeSet;

/// Leases in one heartbeat.
const LEASES_MAX: usize = 16 * 1024;
/// The state in which an agent says goodbye.
const LEAVING: &str = "gone";

pub(crate) async fn register(
    state: &State,
    request: RegisterRequest,
    owner: Option<&Peer>,
) -> Result<RegisterReply, Refusal> {
    let record = agent_record(request.agent.ok_or_else(|| bad("the agent is missing"))?, owner)?;
    let durable = AgentRecord {
        id: record.id,
        boot: record.boot,
        address: record.address.clone(),
        cores: record.cores.clone(),
    };
    let _changing = state.membership.lock().await;
    check_owner(state, record.id, owner)?;
    state.store(move |store| store.put_agent(durable)).await?;
    let (id, boot, cores) = (record.id, record.boot, record.cores.len());
    let now = state.now();
    let registered = state.registry().register(record.clone(), now);
    registered.map_err(|error| Refusal::Unavailable {
        what: error.to_string(),
    })?;
    state.links.drop_link(id);
    state.unreported().remove(&id);
    tracing::info!(agent = %id, %boot, cores, "agent registered");
    state.newest_agent.send_replace(Some(record));
    Ok(RegisterReply {
        heartbeat_ms: state.config.heartbeat.as_millis() as u64,
    })
}

/// An agent that is known is spoken for by the certificate it registered with (or by our own machine) until
/// it is gone: whoever learns its id cannot end its leases or bill for it.
fn check_owner(state: &State, agent: AgentId, owner: Option<&Peer>) -> Result<(), Refusal> {
    let registry = state.registry();
    let Some((known, heard, _)) = registry.agent(agent) else {
        return Ok(());
    };
    let owner = owner.map_or("", |peer| peer.name.as_str());
    if known.owner == owner || heard == AgentState::Gone {
        return Ok(());
    }
    tracing::warn!(%agent, owner, "somebody else speaks for an agent");
    Err(Refusal::NotPermitted {
        what: format!("agent {agent} is registered with another certificate"),
    })
}

pub(crate) async fn heartbeat(
    state: &State,
    request: HeartbeatRequest,
    owner: Option<&Peer>,
) -> Result<HeartbeatReply, Refusal> {
    let info = request.agent.ok_or_else(|| bad("the agent is missing"))?;
    let (agent, boot) = agent_ids(&info)?;
    check_owner(state, agent, owner)?;
    if request.leases.len() > LEASES_MAX {
        return Err(bad(format!("more than {LEASES_MAX} leases in one heartbeat")));
    }
    let (leases, rows): (Vec<_>, Vec<_>) = request
        .leases
        .into_iter()
        .map(|lease| lease_record(agent, boot, lease))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    // An agent that is not known in this boot registers first and then sends the same totals again.
    let now = state.now();
    let known = state
        .registry()
        .heartbeat(agent, boot, info.free_cores, info.pool, now);
    if !known {
        return Ok(HeartbeatReply { known: false });
    }
    let before = state.unreported().remove(&agent).unwrap_or_default();
    let unreported = state.store(move |store| {
        store.merge_usage(&rows)?;
        note_leases(store, agent, boot, leases, &before)
    });
    let unreported = unreported.await?;
    if info.state == LEAVING {
        leave(state, agent, boot).await?;
    } else if !unreported.is_empty() {
        state.unreported().insert(agent, unreported);
    }
    Ok(HeartbeatReply { known: true })
}

/// Notes what was reported, ends what is missing for the second time, and returns what is missing for
/// the first.
fn note_leases(
    store: &dyn Store,
    agent: AgentId,
    boot: BootId,
    reported: Vec<LeaseRecord>,
    missing_before: &BTreeSet<LeaseId>,
) -> Result<BTreeSet<LeaseId>, StoreError> {
    let named: BTreeSet<_> = reported.iter().map(|lease| lease.id).collect();
    for lease in reported {
        store.put_lease(lease)?;
    }
    let mut missing = BTreeSet::new();
    for lease in store.leases(None)? {
        let running = lease.agent == agent && lease.boot == boot && lease.state == LeaseState::Active;
        if !running || named.contains(&lease.id) {
            continue;
        }
        if missing_before.contains(&lease.id) {
            let why = "its agent no longer reports it".into();
            store.put_lease(LeaseRecord {
                state: LeaseState::Ended { why },
                ..lease
            })?;
        } else {
            missing.insert(lease.id);
        }
    }
    Ok(missing)
}

/// The agent said goodbye: nobody waits for it to fall silent.
async fn leave(state: &State, agent: AgentId, boot: BootId) -> Result<(), Refusal> {
    let _changing = state.membership.lock().await;
    if state
        .registry()
        .agent(agent)
        .is_none_or(|(record, ..)| record.boot != boot)
    {
        return Ok(()); // a later boot of it has registered meanwhile
    }
    state.registry().deregister(agent, boot);
    state.links.drop_link(agent);
    tracing::info!(%agent, "agent left");
    state.store(move |store| store.remove_agent(agent)).await
}

/// Lets time pass in the registry, and forgets everywhere whom the registry forgot.
pub(crate) async fn forget_the_silent(state: &State) {
    let _changing = state.membership.lock().await;
    let listed: BTreeSet<AgentId> = state.agents().iter().map(|(record, ..)| record.id).collect();
    let forgotten = state.store(move |store| {
        let known = store.agents()?.into_iter().map(|agent| agent.id);
        let forgotten: Vec<_> = known.filter(|id| !listed.contains(id)).collect();
        for agent in &forgotten {
            store.remove_agent(*agent)?;
        }
        Ok(forgotten)
    });
    match forgotten.await {
        Ok(forgotten) => {
            for agent in forgotten {
                state.links.drop_link(agent);
                state.unreported().remove(&agent);
                tracing::info!(%agent, "forgot an agent that is silent for long");
            }
        }
        Err(error) => tracing::warn!(%error, "could not forget silent agents"),
    }
}
