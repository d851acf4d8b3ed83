//! Messages for listings and heartbeats: the agent, its leases, workers and libraries.

use crate::data::code::CheckedLibrary;
use crate::leases::active_lease::ActiveLease;
use crate::leases::incarnation::IncarnationState;
use crate::leases::running_usage::{functions_so_far, used_so_far};
use crate::node::{Node, NodeState};
use hotlease_lease::agent::{Availability, CoreLease, EndedLease, FinalTotal, QuestionId};
use hotlease_lease::ledger::FunctionTotals;
use hotlease_sandbox::Kind;
use hotlease_wire::grpc::{AgentInfo, AgentStatus, CodeInfo, FunctionUsage, LeaseInfo, NodeLimits, WorkerInfo};
use hotlease_wire::ids::{AgentId, CodeHash, Epoch};
use std::collections::HashSet;
use std::sync::Arc;

/// Largest number of bytes of function names that are listed for one library.
const NAME_BYTES_MAX: usize = 64 * 1024;

/// Describes the agent. `leaving` is `true` for its last report.
pub(crate) fn agent(node: &Node, leaving: bool) -> AgentInfo {
    let identity = &node.identity;
    let (pool, endpoint) = (node.supply.pools.ready() as u32, node.endpoint());
    let tables = node.tables();
    let book = &tables.book;
    let (cores, memory_bytes) = book.offer_now();
    let availability = book.availability();
    let is_serving = matches!(availability, Availability::Serving);
    let grantable = |free: u32| if is_serving && !leaving { free } else { 0 };
    let state = if leaving {
        Availability::LEAVING
    } else {
        availability.word()
    };
    AgentInfo {
        id: identity.agent.to_string(),
        boot: identity.boot.to_string(),
        address: identity.address.clone(),
        session_socket: identity.session_socket.display().to_string(),
        cores,
        free_cores: grantable(book.free_cores()),
        memory_bytes,
        state: state.into(),
        last_heartbeat_ms: 0,
        pool,
        endpoint,
        host: identity.host.clone(),
        order: tables.order,
        places_per_core: identity.sharing.places_per_core,
        free_places: if is_serving { book.free_places() } else { 0 },
        gpus: book.offered_gpus(),
        free_gpus: grantable(book.free_gpus()),
        gpu_numbers: book.gpu_numbers().collect(),
        limits: None,
    }
}

/// Describes the agent for its registration, with the most that it can offer.
pub(crate) fn agent_with_limits(node: &Node) -> AgentInfo {
    let limits = node.tables().book.limits();
    AgentInfo {
        limits: Some(NodeLimits {
            cores: limits.cores.into_iter().collect(),
            gpus: limits.gpus,
            memory_bytes: limits.memory_bytes,
        }),
        ..agent(node, false)
    }
}

/// Complete status for one tenant, or for all tenants if `tenant` is empty.
pub(crate) fn status(node: &Node, tenant: &str) -> AgentStatus {
    let agent = agent(node, false);
    let concerns = |holder: &str| tenant.is_empty() || holder == tenant;
    let mut leases = Vec::new();
    let mut workers = Vec::new();
    {
        let tables = node.tables();
        for ended in tables
            .book
            .ended_leases()
            .filter(|ended| concerns(&ended.request.tenant))
        {
            leases.push(LeaseInfo {
                start: node.supply.starts.of_ended(ended.id),
                ..ended_lease(node, ended)
            });
        }
        for lease in tables.book.leases().filter(|lease| concerns(&lease.request.tenant)) {
            let active = tables.leases.get(&lease.id);
            leases.push(LeaseInfo {
                start: active.map(|active| active.start()),
                ..active_lease(node, &tables, lease)
            });
        }
    }
    // The resident memory of each worker is read from a file. The lock must not be held meanwhile.
    let active: Vec<_> = node.tables().leases.values().cloned().collect();
    for lease in active.iter().filter(|lease| concerns(&lease.terms.request.tenant)) {
        workers_of(node, lease, &mut workers);
    }
    // For one tenant, lists only libraries that its leases have loaded, so that the tenant does not see function names
    // of other tenants. A lease that is loading now is listed the next time.
    let loaded: Option<HashSet<CodeHash>> = (!tenant.is_empty()).then(|| {
        let own = active.iter().filter(|lease| concerns(&lease.terms.request.tenant));
        let codes = own.filter_map(|lease| lease.libraries.codes.try_lock().ok());
        codes
            .flat_map(|codes| codes.iter().map(|loaded| loaded.code.hash).collect::<Vec<_>>())
            .collect()
    });
    workers.sort_by(|a, b| (&a.lease, a.index).cmp(&(&b.lease, b.index)));
    if tenant.is_empty() {
        for pool in node.supply.pools.iter() {
            workers.extend(waiting(node, "pooled", pool.listing()));
        }
        workers.extend(waiting(node, "spare", node.supply.spares.listing()));
        workers.extend(waiting(node, "zygote", node.supply.spares.zygotes.listing()));
    }
    AgentStatus {
        agent: Some(agent),
        leases,
        workers,
        codes: codes(node, &loaded),
    }
}

