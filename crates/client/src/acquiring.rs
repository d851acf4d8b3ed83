//! Getting a lease with patience: the machine decides when it is tried again and when no more.

use crate::Error;
use crate::channel::Channel;
use crate::direct;
use crate::lease::{ColdPhases, Lease, Plan};
use crate::manager::Manager;
use crate::options::Placement;
use hotlease_lease::client::{Acquisition, AcquisitionAction, AcquisitionEvent, Patience, Way};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::AgentInfo;
use hotlease_wire::ids::AgentId;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease in use, its channels in the order of its slots, and where the time went.
pub(crate) type Taken = (Lease, Vec<Arc<Channel>>, ColdPhases);

/// Takes leases with so many workers that are ready for their first call: one, or where the options spread them one on each
/// of several agents. Where there is no room, or what was granted is lost before it is
/// ready, it is tried again, after pauses that grow, until `patience` is over. On the control thread.
pub(crate) async fn take(plan: &Plan, workers: u16, patience: Duration) -> Result<Vec<Taken>, Error> {
    let start = Instant::now();
    let manager = Manager::of(&plan.options)?;
    let (way, agents) = match plan.options.placement {
        Placement::Managed => (Way::Managed, BTreeMap::new()),
        Placement::Direct => direct_way(&manager).await?,
    };
    let mut machine = Acquisition::new(way, Patience(patience), seed(), Duration::ZERO);
    let mut last = None;
    let mut event = AcquisitionEvent::Tick;
    loop {
        if event == AcquisitionEvent::Tick {
            announce(&agents, &mut machine, start.elapsed());
        }
        let action = machine.step(event, start.elapsed());
        let taken = match action {
            Some(AcquisitionAction::AskManager) => Lease::take(plan, &manager, workers).await,
            Some(AcquisitionAction::AskAgent(id)) => {
                let Some(agent) = agents.get(&id) else {
                    event = AcquisitionEvent::Refused(Refusal::NoAgent);
                    continue;
                };
                let taken = Lease::take_of(plan, &manager, agent, workers).await;
                taken.map_err(|error| match error {
                    Error::Refused(refusal) => direct::refused(id, refusal).into(),
                    error => error,
                })
            }
            Some(AcquisitionAction::GiveUp(refusal)) => return Err(last.unwrap_or(refusal.into())),
            None => {
                let due = machine.due().unwrap_or_default();
                tokio::time::sleep_until((start + due).into()).await;
                event = AcquisitionEvent::Tick;
                continue;
            }
        };
        event = match taken {
            Ok(taken) => return Ok(taken),
            Err(error) => {
                let refusal = refusal_of(&error).ok_or_else(|| error.clone())?;
                tracing::debug!(%error, "no lease yet");
                last = Some(error);
                AcquisitionEvent::Refused(refusal)
            }
        };
    }
}

type Agents = BTreeMap<AgentId, AgentInfo>;

async fn direct_way(manager: &Manager) -> Result<(Way, Agents), Error> {
    let listed = direct::agents(manager).await?;
    let listed = listed
        .into_iter()
        .filter_map(|agent| Some((direct::id_of(&agent)?, agent)));
    let listed: Vec<_> = listed.collect();
    let order = listed.iter().map(|(id, _)| *id).collect();
    Ok((Way::Direct(order), listed.into_iter().collect()))
}

/// Leaves out agents that were full just now, unless all were.
fn announce(agents: &Agents, machine: &mut Acquisition, now: Duration) {
    let all = agents.keys().all(|agent| direct::is_avoided(*agent));
    for agent in agents.keys().copied() {
        let full = !all && direct::is_avoided(agent);
        machine.step(AcquisitionEvent::Announced { agent, full }, now);
    }
}

/// What the machine is told of a failure; none of one that no patience helps against.
fn refusal_of(error: &Error) -> Option<Refusal> {
    match error {
        Error::Refused(refusal) => Some(refusal.clone()),
        Error::LeaseEnded { reason, .. } => Some(Refusal::LeaseEnded(*reason)),
        error if error.retryable() => Some(Refusal::Unavailable {
            what: error.to_string(),
        }),
        _ => None,
    }
}

/// Clients that lose their leases together must not come back together.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
