//! Tests of tenants, members and keys.

use crate::fixture::{limits, stores};
use hotlease_lease::manager::Quota;
use hotlease_store::{KeyRecord, Position, StoreError, TenantRecord};

fn tenant(name: &str, members: &[&str]) -> TenantRecord {
    TenantRecord {
        name: name.into(),
        enabled: true,
        position: Position::Hook,
        quota: Quota {
            cores: Some(8),
            leases: None,
            memory_bytes: Some(1 << 40),
            gpus: Some(0),
            core_seconds: Some(3600),
        },
        window_hours: Some(24),
        members: members.iter().map(|member| (*member).into()).collect(),
    }
}

fn key(id: &str, tenant: &str) -> KeyRecord {
    KeyRecord {
        id: id.into(),
        tenant: tenant.into(),
        position: Position::Operator,
        hash: "ab".repeat(32),
        label: "laptop".into(),
        created_ms: 5,
        expires_ms: None,
        revoked_ms: None,
        used_ms: None,
    }
}

#[test]
fn a_tenant_is_what_was_last_said_of_it() {
    for scene in stores(limits()) {
        let store = &scene.store;
        assert_eq!(store.tenants().unwrap(), [], "{}", scene.name);
        store.put_tenant(tenant("bob", &["uid:2", "cert:bob"])).unwrap();
        store.put_tenant(tenant("alice", &["uid:1"])).unwrap();
        let sorted = tenant("bob", &["cert:bob", "uid:2"]);
        assert_eq!(
            store.tenants().unwrap(),
            [tenant("alice", &["uid:1"]), sorted],
            "{}",
            scene.name
        );
        let changed = TenantRecord {
            enabled: false,
            position: Position::User,
            quota: Quota::default(),
            window_hours: None,
            ..tenant("bob", &["uid:3"])
        };
        store.put_tenant(changed.clone()).unwrap();
        assert_eq!(store.tenants().unwrap()[1], changed, "{}", scene.name);
    }
}

#[test]
fn no_user_belongs_to_two_tenants() {
    for scene in stores(limits()) {
        let store = &scene.store;
        store.put_tenant(tenant("alice", &["uid:1"])).unwrap();
        let taken = store.put_tenant(tenant("bob", &["uid:2", "uid:1"]));
        assert!(
            matches!(taken, Err(StoreError::MemberOfOther { .. })),
            "{}: {taken:?}",
            scene.name
        );
        assert_eq!(
            store.tenants().unwrap().len(),
            1,
            "{}: half of it was written",
            scene.name
        );
        // A tenant may keep its own members.
        store.put_tenant(tenant("alice", &["uid:1", "uid:2"])).unwrap();
    }
}

#[test]
fn tenants_and_keys_are_bounded() {
    for scene in stores(limits()) {
        let store = &scene.store;
        for name in ["a", "b", "c"] {
            store.put_tenant(tenant(name, &[])).unwrap();
        }
        let full = store.put_tenant(tenant("d", &[]));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        store.put_tenant(tenant("a", &["uid:1"])).unwrap();
        store.put_key(key("1", "a")).unwrap();
        store.put_key(key("2", "a")).unwrap();
        let full = store.put_key(key("3", "a"));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        let many: Vec<String> = (0..=hotlease_store::MEMBERS_MAX)
            .map(|uid| format!("uid:{uid}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let full = store.put_tenant(tenant("a", &many));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
    }
}

#[test]
fn a_key_belongs_to_a_tenant_goes_with_it_and_stays_revoked() {
    for scene in stores(limits()) {
        let store = &scene.store;
        let of_no_tenant = store.put_key(key("1", "alice"));
        assert!(
            matches!(of_no_tenant, Err(StoreError::NoTenant { .. })),
            "{}: {of_no_tenant:?}",
            scene.name
        );
        store.put_tenant(tenant("alice", &[])).unwrap();
        store.put_key(key("1", "alice")).unwrap();
        assert_eq!(store.keys().unwrap(), [key("1", "alice")], "{}", scene.name);
        let revoked = KeyRecord {
            revoked_ms: Some(9),
            ..key("1", "alice")
        };
        store.put_key(revoked.clone()).unwrap();
        // The record with the use was read before the key was revoked.
        let used = KeyRecord {
            used_ms: Some(10),
            ..key("1", "alice")
        };
        store.put_key(used.clone()).unwrap();
        let expected = KeyRecord {
            used_ms: used.used_ms,
            ..revoked
        };
        assert_eq!(
            store.keys().unwrap(),
            [expected],
            "{}: a revoked key came back",
            scene.name
        );
        assert!(store.remove_tenant("alice").unwrap(), "{}", scene.name);
        assert!(!store.remove_tenant("alice").unwrap(), "{}", scene.name);
        assert_eq!(store.keys().unwrap(), [], "{}", scene.name);
    }
}
