//! Leases from agents directly, without the manager: which agents there are, and which were full just now.
//!
//! The list of agents comes from the manager, and is used for [`FRESH_FOR`]; while the manager is away, the last list
//! stays in use. Both tables belong to the process, because it may hold many leases.
//!
//! A manager of the same host sets the time of its socket's file when an agent joins. So a client notices a new agent
//! without a request: the client looks at that time before it uses a list, and every [`LOOK_EVERY`] while it waits. A
//! client on another host asks for the list again while it waits.

use crate::Error;
use crate::lease::locked;
use crate::lease::manager::ManagerConnection;
use crate::options::LeaseOptions;
use hotlease_fabric::forks::PerProcess;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AgentInfo, Grant};
use hotlease_wire::ids::AgentId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Age from which the manager is asked for another list, if it can be reached.
const FRESH_FOR: Duration = Duration::from_secs(30);
/// Age from which a waiting client on another host asks for another list, because it cannot see that an agent joins.
const FRESH_WHILE_WAITING: Duration = Duration::from_secs(1);
/// Interval at which a waiting client looks whether an agent has joined: one system call, which takes a microsecond.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for which an agent is not asked again after it has reported that it is full.
const FULL_FOR: Duration = Duration::from_millis(500);
/// Time for which an agent is not asked again if it does not serve clients directly: only its operator can change that.
const CLOSED_FOR: Duration = Duration::from_secs(60);
/// Largest number of lists that are kept; there is one for each manager and identity.
const LISTS_MAX: usize = 64;
/// How long the client repeats the report of a direct lease to a manager that is away.
const VOUCHED_FOR: Duration = Duration::from_secs(3600);
/// First and longest pause between these reports.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

struct List {
    agents: Vec<AgentInfo>,
    asked: Instant,
    /// Time at which an agent had last joined, as the manager's socket shows it.
    joined: Option<SystemTime>,
}

static LISTS: PerProcess<Mutex<HashMap<String, List>>> = PerProcess::new();
static AVOIDED: PerProcess<Mutex<HashMap<AgentId, Instant>>> = PerProcess::new();

/// The agents that may be asked, the best first: serving agents before suspected agents, then by most free cores.
pub(crate) async fn agents(manager: &ManagerConnection) -> Result<Vec<AgentInfo>, Error> {
    let joined = manager.last_joined();
    let name = manager.name();
    let fresh = locked(LISTS.get())
        .get(&name)
        .filter(|list| list.asked.elapsed() < FRESH_FOR && (joined.is_none() || list.joined == joined))
        .map(|list| list.agents.clone());
    match fresh {
        Some(agents) => Ok(agents),
        None => refresh(manager).await,
    }
}

/// Asks the manager for a new list of agents; returns the last list if the manager is away.
pub(crate) async fn refresh(manager: &ManagerConnection) -> Result<Vec<AgentInfo>, Error> {
    // Read before the request: if an agent joins meanwhile, the time differs and the list is requested again.
    let joined = manager.last_joined();
    let name = manager.name();
    match manager.agents().await {
        Ok(mut agents) => {
            agents.retain(|agent| matches!(agent.state.as_str(), "serving" | "suspected"));
            agents.sort_by_key(|agent| (agent.state != "serving", std::cmp::Reverse(agent.free_cores)));
            let mut lists = locked(LISTS.get());
            if lists.len() >= LISTS_MAX {
                lists.clear();
            }
            let list = List {
                agents: agents.clone(),
                asked: Instant::now(),
                joined,
            };
            lists.insert(name, list);
            Ok(agents)
        }
        Err(error) => {
            let known = locked(LISTS.get()).get(&name).map(|list| list.agents.clone());
            tracing::debug!(%error, known = known.is_some(), "the manager does not list agents");
            known.ok_or(error)
        }
    }
}

/// Waits until `due`; returns the agents at once if another agent may have joined meanwhile.
pub(crate) async fn agents_by(manager: &ManagerConnection, due: Instant) -> Option<Vec<AgentInfo>> {
    let name = manager.name();
    let known = locked(LISTS.get()).get(&name).map(|list| (list.joined, list.asked));
    let (known, asked) = known.unzip();
    loop {
        match manager.last_joined() {
            // While the manager is away, its last list stays in use.
            joined if joined.is_some() && Some(joined) != known => return refresh(manager).await.ok(),
            _ => {}
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
    let is_old = asked.is_none_or(|asked: Instant| asked.elapsed() >= FRESH_WHILE_WAITING);
    match manager.site().is_some() && is_old {
        true => refresh(manager).await.ok(),
        false => None,
    }
}

/// The identity of an agent in a list.
pub(crate) fn id_of(agent: &AgentInfo) -> Option<AgentId> {
    agent.id.parse().ok()
}

/// Whether the agent has reported just now that another request to it is of no use.
pub(crate) fn is_avoided(agent: AgentId) -> bool {
    locked(AVOIDED.get())
        .get(&agent)
        .is_some_and(|until| Instant::now() < *until)
}

/// Records an agent's refusal for later searches.
pub(crate) fn record_refusal(agent: AgentId, refusal: &Rejection) {
    let pause = match refusal {
        Rejection::NoCapacity { .. } | Rejection::TooMany { .. } => FULL_FOR,
        Rejection::NotPermitted { .. } | Rejection::TenantNotServed { .. } => CLOSED_FOR,
        _ => return,
    };
    let now = Instant::now();
    let mut avoided = locked(AVOIDED.get());
    avoided.retain(|_, until| *until > now);
    avoided.insert(agent, now + pause);
}

/// Reports to the manager that this client holds a lease which an agent granted directly, so that the lease is billed
/// to the client's tenant: no tenant is billed on an agent's report alone. Repeats the report until the manager has
/// received it.
pub(crate) async fn report_lease(
    manager: ManagerConnection,
    options: Arc<LeaseOptions>,
    grant: Grant,
    granted: Instant,
) {
    let (began, mut pause) = (Instant::now(), PAUSE_MIN);
    while began.elapsed() < VOUCHED_FOR {
        let lease = &grant.lease;
        match manager.vouch(&options, &grant, granted.elapsed()).await {
            Ok(()) => return,
            Err(error) if !error.retryable() => {
                tracing::warn!(lease, %error, "the manager does not take a direct lease");
                return;
            }
            Err(error) => tracing::debug!(lease, %error, "the manager has not heard of a direct lease"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
