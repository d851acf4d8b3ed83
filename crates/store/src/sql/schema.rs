//! Tables, and the migration of a database of an earlier version.

use super::{Cell, Sql, Value};
use crate::StoreError;

/// Each step migrates a database to the next version, in one transaction. A released step must never be changed: add a
/// new step instead.
pub(crate) const MIGRATIONS: [&[&str]; 8] = [
    &[
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
        "CREATE TABLE agents (id TEXT PRIMARY KEY, boot TEXT NOT NULL, address TEXT NOT NULL, \
         cores TEXT NOT NULL)",
        "CREATE TABLE leases (id TEXT PRIMARY KEY, agent TEXT NOT NULL, boot TEXT NOT NULL, \
         tenant TEXT NOT NULL, label TEXT NOT NULL, job TEXT NOT NULL, epoch BIGINT NOT NULL, \
         cores TEXT NOT NULL, slots BIGINT NOT NULL, memory_bytes BIGINT NOT NULL, \
         granted_ms BIGINT NOT NULL, why TEXT, ended_order BIGINT)",
        "CREATE INDEX leases_of_agent ON leases (agent) WHERE ended_order IS NULL",
        "CREATE INDEX leases_by_end ON leases (ended_order) WHERE ended_order IS NOT NULL",
        "CREATE TABLE ledger (agent TEXT NOT NULL, boot TEXT NOT NULL, lease TEXT NOT NULL, \
         tenant TEXT NOT NULL, label TEXT NOT NULL, job TEXT NOT NULL, slots BIGINT NOT NULL, \
         memory_bytes BIGINT NOT NULL, granted_ms BIGINT NOT NULL, ended_ms BIGINT, \
         allocated_ns BIGINT NOT NULL, hot_ns BIGINT NOT NULL, compute_ns BIGINT NOT NULL, \
         invocations BIGINT NOT NULL, disputed BIGINT NOT NULL, settled_order BIGINT, \
         PRIMARY KEY (agent, boot, lease))",
        "CREATE INDEX ledger_by_end ON ledger (settled_order) WHERE settled_order IS NOT NULL",
        "CREATE INDEX ledger_open ON ledger (agent) WHERE settled_order IS NULL",
        "CREATE TABLE folded (tenant TEXT PRIMARY KEY, allocated_ns BIGINT NOT NULL, \
         hot_ns BIGINT NOT NULL, compute_ns BIGINT NOT NULL, invocations BIGINT NOT NULL, \
         memory_mib_ms BIGINT NOT NULL)",
    ],
    &[
        "CREATE TABLE periods (agent TEXT NOT NULL, boot TEXT NOT NULL, lease TEXT NOT NULL, \
         period BIGINT NOT NULL, allocated_ns BIGINT NOT NULL, hot_ns BIGINT NOT NULL, \
         compute_ns BIGINT NOT NULL, invocations BIGINT NOT NULL, \
         PRIMARY KEY (agent, boot, lease, period))",
        // Earlier usage is counted in the period in which the lease was granted.
        "INSERT INTO periods SELECT agent, boot, lease, granted_ms / 3600000, allocated_ns, hot_ns, \
         compute_ns, invocations FROM ledger WHERE disputed = 0 AND \
         (allocated_ns > 0 OR hot_ns > 0 OR compute_ns > 0 OR invocations > 0)",
    ],
    &[
        "CREATE TABLE wishes (agent TEXT PRIMARY KEY, number BIGINT NOT NULL, drained_by_ms BIGINT, \
       cores TEXT NOT NULL, memory_bytes BIGINT, offer_by_ms BIGINT)",
    ],
    &[
        "CREATE TABLE tenants (name TEXT PRIMARY KEY, enabled BIGINT NOT NULL, position TEXT NOT NULL, \
         cores BIGINT, leases BIGINT, memory_bytes BIGINT, gpus BIGINT, core_seconds BIGINT, \
         window_hours BIGINT)",
        "CREATE TABLE members (member TEXT PRIMARY KEY, tenant TEXT NOT NULL)",
        "CREATE INDEX members_of_tenant ON members (tenant)",
        "CREATE TABLE keys (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, position TEXT NOT NULL, \
         hash TEXT NOT NULL, label TEXT NOT NULL, created_ms BIGINT NOT NULL, expires_ms BIGINT, \
         revoked_ms BIGINT, used_ms BIGINT)",
    ],
    &[
        "ALTER TABLE leases ADD COLUMN gpus BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE wishes ADD COLUMN gpus BIGINT",
    ],
    // Earlier usage belongs to no function.
    &[
        "CREATE TABLE functions (agent TEXT NOT NULL, boot TEXT NOT NULL, lease TEXT NOT NULL, \
         library TEXT NOT NULL, name TEXT NOT NULL, compute_ns BIGINT NOT NULL, invocations BIGINT NOT NULL, \
         PRIMARY KEY (agent, boot, lease, library, name))",
        "CREATE TABLE function_periods (agent TEXT NOT NULL, boot TEXT NOT NULL, lease TEXT NOT NULL, \
         library TEXT NOT NULL, name TEXT NOT NULL, period BIGINT NOT NULL, compute_ns BIGINT NOT NULL, \
         invocations BIGINT NOT NULL, PRIMARY KEY (agent, boot, lease, library, name, period))",
    ],
    // Workers of earlier leases were never moved, so no more slots were busy than were granted.
    &[
        "ALTER TABLE leases ADD COLUMN busy_slots BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE ledger ADD COLUMN busy_slots BIGINT NOT NULL DEFAULT 0",
    ],
    &[
        "ALTER TABLE wishes ADD COLUMN gpu_numbers TEXT NOT NULL DEFAULT '-'",
        "ALTER TABLE wishes ADD COLUMN earlier TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE node_orders (caller TEXT NOT NULL, token TEXT NOT NULL, content TEXT NOT NULL, \
         agent TEXT NOT NULL, number BIGINT NOT NULL, at_ms BIGINT NOT NULL, PRIMARY KEY (caller, token))",
        "CREATE INDEX node_orders_by_time ON node_orders (at_ms)",
    ],
];

