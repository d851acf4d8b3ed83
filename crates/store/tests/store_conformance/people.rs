//! Tests of tenants, members and keys.

use crate::fixture::{limits, stores};
use hotlease_lease::manager::Quota;
use hotlease_store::{KeyRecord, Position, PutCondition, StoreError, TenantRecord};

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
fn the_last_update_of_a_tenant_counts() {
    for scene in stores(limits()) {
        let store = &scene.store;
        assert_eq!(store.tenants().unwrap(), [], "{}", scene.name);
        store
            .put_tenant(tenant("bob", &["uid:2", "cert:bob"]), PutCondition::Always)
            .unwrap();
        store
            .put_tenant(tenant("alice", &["uid:1"]), PutCondition::Always)
            .unwrap();
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
        store.put_tenant(changed.clone(), PutCondition::Always).unwrap();
        assert_eq!(store.tenants().unwrap()[1], changed, "{}", scene.name);
    }
}

#[test]
fn a_tenant_is_written_on_the_condition_that_it_is_there_or_is_not() {
    for scene in stores(limits()) {
        let store = &scene.store;
        let put = |member, condition| store.put_tenant(tenant("alice", &[member]), condition).unwrap();
        let members = || store.tenants().unwrap().into_iter().flat_map(|tenant| tenant.members);
        assert!(!put("uid:1", PutCondition::Known), "{}", scene.name);
        assert_eq!(members().count(), 0, "{}", scene.name);
        assert!(put("uid:1", PutCondition::New), "{}", scene.name);
        assert!(!put("uid:2", PutCondition::New), "{}", scene.name);
        assert_eq!(members().collect::<Vec<_>>(), ["uid:1"], "{}", scene.name);
        assert!(put("uid:3", PutCondition::Known), "{}", scene.name);
        assert_eq!(members().collect::<Vec<_>>(), ["uid:3"], "{}", scene.name);
        // If several threads add the tenant at the same time, one succeeds.
        store.remove_tenant("alice").unwrap();
        let added = std::thread::scope(|scope| {
            let adders = [0; 4].map(|_| scope.spawn(|| put("uid:1", PutCondition::New)));
            adders.map(|adder| adder.join().unwrap())
        });
        assert_eq!(added.iter().filter(|added| **added).count(), 1, "{}", scene.name);
    }
}

#[test]
fn no_user_belongs_to_two_tenants() {
    for scene in stores(limits()) {
        let store = &scene.store;
        store
            .put_tenant(tenant("alice", &["uid:1"]), PutCondition::Always)
            .unwrap();
        let taken = store.put_tenant(tenant("bob", &["uid:2", "uid:1"]), PutCondition::Always);
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
        store
            .put_tenant(tenant("alice", &["uid:1", "uid:2"]), PutCondition::Always)
            .unwrap();
    }
}

#[test]
fn tenants_and_keys_are_bounded() {
    for scene in stores(limits()) {
        let store = &scene.store;
        for name in ["a", "b", "c"] {
            store.put_tenant(tenant(name, &[]), PutCondition::Always).unwrap();
        }
        let full = store.put_tenant(tenant("d", &[]), PutCondition::Always);
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        store.put_tenant(tenant("a", &["uid:1"]), PutCondition::Always).unwrap();
        store.put_key(key("1", "a")).unwrap();
        store.put_key(key("2", "a")).unwrap();
        let full = store.put_key(key("3", "a"));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        let many: Vec<String> = (0..=hotlease_store::MEMBERS_MAX)
            .map(|uid| format!("uid:{uid}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let full = store.put_tenant(tenant("a", &many), PutCondition::Always);
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
        store.put_tenant(tenant("alice", &[]), PutCondition::Always).unwrap();
        store.put_key(key("1", "alice")).unwrap();
        assert_eq!(store.keys().unwrap(), [key("1", "alice")], "{}", scene.name);
        let revoked = KeyRecord {
            revoked_ms: Some(9),
            ..key("1", "alice")
        };
        store.put_key(revoked.clone()).unwrap();
        // A record with a time of use, which was read before the key was revoked.
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
