//! Agents come, report and go.
//!
//! A heartbeat carries every lease with its cumulative usage; it is acknowledged only after the usage is
//! in the ledger, so an agent that got no answer sends the same totals again.
//!
//! An agent names a lease that ended as such for a while. A lease that it stops naming without that
//! ended unheard (reports were lost for longer than the agent remembers); it is noted as ended when two
//! heartbeats in a row lack it. One is not enough: it may have been written while the lease was granted.

use crate::records::{agent_ids, agent_record, bad, lease_record, parse_ids, past_row};
use crate::state::State;
use hotlease_lease::manager::{AgentState, FORGOTTEN_AFTER};
use hotlease_net::Peer;
use hotlease_store::{AgentRecord, Report, Reported};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{
    HeartbeatReply, HeartbeatRequest, PastUsageReply, PastUsageRequest, RegisterReply, RegisterRequest,
};
use hotlease_wire::ids::{AgentId, BootId};
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
    let at_ms = state.unix_ms();
    state.registered().insert(record.id);
    state.store(move |store| store.put_agent(durable, at_ms)).await?;
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
    let at_ms = state.unix_ms();
    let (leases, usage): (Vec<_>, Vec<_>) = request
        .leases
        .into_iter()
        .map(|lease| lease_record(agent, boot, lease, at_ms))
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
    let report = Report {
        agent,
        boot,
        at_ms,
        leases,
        usage,
        missing_before: Some(before),
    };
    let reported = state.store(move |store| store.report(report)).await?;
    warn_of(&reported);
    if info.state == LEAVING {
        leave(state, agent, boot).await?;
    } else if !reported.missing.is_empty() {
        state.unreported().insert(agent, reported.missing);
    }
    Ok(HeartbeatReply { known: true })
}

/// Takes totals that only the agent's journal knew. The answer is an acknowledgement: the agent forgets them.
pub(crate) async fn report_past(
    state: &State,
    request: PastUsageRequest,
    owner: Option<&Peer>,
) -> Result<PastUsageReply, Refusal> {
    let (agent, boot) = parse_ids(&request.agent, &request.boot)?;
    check_owner(state, agent, owner)?;
    if request.usage.len() > LEASES_MAX {
        return Err(bad(format!("more than {LEASES_MAX} leases in one report")));
    }
    let registered = state.registry().agent(agent).map(|(record, ..)| record.boot);
    if registered != Some(boot) {
        return Ok(PastUsageReply { known: false });
    }
    let usage = request.usage.into_iter().map(|past| past_row(agent, past));
    let report = Report {
        agent,
        boot,
        at_ms: state.unix_ms(),
        leases: Vec::new(),
        usage: usage.collect::<Result<_, _>>()?,
        missing_before: None,
    };
    let leases = report.usage.len();
    let reported = state.store(move |store| store.report(report)).await?;
    warn_of(&reported);
    tracing::info!(%agent, leases, "took usage of earlier leases");
    Ok(PastUsageReply { known: true })
}

/// Tells the operator what an agent reported beyond its due.
pub(crate) fn warn_of(reported: &Reported) {
    for key in &reported.capped {
        tracing::warn!(
            agent = %key.agent, boot = %key.boot, lease = %key.lease,
            "an agent reports more usage than its lease allows; the excess is not billed"
        );
    }
    for key in &reported.disputed {
        tracing::warn!(
            agent = %key.agent, boot = %key.boot, lease = %key.lease,
            "an agent reports a lease that this manager did not grant; it is not billed"
        );
    }
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
    let at_ms = state.unix_ms();
    state.store(move |store| store.remove_agent(agent, at_ms)).await
}

/// Lets time pass in the registry, and forgets everywhere whom the registry forgot.
pub(crate) async fn forget_the_silent(state: &State) {
    let _changing = state.membership.lock().await;
    let at_ms = state.unix_ms();
    let listed: BTreeSet<AgentId> = state.agents().iter().map(|(record, ..)| record.id).collect();
    // Who was known to the manager before this one gets the time to register again.
    let all = state.now() >= FORGOTTEN_AFTER;
    let registered = state.registered().clone();
    let forgotten = state.store(move |store| {
        let known = store.agents()?.into_iter().map(|agent| agent.id);
        let forgotten: Vec<_> = known
            .filter(|id| !listed.contains(id) && (all || registered.contains(id)))
            .collect();
        for agent in &forgotten {
            store.remove_agent(*agent, at_ms)?;
        }
        Ok(forgotten)
    });
    match forgotten.await {
        Ok(forgotten) => {
            for agent in forgotten {
                state.links.drop_link(agent);
                state.unreported().remove(&agent);
                state.registered().remove(&agent);
                tracing::info!(%agent, "forgot an agent that is silent for long");
            }
        }
        Err(error) => tracing::warn!(%error, "could not forget silent agents"),
    }
}
