//! State that lives as long as its process.

use crate::ledger::Ledger;
use crate::{AgentRecord, LeaseRecord, LeaseState, LedgerRow, RowKey, Store, StoreError};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much a [`MemoryStore`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Agents (default: 4096).
    pub agents: usize,
    /// Leases that go on (default: 65536).
    pub active_leases: usize,
    /// Leases that ended; the longest ended one makes room (default: 1024).
    pub ended_leases: usize,
    /// Ledger rows; settled ones are folded into their tenant's bill to make room (default: 65536).
    pub ledger_rows: usize,
    /// Tenants with a folded bill (default: 4096).
    pub tenants: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            agents: 4096,
            active_leases: 65536,
            ended_leases: 1024,
            ledger_rows: 65536,
            tenants: 4096,
        }
    }
}

/// A [`Store`] in memory: nothing survives the process, nothing grows past its [`Limits`], nothing blocks
/// for longer than a look through its tables.
pub struct MemoryStore {
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    agents: BTreeMap<AgentId, AgentRecord>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    /// Ended leases, the longest ended first; each exactly once.
    ended: VecDeque<LeaseId>,
    ledger: Ledger,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl MemoryStore {
    /// Empty.
    pub fn new(limits: Limits) -> Self {
        let state = State {
            agents: BTreeMap::new(),
            leases: BTreeMap::new(),
            ended: VecDeque::new(),
            ledger: Ledger::new(limits.ledger_rows, limits.tenants),
        };
        Self {
            limits,
            state: Mutex::new(state),
        }
    }

    /// Every method below leaves the state whole at each point where it could panic, so a poisoned lock
    /// guards good data.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end_leases(&mut self, limits: &Limits, of: AgentId, except: Option<BootId>, why: &str) {
        for lease in self.leases.values_mut() {
            if lease.agent == of && Some(lease.boot) != except && lease.state == LeaseState::Active {
                lease.state = LeaseState::Ended { why: why.into() };
                self.ended.push_back(lease.id);
            }
        }
        self.drop_oldest_ended(limits);
    }

    fn drop_oldest_ended(&mut self, limits: &Limits) {
        while self.ended.len() > limits.ended_leases {
            if let Some(oldest) = self.ended.pop_front() {
                self.leases.remove(&oldest);
            }
        }
    }
}

impl Store for MemoryStore {
    fn put_agent(&self, agent: AgentRecord) -> Result<(), StoreError> {
        let mut state = self.state();
        if !state.agents.contains_key(&agent.id) && state.agents.len() >= self.limits.agents {
            return Err(StoreError::Full {
                what: "agents",
                limit: self.limits.agents,
            });
        }
        state.ledger.settle_agent(agent.id, Some(agent.boot));
        state.end_leases(
            &self.limits,
            agent.id,
            Some(agent.boot),
            "its agent was started again",
        );
        state.agents.insert(agent.id, agent);
        Ok(())
    }

