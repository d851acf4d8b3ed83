//! Tenants, members and keys, as they stand in the durable state: a copy in memory, made again every two
//! seconds (another manager may have changed them) and after each change of our own.

use super::{Role, Subject};
use hotlease_lease::manager::Allowance;
use hotlease_store::{BillQuery, By, KeyRecord, Position, Store, StoreError, TenantRecord};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::AcquireRequest;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// How old the copy gets: so long a change elsewhere may take to count.
pub(crate) const REFRESH: Duration = Duration::from_secs(2);
/// The use of a key is noted this often at most.
const NOTE_USE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

/// Who may come whom no operator has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TenantPolicy {
    /// Users of the manager's machine and holders of certificates, as tenants of their own: an operator let
    /// each of them in already, by an account or a certificate. Default.
    ///
    /// Others always have to be named: everybody with an account in a cluster has MUNGE credentials, and
    /// everybody of an organisation may have a token of its issuer.
    #[default]
    Open,
    /// Nobody but operators on the manager's machine.
    Listed,
}

impl std::fmt::Display for TenantPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Listed => "listed",
        })
    }
}

impl std::str::FromStr for TenantPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => Ok(Self::Open),
            "listed" => Ok(Self::Listed),
            _ => Err("tenants are `open` or `listed`".into()),
        }
    }
}

impl From<Position> for Role {
    fn from(position: Position) -> Self {
        match position {
            Position::User => Self::User,
            Position::Operator => Self::Operator,
            Position::Hook => Self::Hook,
        }
    }
}

#[derive(Default)]
struct Known {
    tenants: BTreeMap<String, TenantRecord>,
    /// Member to tenant.
    members: HashMap<String, String>,
    keys: HashMap<String, KeyRecord>,
}

/// See the module.
pub struct Directory {
    policy: TenantPolicy,
    known: RwLock<Known>,
    /// Core-seconds used in their windows, of tenants that have such a quota.
    used: RwLock<BTreeMap<String, u64>>,
    /// When keys were used, until that is written down.
    key_uses: Mutex<BTreeMap<String, u64>>,
}

fn refused(why: String) -> Refusal {
    Refusal::NotPermitted { what: why }
}

impl Directory {
    pub(crate) fn new(policy: TenantPolicy) -> Self {
        Self {
            policy,
            known: RwLock::default(),
            used: RwLock::default(),
            key_uses: Mutex::default(),
        }
    }

    /// Replaced whole, so that a poisoned lock guards a good copy.
    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the durable state. May block.
    pub(crate) fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let (tenants, keys) = (store.tenants()?, store.keys()?);
        let members = tenants.iter().flat_map(|tenant| {
            let members = tenant.members.iter().cloned();
            members.map(|member| (member, tenant.name.clone()))
        });
        let known = Known {
            members: members.collect(),
            tenants: tenants
                .into_iter()
                .map(|tenant| (tenant.name.clone(), tenant))
                .collect(),
            keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect(),
        };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// Asks the ledger what those have used whose core-seconds are bounded. May block for as long as a bill
    /// takes. False: nobody's are.
    pub(crate) fn measure(&self, store: &dyn Store, now_ms: u64) -> Result<bool, StoreError> {
        let bounded: Vec<_> = {
            let known = self.known();
            let bounded = known
                .tenants
                .values()
                .filter(|tenant| tenant.quota.core_seconds.is_some());
            bounded
                .map(|tenant| (tenant.name.clone(), tenant.window_hours))
                .collect()
        };
        let mut used = BTreeMap::new();
        for (tenant, window_hours) in bounded {
            let window = window_hours.map(|hours| u64::from(hours) * HOUR_MS);
            let bill = store.bill(&BillQuery {
                tenant: Some(tenant.clone()),
                since_ms: window.map(|window| now_ms.saturating_sub(window)),
                by: By::Tenant,
                ..BillQuery::default()
            })?;
            let seconds = bill
                .lines
                .iter()
                .map(|line| line.usage.allocated_ns / 1_000_000_000);
            used.insert(tenant, seconds.sum());
        }
        let any = !used.is_empty();
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(any)
    }

    /// Writes down when keys were used. May block.
    pub(crate) fn note_uses(&self, store: &dyn Store) -> Result<(), StoreError> {
        let uses = std::mem::take(&mut *self.key_uses.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, used_ms) in uses {
            let known = self.key(&id);
            if let Some(key) =
                known.filter(|key| key.used_ms.is_none_or(|known| known + NOTE_USE_MS <= used_ms))
            {
                store.put_key(KeyRecord {
                    used_ms: Some(used_ms),
                    ..key
                })?;
            }
        }
        Ok(())
    }

    /// A key was used, rightly.
    pub(super) fn used(&self, key: &str, now_ms: u64) {
        let mut uses = self.key_uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.insert(key.to_owned(), now_ms);
    }

    /// One key.
    pub(crate) fn key(&self, id: &str) -> Option<KeyRecord> {
        self.known().keys.get(id).cloned()
    }

    /// One tenant that operators named.
    pub(crate) fn tenant(&self, name: &str) -> Option<TenantRecord> {
        self.known().tenants.get(name).cloned()
    }

    /// All tenants that operators named.
    pub(crate) fn tenants(&self) -> Vec<TenantRecord> {
        self.known().tenants.values().cloned().collect()
    }

    /// Core-seconds used by a tenant that has a quota of them, as last measured.
    pub(crate) fn core_seconds(&self, tenant: &str) -> u64 {
        let used = self.used.read().unwrap_or_else(PoisonError::into_inner);
        used.get(tenant).copied().unwrap_or_default()
    }

    /// The tenant that somebody belongs to, and what that makes of it.
    pub(super) fn belongs(&self, subject: &Subject) -> Result<(String, Role), Refusal> {
        let known = self.known();
        let member = subject.member();
        let listed = known.members.get(&member);
        let name = listed.cloned().unwrap_or_else(|| subject.tenant());
        match known.tenants.get(&name) {
            Some(tenant) if !tenant.enabled => Err(refused(format!("tenant {name} is disabled"))),
            Some(tenant) => Ok((name, tenant.position.into())),
            None if subject.may_be_unlisted() && self.policy == TenantPolicy::Open => Ok((name, Role::User)),
            None => Err(refused(format!(
                "{member} belongs to no tenant of this site; an operator names it with `hotlease admin tenant`"
            ))),
        }
    }

    /// What a tenant may hold, for a request that was checked.
    pub(crate) fn allowance(&self, tenant: &str, request: &AcquireRequest) -> Allowance {
        let known = self.known();
        Allowance {
            quota: known
                .tenants
                .get(tenant)
                .map(|tenant| tenant.quota)
                .unwrap_or_default(),
            memory_bytes: request.memory_bytes.saturating_mul(request.workers.into()),
            gpus: u64::from(request.gpus) * u64::from(request.workers),
            core_seconds_used: self.core_seconds(tenant),
        }
    }

    /// Fails where the tenant of somebody known is gone or disabled meanwhile.
    pub(super) fn still(&self, tenant: &str) -> Result<(), Refusal> {
        match self.known().tenants.get(tenant) {
            Some(tenant) if tenant.enabled => Ok(()),
            Some(_) => Err(refused(format!("tenant {tenant} is disabled"))),
            None => Err(refused(format!("there is no tenant {tenant} any more"))),
        }
    }
}
