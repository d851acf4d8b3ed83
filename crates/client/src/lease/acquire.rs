//! Acquisition of leases with patience: the state machine decides when to try again and when to give up.

use crate::Error;
use crate::channel::Channel;
use crate::lease::direct;
use crate::lease::holders::Occupancy;
use crate::lease::manager::ManagerConnection;
use crate::lease::{ColdPhases, Lease, LeasePlan};
use crate::options::Placement;
use hotlease_lease::EXCLUDED_MAX;
use hotlease_lease::client::{Acquisition, AcquisitionAction, AcquisitionEvent, GrantSource, Patience};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::AgentInfo;
use hotlease_wire::ids::AgentId;
use hotlease_wire::rejection::objections::node_name;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two looks for the manager of a batch job that is starting.
const START_LOOK: Duration = Duration::from_millis(50);

/// A lease in use, its channels in the order of its slots, and the phases of its cold start.
pub(crate) type ReadyLease = (Lease, Vec<Arc<Channel>>, ColdPhases);

/// Reason why there is no lease.
#[derive(Debug)]
pub(crate) struct AcquireError {
    /// The agent that refused, and its node's name for messages; `None` if the manager refused.
    at: Option<(AgentId, String)>,
    error: Error,
}

impl From<Error> for AcquireError {
    fn from(error: Error) -> Self {
        Self { at: None, error }
    }
}

impl AcquireError {
    /// Marks an error as this agent's.
    pub(crate) fn at(agent: &str, host: &str) -> impl FnOnce(Error) -> Self + use<> {
        let at = agent.parse().ok().map(|id| (id, node_name(host, agent)));
        |error| Self { at, error }
    }
}

/// Takes leases with `workers` workers that are ready for their first call: one lease, or, if the options spread the
/// workers, one on each of several agents. If there is no room, or a granted lease is lost before it is ready, it tries
/// again, after pauses that grow, until `patience` is over. If an agent refuses for a reason that waiting does not
/// change, the other agents are tried, and the call ends when no agent is left. Runs on the control thread.
pub(crate) async fn take(plan: &LeasePlan, workers: u16, patience: Duration) -> Result<Vec<ReadyLease>, Error> {
    let start = Instant::now();
    let manager = loop {
        match ManagerConnection::of(&plan.options) {
            // The platform of this batch job is starting.
            Err(error) if error.retryable() && start.elapsed() < patience => tokio::time::sleep(START_LOOK).await,
            found => break found?,
        }
    };
    let (way, mut agents) = match plan.options.placement {
        Placement::Managed => (GrantSource::Managed, BTreeMap::new()),
        Placement::Direct => {
            let (order, agents) = direct_way(plan, direct::agents(&manager).await?);
            (GrantSource::Direct(order), agents)
        }
    };
    let mut machine = Acquisition::new(way, Patience(patience), seed(), Duration::ZERO);
    let mut last = None;
    let mut event = AcquisitionEvent::Tick;
    loop {
        if matches!(event, AcquisitionEvent::Tick | AcquisitionEvent::Agents(_)) {
            announce(&agents, &mut machine, start.elapsed());
        }
        let action = machine.step(event, start.elapsed());
        let taken = match action {
            Some(AcquisitionAction::AskManager { without }) => {
                let refused = without.difference(&plan.without);
                let without = plan.without.iter().chain(refused).take(EXCLUDED_MAX);
                let without = without.map(AgentId::to_string).collect();
                Lease::take(plan, &manager, workers, without).await
            }
            Some(AcquisitionAction::AskAgent(id)) => {
                let Some(agent) = agents.get(&id) else {
                    event = AcquisitionEvent::Refused(Rejection::NoAgent);
                    continue;
                };
                Lease::take_from_agent(plan, &manager, agent, workers).await
            }
            Some(AcquisitionAction::GiveUp(refusal)) => {
                // The last error has more details than the refusal that was made from it.
                let said = last.filter(|error| refusal_of(error).as_ref() == Some(&refusal));
                return Err(said.unwrap_or(refusal.into()));
            }
            None => {
                let due = start + machine.next_step().unwrap_or_default();
                event = match plan.options.placement {
                    Placement::Managed => {
                        tokio::time::sleep_until(due.into()).await;
                        AcquisitionEvent::Tick
                    }
                    Placement::Direct => match direct::agents_by(&manager, due).await {
                        None => AcquisitionEvent::Tick,
                        Some(listed) => {
                            let (order, listed) = direct_way(plan, listed);
                            agents = listed;
                            AcquisitionEvent::Agents(order)
                        }
                    },
                };
                continue;
            }
        };
        let AcquireError { at, error } = match taken {
            Ok(taken) => return Ok(taken),
            Err(not_taken) => not_taken,
        };
        let refusal = refusal_of(&error).ok_or_else(|| error.clone())?;
        tracing::debug!(%error, "no lease yet");
        last = Some(error);
        event = match at {
            None => AcquisitionEvent::Refused(refusal),
            Some((agent, node)) => {
                if plan.options.placement == Placement::Direct {
                    direct::record_refusal(agent, &refusal);
                }
                if !refusal.may_pass() {
                    agents.remove(&agent);
                }
                AcquisitionEvent::RefusedAt { agent, node, refusal }
            }
        };
    }
}

