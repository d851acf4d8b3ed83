//! Durable state of the manager, which survives its crashes.

use crate::truth::sum;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{LeaseNote, LeaseReport, NodeWish, StateWrite};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet};

/// Key of a ledger row.
pub type Key = (AgentId, BootId, LeaseId);

#[derive(Debug)]
struct LeaseRecord {
    note: LeaseNote,
    is_over: bool,
}

#[derive(Debug)]
struct LedgerRow {
    tenant: String,
    usage: UsageTotals,
    functions: FunctionTotals,
}

/// Durable state of the manager.
#[derive(Debug, Default)]
pub struct Durable {
    agents: BTreeMap<AgentId, BootId>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    rows: BTreeMap<Key, LedgerRow>,
    wishes: BTreeMap<AgentId, NodeWish>,
    /// Highest number of an order, by agent.
    highest_order: BTreeMap<AgentId, u64>,
}

impl Durable {
    pub fn agents(&self) -> impl Iterator<Item = AgentId> {
        self.agents.keys().copied()
    }

    pub fn active_leases(&self) -> impl Iterator<Item = (LeaseId, LeaseNote)> {
        let active = self.leases.iter().filter(|(_, lease)| !lease.is_over);
        active.map(|(id, lease)| (*id, lease.note.clone()))
    }

    pub fn wishes(&self) -> BTreeMap<AgentId, NodeWish> {
        self.wishes.clone()
    }

    /// Whether this order of an operator was recorded.
    pub fn has_recorded(&self, agent: AgentId, number: u64) -> bool {
        self.highest_order.get(&agent).is_some_and(|noted| *noted >= number)
    }

    pub fn lease(&self, lease: LeaseId) -> Option<LeaseNote> {
        self.leases.get(&lease).map(|lease| lease.note.clone())
    }

    pub fn usage(&self, key: Key) -> UsageTotals {
        self.rows.get(&key).map(|row| row.usage).unwrap_or_default()
    }

    /// Billed usage of functions, by lease.
    pub fn functions(&self) -> impl Iterator<Item = (LeaseId, UsageTotals, &FunctionTotals)> {
        let rows = self.rows.iter();
        rows.map(|((_, _, lease), row)| (*lease, row.usage, &row.functions))
    }

    pub fn bill(&self, tenant: &str) -> UsageTotals {
        let rows = self.rows.values().filter(|row| row.tenant == tenant);
        rows.fold(UsageTotals::default(), |bill, row| sum(bill, row.usage))
    }

    /// Applies writes. Returns the leases that the writes end.
    pub fn apply(&mut self, writes: &[StateWrite]) -> Vec<LeaseId> {
        let over = |lease: &(&LeaseId, &LeaseRecord)| lease.1.is_over;
        let before: BTreeSet<LeaseId> = self.leases.iter().filter(over).map(|(id, _)| *id).collect();
        self.write(writes);
        let after = self.leases.iter().filter(over).map(|(id, _)| *id);
        after.filter(|lease| !before.contains(lease)).collect()
    }

    fn write(&mut self, writes: &[StateWrite]) {
        for write in writes {
            match write {
                StateWrite::PutAgent(agent) => {
                    self.end_leases(agent.id, Some(agent.boot));
                    self.agents.insert(agent.id, agent.boot);
                }
                StateWrite::RemoveAgent(agent) => {
                    self.end_leases(*agent, None);
                    self.agents.remove(agent);
                }
                StateWrite::PutWish { agent, wish, .. } => {
                    self.highest_order.insert(*agent, wish.number);
                    self.wishes.insert(*agent, wish.clone());
                }
                StateWrite::RemoveWish(agent) => {
                    self.wishes.remove(agent);
                }
                // Operators of the simulator use no tokens in their orders.
                StateWrite::ForgetOrder { .. } => {}
                StateWrite::PutLease { lease, note } => self.put_lease(*lease, note.clone(), false),
                StateWrite::Report { agent, leases } => {
                    leases.iter().for_each(|lease| self.report(*agent, lease));
                }
                StateWrite::EndLease { lease, .. } => {
                    if let Some(lease) = self.leases.get_mut(lease) {
                        lease.is_over = true;
                    }
                }
            }
        }
    }

    fn end_leases(&mut self, agent: AgentId, except: Option<BootId>) {
        for lease in self.leases.values_mut() {
            if lease.note.agent == agent && Some(lease.note.boot) != except {
                lease.is_over = true;
            }
        }
    }

    fn put_lease(&mut self, id: LeaseId, note: LeaseNote, is_over: bool) {
        let lease = self.leases.entry(id).or_insert(LeaseRecord { note, is_over: false });
        lease.is_over |= is_over;
    }

    fn report(&mut self, agent: AgentId, lease: &LeaseReport) {
        let key = (agent, lease.boot, lease.lease);
        let row = self.rows.entry(key).or_insert_with(|| LedgerRow {
            tenant: lease.tenant.clone(),
            usage: UsageTotals::default(),
            functions: FunctionTotals::default(),
        });
        row.usage = UsageTotals {
            allocated_ns: row.usage.allocated_ns.max(lease.usage.allocated_ns),
            hot_ns: row.usage.hot_ns.max(lease.usage.hot_ns),
            compute_ns: row.usage.compute_ns.max(lease.usage.compute_ns),
            invocations: row.usage.invocations.max(lease.usage.invocations),
        };
        row.functions.merge(&lease.functions, row.usage);
        let note = LeaseNote {
            agent,
            boot: lease.boot,
            tenant: lease.tenant.clone(),
            label: lease.label.clone(),
            job: String::new(),
            epoch: lease.epoch,
            billable_cores: lease.cores.len() as u32,
            busy_cores: lease.cores.len() as u32,
            cores: lease.cores.clone(),
            memory_bytes: 0,
            gpus: lease.gpus,
            granted_ms: 0,
        };
        self.put_lease(lease.lease, note, lease.end_reason.is_some());
    }
}
