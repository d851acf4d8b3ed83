//! Tenants and keys in memory.

use super::MemoryStore;
use crate::sql::people::{check_key, check_tenant};
use crate::{KeyRecord, PutCondition, StoreError, TenantRecord, TenantStore};
use std::collections::BTreeMap;

/// Tenants by name, and keys by id.
#[derive(Default)]
pub(super) struct PeopleTables {
    tenants: BTreeMap<String, TenantRecord>,
    keys: BTreeMap<String, KeyRecord>,
}

impl PeopleTables {
    fn tenants(&self) -> Vec<TenantRecord> {
        self.tenants.values().cloned().collect()
    }

    fn keys(&self) -> Vec<KeyRecord> {
        self.keys.values().cloned().collect()
    }
}

impl TenantStore for MemoryStore {
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        Ok(self.state().people.tenants())
    }

    fn put_tenant(&self, mut tenant: TenantRecord, condition: PutCondition) -> Result<bool, StoreError> {
        let people = &mut self.state().people;
        if !condition.is_met(people.tenants.contains_key(&tenant.name)) {
            return Ok(false);
        }
        check_tenant(&people.tenants(), &self.limits, &tenant)?;
        tenant.members.sort();
        people.tenants.insert(tenant.name.clone(), tenant);
        Ok(true)
    }

    fn remove_tenant(&self, name: &str) -> Result<bool, StoreError> {
        let people = &mut self.state().people;
        people.keys.retain(|_, key| key.tenant != name);
        Ok(people.tenants.remove(name).is_some())
    }

    fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        Ok(self.state().people.keys())
    }

    fn put_key(&self, mut key: KeyRecord) -> Result<(), StoreError> {
        let people = &mut self.state().people;
        check_key(&people.tenants(), &people.keys(), &self.limits, &key)?;
        let known = people.keys.get(&key.id);
        key.revoked_ms = known.and_then(|known| known.revoked_ms).or(key.revoked_ms);
        people.keys.insert(key.id.clone(), key);
        Ok(())
    }
}
