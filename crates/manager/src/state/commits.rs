//! Writes of the state machine on their way to the store.
//!
//! Writes of leases run concurrently, so that a database makes many of them durable at once. A write that changes the
//! recorded run of an agent waits for earlier writes of that agent, and later writes of that agent wait for it.

use super::machine::Commit;
use crate::records::distinct_cores;
use crate::state::{ManagerState, refusal_of};
use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{AGENTS_MAX, ClusterEvent, CommitId, LeaseNote, LeaseReport, StateWrite};
use hotlease_store::{
    AgentRecord, LATER_MAX, LeaseRecord, LeaseState, LedgerRow, ReportRecord, ReportResult, RowKey, Store, StoreError,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::{AgentId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::{RwLock, Semaphore, mpsc};

/// Makes commits durable until the manager stops.
pub(crate) async fn write(state: Arc<ManagerState>, mut commits: mpsc::UnboundedReceiver<Commit>) {
    let mut turns: HashMap<AgentId, Arc<RwLock<()>>> = HashMap::new();
    let places = Arc::new(Semaphore::new(LATER_MAX));
    while let Some(commit) = commits.recv().await {
        if turns.len() > AGENTS_MAX {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        let turn = Arc::clone(turns.entry(commit.agent).or_default());
        let alone = commit.writes.iter().any(StateWrite::changes_agent);
        // Locks are taken in the order of the commits. A lock that is not free holds up all commits that follow. The
        // delay is short, and happens only when an agent registers or leaves.
        if alone {
            let turn = turn.write_owned().await;
            tokio::spawn(make(Arc::clone(&state), commit, turn));
        } else {
            let turn = turn.read_owned().await;
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            begin(&state, commit, (turn, place));
        }
    }
}

/// Number of ledger rows that a write merges.
fn rows(write: &StateWrite) -> usize {
    match write {
        StateWrite::Report { leases, .. } => leases.iter().map(|lease| 1 + lease.functions.len()).sum(),
        _ => 0,
    }
}

/// Starts a commit. A single write of a lease, for which a grant or a release waits, is passed to the store with a
/// callback. So no thread waits for it, which saves two thread switches. Every other commit runs on a thread that may
/// block.
fn begin<T: Send + 'static>(state: &Arc<ManagerState>, mut commit: Commit, turn: T) {
    let at_ms = state.unix_ms();
    let taken = RunningCommit {
        commit: commit.id,
        rows: commit.writes.iter().map(rows).sum(),
        begun: Instant::now(),
    };
    let told_of = |turn| {
        let (state, runtime) = (Arc::clone(state), Handle::current());
        move |made: Result<Option<ReportResult>, StoreError>| {
            // Event handling after this may spawn tasks.
            let _runtime = runtime.enter();
            taken.finish(&state, made.map(Vec::from_iter).map_err(refusal_of), turn);
        }
    };
    let store = &state.config.store;
    match (commit.writes.pop(), commit.writes.is_empty()) {
        (Some(StateWrite::PutLease { lease, note }), true) => {
            let told = told_of(turn);
            let lease = lease_of_grant(lease, note);
            store.open_lease_later(lease, at_ms, Box::new(|made| told(made.map(|()| None))));
        }
        (Some(StateWrite::Report { agent, leases }), true) => {
            let told = told_of(turn);
            store.report_later(report(agent, leases, at_ms), Box::new(|made| told(made.map(Some))));
        }
        (last, _) => {
            commit.writes.extend(last);
            tokio::spawn(make(Arc::clone(state), commit, turn));
        }
    }
}

/// Commit that is being written.
struct RunningCommit {
    commit: CommitId,
    rows: usize,
    begun: Instant,
}

impl RunningCommit {
    /// Reports the result to the state machine. Drops `turn` first, so that the agent's next commit may run.
    fn finish<T>(self, state: &Arc<ManagerState>, made: Result<Vec<ReportResult>, Rejection>, turn: T) {
        state.metrics.count_commit(self.begun.elapsed(), self.rows, &made);
        let commit = self.commit;
        let event = match made {
            Ok(reported) => {
                reported.iter().for_each(warn_of_excess);
                ClusterEvent::Committed { commit }
            }
            Err(refusal) => ClusterEvent::NotCommitted { commit, refusal },
        };
        drop(turn);
        state.step(event);
    }
}

async fn make<T>(state: Arc<ManagerState>, commit: Commit, turn: T) {
    let at_ms = state.unix_ms();
    let Commit { id, writes, .. } = commit;
    let taken = RunningCommit {
        commit: id,
        rows: writes.iter().map(rows).sum(),
        begun: Instant::now(),
    };
    let made = state.store(move |store| {
        let mut reported = Vec::new();
        for write in writes {
            reported.extend(apply(store, write, at_ms)?);
        }
        Ok(reported)
    });
    taken.finish(&state, made.await, turn);
}

/// Applies one write. Any write may be repeated: after a failure in the middle, the next report tries all its writes
/// again.
fn apply(store: &dyn Store, write: StateWrite, at_ms: u64) -> Result<Option<ReportResult>, StoreError> {
    match write {
        StateWrite::PutAgent(agent) => {
            let agent = AgentRecord {
                id: agent.id,
                boot: agent.boot,
                address: agent.address,
                cores: agent.cores,
            };
            store.put_agent(agent, at_ms)?;
        }
        StateWrite::RemoveAgent(agent) => store.remove_agent(agent, at_ms)?,
        StateWrite::PutWish { agent, wish, order } => store.put_wish(agent, wish, order)?,
        StateWrite::RemoveWish(agent) => store.remove_wish(agent)?,
        StateWrite::ForgetOrder { agent, number } => store.forget_order(agent, number)?,
        StateWrite::PutLease { lease, note } => {
            store.open_lease(lease_of_grant(lease, note), at_ms)?;
        }
        StateWrite::Report { agent, leases } => return store.report(report(agent, leases, at_ms)).map(Some),
        StateWrite::EndLease { lease, why } => {
            if let Some(known) = store.lease(lease)?.filter(|lease| lease.state == LeaseState::Active) {
                return store.report(end_report(store, known, why, at_ms)?).map(Some);
            }
        }
    }
    Ok(None)
}

fn lease_of_grant(lease: LeaseId, note: LeaseNote) -> LeaseRecord {
    LeaseRecord {
        id: lease,
        agent: note.agent,
        boot: note.boot,
        tenant: note.tenant,
        label: note.label,
        job: note.job,
        epoch: note.epoch,
        cores: note.cores,
        slots: note.billable_cores,
        busy_slots: note.busy_cores,
        memory_bytes: note.memory_bytes,
        gpus: note.gpus,
        granted_ms: note.granted_ms,
        state: LeaseState::Active,
    }
}

fn report(agent: AgentId, leases: Vec<LeaseReport>, at_ms: u64) -> ReportRecord {
    let boot = leases.first().map(|lease| lease.boot);
    let usage = leases.iter().map(|lease| LedgerRow {
        key: RowKey {
            agent,
            boot: lease.boot,
            lease: lease.lease,
        },
        tenant: lease.tenant.clone(),
        usage: lease.usage,
        functions: lease.functions.clone(),
        settled: lease.end_reason.is_some(),
    });
    ReportRecord {
        agent,
        boot: boot.unwrap_or(hotlease_wire::ids::BootId([0; 8])),
        at_ms,
        usage: usage.collect(),
        leases: leases
            .into_iter()
            .map(|lease| lease_of_report(agent, lease, at_ms))
            .collect(),
        missing_before: None,
    }
}

fn lease_of_report(agent: AgentId, lease: LeaseReport, at_ms: u64) -> LeaseRecord {
    LeaseRecord {
        id: lease.lease,
        agent,
        boot: lease.boot,
        tenant: lease.tenant,
        label: lease.label,
        job: String::new(),
        epoch: lease.epoch,
        slots: distinct_cores(&lease.cores),
        busy_slots: lease.cores.len() as u32,
        cores: lease.cores,
        memory_bytes: 0,
        gpus: lease.gpus,
        granted_ms: at_ms,
        state: match lease.end_reason {
            Some(why) => LeaseState::Ended { why },
            None => LeaseState::Active,
        },
    }
}

/// Report that ends a lease whose agent reports no more usage: the known total is final.
fn end_report(store: &dyn Store, known: LeaseRecord, why: &str, at_ms: u64) -> Result<ReportRecord, StoreError> {
    let key = known.key();
    let row = store.rows(&[key])?.into_iter().flatten().next();
    let usage = row.map(|row| LedgerRow {
        key,
        tenant: row.tenant,
        usage: UsageTotals::default(),
        functions: FunctionTotals::default(),
        settled: true,
    });
    let state = LeaseState::Ended { why: why.into() };
    Ok(ReportRecord {
        agent: known.agent,
        boot: known.boot,
        at_ms,
        leases: vec![LeaseRecord { state, ..known }],
        usage: usage.into_iter().collect(),
        missing_before: None,
    })
}

/// Warns the operator of usage that an agent reported without a right to it.
pub(crate) fn warn_of_excess(reported: &ReportResult) {
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
    // Debug level only: two tenants can cause this message in each report of a lease, for as long as the lease lasts.
    for key in &reported.foreign {
        tracing::debug!(
            agent = %key.agent, boot = %key.boot, lease = %key.lease,
            "an agent reports a lease for a tenant that did not announce it; the tenant that announced it pays"
        );
    }
}
