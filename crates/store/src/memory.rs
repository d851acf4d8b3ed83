//! Store in memory: tables behind one lock.
//!
//! The store has no record of leases that were granted before its process started. So it accepts agents' reports of
//! unknown leases, and running leases survive a restart of the manager.

mod people;
mod row;

use self::row::MemoryRow;
use crate::bill::{Biller, FunctionRow};
use crate::limits::Limits;
use crate::row::{self as rows, FunctionSums, RowChange};
use crate::{
    AgentRecord, Audit, Bill, BillQuery, FINDINGS_MAX, LeaseRecord, LeaseState, PERIOD_MS, ReportRecord, ReportResult,
    RowKey, RowState, Store, StoreError,
};
use hotlease_lease::ledger::{FunctionTotals, TOTAL_MAX, sum};
use hotlease_lease::manager::{NodeWish, ORDER_KNOWN_MS, OrderRecord};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A [`Store`] in memory. No record survives the process, no table grows beyond its [`Limits`], and no call blocks for
/// longer than a scan of the tables.
pub struct MemoryStore {
    limits: Limits,
    state: Mutex<MemoryState>,
}

#[derive(Default)]
struct MemoryState {
    agents: BTreeMap<AgentId, AgentRecord>,
    wishes: BTreeMap<AgentId, NodeWish>,
    /// Orders with a token, oldest first.
    orders: Vec<OrderRecord>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    /// Ended leases, each exactly once; the lease that ended first is at the front.
    ended: VecDeque<LeaseId>,
    rows: BTreeMap<RowKey, MemoryRow>,
    /// Settled rows, each exactly once; the row that was settled first is at the front.
    settled: VecDeque<RowKey>,
    /// Totals of folded rows by tenant: usage, and memory held.
    folded: BTreeMap<String, (UsageTotals, u64)>,
    latest_ms: u64,
    people: people::PeopleTables,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Limits::MEMORY)
    }
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    /// Locks the state. At every point where a method could panic, the state is consistent, so the data can be used
    /// even if the lock is poisoned.
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryState {
    fn is_active(&self, lease: &LeaseId) -> bool {
        let known = self.leases.get(lease);
        known.is_some_and(|lease| lease.state == LeaseState::Active)
    }

    fn active(&self) -> usize {
        self.leases.len() - self.ended.len()
    }

    fn end(&mut self, lease: LeaseId, why: &str) {
        if let Some(known) = self.leases.get_mut(&lease)
            && known.state == LeaseState::Active
        {
            known.state = LeaseState::Ended { why: why.into() };
            self.ended.push_back(lease);
        }
    }

    fn end_leases(&mut self, of: AgentId, except: Option<BootId>, why: &str) {
        let theirs = self.leases.values();
        let theirs = theirs.filter(|lease| lease.agent == of && Some(lease.boot) != except);
        for lease in theirs.map(|lease| lease.id).collect::<Vec<_>>() {
            self.end(lease, why);
        }
    }

    fn settle_rows(&mut self, of: AgentId, except: Option<BootId>, ended: bool, at_ms: u64) {
        for (key, known) in &mut self.rows {
            if key.agent == of && Some(key.boot) != except && !known.standing.settled {
                known.standing = rows::settle_row(known.standing.clone(), ended, at_ms);
                self.settled.push_back(*key);
            }
        }
    }

    /// Notes a lease that an agent reported: takes over the epoch, the cores and the end; all other known facts stay.
    fn note(&mut self, lease: LeaseRecord) {
        match self.leases.get_mut(&lease.id) {
            Some(known) if known.state != LeaseState::Active => {}
            Some(known) => match lease.state {
                LeaseState::Active => (known.epoch, known.cores) = (lease.epoch, lease.cores),
                LeaseState::Ended { why } => self.end(lease.id, &why),
            },
            None => {
                if lease.state != LeaseState::Active {
                    self.ended.push_back(lease.id);
                }
                self.leases.insert(lease.id, lease);
            }
        }
    }

    fn put_row(&mut self, standing: RowState, at_ms: u64) {
        let key = standing.key;
        let known = self.rows.entry(key).or_insert_with(|| MemoryRow {
            standing: RowState {
                settled: false,
                ..standing.clone()
            },
            periods: Vec::new(),
            functions: FunctionTotals::default(),
            function_periods: BTreeMap::new(),
        });
        if standing.settled && !known.standing.settled {
            self.settled.push_back(key);
        }
        let counted = known.periods.last().map(|(_, usage)| *usage).unwrap_or_default();
        if !standing.disputed && counted != standing.usage {
            let period = at_ms / PERIOD_MS;
            match known.periods.last_mut() {
                Some((last, usage)) if *last >= period => *usage = standing.usage,
                _ => known.periods.push((period, standing.usage)),
            }
        }
        known.standing = standing;
        self.latest_ms = self.latest_ms.max(at_ms);
    }

    fn make_room(&mut self, limits: &Limits) {
        while self.ended.len() > limits.ended_leases {
            if let Some(oldest) = self.ended.pop_front() {
                self.leases.remove(&oldest);
            }
        }
        while self.rows.len() > limits.ledger_rows {
            let Some(folded) = self.settled.pop_front().and_then(|key| self.rows.remove(&key)) else {
                return;
            };
            let RowState {
                account,
                usage,
                tenant,
                disputed,
                ..
            } = folded.standing;
            if !disputed {
                let (total, memory) = self.folded.entry(tenant).or_default();
                *total = sum(*total, account.core_usage(usage));
                *memory = memory.saturating_add(account.memory_mib_ms(usage)).min(TOTAL_MAX);
            }
        }
    }

    /// Checks whether these leases fit within the limit when they are noted in this order.
    fn check_active(&self, leases: &[LeaseRecord], limits: &Limits) -> Result<(), StoreError> {
        let mut running = BTreeMap::new();
        let mut active = self.active();
        for lease in leases {
            let known = self
                .leases
                .get(&lease.id)
                .map(|known| known.state == LeaseState::Active);
            let runs = running.entry(lease.id).or_insert(known);
            match (*runs, &lease.state) {
                (None, LeaseState::Active) if active >= limits.active_leases => {
                    return Err(StoreError::Full {
                        what: "running leases",
                        limit: limits.active_leases,
                    });
                }
                (None, LeaseState::Active) => (*runs, active) = (Some(true), active + 1),
                (Some(true), LeaseState::Ended { .. }) => (*runs, active) = (Some(false), active - 1),
                (None, LeaseState::Ended { .. }) => *runs = Some(false),
                (Some(_), _) => {}
            }
        }
        Ok(())
    }

    /// Checks whether the ledger can be reduced to its limits after these changes, made in this order, and after the
    /// rows in `ends` are settled.
    fn check_rows(&self, changes: &[RowChange], ends: &[RowKey], limits: &Limits) -> Result<(), StoreError> {
        let latest: BTreeMap<RowKey, &RowState> =
            changes.iter().map(|changed| (changed.row.key, &changed.row)).collect();
        let fresh = latest.keys().filter(|key| !self.rows.contains_key(key)).count();
        let excess = (self.rows.len() + fresh).saturating_sub(limits.ledger_rows);
        if excess == 0 {
            return Ok(());
        }
        let was_settled = |key: &RowKey| self.rows.get(key).is_some_and(|row| row.standing.settled);
        let settling = changes.iter().map(|changed| &changed.row).filter(|row| row.settled);
        let settling = settling.map(|row| row.key).chain(ends.iter().copied());
        let mut seen = BTreeSet::new();
        let newly = settling.filter(|key| !was_settled(key) && seen.insert(*key));
        let mut folding = self.settled.iter().copied().chain(newly);
        let mut tenants: BTreeSet<&str> = self.folded.keys().map(String::as_str).collect();
        for _ in 0..excess {
            let full = |what, limit| Err(StoreError::Full { what, limit });
            let Some(key) = folding.next() else {
                return full("ledger rows of running leases", limits.ledger_rows);
            };
            let known = self.rows.get(&key).map(|row| &row.standing);
            let Some(row) = latest.get(&key).copied().or(known) else {
                continue;
            };
            if !row.disputed && !tenants.contains(row.tenant.as_str()) {
                if tenants.len() >= limits.tenants {
                    return full("tenants' totals", limits.tenants);
                }
                tenants.insert(&row.tenant);
            }
        }
        Ok(())
    }
}