    fn remove_agent(&self, agent: AgentId) -> Result<(), StoreError> {
        let mut state = self.state();
        state.ledger.settle_agent(agent, None);
        state.end_leases(&self.limits, agent, None, "its agent is gone");
        state.agents.remove(&agent);
        Ok(())
    }

    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        Ok(self.state().agents.values().cloned().collect())
    }

    fn put_lease(&self, lease: LeaseRecord) -> Result<(), StoreError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let ends = lease.state != LeaseState::Active;
        match state.leases.get_mut(&lease.id) {
            Some(known) if known.state != LeaseState::Active => {}
            Some(known) => {
                *known = lease;
                if ends {
                    state.ended.push_back(known.id);
                }
            }
            None => {
                let active = state.leases.len() - state.ended.len();
                if !ends && active >= self.limits.active_leases {
                    return Err(StoreError::Full {
                        what: "running leases",
                        limit: self.limits.active_leases,
                    });
                }
                if ends {
                    state.ended.push_back(lease.id);
                }
                state.leases.insert(lease.id, lease);
            }
        }
        state.drop_oldest_ended(&self.limits);
        Ok(())
    }

    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.state().leases.get(&lease).cloned())
    }

    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError> {
        let of_tenant = |lease: &&LeaseRecord| tenant.is_none_or(|tenant| lease.tenant == tenant);
        Ok(self.state().leases.values().filter(of_tenant).cloned().collect())
    }

    fn merge_usage(&self, rows: &[LedgerRow]) -> Result<(), StoreError> {
        self.state().ledger.merge(rows)
    }

    fn usage(&self, key: RowKey) -> Result<Option<UsageTotals>, StoreError> {
        Ok(self.state().ledger.usage(key))
    }

    fn bill(&self, tenant: &str) -> Result<UsageTotals, StoreError> {
        Ok(self.state().ledger.bill(tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::ids::Epoch;

    fn lease(number: u8, boot: u8) -> LeaseRecord {
        LeaseRecord {
            id: LeaseId([number; 8]),
            agent: AgentId([1; 8]),
            boot: BootId([boot; 8]),
            tenant: "uid:1".into(),
            label: String::new(),
            epoch: Epoch(1),
            cores: vec![0],
            state: LeaseState::Active,
        }
    }

    fn agent(number: u8, boot: u8) -> AgentRecord {
        AgentRecord {
            id: AgentId([number; 8]),
            boot: BootId([boot; 8]),
            address: "/run/agent.sock".into(),
            cores: vec![0, 1],
        }
    }

    fn small() -> MemoryStore {
        MemoryStore::new(Limits {
            agents: 2,
            active_leases: 2,
            ended_leases: 3,
            ledger_rows: 4,
            tenants: 2,
        })
    }

    fn is_active(store: &MemoryStore, number: u8) -> bool {
        let lease = store.lease(LeaseId([number; 8])).unwrap().expect("kept");
        lease.state == LeaseState::Active
    }

    #[test]
    fn an_ended_lease_stays_ended() {
        let store = small();
        store.put_lease(lease(1, 1)).unwrap();
        let over = LeaseState::Ended {
            why: "released".into(),
        };
        store
            .put_lease(LeaseRecord {
                state: over.clone(),
                ..lease(1, 1)
            })
            .unwrap();
        store.put_lease(lease(1, 1)).unwrap(); // a report that overtook the end
        assert_eq!(store.lease(LeaseId([1; 8])).unwrap().unwrap().state, over);
    }

    #[test]
    fn leases_die_with_the_boot_that_granted_them() {
        let store = small();
        store.put_agent(agent(1, 1)).unwrap();
        store.put_lease(lease(1, 1)).unwrap();
        store.put_agent(agent(1, 1)).unwrap(); // registers again after the manager restarted
        assert!(is_active(&store, 1));
        store.put_agent(agent(1, 2)).unwrap();
        assert!(!is_active(&store, 1), "the agent was started again");
        store.put_lease(lease(2, 2)).unwrap();
        store.remove_agent(AgentId([1; 8])).unwrap();
        assert!(!is_active(&store, 2), "the agent is gone");
    }

    #[test]
    fn every_table_is_bounded() {
        let store = small();
        store.put_agent(agent(1, 1)).unwrap();
        store.put_agent(agent(2, 1)).unwrap();
        assert!(matches!(
            store.put_agent(agent(3, 1)),
            Err(StoreError::Full { limit: 2, .. })
        ));
        store.put_agent(agent(2, 5)).unwrap();

        store.put_lease(lease(1, 1)).unwrap();
        store.put_lease(lease(2, 1)).unwrap();
        assert!(matches!(
            store.put_lease(lease(3, 1)),
            Err(StoreError::Full { limit: 2, .. })
        ));
        for number in 10..200 {
            let state = LeaseState::Ended {
                why: "expired".into(),
            };
            store
                .put_lease(LeaseRecord {
                    state,
                    ..lease(number, 1)
                })
                .unwrap();
        }
        let kept: Vec<_> = store
            .leases(None)
            .unwrap()
            .iter()
            .map(|lease| lease.id.0[0])
            .collect();
        assert_eq!(
            kept,
            [1, 2, 197, 198, 199],
            "running ones and the last three ended ones"
        );
    }

    #[test]
    fn leases_are_listed_by_tenant() {
        let store = small();
        store.put_lease(lease(1, 1)).unwrap();
        store
            .put_lease(LeaseRecord {
                tenant: "uid:2".into(),
                ..lease(2, 1)
            })
            .unwrap();
        let ids = |tenant| -> Vec<u8> {
            let leases = store.leases(tenant).unwrap();
            leases.iter().map(|lease| lease.id.0[0]).collect()
        };
        assert_eq!(ids(None), [1, 2]);
        assert_eq!(ids(Some("uid:2")), [2]);
        assert_eq!(ids(Some("uid:3")), [0_u8; 0]);
    }
}
