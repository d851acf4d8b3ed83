//! Changes of the store. Each function is one job of the writer, which is done whole or not at all.

use super::functions;
use super::queries::{self, LeaseSelection};
use super::schema::{add, counter, raise};
use super::values::{KeyText, int, int_or_null, upsert, usage};
use super::{Sql, Value};
use crate::limits::Limits;
use crate::row;
use crate::{AgentRecord, LeaseRecord, LeaseState, PERIOD_MS, ReportRecord, ReportResult, RowState, StoreError};
use hotlease_lease::ledger::{TOTAL_MAX, sum};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet};

/// Names of counters. `ROWS`, `ACTIVE` and `ENDED` are numbers of rows of tables, because counting rows in the database
/// takes as long as reading them. `LEASE_ENDS` is the number of the last lease that ended, `ROW_ENDS` is the number of
/// the last settled row. `LATEST_MS` is the latest time.
const ROWS: &str = "ledger_rows";
pub(crate) const ACTIVE: &str = "active_leases";
const ENDED: &str = "ended_leases";
const LEASE_ENDS: &str = "lease_ends";
const ROW_ENDS: &str = "row_ends";
pub(crate) const LATEST_MS: &str = "latest_ms";

/// Limits and rules of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreRules {
    pub(crate) limits: Limits,
    /// Whether agents are trusted in reports of leases that no manager granted.
    pub(crate) adopt_unknown: bool,
}

fn full(what: &'static str, limit: usize) -> StoreError {
    StoreError::Full { what, limit }
}

/// Raises the latest time, which is exact to the millisecond. A manager that starts with its clock set back continues
/// from this time. From a rounded time, the manager could end a lease before a time that is already billed.
fn note_time(sql: &mut dyn Sql, at_ms: u64) -> Result<(), StoreError> {
    raise(sql, LATEST_MS, i64::try_from(at_ms).unwrap_or(i64::MAX))
}

pub(crate) fn put_agent(
    sql: &mut dyn Sql,
    rules: &StoreRules,
    agent: &AgentRecord,
    at_ms: u64,
) -> Result<(), StoreError> {
    if !queries::find_row(sql, "SELECT id FROM agents WHERE id = $1", agent.id)?
        && queries::count(sql, "SELECT COUNT(*) FROM agents")? >= rules.limits.agents
    {
        return Err(full("agents", rules.limits.agents));
    }
    settle_rows(sql, agent.id, Some(agent.boot), true, at_ms)?;
    end_leases(sql, agent.id, Some(agent.boot), "its agent was started again")?;
    make_room(sql, rules)?;
    let (id, boot, cores) = (
        agent.id.to_string(),
        agent.boot.to_string(),
        queries::cores_text(&agent.cores),
    );
    let columns = [
        ("id", Value::Text(&id)),
        ("boot", Value::Text(&boot)),
        ("address", Value::Text(&agent.address)),
        ("cores", Value::Text(&cores)),
    ];
    upsert(sql, "agents", 1, &columns)?;
    note_time(sql, at_ms)
}

pub(crate) fn remove_agent(
    sql: &mut dyn Sql,
    rules: &StoreRules,
    agent: AgentId,
    at_ms: u64,
) -> Result<(), StoreError> {
    settle_rows(sql, agent, None, false, at_ms)?;
    end_leases(sql, agent, None, "its agent is gone")?;
    make_room(sql, rules)?;
    sql.run("DELETE FROM agents WHERE id = $1", &[Value::Text(&agent.to_string())])?;
    note_time(sql, at_ms)
}

pub(crate) fn open_lease(
    sql: &mut dyn Sql,
    rules: &StoreRules,
    lease: &LeaseRecord,
    at_ms: u64,
) -> Result<(), StoreError> {
    let known = queries::lease(sql, lease.id)?;
    if known.is_none() {
        check_active(sql, rules, 1)?;
    }
    let row = row::open_row(lease, queries::row(sql, lease.key())?, at_ms);
    put_row(sql, &row, at_ms)?;
    match known {
        // The lease was reported before it was noted. The manager's record replaces it, except for its state.
        Some(known) => write_lease(
            sql,
            &LeaseRecord {
                state: known.state,
                ..lease.clone()
            },
        )?,
        None => {
            write_lease(sql, lease)?;
            add(sql, ACTIVE, 1)?;
        }
    }
    make_room(sql, rules)?;
    note_time(sql, at_ms)
}

pub(crate) fn report(sql: &mut dyn Sql, rules: &StoreRules, report: &ReportRecord) -> Result<ReportResult, StoreError> {
    let at_ms = report.at_ms;
    let named: BTreeMap<LeaseId, &LeaseRecord> = report.leases.iter().map(|lease| (lease.id, lease)).collect();
    let mut outcome = ReportResult::default();
    for told in &report.usage {
        let known = queries::row(sql, told.key)?;
        let lease = named.get(&told.key.lease).copied();
        let changed = row::report_row(told, lease, known.clone(), rules.adopt_unknown, at_ms);
        if changed.capped {
            outcome.capped.push(told.key);
        }
        if changed.is_newly_disputed {
            outcome.disputed.push(told.key);
        }
        if changed.is_foreign {
            outcome.foreign.push(told.key);
        }
        if known.as_ref() != Some(&changed.row) {
            put_row(sql, &changed.row, at_ms)?;
        }
        functions::merge(sql, &changed.row, &told.functions, at_ms)?;
    }
    for lease in &report.leases {
        note_lease(sql, rules, lease)?;
    }
    if let Some(before) = &report.missing_before {
        outcome.missing = end_missing_leases(sql, report, before)?;
    }
    make_room(sql, rules)?;
    note_time(sql, at_ms)?;
    Ok(outcome)
}