impl Store for MemoryStore {
    /// Always succeeds, because there is no disk that could fail.
    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_agent(&self, agent: AgentRecord, at_ms: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        if !state.agents.contains_key(&agent.id) && state.agents.len() >= self.limits.agents {
            return Err(StoreError::Full {
                what: "agents",
                limit: self.limits.agents,
            });
        }
        state.settle_rows(agent.id, Some(agent.boot), true, at_ms);
        state.end_leases(agent.id, Some(agent.boot), "its agent was started again");
        state.make_room(&self.limits);
        state.agents.insert(agent.id, agent);
        state.latest_ms = state.latest_ms.max(at_ms);
        Ok(())
    }

    fn remove_agent(&self, agent: AgentId, at_ms: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        state.settle_rows(agent, None, false, at_ms);
        state.end_leases(agent, None, "its agent is gone");
        state.make_room(&self.limits);
        state.agents.remove(&agent);
        state.latest_ms = state.latest_ms.max(at_ms);
        Ok(())
    }

    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        Ok(self.state().agents.values().cloned().collect())
    }

    fn open_lease(&self, lease: LeaseRecord, at_ms: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        let fresh = !state.leases.contains_key(&lease.id);
        if fresh && state.active() >= self.limits.active_leases {
            return Err(StoreError::Full {
                what: "running leases",
                limit: self.limits.active_leases,
            });
        }
        let known = state.rows.get(&lease.key()).map(|row| row.standing.clone());
        let row = rows::open_row(&lease, known, at_ms);
        let changed = RowChange {
            row: row.clone(),
            capped: false,
            is_newly_disputed: false,
            is_foreign: false,
        };
        state.check_rows(&[changed], &[], &self.limits)?;
        state.put_row(row, at_ms);
        match state.leases.get_mut(&lease.id) {
            // The lease was reported before it was noted. The manager's record replaces it, except for its state.
            Some(known) => {
                *known = LeaseRecord {
                    state: known.state.clone(),
                    ..lease
                };
            }
            None => {
                state.leases.insert(lease.id, lease);
            }
        }
        state.make_room(&self.limits);
        Ok(())
    }

    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.state().leases.get(&lease).cloned())
    }

    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError> {
        let of_tenant = |lease: &&LeaseRecord| tenant.is_none_or(|tenant| lease.tenant == tenant);
        Ok(self.state().leases.values().filter(of_tenant).cloned().collect())
    }

    fn active_leases(&self) -> Result<u64, StoreError> {
        Ok(self.state().active() as u64)
    }

    fn report(&self, report: ReportRecord) -> Result<ReportResult, StoreError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let at_ms = report.at_ms;
        let named: BTreeMap<LeaseId, &LeaseRecord> = report.leases.iter().map(|lease| (lease.id, lease)).collect();
        let mut changes: Vec<RowChange> = Vec::new();
        let mut latest: BTreeMap<RowKey, usize> = BTreeMap::new();
        let mut outcome = ReportResult::default();
        for told in &report.usage {
            let known = match latest.get(&told.key) {
                Some(change) => Some(changes[*change].row.clone()),
                None => state.rows.get(&told.key).map(|row| row.standing.clone()),
            };
            let lease = named.get(&told.key.lease).copied();
            let changed = rows::report_row(told, lease, known, true, at_ms);
            if changed.capped {
                outcome.capped.push(told.key);
            }
            if changed.is_newly_disputed {
                outcome.disputed.push(told.key);
            }
            if changed.is_foreign {
                outcome.foreign.push(told.key);
            }
            latest.insert(told.key, changes.len());
            changes.push(changed);
        }
        state.check_active(&report.leases, &self.limits)?;
        let mut ends = Vec::new();
        if let Some(before) = &report.missing_before {
            let theirs = state.leases.values();
            let theirs = theirs.filter(|lease| lease.agent == report.agent && lease.boot == report.boot);
            for lease in theirs.filter(|lease| !named.contains_key(&lease.id) && state.is_active(&lease.id)) {
                match before.contains(&lease.id) {
                    true => ends.push(lease.key()),
                    false => drop(outcome.missing.insert(lease.id)),
                }
            }
        }
        let known_ends: Vec<RowKey> = ends
            .iter()
            .copied()
            .filter(|key| state.rows.contains_key(key) || latest.contains_key(key))
            .collect();
        state.check_rows(&changes, &known_ends, &self.limits)?;
        for (changed, told) in changes.into_iter().zip(&report.usage) {
            state.put_row(changed.row, at_ms);
            if let Some(row) = state.rows.get_mut(&told.key) {
                row.merge_functions(&told.functions, at_ms);
            }
        }
        for lease in report.leases {
            state.note(lease);
        }
        for key in ends {
            state.end(key.lease, "its agent no longer reports it");
            if let Some(known) = state.rows.get(&key).map(|row| row.standing.clone()) {
                state.put_row(rows::settle_row(known, true, at_ms), at_ms);
            }
        }
        state.make_room(&self.limits);
        state.latest_ms = state.latest_ms.max(at_ms);
        Ok(outcome)
    }

    fn rows(&self, keys: &[RowKey]) -> Result<Vec<Option<RowState>>, StoreError> {
        let state = self.state();
        let row = |key| state.rows.get(key).map(|row: &MemoryRow| row.standing.clone());
        Ok(keys.iter().map(row).collect())
    }

    fn functions(&self, keys: &[RowKey]) -> Result<Vec<FunctionTotals>, StoreError> {
        let state = self.state();
        let functions = |key| state.rows.get(key).map(|row: &MemoryRow| row.functions.clone());
        Ok(keys.iter().map(|key| functions(key).unwrap_or_default()).collect())
    }

    fn bill(&self, query: &BillQuery) -> Result<Bill, StoreError> {
        let state = self.state();
        let mut biller = Biller::new(query);
        if biller.is_by_function() {
            for row in state.rows.values().flat_map(MemoryRow::functions) {
                biller.function(&row)?;
            }
        }
        for row in state.rows.values() {
            biller.add(&row.standing, &row.periods)?;
        }
        for (tenant, (usage, memory)) in &state.folded {
            biller.add_folded(tenant, *usage, *memory)?;
        }
        Ok(biller.complete())
    }

    fn audit(&self, now_ms: u64) -> Result<Audit, StoreError> {
        let state = self.state();
        let mut audit = Audit::default();
        for row in state.rows.values() {
            audit.rows += 1;
            if row.standing.disputed && audit.disputed.len() < FINDINGS_MAX {
                audit.disputed.push(row.standing.clone());
            }
            audit
                .problems
                .extend(rows::problems(&row.standing, &row.periods, now_ms));
            audit.problems.truncate(FINDINGS_MAX);
        }
        let mut seen = FunctionSums::default();
        for (key, row) in &state.rows {
            let lease = row.standing.usage.into();
            let problem = |of: FunctionRow<'_>| seen.problem(*key, lease, of.function, of.used, of.periods);
            audit.problems.extend(row.functions().filter_map(problem));
        }
        audit.problems.truncate(FINDINGS_MAX);
        Ok(audit)
    }

    fn put_wish(&self, agent: AgentId, wish: NodeWish, order: Option<OrderRecord>) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.wishes.len() >= self.limits.agents && !state.wishes.contains_key(&agent) {
            return Err(StoreError::Full {
                what: "nodes with orders",
                limit: self.limits.agents,
            });
        }
        state.wishes.insert(agent, wish);
        if let Some(order) = order {
            let is_known = |known: &OrderRecord| known.at_ms.saturating_add(ORDER_KNOWN_MS) >= order.at_ms;
            let is_other = |known: &OrderRecord| known.token.name() != order.token.name();
            state.orders.retain(|known| is_known(known) && is_other(known));
            let place = (order.at_ms, order.token.name());
            let place = state
                .orders
                .partition_point(|known| (known.at_ms, known.token.name()) < place);
            state.orders.insert(place, order);
        }
        Ok(())
    }

    fn forget_order(&self, agent: AgentId, number: u64) -> Result<(), StoreError> {
        let is_it = |order: &OrderRecord| order.agent == agent && order.number == number;
        self.state().orders.retain(|order| !is_it(order));
        Ok(())
    }

    fn orders(&self) -> Result<Vec<OrderRecord>, StoreError> {
        Ok(self.state().orders.clone())
    }

    fn remove_wish(&self, agent: AgentId) -> Result<(), StoreError> {
        self.state().wishes.remove(&agent);
        Ok(())
    }

    fn wishes(&self) -> Result<Vec<(AgentId, NodeWish)>, StoreError> {
        let wishes = self.state().wishes.clone();
        Ok(wishes.into_iter().collect())
    }

    fn latest_ms(&self) -> Result<u64, StoreError> {
        Ok(self.state().latest_ms)
    }
}
