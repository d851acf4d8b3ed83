//! The machine's writes on their way to the durable state.
//!
//! Writes of leases are made at the same time, so that a database makes many of them durable at once. Writes
//! that say which run of an agent there is wait for the earlier ones of that agent, and hold up the later ones.

use crate::machine::{Commit, Wanted};
use crate::membership::warn_of;
use crate::records::distinct;
use crate::state::State;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{AGENTS_MAX, Event, LeaseNote, LeaseReport, Write};
use hotlease_store::{
    AgentRecord, LeaseRecord, LeaseState, LedgerRow, Report, Reported, RowKey, Store, StoreError,
};
use hotlease_wire::ids::{AgentId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{RwLock, mpsc};

/// Makes writes durable until the manager stops.
pub(crate) async fn write(state: Arc<State>, mut commits: mpsc::UnboundedReceiver<Commit>) {
    let mut turns: HashMap<AgentId, Arc<RwLock<()>>> = HashMap::new();
    while let Some(commit) = commits.recv().await {
        if turns.len() > AGENTS_MAX {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        let turn = Arc::clone(turns.entry(commit.agent).or_default());
        let alone = commit.writes.iter().any(Write::changes_agent);
        // In the order of the commits: a turn that is not free holds up all that follow, which is short and
        // happens only when an agent comes or goes.
        if alone {
            let turn = turn.write_owned().await;
            tokio::spawn(make(Arc::clone(&state), commit, turn));
        } else {
            let turn = turn.read_owned().await;
            tokio::spawn(make(Arc::clone(&state), commit, turn));
        }
    }
}

/// Rows of the ledger that it merges.
fn rows(write: &Write) -> usize {
    match write {
        Write::Report { leases, .. } => leases.iter().map(|lease| 1 + lease.functions.len()).sum(),
        _ => 0,
    }
}

async fn make<T>(state: Arc<State>, commit: Commit, turn: T) {
    let at_ms = state.unix_ms();
    let Commit {
        id, writes, wanted, ..
    } = commit;
    let rows = writes.iter().map(rows).sum();
    let begun = Instant::now();
    let made = state.store(move |store| {
        let mut reported = Vec::new();
        for write in writes {
            reported.extend(apply(store, write, &wanted, at_ms)?);
        }
        Ok(reported)
    });
    let made = made.await;
    state.metrics.committed(begun.elapsed(), rows, &made);
    let event = match made {
        Ok(reported) => {
            reported.iter().for_each(warn_of);
            Event::Committed { commit: id }
        }
        Err(refusal) => Event::NotCommitted { commit: id, refusal },
    };
    drop(turn);
    state.step(event);
}

/// Each write may be made again: what fails in the middle is tried whole by the next report.
fn apply(
    store: &dyn Store,
    write: Write,
    wanted: &HashMap<LeaseId, Wanted>,
    at_ms: u64,
) -> Result<Option<Reported>, StoreError> {
    match write {
        Write::PutAgent(agent) => {
            let agent = AgentRecord {
                id: agent.id,
                boot: agent.boot,
                address: agent.address,
                cores: agent.cores,
            };
            store.put_agent(agent, at_ms)?;
        }
        Write::RemoveAgent(agent) => store.remove_agent(agent, at_ms)?,
        Write::PutWish { agent, wish } => store.put_wish(agent, wish)?,
        Write::RemoveWish(agent) => store.remove_wish(agent)?,
        Write::PutLease { lease, note } => {
            store.open_lease(granted(lease, note, wanted.get(&lease), at_ms), at_ms)?;
        }
        Write::Report { agent, leases } => return store.report(report(agent, leases, at_ms)).map(Some),
        Write::EndLease { lease, why } => {
            if let Some(known) = store
                .lease(lease)?
                .filter(|lease| lease.state == LeaseState::Active)
            {
                return store.report(ended(store, known, why, at_ms)?).map(Some);
            }
        }
    }
    Ok(None)
}

fn granted(lease: LeaseId, note: LeaseNote, wanted: Option<&Wanted>, at_ms: u64) -> LeaseRecord {
    let slots = distinct(&note.cores);
    LeaseRecord {
        id: lease,
        agent: note.agent,
        boot: note.boot,
        tenant: note.tenant,
        label: note.label,
        job: wanted
            .map(|wanted| wanted.request.job.clone())
            .unwrap_or_default(),
        epoch: note.epoch,
        cores: note.cores,
        // What was asked for, not what the agent says: it is what the agent may bill.
        slots: wanted.map_or(slots, |wanted| wanted.billable_cores(slots)),
        memory_bytes: wanted.map_or(0, |wanted| {
            let workers = u64::from(wanted.request.workers);
            wanted.request.memory_bytes.saturating_mul(workers)
        }),
        gpus: note.gpus,
        granted_ms: wanted.map_or(at_ms, |wanted| wanted.granted_ms),
        state: LeaseState::Active,
    }
}

fn report(agent: AgentId, leases: Vec<LeaseReport>, at_ms: u64) -> Report {
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
        settled: lease.over.is_some(),
    });
    Report {
        agent,
        boot: boot.unwrap_or(hotlease_wire::ids::BootId([0; 8])),
        at_ms,
        usage: usage.collect(),
        leases: leases
            .into_iter()
            .map(|lease| reported(agent, lease, at_ms))
            .collect(),
        missing_before: None,
    }
}

fn reported(agent: AgentId, lease: LeaseReport, at_ms: u64) -> LeaseRecord {
    LeaseRecord {
        id: lease.lease,
        agent,
        boot: lease.boot,
        tenant: lease.tenant,
        label: lease.label,
        job: String::new(),
        epoch: lease.epoch,
        slots: distinct(&lease.cores),
        cores: lease.cores,
        memory_bytes: 0,
        gpus: lease.gpus,
        granted_ms: at_ms,
        state: match lease.over {
            Some(why) => LeaseState::Ended { why },
            None => LeaseState::Active,
        },
    }
}

/// A lease of which nobody says any more what it used: what is known is its last total.
fn ended(store: &dyn Store, known: LeaseRecord, why: &str, at_ms: u64) -> Result<Report, StoreError> {
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
    Ok(Report {
        agent: known.agent,
        boot: known.boot,
        at_ms,
        leases: vec![LeaseRecord { state, ..known }],
        usage: usage.into_iter().collect(),
        missing_before: None,
    })
}