/// Schema version of this program.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Migrates a database of version `from` to this version. The caller must begin and commit the transaction, and store
/// the version in it.
pub(crate) fn migrate(sql: &mut dyn Sql, from: i64) -> Result<(), StoreError> {
    for statements in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        for statement in *statements {
            sql.run(statement, &[])?;
        }
    }
    Ok(())
}

/// Value of a counter; 0 if it was never set.
pub(crate) fn counter(sql: &mut dyn Sql, name: &str) -> Result<i64, StoreError> {
    let mut value = 0;
    let statement = "SELECT value FROM counters WHERE name = $1";
    sql.query(statement, &[Value::Text(name)], &mut |row| {
        if let [Cell::Int(known)] = row[..] {
            value = known;
        }
        Ok(())
    })?;
    Ok(value)
}

/// Adds to a counter, and returns its new value.
pub(crate) fn add(sql: &mut dyn Sql, name: &str, more: i64) -> Result<i64, StoreError> {
    let mut value = more;
    let statement = "INSERT INTO counters (name, value) VALUES ($1, $2) \
                     ON CONFLICT (name) DO UPDATE SET value = counters.value + excluded.value RETURNING value";
    sql.query(statement, &[Value::Text(name), Value::Int(more)], &mut |row| {
        if let [Cell::Int(sum)] = row[..] {
            value = sum;
        }
        Ok(())
    })?;
    Ok(value)
}

/// Raises a counter to this value, if it is lower.
pub(crate) fn raise(sql: &mut dyn Sql, name: &str, value: i64) -> Result<(), StoreError> {
    let statement = "INSERT INTO counters (name, value) VALUES ($1, $2) \
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value \
                     WHERE counters.value < excluded.value";
    sql.run(statement, &[Value::Text(name), Value::Int(value)])
}
