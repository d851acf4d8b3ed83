//! Values that several statements bind (whole numbers, usage, and the key of a row), and the writing of whole rows.

use super::{Sql, Value};
use crate::{RowKey, StoreError};
use hotlease_wire::session::UsageTotals;

/// Makes a value of a number, which is limited to the largest number of a database.
pub(super) fn int(value: u64) -> Value<'static> {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Inserts a row, or replaces the row with the same key. The first `key` columns are the key.
pub(super) fn upsert(sql: &mut dyn Sql, table: &str, key: usize, row: &[(&str, Value<'_>)]) -> Result<(), StoreError> {
    let (names, values): (Vec<&str>, Vec<Value<'_>>) = row.iter().copied().unzip();
    let places: Vec<String> = (1..=row.len()).map(|number| format!("${number}")).collect();
    let changes: Vec<String> = names[key..]
        .iter()
        .map(|name| format!("{name} = excluded.{name}"))
        .collect();
    let statement = format!(
        "INSERT INTO {table} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}",
        names.join(", "),
        places.join(", "),
        names[..key].join(", "),
        changes.join(", ")
    );
    sql.run(&statement, &values)
}

/// Columns of usage.
pub(super) fn usage(used: &UsageTotals) -> [(&'static str, Value<'static>); 4] {
    [
        ("allocated_ns", int(used.allocated_ns)),
        ("hot_ns", int(used.hot_ns)),
        ("compute_ns", int(used.compute_ns)),
        ("invocations", int(used.invocations)),
    ]
}

/// A number or null.
pub(super) fn int_or_null(value: Option<u64>) -> Value<'static> {
    value.map_or(Value::Null, int)
}

/// Texts of a row's key, to bind.
pub(super) struct KeyText([String; 3]);

impl KeyText {
    pub(super) fn of(key: RowKey) -> Self {
        Self([key.agent.to_string(), key.boot.to_string(), key.lease.to_string()])
    }

    /// Columns of the key.
    pub(super) fn columns(&self) -> [(&'static str, Value<'_>); 3] {
        let [agent, boot, lease] = self.values();
        [("agent", agent), ("boot", boot), ("lease", lease)]
    }

    /// Agent, boot and lease.
    pub(super) fn values(&self) -> [Value<'_>; 3] {
        [0, 1, 2].map(|part: usize| Value::Text(&self.0[part]))
    }
}
