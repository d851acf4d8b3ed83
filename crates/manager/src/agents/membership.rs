//! Registration, reports and departure of agents: messages are checked here, and the state machine decides.
//!
//! A heartbeat carries leases with their cumulative usage. It is acknowledged only after the usage is in the ledger,
//! so an agent that got no answer sends the same totals again.

use crate::records::{agent_ids, agent_record, bad_request, lease_record, offering, parse_ids, past_row};
use crate::state::ManagerState;
use crate::state::commits::warn_of_excess;
use crate::state::driver::unexpected_answer;
use hotlease_lease::agent::Availability;
use hotlease_lease::manager::{AgentReport as Heard, AgentState, ClusterAnswer, ClusterEvent, LeaseReport};
use hotlease_net::Peer;
use hotlease_store::{LeaseRecord, LeaseState, LedgerRow, ReportRecord};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    HeartbeatReply, HeartbeatRequest, PastUsageReply, PastUsageRequest, RegisterReply, RegisterRequest,
};
use hotlease_wire::ids::{AgentId, Epoch};
use std::sync::Arc;

/// Limit of leases in one heartbeat.
const LEASES_MAX: usize = 16 * 1024;

pub(crate) async fn register(
    state: &Arc<ManagerState>,
    request: RegisterRequest,
    owner: Option<&Peer>,
) -> Result<RegisterReply, Rejection> {
    let record = agent_record(request.agent.ok_or_else(|| bad_request("the agent is missing"))?, owner)?;
    check_owner(state, record.id, owner)?;
    let proof = request.proof;
    let register = |request| ClusterEvent::Register { request, record, proof };
    match state.ask(None, register).await? {
        (ClusterAnswer::Registered, _) => Ok(RegisterReply {
            heartbeat_ms: state.machine().cluster.registry().heartbeat_pause().as_millis() as u64,
            ledger: state.ledger,
            challenge: 0,
        }),
        (ClusterAnswer::Challenged { challenge }, _) => Ok(RegisterReply {
            challenge,
            ..RegisterReply::default()
        }),
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

/// Checks that an agent's message comes from the holder of the certificate that the agent registered with (or from this
/// node, if it registered from here). So until the agent is gone, another peer that learns its id can neither end its
/// leases nor report usage in its name.
pub(crate) fn check_owner(state: &ManagerState, agent: AgentId, owner: Option<&Peer>) -> Result<(), Rejection> {
    let machine = state.machine();
    let Some((known, heard, _)) = machine.cluster.registry().agent(agent) else {
        return Ok(());
    };
    let owner = owner.map_or("", |peer| peer.name.as_str());
    if known.owner == owner || heard == AgentState::Gone {
        return Ok(());
    }
    tracing::warn!(%agent, owner, "another peer speaks for an agent");
    Err(Rejection::NotPermitted {
        what: format!("agent {agent} is registered with another certificate"),
    })
}

pub(crate) async fn heartbeat(
    state: &Arc<ManagerState>,
    request: HeartbeatRequest,
    owner: Option<&Peer>,
) -> Result<HeartbeatReply, Rejection> {
    let info = request.agent.ok_or_else(|| bad_request("the agent is missing"))?;
    let (agent, boot) = agent_ids(&info)?;
    check_owner(state, agent, owner)?;
    if request.leases.len() > LEASES_MAX {
        return Err(bad_request(format!("more than {LEASES_MAX} leases in one heartbeat")));
    }
    let at_ms = state.unix_ms();
    let leases = request.leases.into_iter();
    let leases = leases.map(|lease| Ok(lease_report(lease_record(agent, boot, lease, at_ms)?)));
    let report = Heard {
        agent,
        boot,
        whole: !request.partial,
        epoch: Epoch(request.epoch),
        free_cores: info.free_cores,
        free_places: info.free_places,
        free_gpus: info.free_gpus,
        pool: info.pool,
        leaving: info.state == Availability::LEAVING,
        offering: offering(&info)?,
        leases: leases.collect::<Result<_, Rejection>>()?,
    };
    let heartbeat = |request| ClusterEvent::Heartbeat { request, report };
    match state.ask(None, heartbeat).await? {
        (ClusterAnswer::HeartbeatAnswered { known }, _) => {
            state.metrics.count_heartbeat();
            let (pause, totals_every) = {
                let machine = state.machine();
                let cluster = &machine.cluster;
                (cluster.registry().heartbeat_pause(), cluster.totals_every())
            };
            // Varied at random, so that agents that registered together do not report together for ever.
            let totals_every = totals_every.mul_f64(rand::random_range(0.75..1.25));
            Ok(HeartbeatReply {
                known,
                heartbeat_ms: pause.as_millis() as u64,
                totals_every_ms: totals_every.as_millis() as u64,
            })
        }
        (answer, _) => Err(unexpected_answer(&answer)),
    }
}

fn lease_report((lease, row): (LeaseRecord, LedgerRow)) -> LeaseReport {
    LeaseReport {
        lease: lease.id,
        boot: lease.boot,
        tenant: lease.tenant,
        label: lease.label,
        epoch: lease.epoch,
        cores: lease.cores,
        gpus: lease.gpus,
        usage: row.usage,
        functions: row.functions,
        end_reason: match lease.state {
            LeaseState::Active => None,
            LeaseState::Ended { why } => Some(why),
        },
    }
}

/// Merges totals into the ledger that were only in the agent's journal. The reply acknowledges the totals, and the
/// agent deletes them.
pub(crate) async fn report_past(
    state: &ManagerState,
    request: PastUsageRequest,
    owner: Option<&Peer>,
) -> Result<PastUsageReply, Rejection> {
    let (agent, boot) = parse_ids(&request.agent, &request.boot)?;
    check_owner(state, agent, owner)?;
    if request.usage.len() > LEASES_MAX {
        return Err(bad_request(format!("more than {LEASES_MAX} leases in one report")));
    }
    let registered = state.agent(agent).ok().map(|record| record.boot);
    if registered != Some(boot) {
        return Ok(PastUsageReply { known: false });
    }
    let usage = request.usage.into_iter().map(|past| past_row(agent, past));
    let report = ReportRecord {
        agent,
        boot,
        at_ms: state.unix_ms(),
        leases: Vec::new(),
        usage: usage.collect::<Result<_, _>>()?,
        missing_before: None,
    };
    let leases = report.usage.len();
    let reported = state.store(move |store| store.report(report)).await?;
    warn_of_excess(&reported);
    tracing::info!(%agent, leases, "took usage of earlier leases");
    Ok(PastUsageReply { known: true })
}
