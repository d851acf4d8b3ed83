//! Usage of functions in tables: a row for each function of a lease, and its totals by period.

use super::queries::{CellReader, count, read_rows};
use super::values::{KeyText, int, upsert};
use super::{Sql, Value};
use crate::bill::{Biller, FunctionRow};
use crate::row::FunctionSums;
use crate::{Audit, FINDINGS_MAX, PERIOD_MS, RowKey, RowState, StoreError};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};

/// Reads the usage of a lease's functions.
pub(crate) fn of(sql: &mut dyn Sql, key: RowKey) -> Result<FunctionTotals, StoreError> {
    let statement = "SELECT library, name, compute_ns, invocations FROM functions \
                     WHERE agent = $1 AND boot = $2 AND lease = $3";
    let found = read_rows(sql, statement, &KeyText::of(key).values(), |row| {
        Ok((function(row)?, used(row)?))
    });
    Ok(found?.into_iter().collect())
}

fn function(row: &mut CellReader) -> Result<FunctionId, StoreError> {
    Ok(FunctionId::new(row.id()?, &row.text()?))
}

fn used(row: &mut CellReader) -> Result<FunctionUse, StoreError> {
    Ok(FunctionUse {
        compute_ns: row.number()?,
        invocations: row.number()?,
    })
}

/// Merges the reported usage of a lease's functions. `row` is the lease's row after the report.
pub(crate) fn merge(sql: &mut dyn Sql, row: &RowState, told: &FunctionTotals, at_ms: u64) -> Result<(), StoreError> {
    if told.is_empty() || row.disputed {
        return Ok(());
    }
    let mut known = of(sql, row.key)?;
    for id in known.merge(told, row.usage) {
        put(sql, row.key, &id, known.get(&id), at_ms)?;
    }
    Ok(())
}

fn put(sql: &mut dyn Sql, key: RowKey, function: &FunctionId, used: FunctionUse, at_ms: u64) -> Result<(), StoreError> {
    let (key, library) = (KeyText::of(key), function.library.to_string());
    let [agent, boot, lease] = key.columns();
    let (library, name) = (
        ("library", Value::Text(&library)),
        ("name", Value::Text(&function.name)),
    );
    let statement = "SELECT MAX(period) FROM function_periods \
                     WHERE agent = $1 AND boot = $2 AND lease = $3 AND library = $4 AND name = $5";
    let named = [agent.1, boot.1, lease.1, library.1, name.1];
    let last = read_rows(sql, statement, &named, CellReader::number_or_null::<u64>)?;
    // If the clock was set back, usage is counted in the last period that exists.
    let period = (at_ms / PERIOD_MS).max(last.first().copied().flatten().unwrap_or(0));
    let (compute_ns, invocations) = (
        ("compute_ns", int(used.compute_ns)),
        ("invocations", int(used.invocations)),
    );
    let columns = [agent, boot, lease, library, name, compute_ns, invocations];
    upsert(sql, "functions", 5, &columns)?;
    let period = ("period", int(period));
    let columns = [agent, boot, lease, library, name, period, compute_ns, invocations];
    upsert(sql, "function_periods", 6, &columns)
}

/// Deletes the functions of a lease.
pub(crate) fn forget(sql: &mut dyn Sql, key: &[Value<'_>; 3]) -> Result<(), StoreError> {
    for table in ["functions", "function_periods"] {
        let statement = format!("DELETE FROM {table} WHERE agent = $1 AND boot = $2 AND lease = $3");
        sql.run(&statement, key)?;
    }
    Ok(())
}

/// Function of a ledger row, as read from the tables.
struct FunctionRead {
    key: RowKey,
    tenant: String,
    job: String,
    disputed: bool,
    /// Usage of the whole lease.
    lease: FunctionUse,
    function: FunctionId,
    used: FunctionUse,
    periods: Vec<(u64, FunctionUse)>,
}

/// Calls `each` with every function of every row and the function's periods, in the order of keys and names.
fn each(sql: &mut dyn Sql, mut each: impl FnMut(&FunctionRead) -> Result<(), StoreError>) -> Result<(), StoreError> {
    let statement = "SELECT f.agent, f.boot, f.lease, l.tenant, l.job, l.disputed, l.compute_ns, l.invocations, \
                     f.library, f.name, f.compute_ns, f.invocations, p.period, p.compute_ns, p.invocations \
                     FROM functions f JOIN ledger l \
                     ON l.agent = f.agent AND l.boot = f.boot AND l.lease = f.lease \
                     LEFT JOIN function_periods p ON p.agent = f.agent AND p.boot = f.boot \
                     AND p.lease = f.lease AND p.library = f.library AND p.name = f.name \
                     ORDER BY f.agent, f.boot, f.lease, f.library, f.name, p.period";
    let mut present: Option<FunctionRead> = None;
    sql.query(statement, &[], &mut |cells| {
        let mut row = CellReader::of(cells);
        let read = FunctionRead {
            key: RowKey {
                agent: row.id()?,
                boot: row.id()?,
                lease: row.id()?,
            },
            tenant: row.text()?,
            job: row.text()?,
            disputed: row.number::<i64>()? != 0,
            lease: used(&mut row)?,
            function: function(&mut row)?,
            used: used(&mut row)?,
            periods: Vec::new(),
        };
        let other = |known: &mut FunctionRead| (known.key, &known.function) != (read.key, &read.function);
        if let Some(known) = present.take_if(other) {
            each(&known)?;
        }
        let known = present.get_or_insert(read);
        if let Some(period) = row.number_or_null()? {
            known.periods.push((period, used(&mut row)?));
        }
        Ok(())
    })?;
    present.map_or(Ok(()), |known| each(&known))
}

/// Adds all functions to a bill.
pub(crate) fn bill(sql: &mut dyn Sql, biller: &mut Biller<'_>) -> Result<(), StoreError> {
    each(sql, |read| {
        biller.function(&FunctionRow {
            tenant: &read.tenant,
            job: &read.job,
            disputed: read.disputed,
            function: &read.function,
            used: read.used,
            periods: &read.periods,
        })
    })
}

/// Checks functions against the rows of their leases.
pub(crate) fn audit(sql: &mut dyn Sql, audit: &mut Audit) -> Result<(), StoreError> {
    let mut seen = FunctionSums::default();
    let mut problems = Vec::new();
    each(sql, |read| {
        problems.extend(seen.problem(read.key, read.lease, &read.function, read.used, &read.periods));
        problems.truncate(FINDINGS_MAX);
        Ok(())
    })?;
    // One statement, because a lease and its functions may be written between two statements.
    let without_row = count(
        sql,
        "SELECT COUNT(*) FROM functions f WHERE NOT EXISTS \
         (SELECT 1 FROM ledger l WHERE l.agent = f.agent AND l.boot = f.boot AND l.lease = f.lease)",
    )?;
    if without_row > 0 {
        problems.push(format!("{without_row} functions are of leases that have no row"));
    }
    audit.problems.extend(problems);
    audit.problems.truncate(FINDINGS_MAX);
    Ok(())
}