/// Ends leases that are missing for the second time; returns the leases that are missing for the first time.
fn end_missing_leases(
    sql: &mut dyn Sql,
    report: &ReportRecord,
    before: &BTreeSet<LeaseId>,
) -> Result<BTreeSet<LeaseId>, StoreError> {
    let named: BTreeSet<LeaseId> = report.leases.iter().map(|lease| lease.id).collect();
    let mut missing = BTreeSet::new();
    for lease in queries::leases(sql, LeaseSelection::ActiveOf(report.agent))? {
        if lease.boot != report.boot || named.contains(&lease.id) {
            continue;
        }
        if !before.contains(&lease.id) {
            missing.insert(lease.id);
            continue;
        }
        end_lease(sql, lease.id, "its agent no longer reports it")?;
        if let Some(known) = queries::row(sql, lease.key())? {
            put_row(sql, &row::settle_row(known, true, report.at_ms), report.at_ms)?;
        }
    }
    Ok(missing)
}

fn check_active(sql: &mut dyn Sql, rules: &StoreRules, more: usize) -> Result<(), StoreError> {
    let active = usize::try_from(counter(sql, ACTIVE)?).unwrap_or(0);
    if active + more > rules.limits.active_leases {
        return Err(full("running leases", rules.limits.active_leases));
    }
    Ok(())
}

/// Notes a lease that an agent reported: takes over the epoch, the cores and the end; all other known facts stay.
fn note_lease(sql: &mut dyn Sql, rules: &StoreRules, lease: &LeaseRecord) -> Result<(), StoreError> {
    let known = queries::lease(sql, lease.id)?;
    match (known, &lease.state) {
        (Some(known), _) if known.state != LeaseState::Active => Ok(()),
        (Some(known), LeaseState::Active) => {
            if (known.epoch, &known.cores) == (lease.epoch, &lease.cores) {
                return Ok(());
            }
            write_lease(
                sql,
                &LeaseRecord {
                    epoch: lease.epoch,
                    cores: lease.cores.clone(),
                    ..known
                },
            )
        }
        (Some(_), LeaseState::Ended { why }) => end_lease(sql, lease.id, why),
        (None, LeaseState::Active) => {
            check_active(sql, rules, 1)?;
            write_lease(sql, lease)?;
            add(sql, ACTIVE, 1).map(|_| ())
        }
        (None, LeaseState::Ended { why }) => {
            write_lease(sql, lease)?;
            add(sql, ACTIVE, 1)?;
            end_lease(sql, lease.id, why)
        }
    }
}

/// Writes all columns of a lease except its end, which only [`end_lease`] writes.
fn write_lease(sql: &mut dyn Sql, lease: &LeaseRecord) -> Result<(), StoreError> {
    let (id, agent, boot) = (lease.id.to_string(), lease.agent.to_string(), lease.boot.to_string());
    let cores = queries::cores_text(&lease.cores);
    let columns = [
        ("id", Value::Text(&id)),
        ("agent", Value::Text(&agent)),
        ("boot", Value::Text(&boot)),
        ("tenant", Value::Text(&lease.tenant)),
        ("label", Value::Text(&lease.label)),
        ("job", Value::Text(&lease.job)),
        ("epoch", Value::Int(lease.epoch.0.into())),
        ("cores", Value::Text(&cores)),
        ("slots", Value::Int(lease.slots.into())),
        ("busy_slots", Value::Int(lease.busy_slots.into())),
        ("memory_bytes", int(lease.memory_bytes)),
        ("granted_ms", int(lease.granted_ms)),
        ("gpus", Value::Int(lease.gpus.into())),
    ];
    upsert(sql, "leases", 1, &columns)
}

fn end_lease(sql: &mut dyn Sql, lease: LeaseId, why: &str) -> Result<(), StoreError> {
    let order = add(sql, LEASE_ENDS, 1)?;
    let statement = "UPDATE leases SET why = $1, ended_order = $2 WHERE id = $3";
    let id = lease.to_string();
    sql.run(statement, &[Value::Text(why), Value::Int(order), Value::Text(&id)])?;
    add(sql, ACTIVE, -1)?;
    add(sql, ENDED, 1).map(|_| ())
}

fn end_leases(sql: &mut dyn Sql, of: AgentId, except: Option<BootId>, why: &str) -> Result<(), StoreError> {
    for lease in queries::leases(sql, LeaseSelection::ActiveOf(of))? {
        if Some(lease.boot) != except {
            end_lease(sql, lease.id, why)?;
        }
    }
    Ok(())
}

