//! Orders for nodes that are remembered by the tokens of their callers, in a table.

use super::queries::read_rows;
use super::values::{int, upsert};
use super::{Sql, Value};
use crate::StoreError;
use hotlease_lease::manager::{ORDER_KNOWN_MS, OrderRecord, OrderToken};
use hotlease_wire::ids::AgentId;

pub(crate) fn put(sql: &mut dyn Sql, order: &OrderRecord) -> Result<(), StoreError> {
    let known_since = order.at_ms.saturating_sub(ORDER_KNOWN_MS);
    sql.run("DELETE FROM node_orders WHERE at_ms < $1", &[int(known_since)])?;
    let agent = order.agent.to_string();
    let columns = [
        ("caller", Value::Text(&order.token.caller)),
        ("token", Value::Text(&order.token.token)),
        ("content", Value::Text(&order.token.content)),
        ("agent", Value::Text(&agent)),
        ("number", int(order.number)),
        ("at_ms", int(order.at_ms)),
    ];
    upsert(sql, "node_orders", 2, &columns)
}

pub(crate) fn remove(sql: &mut dyn Sql, agent: AgentId, number: u64) -> Result<(), StoreError> {
    let statement = "DELETE FROM node_orders WHERE agent = $1 AND number = $2";
    sql.run(statement, &[Value::Text(&agent.to_string()), int(number)])
}

/// All orders, oldest first.
pub(crate) fn all(sql: &mut dyn Sql) -> Result<Vec<OrderRecord>, StoreError> {
    let statement = "SELECT caller, token, content, agent, number, at_ms FROM node_orders";
    let mut orders = read_rows(sql, statement, &[], |row| {
        let token = OrderToken {
            caller: row.text()?,
            token: row.text()?,
            content: row.text()?,
        };
        Ok(OrderRecord {
            token,
            agent: row.id()?,
            number: row.number()?,
            at_ms: row.number()?,
        })
    })?;
    // Sorted here, because databases sort text by rules of their own.
    orders.sort_by(|one, other| (one.at_ms, one.token.name()).cmp(&(other.at_ms, other.token.name())));
    Ok(orders)
}