/// Content of the report `ask`: the owed totals and, if the report is `whole`, the active leases. Also returns the last
/// epoch that the book has assigned: a whole report names all leases up to this epoch.
pub(crate) fn report(node: &Node, ask: QuestionId, whole: bool) -> (Vec<LeaseInfo>, Epoch) {
    let mut guard = node.tables();
    let tables = &mut *guard;
    let agent = node.identity.agent;
    let mut leases: Vec<_> = tables.outstanding.report(ask).map(|total| owed(agent, total)).collect();
    if whole {
        let owed = leases.len();
        let active = tables.book.leases();
        leases.extend(active.map(|lease| active_lease(node, tables, lease)));
        add_functions(node, tables, &mut leases[owed..]);
    }
    (leases, tables.book.epoch())
}

fn owed(agent: AgentId, total: &FinalTotal) -> LeaseInfo {
    LeaseInfo {
        id: total.lease.to_string(),
        agent: agent.to_string(),
        tenant: total.tenant.clone(),
        label: total.label.clone(),
        state: "ended".into(),
        epoch: total.epoch.0,
        cores: total.cores.clone(),
        usage: Some(total.usage.into()),
        end_reason: total.why.clone(),
        functions: rows(&total.functions),
        ..LeaseInfo::default()
    }
}

/// Adds the due usage of functions of running leases, starting with the leases that have waited longest. Adds about as
/// many rows as there are due leases, so that the rows at most double the work of a report.
fn add_functions(node: &Node, tables: &NodeState, leases: &mut [LeaseInfo]) {
    let now = node.now();
    let mut due = Vec::new();
    for (lease, info) in tables.book.leases().zip(&mut *leases) {
        let Some(active) = tables.leases.get(&lease.id) else {
            continue;
        };
        let functions = functions_so_far(lease, Some(active), used_so_far(lease, Some(active), now));
        let attribution = active.libraries.attribution();
        if attribution.is_due(&functions, now) {
            let at = attribution.reported_at();
            drop(attribution);
            due.push((at, active, info, functions));
        }
    }
    due.sort_by_key(|(at, ..)| *at);
    let mut room = due.len();
    for (_, active, info, functions) in due {
        if room == 0 {
            break;
        }
        room = room.saturating_sub(functions.len());
        active.libraries.attribution().record_report(&functions, now);
        info.functions = rows(&functions);
    }
}

fn active_lease(node: &Node, tables: &NodeState, lease: &CoreLease) -> LeaseInfo {
    let now = node.now();
    let used = used_so_far(lease, tables.leases.get(&lease.id).map(Arc::as_ref), now);
    LeaseInfo {
        id: lease.id.to_string(),
        agent: node.identity.agent.to_string(),
        state: "active".into(),
        epoch: lease.epoch.0,
        expires_in_ms: lease.expires.saturating_sub(now).as_millis() as u64,
        cores: lease.cores(),
        usage: Some(used.into()),
        gpus: lease.gpus(),
        ..lease.request.listing()
    }
}