fn settle_rows(
    sql: &mut dyn Sql,
    of: AgentId,
    except: Option<BootId>,
    ended: bool,
    at_ms: u64,
) -> Result<(), StoreError> {
    for known in queries::open_rows(sql, of)? {
        if Some(known.key.boot) != except {
            put_row(sql, &row::settle_row(known, ended, at_ms), at_ms)?;
        }
    }
    Ok(())
}

fn put_row(sql: &mut dyn Sql, row: &RowState, at_ms: u64) -> Result<(), StoreError> {
    let known = queries::row(sql, row.key)?;
    if known.is_none() {
        add(sql, ROWS, 1)?;
    }
    let key = KeyText::of(row.key);
    let account = [
        ("tenant", Value::Text(&row.tenant)),
        ("label", Value::Text(&row.label)),
        ("job", Value::Text(&row.job)),
        ("slots", Value::Int(row.account.slots.into())),
        ("busy_slots", Value::Int(row.account.busy_slots.into())),
        ("memory_bytes", int(row.account.memory_bytes)),
        ("granted_ms", int(row.account.granted_ms)),
        ("ended_ms", int_or_null(row.account.ended_ms)),
        ("disputed", Value::Int(row.disputed.into())),
    ];
    upsert(
        sql,
        "ledger",
        3,
        &[&key.columns()[..], &account, &usage(&row.usage)].concat(),
    )?;
    if row.settled && !known.as_ref().is_some_and(|known| known.settled) {
        let order = Value::Int(add(sql, ROW_ENDS, 1)?);
        let [agent, boot, lease] = key.values();
        let statement = "UPDATE ledger SET settled_order = $1 WHERE agent = $2 AND boot = $3 AND lease = $4";
        sql.run(statement, &[order, agent, boot, lease])?;
    }
    let counted = known.filter(|known| !known.disputed).map(|known| known.usage);
    if !row.disputed && counted.unwrap_or_default() != row.usage {
        count_in_period(sql, row, at_ms)?;
    }
    Ok(())
}

fn count_in_period(sql: &mut dyn Sql, row: &RowState, at_ms: u64) -> Result<(), StoreError> {
    // If the clock was set back, usage is counted in the last period that exists.
    let last = queries::last_period(sql, row.key)?;
    let period = (at_ms / PERIOD_MS).max(last.unwrap_or(0));
    let key = KeyText::of(row.key);
    let columns = [&key.columns()[..], &[("period", int(period))], &usage(&row.usage)].concat();
    upsert(sql, "periods", 4, &columns)
}

/// Reduces every table to its limit. If that is impossible, fails, so that the change is refused.
fn make_room(sql: &mut dyn Sql, rules: &StoreRules) -> Result<(), StoreError> {
    let excess = |count: i64, limit: usize| count - i64::try_from(limit).unwrap_or(i64::MAX);
    let ended = excess(counter(sql, ENDED)?, rules.limits.ended_leases);
    if ended > 0 {
        let statement = "DELETE FROM leases WHERE id IN (SELECT id FROM leases \
                         WHERE ended_order IS NOT NULL ORDER BY ended_order LIMIT $1)";
        sql.run(statement, &[Value::Int(ended)])?;
        add(sql, ENDED, -ended)?;
    }
    let rows = excess(counter(sql, ROWS)?, rules.limits.ledger_rows);
    for _ in 0..rows {
        fold_oldest(sql, rules)?;
    }
    Ok(())
}

/// Folds the row that was settled first into its tenant's total. A later report for this row would open a new row. This
/// does not happen in practice: an agent would have to repeat the final report of a lease after so many other leases
/// have ended that they fill the ledger.
fn fold_oldest(sql: &mut dyn Sql, rules: &StoreRules) -> Result<(), StoreError> {
    let Some(row) = queries::oldest_settled(sql)? else {
        return Err(full("ledger rows of running leases", rules.limits.ledger_rows));
    };
    if !row.disputed {
        let folded = queries::folded(sql)?;
        let known = folded.iter().find(|(tenant, ..)| *tenant == row.tenant);
        if known.is_none() && folded.len() >= rules.limits.tenants {
            return Err(full("tenants' totals", rules.limits.tenants));
        }
        let (used, memory) = known.map_or((UsageTotals::default(), 0), |(_, usage, memory)| (*usage, *memory));
        let memory = memory
            .saturating_add(row.account.memory_mib_ms(row.usage))
            .min(TOTAL_MAX);
        let tenant = [("tenant", Value::Text(&row.tenant)), ("memory_mib_ms", int(memory))];
        let used = sum(used, row.account.core_usage(row.usage));
        upsert(sql, "folded", 1, &[&tenant[..], &usage(&used)].concat())?;
    }
    let key = KeyText::of(row.key);
    for table in ["ledger", "periods"] {
        let statement = format!("DELETE FROM {table} WHERE agent = $1 AND boot = $2 AND lease = $3");
        sql.run(&statement, &key.values())?;
    }
    functions::forget(sql, &key.values())?;
    add(sql, ROWS, -1).map(|_| ())
}
