//! Queries of the store, and the format of values in the tables.

use super::functions;
use super::values::KeyText;
use super::{Cell, Cells, Sql, Value};
use crate::bill::Biller;
use crate::row;
use crate::{AgentRecord, Audit, Bill, BillQuery, FINDINGS_MAX, LeaseRecord, LeaseState, RowKey, RowState, StoreError};
use hotlease_lease::ledger::Account;
use hotlease_wire::ids::{AgentId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::str::FromStr;

/// Selection of leases.
pub(crate) enum LeaseSelection<'a> {
    /// All leases.
    All,
    /// Leases of a tenant.
    OfTenant(&'a str),
    /// Running leases of an agent.
    ActiveOf(AgentId),
    /// One lease.
    One(LeaseId),
}

pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Disk {
        what: "read",
        why: format!("a {what} in it makes no sense; see `hotlease bill verify`"),
    }
}

/// Reads a row cell by cell.
pub(super) struct CellReader {
    cells: std::vec::IntoIter<Cell>,
}

impl CellReader {
    pub(super) fn of(cells: Cells) -> Self {
        Self {
            cells: cells.into_iter(),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        match self.cells.next() {
            Some(Cell::Text(text)) => Ok(text),
            _ => Err(damaged("text")),
        }
    }

    pub(super) fn id<T: FromStr>(&mut self) -> Result<T, StoreError> {
        self.text()?.parse().map_err(|_| damaged("name"))
    }

    pub(super) fn number_or_null<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, StoreError> {
        match self.cells.next() {
            Some(Cell::Int(number)) => T::try_from(number).map(Some).map_err(|_| damaged("number")),
            Some(Cell::Null) => Ok(None),
            _ => Err(damaged("number")),
        }
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        self.number_or_null()?.ok_or_else(|| damaged("number"))
    }

    pub(super) fn totals(&mut self) -> Result<UsageTotals, StoreError> {
        Ok(UsageTotals {
            allocated_ns: self.number()?,
            hot_ns: self.number()?,
            compute_ns: self.number()?,
            invocations: self.number()?,
        })
    }

    pub(super) fn cores(&mut self) -> Result<Vec<u32>, StoreError> {
        let text = self.text()?;
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts
            .map(|part| part.parse().map_err(|_| damaged("list of cores")))
            .collect()
    }
}

/// Text of a list of cores in a table.
pub(crate) fn cores_text(cores: &[u32]) -> String {
    let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
    cores.join(",")
}

/// Reads all rows of a query.
pub(super) fn read_rows<T>(
    sql: &mut dyn Sql,
    statement: &str,
    values: &[Value<'_>],
    mut read: impl FnMut(&mut CellReader) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut rows = Vec::new();
    sql.query(statement, values, &mut |cells| {
        rows.push(read(&mut CellReader::of(cells))?);
        Ok(())
    })?;
    Ok(rows)
}

/// Whether a statement finds a row for this agent.
pub(crate) fn find_row(sql: &mut dyn Sql, statement: &str, agent: AgentId) -> Result<bool, StoreError> {
    let found = read_rows(sql, statement, &[Value::Text(&agent.to_string())], |_| Ok(()))?;
    Ok(!found.is_empty())
}

/// Runs a statement that counts rows, and returns the count.
pub(crate) fn count(sql: &mut dyn Sql, statement: &str) -> Result<usize, StoreError> {
    let counts = read_rows(sql, statement, &[], CellReader::number)?;
    Ok(counts.first().copied().unwrap_or(0))
}

pub(crate) fn agents(sql: &mut dyn Sql) -> Result<Vec<AgentRecord>, StoreError> {
    let statement = "SELECT id, boot, address, cores FROM agents ORDER BY id";
    read_rows(sql, statement, &[], |row| {
        Ok(AgentRecord {
            id: row.id()?,
            boot: row.id()?,
            address: row.text()?,
            cores: row.cores()?,
        })
    })
}

pub(crate) fn leases(sql: &mut dyn Sql, lines: LeaseSelection<'_>) -> Result<Vec<LeaseRecord>, StoreError> {
    let (condition, value) = match lines {
        LeaseSelection::All => ("", None),
        LeaseSelection::OfTenant(tenant) => ("WHERE tenant = $1", Some(tenant.to_owned())),
        LeaseSelection::ActiveOf(agent) => ("WHERE agent = $1 AND ended_order IS NULL", Some(agent.to_string())),
        LeaseSelection::One(lease) => ("WHERE id = $1", Some(lease.to_string())),
    };
    let statement = format!(
        "SELECT id, agent, boot, tenant, label, job, epoch, cores, slots, busy_slots, memory_bytes, granted_ms, \
         gpus, ended_order, why FROM leases {condition} ORDER BY id"
    );
    let values: Vec<Value<'_>> = value.as_deref().map(Value::Text).into_iter().collect();
    read_rows(sql, &statement, &values, |row| {
        Ok(LeaseRecord {
            id: row.id()?,
            agent: row.id()?,
            boot: row.id()?,
            tenant: row.text()?,
            label: row.text()?,
            job: row.text()?,
            epoch: Epoch(row.number()?),
            cores: row.cores()?,
            slots: row.number()?,
            busy_slots: row.number()?,
            memory_bytes: row.number()?,
            granted_ms: row.number()?,
            gpus: row.number()?,
            state: match row.number_or_null::<i64>()? {
                None => LeaseState::Active,
                Some(_) => LeaseState::Ended { why: row.text()? },
            },
        })
    })
}

pub(crate) fn lease(sql: &mut dyn Sql, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
    Ok(leases(sql, LeaseSelection::One(lease))?.pop())
}

const STANDING: &str = "SELECT agent, boot, lease, tenant, label, job, slots, busy_slots, memory_bytes, granted_ms, \
                        ended_ms, allocated_ns, hot_ns, compute_ns, invocations, settled_order, disputed \
                        FROM ledger";

fn standing(row: &mut CellReader) -> Result<RowState, StoreError> {
    Ok(RowState {
        key: RowKey {
            agent: row.id()?,
            boot: row.id()?,
            lease: row.id()?,
        },
        tenant: row.text()?,
        label: row.text()?,
        job: row.text()?,
        account: Account {
            slots: row.number()?,
            busy_slots: row.number()?,
            memory_bytes: row.number()?,
            granted_ms: row.number()?,
            ended_ms: row.number_or_null()?,
        },
        usage: row.totals()?,
        settled: row.number_or_null::<i64>()?.is_some(),
        disputed: row.number::<i64>()? != 0,
    })
}

fn standings(sql: &mut dyn Sql, rest: &str, values: &[Value<'_>]) -> Result<Vec<RowState>, StoreError> {
    read_rows(sql, &format!("{STANDING} {rest}"), values, standing)
}

pub(crate) fn row(sql: &mut dyn Sql, key: RowKey) -> Result<Option<RowState>, StoreError> {
    let key = KeyText::of(key);
    let mut rows = standings(sql, "WHERE agent = $1 AND boot = $2 AND lease = $3", &key.values())?;
    Ok(rows.pop())
}

/// Rows of an agent that are not settled.
pub(crate) fn open_rows(sql: &mut dyn Sql, agent: AgentId) -> Result<Vec<RowState>, StoreError> {
    let agent = agent.to_string();
    let rest = "WHERE agent = $1 AND settled_order IS NULL ORDER BY boot, lease";
    standings(sql, rest, &[Value::Text(&agent)])
}

/// Row that was settled first.
pub(crate) fn oldest_settled(sql: &mut dyn Sql) -> Result<Option<RowState>, StoreError> {
    let rest = "WHERE settled_order IS NOT NULL ORDER BY settled_order LIMIT 1";
    Ok(standings(sql, rest, &[])?.pop())
}

/// Last period in which usage of a row was counted.
pub(crate) fn last_period(sql: &mut dyn Sql, key: RowKey) -> Result<Option<u64>, StoreError> {
    let key = KeyText::of(key);
    let statement = "SELECT MAX(period) FROM periods WHERE agent = $1 AND boot = $2 AND lease = $3";
    let last = read_rows(sql, statement, &key.values(), CellReader::number_or_null)?;
    Ok(last.first().copied().flatten())
}

/// Tenants' totals of folded rows: usage, and memory held.
pub(crate) fn folded(sql: &mut dyn Sql) -> Result<Vec<(String, UsageTotals, u64)>, StoreError> {
    let statement = "SELECT tenant, allocated_ns, hot_ns, compute_ns, invocations, memory_mib_ms \
                     FROM folded ORDER BY tenant";
    read_rows(sql, statement, &[], |row| {
        Ok((row.text()?, row.totals()?, row.number()?))
    })
}

/// Number of a period, and the total at its end.
type Period = (u64, UsageTotals);

/// Calls `each` with every row and its periods, in the order of keys. Only one row is in memory at a time, so the
/// ledger may be of any size.
fn each_row(
    sql: &mut dyn Sql,
    mut each: impl FnMut(&RowState, &[Period]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let statement = "SELECT l.agent, l.boot, l.lease, l.tenant, l.label, l.job, l.slots, l.busy_slots, l.memory_bytes, \
                     l.granted_ms, l.ended_ms, l.allocated_ns, l.hot_ns, l.compute_ns, l.invocations, \
                     l.settled_order, l.disputed, p.period, p.allocated_ns, p.hot_ns, p.compute_ns, \
                     p.invocations FROM ledger l LEFT JOIN periods p \
                     ON p.agent = l.agent AND p.boot = l.boot AND p.lease = l.lease \
                     ORDER BY l.agent, l.boot, l.lease, p.period";
    let mut present: Option<(RowState, Vec<Period>)> = None;
    sql.query(statement, &[], &mut |cells| {
        let mut cells = CellReader::of(cells);
        let row = standing(&mut cells)?;
        if let Some((known, periods)) = present.take_if(|(known, _)| known.key != row.key) {
            each(&known, &periods)?;
        }
        let (_, periods) = present.get_or_insert((row, Vec::new()));
        if let Some(number) = cells.number_or_null()? {
            periods.push((number, cells.totals()?));
        }
        Ok(())
    })?;
    match present {
        Some((known, periods)) => each(&known, &periods),
        None => Ok(()),
    }
}

pub(crate) fn bill(sql: &mut dyn Sql, query: &BillQuery) -> Result<Bill, StoreError> {
    let mut biller = Biller::new(query);
    if biller.is_by_function() {
        functions::bill(sql, &mut biller)?;
    }
    each_row(sql, |row, periods| biller.add(row, periods))?;
    for (tenant, usage, memory) in folded(sql)? {
        biller.add_folded(&tenant, usage, memory)?;
    }
    Ok(biller.complete())
}

pub(crate) fn audit(sql: &mut dyn Sql, now_ms: u64) -> Result<Audit, StoreError> {
    let mut audit = Audit::default();
    each_row(sql, |row, periods| {
        audit.rows += 1;
        if row.disputed && audit.disputed.len() < FINDINGS_MAX {
            audit.disputed.push(row.clone());
        }
        if audit.problems.len() < FINDINGS_MAX {
            audit.problems.extend(row::problems(row, periods, now_ms));
        }
        Ok(())
    })?;
    functions::audit(sql, &mut audit)?;
    // One statement, because a row may be written between two statements.
    let statement = "SELECT COUNT(*), (SELECT value FROM counters WHERE name = 'ledger_rows') FROM ledger";
    let counts = read_rows(sql, statement, &[], |row| {
        Ok((row.number::<u64>()?, row.number_or_null::<u64>()?.unwrap_or(0)))
    })?;
    for (rows, counted) in counts.into_iter().filter(|(rows, counted)| rows != counted) {
        let problem = format!("the ledger has {rows} rows and counted {counted}");
        audit.problems.push(problem);
    }
    Ok(audit)
}
