//! Values that several statements bind: whole numbers, and the key of a row.

use super::Value;
use crate::RowKey;

/// A number; the largest that a database holds, if it is larger.
pub(super) fn int(value: u64) -> Value<'static> {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Texts of a row's key, to bind.
pub(super) struct KeyText([String; 3]);

impl KeyText {
    pub(super) fn of(key: RowKey) -> Self {
        Self([key.agent.to_string(), key.boot.to_string(), key.lease.to_string()])
    }

    /// Agent, boot and lease.
    pub(super) fn values(&self) -> [Value<'_>; 3] {
        [0, 1, 2].map(|part: usize| Value::Text(&self.0[part]))
    }
}
