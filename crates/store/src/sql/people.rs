//! Tenants, their members and keys in tables.

use super::queries::read_rows;
use super::values::{int, int_or_null, upsert};
use super::{Sql, Value};
use crate::tenants::MEMBERS_MAX;
use crate::{KeyRecord, Limits, PutCondition, StoreError, TenantRecord};
use hotlease_lease::manager::Quota;
use std::collections::BTreeMap;
use std::str::FromStr;

fn parsed<T: FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Disk {
        what: "read",
        why: "a role in it makes no sense".into(),
    })
}

pub(crate) fn tenants(sql: &mut dyn Sql) -> Result<Vec<TenantRecord>, StoreError> {
    let statement = "SELECT name, enabled, position, cores, leases, memory_bytes, gpus, core_seconds, \
                     window_hours FROM tenants";
    let tenants = read_rows(sql, statement, &[], |row| {
        Ok(TenantRecord {
            name: row.text()?,
            enabled: row.number::<i64>()? != 0,
            position: parsed(&row.text()?)?,
            quota: Quota {
                cores: row.number_or_null()?,
                leases: row.number_or_null()?,
                memory_bytes: row.number_or_null()?,
                gpus: row.number_or_null()?,
                core_seconds: row.number_or_null()?,
            },
            window_hours: row.number_or_null()?,
            members: Vec::new(),
        })
    })?;
    let named = tenants.into_iter().map(|tenant| (tenant.name.clone(), tenant));
    let mut tenants: BTreeMap<String, TenantRecord> = named.collect();
    let members = "SELECT member, tenant FROM members";
    for (member, tenant) in read_rows(sql, members, &[], |row| Ok((row.text()?, row.text()?)))? {
        if let Some(tenant) = tenants.get_mut(&tenant) {
            tenant.members.push(member);
        }
    }
    // Sorted here, because databases sort text by their locale.
    let sorted = tenants.into_values().map(|mut tenant| {
        tenant.members.sort();
        tenant
    });
    Ok(sorted.collect())
}

pub(crate) fn put_tenant(
    sql: &mut dyn Sql,
    limits: &Limits,
    (tenant, condition): (&TenantRecord, PutCondition),
) -> Result<bool, StoreError> {
    let known = tenants(sql)?;
    if !condition.is_met(known.iter().any(|known| known.name == tenant.name)) {
        return Ok(false);
    }
    check_tenant(&known, limits, tenant)?;
    let name = Value::Text(&tenant.name);
    let quota = &tenant.quota;
    let columns = [
        ("name", name),
        ("enabled", Value::Int(tenant.enabled.into())),
        ("position", Value::Text(tenant.position.name())),
        ("cores", int_or_null(quota.cores)),
        ("leases", int_or_null(quota.leases)),
        ("memory_bytes", int_or_null(quota.memory_bytes)),
        ("gpus", int_or_null(quota.gpus)),
        ("core_seconds", int_or_null(quota.core_seconds)),
        ("window_hours", int_or_null(tenant.window_hours.map(Into::into))),
    ];
    upsert(sql, "tenants", 1, &columns)?;
    sql.run("DELETE FROM members WHERE tenant = $1", &[name])?;
    for member in &tenant.members {
        let statement = "INSERT INTO members (member, tenant) VALUES ($1, $2)";
        sql.run(statement, &[Value::Text(member), name])?;
    }
    Ok(true)
}

/// Checks that there is room for the tenant, and that none of its members belongs to another tenant.
pub(crate) fn check_tenant(known: &[TenantRecord], limits: &Limits, tenant: &TenantRecord) -> Result<(), StoreError> {
    let is_new = known.iter().all(|known| known.name != tenant.name);
    if is_new && known.len() >= limits.tenants {
        return Err(StoreError::Full {
            what: "tenants",
            limit: limits.tenants,
        });
    }
    if tenant.members.len() > MEMBERS_MAX {
        return Err(StoreError::Full {
            what: "members of a tenant",
            limit: MEMBERS_MAX,
        });
    }
    for other in known.iter().filter(|known| known.name != tenant.name) {
        if let Some(member) = tenant.members.iter().find(|member| other.members.contains(member)) {
            return Err(StoreError::MemberOfOther {
                member: member.clone(),
                tenant: other.name.clone(),
            });
        }
    }
    Ok(())
}

pub(crate) fn remove_tenant(sql: &mut dyn Sql, name: &str) -> Result<bool, StoreError> {
    let known = tenants(sql)?.iter().any(|tenant| tenant.name == name);
    for statement in [
        "DELETE FROM keys WHERE tenant = $1",
        "DELETE FROM members WHERE tenant = $1",
        "DELETE FROM tenants WHERE name = $1",
    ] {
        sql.run(statement, &[Value::Text(name)])?;
    }
    Ok(known)
}

pub(crate) fn keys(sql: &mut dyn Sql) -> Result<Vec<KeyRecord>, StoreError> {
    let statement = "SELECT id, tenant, position, hash, label, created_ms, expires_ms, revoked_ms, used_ms \
                     FROM keys";
    let mut keys = read_rows(sql, statement, &[], |row| {
        Ok(KeyRecord {
            id: row.text()?,
            tenant: row.text()?,
            position: parsed(&row.text()?)?,
            hash: row.text()?,
            label: row.text()?,
            created_ms: row.number()?,
            expires_ms: row.number_or_null()?,
            revoked_ms: row.number_or_null()?,
            used_ms: row.number_or_null()?,
        })
    })?;
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(keys)
}

/// Checks that there is room for the key, and that its tenant exists.
pub(crate) fn check_key(
    tenants: &[TenantRecord],
    keys: &[KeyRecord],
    limits: &Limits,
    key: &KeyRecord,
) -> Result<(), StoreError> {
    if tenants.iter().all(|tenant| tenant.name != key.tenant) {
        return Err(StoreError::NoTenant {
            name: key.tenant.clone(),
        });
    }
    if keys.len() >= limits.keys && keys.iter().all(|known| known.id != key.id) {
        return Err(StoreError::Full {
            what: "keys",
            limit: limits.keys,
        });
    }
    Ok(())
}

pub(crate) fn put_key(sql: &mut dyn Sql, limits: &Limits, key: &KeyRecord) -> Result<(), StoreError> {
    check_key(&tenants(sql)?, &keys(sql)?, limits, key)?;
    let statement = "INSERT INTO keys (id, tenant, position, hash, label, created_ms, expires_ms, revoked_ms, \
                     used_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
                     ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, position = excluded.position, \
                     hash = excluded.hash, label = excluded.label, created_ms = excluded.created_ms, \
                     expires_ms = excluded.expires_ms, \
                     revoked_ms = COALESCE(keys.revoked_ms, excluded.revoked_ms), used_ms = excluded.used_ms";
    let values = [
        Value::Text(&key.id),
        Value::Text(&key.tenant),
        Value::Text(key.position.name()),
        Value::Text(&key.hash),
        Value::Text(&key.label),
        int(key.created_ms),
        int_or_null(key.expires_ms),
        int_or_null(key.revoked_ms),
        int_or_null(key.used_ms),
    ];
    sql.run(statement, &values)
}