/// Takes leases as [`take`] does. If there is no room, looks at the agents' present figures: if resources were released
/// since the last attempt, requests the lease once more. The refusal has the present figures and names the holders.
pub(crate) async fn take_or_explain(
    plan: &LeasePlan,
    workers: u16,
    patience: Duration,
) -> Result<Vec<ReadyLease>, Error> {
    let error = match take(plan, workers, patience).await {
        Err(error) => error,
        taken => return taken,
    };
    let Error::Refused(refusal) = &error else {
        return Err(error);
    };
    if !is_full(refusal) {
        return Err(error);
    }
    let Some(now) = Occupancy::of(&ManagerConnection::of(&plan.options)?).await else {
        return Err(error);
    };
    match now.refresh(refusal, &plan.options) {
        Some((_, true)) => match take(plan, workers, Duration::ZERO).await {
            Err(Error::Refused(again)) if is_full(&again) => Err(now.explained(again, &plan.options)),
            done => done,
        },
        Some((refreshed, false)) => Err(now.explained(refreshed, &plan.options)),
        None => Err(error),
    }
}

/// Whether the refusal is for lack of cores, places or GPUs, which other leases hold.
fn is_full(refusal: &Rejection) -> bool {
    matches!(
        refusal,
        Rejection::NoCapacity { .. }
            | Rejection::NoPlaces { .. }
            | Rejection::NoGpus { .. }
            | Rejection::NotTogether { .. }
    )
}

type Agents = BTreeMap<AgentId, AgentInfo>;

/// The order of the agents in a list, and the agents by their ids, without those that the plan leaves out.
fn direct_way(plan: &LeasePlan, listed: Vec<AgentInfo>) -> (Vec<AgentId>, Agents) {
    let listed = listed
        .into_iter()
        .filter_map(|agent| Some((direct::id_of(&agent)?, agent)));
    let listed: Vec<_> = listed.filter(|(id, _)| !plan.without.contains(id)).collect();
    let order = listed.iter().map(|(id, _)| *id).collect();
    (order, listed.into_iter().collect())
}

/// Announces the agents; marks agents that were full just now, unless all agents were.
fn announce(agents: &Agents, machine: &mut Acquisition, now: Duration) {
    let all = agents.keys().all(|agent| direct::is_avoided(*agent));
    for agent in agents.keys().copied() {
        let full = !all && direct::is_avoided(agent);
        machine.step(AcquisitionEvent::Announced { agent, full }, now);
    }
}

/// The refusal that the state machine gets for an error; `None` if waiting does not help against the error.
fn refusal_of(error: &Error) -> Option<Rejection> {
    match error {
        Error::Refused(refusal) => Some(refusal.clone()),
        Error::LeaseEnded { reason, .. } => Some(Rejection::LeaseEnded(*reason)),
        error if error.retryable() => Some(Rejection::Unavailable {
            what: error.to_string(),
        }),
        _ => None,
    }
}

/// A random seed: clients that lose their leases together must not try again at the same times.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