fn ended_lease(node: &Node, lease: &EndedLease) -> LeaseInfo {
    LeaseInfo {
        id: lease.id.to_string(),
        agent: node.identity.agent.to_string(),
        state: "ended".into(),
        epoch: lease.epoch.0,
        cores: lease.cores.clone(),
        usage: Some(lease.usage.into()),
        end_reason: lease.reason.to_string(),
        gpus: lease.gpus.clone(),
        ..lease.request.listing()
    }
}

fn workers_of(node: &Node, lease: &ActiveLease, workers: &mut Vec<WorkerInfo>) {
    for incarnation in lease.incarnations() {
        let (state, rss_bytes) = match incarnation.state() {
            IncarnationState::Starting => ("starting", 0),
            IncarnationState::Up(worker) => ("serving", worker.resident_bytes()),
            IncarnationState::Gone { .. } => ("dead", 0),
        };
        let (preempted, contended) = incarnation.contention();
        workers.push(WorkerInfo {
            agent: node.identity.agent.to_string(),
            lease: lease.id.to_string(),
            index: incarnation.index.0.into(),
            pid: incarnation.pid(),
            epoch: incarnation.epoch.0,
            cores: incarnation.cores(),
            state: state.into(),
            rss_bytes,
            usage: Some(incarnation.usage().into()),
            shared: lease.terms.is_shared(),
            refused: incarnation.refused_invocations(),
            preempted,
            contended,
            gpus: incarnation.gpus.clone(),
            sandbox: lease.terms.sandbox.to_string(),
        });
    }
}

/// Workers without a lease: their sandboxes, pids and resident memory.
fn waiting(node: &Node, state: &str, workers: Vec<(Kind, u32, u64)>) -> impl Iterator<Item = WorkerInfo> {
    let workers = workers.into_iter().zip(0..);
    workers.map(move |((sandbox, pid, rss_bytes), index)| WorkerInfo {
        agent: node.identity.agent.to_string(),
        index,
        pid,
        state: state.into(),
        rss_bytes,
        sandbox: sandbox.to_string(),
        ..WorkerInfo::default()
    })
}

fn codes(node: &Node, only: &Option<HashSet<CodeHash>>) -> Vec<CodeInfo> {
    let listed = |code: &Arc<CheckedLibrary>| only.as_ref().is_none_or(|only| only.contains(&code.hash));
    let codes = node.codes.list().into_iter().filter(listed);
    codes
        .map(|code| CodeInfo {
            hash: code.hash.to_string(),
            size_bytes: code.size_bytes,
            functions: names(&code.functions),
            agent: node.identity.agent.to_string(),
        })
        .collect()
}

/// Names of functions: all, or as many as fit into an answer and a line with the number of omitted names.
fn names(functions: &[String]) -> Vec<String> {
    let mut bytes = 0;
    let fit = functions.iter().take_while(|name| {
        bytes += name.len();
        bytes <= NAME_BYTES_MAX
    });
    let mut names: Vec<_> = fit.cloned().collect();
    if names.len() < functions.len() {
        names.push(format!("... and {} more", functions.len() - names.len()));
    }
    names
}

/// Usage of functions as gRPC messages.
pub(crate) fn rows(functions: &FunctionTotals) -> Vec<FunctionUsage> {
    let rows = functions.iter().map(|(id, used)| FunctionUsage {
        library: id.library.0.to_vec(),
        name: id.name.to_string(),
        compute_ns: used.compute_ns,
        invocations: used.invocations,
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_names_is_bounded_and_says_what_it_left_out() {
        let few = vec!["add".to_owned(), "mul".to_owned()];
        assert_eq!(names(&few), few);
        let many: Vec<String> = (0..4096).map(|number| format!("{number:01024}")).collect();
        let listed = names(&many);
        assert_eq!(listed.len(), NAME_BYTES_MAX / 1024 + 1);
        assert_eq!(
            listed.last().map(String::as_str),
            Some("... and 4032 more"),
            "the rest is named"
        );
    }
}
