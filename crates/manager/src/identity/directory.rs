//! Directory of tenants, members and keys: a copy of the durable state in memory. It is read again every two seconds
//! (another manager may have changed the state) and after each change by this manager.

use super::subject::ISSUER_END;
use super::{Role, Subject};
use hotlease_lease::manager::Allowance;
use hotlease_store::{BillGrouping, BillQuery, KeyRecord, Position, Store, StoreError, TenantRecord};
use hotlease_wire::Rejection;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Greatest age of the copy: a change by another manager takes effect within this time.
pub(crate) const REFRESH: Duration = Duration::from_secs(2);
/// Shortest interval between two notes of a key's use.
const NOTE_USE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

/// Admission of callers that no operator has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TenantPolicy {
    /// Admits users of the manager's node and holders of certificates, as tenants of their own: an operator has
    /// admitted each of them already, by an account or a certificate. Default.
    ///
    /// Callers with other credentials must nevertheless be named: every user with an account in a cluster has MUNGE
    /// credentials, and every member of an organisation may have a token of its issuer.
    #[default]
    Open,
    /// Admits only operators on the manager's node.
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
struct DirectoryCopy {
    tenants: BTreeMap<String, TenantRecord>,
    /// Tenant of each member.
    members: HashMap<String, String>,
    keys: HashMap<String, KeyRecord>,
}

/// Tenants, members and keys, copied from the store.
pub struct TenantDirectory {
    policy: TenantPolicy,
    known: RwLock<DirectoryCopy>,
    /// Core-seconds that each tenant with a quota of core-seconds has used in its window.
    used: RwLock<BTreeMap<String, u64>>,
    /// Times at which keys were used, until they are written to the store.
    key_uses: Mutex<BTreeMap<String, u64>>,
}

/// Whether a member is the subject of a token without its issuer.
pub(crate) fn is_bare(member: &str) -> bool {
    member
        .strip_prefix("jwt:")
        .is_some_and(|subject| !subject.contains(ISSUER_END))
}

fn refused(why: String) -> Rejection {
    Rejection::NotPermitted { what: why }
}

impl TenantDirectory {
    pub(crate) fn new(policy: TenantPolicy) -> Self {
        Self {
            policy,
            known: RwLock::default(),
            used: RwLock::default(),
            key_uses: Mutex::default(),
        }
    }

    /// Locks the copy. The copy is only replaced as a whole, so it is valid even if the lock is poisoned.
    fn read_copy(&self) -> RwLockReadGuard<'_, DirectoryCopy> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the durable state. May block.
    pub(crate) fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let (tenants, keys) = (store.tenants()?, store.keys()?);
        let members = tenants.iter().flat_map(|tenant| {
            let members = tenant.members.iter().cloned();
            members.map(|member| (member, tenant.name.clone()))
        });
        let known = DirectoryCopy {
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

    /// Reads from the ledger how many core-seconds each tenant with a quota of core-seconds has used. May block for as
    /// long as a bill takes. Returns false if no tenant has such a quota.
    pub(crate) fn measure(&self, store: &dyn Store, now_ms: u64) -> Result<bool, StoreError> {
        let bounded: Vec<_> = {
            let known = self.read_copy();
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
                by: BillGrouping::Tenant,
                ..BillQuery::default()
            })?;
            let seconds = bill.lines.iter().map(|line| line.usage.allocated_ns / 1_000_000_000);
            used.insert(tenant, seconds.sum());
        }
        let any = !used.is_empty();
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(any)
    }

    /// Writes the times of key uses to the store. May block.
    pub(crate) fn note_uses(&self, store: &dyn Store) -> Result<(), StoreError> {
        let uses = std::mem::take(&mut *self.key_uses.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, used_ms) in uses {
            let known = self.key(&id);
            if let Some(key) = known.filter(|key| key.used_ms.is_none_or(|known| known + NOTE_USE_MS <= used_ms)) {
                store.put_key(KeyRecord {
                    used_ms: Some(used_ms),
                    ..key
                })?;
            }
        }
        Ok(())
    }

    /// Notes a valid use of a key.
    pub(super) fn note_key_use(&self, key: &str, now_ms: u64) {
        let mut uses = self.key_uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.insert(key.to_owned(), now_ms);
    }

    /// Record of a key.
    pub(crate) fn key(&self, id: &str) -> Option<KeyRecord> {
        self.read_copy().keys.get(id).cloned()
    }

    /// Record of a tenant that operators named.
    pub(crate) fn tenant(&self, name: &str) -> Option<TenantRecord> {
        self.read_copy().tenants.get(name).cloned()
    }

    /// Records of all tenants that operators named.
    pub(crate) fn tenants(&self) -> Vec<TenantRecord> {
        self.read_copy().tenants.values().cloned().collect()
    }

    /// Core-seconds that a tenant has used, as measured last; 0 without a quota of core-seconds.
    pub(crate) fn core_seconds(&self, tenant: &str) -> u64 {
        let used = self.used.read().unwrap_or_else(PoisonError::into_inner);
        used.get(tenant).copied().unwrap_or_default()
    }

    /// Tenant of a subject, and its role.
    pub(super) fn find_member(&self, subject: &Subject) -> Result<(String, Role), Rejection> {
        let known = self.read_copy();
        let member = subject.member();
        let listed = subject.members().into_iter().find_map(|name| known.members.get(&name));
        let name = listed.cloned().unwrap_or_else(|| subject.tenant());
        match known.tenants.get(&name) {
            Some(tenant) if !tenant.enabled => Err(refused(format!("tenant {name} is disabled"))),
            Some(tenant) => Ok((name, tenant.position.into())),
            None if subject.may_be_unlisted() && self.policy == TenantPolicy::Open => Ok((name, Role::User)),
            None if subject
                .ambiguous()
                .is_some_and(|bare| known.members.contains_key(&bare)) =>
            {
                Err(refused(format!(
                    "{member} belongs to no tenant of this site; a member without an issuer counts for none, as the site has \
                     several: an operator names this one with `hotlease admin tenant set TENANT --member '{member}'`"
                )))
            }
            None => Err(refused(format!(
                "{member} belongs to no tenant of this site; an operator names it with `hotlease admin tenant`"
            ))),
        }
    }

    /// Names of members without an issuer. At a site with several issuers, these names admit no caller.
    pub(crate) fn members_without_issuer(&self) -> Vec<String> {
        let known = self.read_copy();
        let bare = known.members.keys().filter(|member| is_bare(member));
        bare.cloned().collect()
    }

    /// Quota of a tenant, and the tenant's use of core-seconds.
    pub(crate) fn allowance(&self, tenant: &str) -> Allowance {
        let known = self.read_copy();
        Allowance {
            quota: known.tenants.get(tenant).map(|tenant| tenant.quota).unwrap_or_default(),
            core_seconds_used: self.core_seconds(tenant),
        }
    }

    /// Fails if a tenant was removed or disabled after its key or session was made.
    pub(super) fn check_enabled(&self, tenant: &str) -> Result<(), Rejection> {
        match self.read_copy().tenants.get(tenant) {
            Some(tenant) if tenant.enabled => Ok(()),
            Some(_) => Err(refused(format!("tenant {tenant} is disabled"))),
            None => Err(refused(format!("there is no tenant {tenant} any more"))),
        }
    }
}
