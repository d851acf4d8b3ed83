//! Orders by the tokens of their callers. An order that is sent again with its token is answered again, but not carried
//! out again.

use crate::manager::{OrderRecord, OrderToken};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use std::collections::{BTreeMap, BTreeSet};

/// How long an order is remembered by its token, milliseconds.
pub const ORDER_KNOWN_MS: u64 = 3_600_000;
/// Largest number of orders that are remembered by their tokens.
pub const ORDERS_KNOWN_MAX: usize = 64 * 1024;

/// Orders that are remembered by their tokens.
#[derive(Debug, Default)]
pub(super) struct KnownOrders {
    orders: BTreeMap<(String, String), OrderRecord>,
    /// Keys of the orders, sorted by the orders' times, oldest first.
    by_time: BTreeSet<(u64, (String, String))>,
}

fn key(token: &OrderToken) -> (String, String) {
    (token.caller.clone(), token.token.clone())
}

impl KnownOrders {
    pub(super) fn note(&mut self, order: OrderRecord) {
        let key = key(&order.token);
        self.by_time.insert((order.at_ms, key.clone()));
        self.orders.insert(key, order);
    }

    /// The order that this caller sent with this token.
    pub(super) fn of(&self, caller: &str, token: &str) -> Option<&OrderRecord> {
        self.orders.get(&(caller.to_owned(), token.to_owned()))
    }

    /// Forgets orders whose time is over.
    pub(super) fn expire(&mut self, at_ms: u64) {
        while let Some((time, key)) = self.by_time.first()
            && time.saturating_add(ORDER_KNOWN_MS) < at_ms
        {
            self.orders.remove(key);
            self.by_time.pop_first();
        }
    }

    pub(super) fn admit(&self) -> Result<(), Rejection> {
        if self.orders.len() < ORDERS_KNOWN_MAX {
            return Ok(());
        }
        Err(Rejection::TooMany {
            what: "orders with a token in one hour".into(),
            limit: ORDERS_KNOWN_MAX as u64,
        })
    }

    /// Forgets an order that was not carried out, so that it can be sent again. Returns whether the order had a token.
    pub(super) fn forget(&mut self, agent: AgentId, number: u64) -> bool {
        let is_it = |order: &OrderRecord| order.agent == agent && order.number == number;
        let before = self.orders.len();
        self.orders.retain(|_, order| !is_it(order));
        let orders = &self.orders;
        self.by_time.retain(|(_, key)| orders.contains_key(key));
        self.orders.len() < before
    }
}
