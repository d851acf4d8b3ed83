//! Identities that are refused: which party refuses them, and what it says. After each refusal all other clients are
//! served as before.

use crate::remote::{LONG, Scene};
use hotlease_net::authority::IdentityRequest;
use hotlease_net::{CertificateRole, NetError};
use hotlease_tests::hosts::Host;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon, RemoteClient, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, HeartbeatRequest, RegisterRequest, ReleaseRequest, ShutdownRequest,
};
use hotlease_wire::session::SessionReply;
use std::fs;
use std::path::Path;
use std::time::Duration;
use time::OffsetDateTime;

fn client(scene: &Scene, identity: &Path) -> RemoteClient {
    RemoteClient::new(&scene.here, identity, &scene.manager.address)
}

/// The manager's answer to a client with this identity.
fn refused(scene: &Scene, identity: &Path) -> String {
    match client(scene, identity).acquire(LONG) {
        Err(refusal) => refusal.to_string(),
        Ok(grant) => panic!("{} got the lease {}", identity.display(), grant.lease),
    }
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn certificate_of_another_authority_is_refused() {
    let scene = Scene::new();
    let foreign = Authority::new();
    // The client does not trust the manager's authority, so the client's own error comes first.
    says(
        &refused(&scene, &foreign.client("alice")),
        &["manager", "another site's authority"],
    );
    // With the right authority to trust and a foreign certificate, the manager refuses.
    let mixed = foreign.client("alice");
    fs::copy(scene.authority.directory().join("ca.pem"), mixed.join("ca.pem")).expect("copied");
    says(
        &refused(&scene, &mixed),
        &["refuses our connection", "another site's authority"],
    );
    // The agent refuses as well.
    let grant = scene.client.acquire(LONG).expect("a lease");
    let error = client(&scene, &mixed).session(&grant).err().expect("refused");
    assert!(matches!(error, NetError::NotAdmitted { .. }), "{error}");
    scene.client.attached(&grant).release();
    scene.still_serves();
}

#[test]
fn expired_certificate_is_refused_on_either_side() {
    let scene = Scene::new();
    let month_ago = OffsetDateTime::now_utc() - time::Duration::days(31);
    let expired = scene.authority.issue(&IdentityRequest {
        tenant: Some("alice".into()),
        begins: month_ago,
        ..IdentityRequest::new(CertificateRole::Client)
    });
    says(
        &refused(&scene, &expired),
        &["our certificate has expired", "hotlease identity issue"],
    );
    let host = Host::here();
    let manager = scene.authority.issue(&IdentityRequest {
        hosts: vec!["127.0.0.1".into()],
        begins: month_ago,
        ..IdentityRequest::new(CertificateRole::Manager)
    });
    let identity = manager.display().to_string();
    let old = Daemon::start(&host, &["manager", "--listen", "127.0.0.1:0", "--identity", &identity]);
    let address = format!("https://{}", old.serving["listen"].as_str().expect("it listens"));
    let address = address.parse().expect("an address");
    let alice = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &address);
    let refusal = alice.acquire(LONG).expect_err("no peer trusts it");
    says(&refusal.to_string(), &["its certificate has expired"]);
    scene.still_serves();
}

#[test]
fn certificate_for_other_hosts_is_not_trusted() {
    let scene = Scene::new();
    let host = Host::here();
    let manager = scene.authority.issue(&IdentityRequest {
        hosts: vec!["manager.example".into()],
        ..IdentityRequest::new(CertificateRole::Manager)
    });
    let identity = manager.display().to_string();
    let other = Daemon::start(&host, &["manager", "--listen", "127.0.0.1:0", "--identity", &identity]);
    let address = format!("https://{}", other.serving["listen"].as_str().expect("it listens"));
    let alice = RemoteClient::new(
        &scene.here,
        &scene.authority.client("alice"),
        &address.parse().expect("an address"),
    );
    let refusal = alice.acquire(LONG).expect_err("it is not for this address");
    says(&refusal.to_string(), &["cannot prove who it is", "--host"]);
}

#[test]
fn each_role_receives_only_its_own_identity() {
    let scene = Scene::new();
    let not_permitted = |what: &str, refusal: Rejection| {
        assert!(matches!(refusal, Rejection::NotPermitted { .. }), "{what}: {refusal}");
    };
    // An agent may not take leases, and a client may not act as an agent or an operator.
    let node = scene.authority.daemon(CertificateRole::Agent, &scene.here);
    let as_agent = client(&scene, &node);
    not_permitted("an agent's lease", as_agent.acquire(LONG).expect_err("refused"));
    not_permitted("an agent's listing", as_agent.leases().expect_err("refused"));
    let register = scene.client.ask(|mut manager| async move {
        let agent = Some(AgentInfo::default());
        manager.register(RegisterRequest { agent, proof: 0 }).await
    });
    not_permitted("a client registers", register.expect_err("refused"));
    let heartbeat = scene
        .client
        .ask(|mut manager| async move { manager.heartbeat(HeartbeatRequest::default()).await });
    not_permitted("a client reports", heartbeat.expect_err("refused"));
    let identities = [scene.authority.client("alice"), node.clone()];
    let manager = scene.authority.daemon(CertificateRole::Manager, &scene.here);
    for identity in identities.iter().chain([&manager]) {
        let shutdown =
            client(&scene, identity).ask(|mut manager| async move { manager.shutdown(ShutdownRequest {}).await });
        not_permitted("a stranger stops the manager", shutdown.expect_err("refused"));
    }
    // Only managers may ask agents for grants; only clients may have sessions.
    for identity in &identities {
        let asked = client(&scene, identity);
        let (address, own) = (scene.endpoint(), asked.identity());
        let granted = asked.block_on(async move {
            let channel = hotlease_net::grpc::channel(address, own, CertificateRole::Agent);
            let request = AcquireRequest {
                workers: 1,
                slots_per_worker: 1,
                tenant: "alice".into(),
                ..AcquireRequest::default()
            };
            let mut agent = AgentClient::new(channel);
            let ended = agent.end_lease(ReleaseRequest::default()).await.expect_err("refused");
            not_permitted("a stranger ends a lease", hotlease_net::grpc::refusal(ended));
            agent.grant(request).await.map_err(hotlease_net::grpc::refusal)
        });
        not_permitted("a stranger's grant", granted.expect_err("refused"));
    }
    let grant = scene.client.acquire(LONG).expect("a lease");
    for identity in [&node, &manager] {
        match client(&scene, identity).session(&grant).err() {
            Some(NetError::Refused(refusal)) => not_permitted("a daemon's session", refusal),
            other => panic!("a daemon got a session: {other:?}"),
        }
    }
    // A manager where an agent should be, and an agent where a manager should be.
    let swapped = RemoteClient::new(&scene.here, &identities[0], &scene.endpoint());
    says(
        &swapped.acquire(LONG).expect_err("refused").to_string(),
        &["is of role agent, not manager"],
    );
    scene.client.attached(&grant).release();
    scene.still_serves();
}

#[test]
fn tenants_are_kept_apart() {
    let scene = Scene::new();
    let bob = client(&scene, &scene.authority.client("bob"));
    match bob.acquire(LONG) {
        Err(refusal @ Rejection::TenantNotServed { .. }) => {
            says(&refusal.to_string(), &["bob", "alice", "--tenant"]);
        }
        other => panic!("an agent that serves alice: {other:?}"),
    }
    // With alice's token bob is still not alice.
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = bob.session(&grant).expect("a session of his own");
    match session.attach(&grant.token) {
        Ok(SessionReply::Refused(Rejection::WrongTenant)) => {}
        other => panic!("bob attached to alice's lease: {other:?}"),
    }
    assert!(bob.leases().expect("his own").is_empty(), "bob sees alice's lease");
    let lease = grant.lease.clone();
    let released = bob.ask(|mut manager| async move {
        let lease = ReleaseRequest {
            lease,
            tenant: "alice".into(),
            reason: "revoked".into(),
        };
        manager.release(lease).await
    });
    assert!(matches!(released, Err(Rejection::WrongTenant)), "{released:?}");
    scene.client.attached(&grant).release();
}

#[test]
fn agent_with_a_clients_certificate_or_a_foreign_one_does_not_register() {
    let scene = Scene::new();
    let host = Host::here();
    let identity = scene.authority.client("alice").display().to_string();
    let manager = scene.manager.address.to_string();
    let output = host
        .command(&program("hotlease"))
        .args([
            "agent",
            "--listen",
            "127.0.0.1:0",
            "--manager",
            &manager,
            "--identity",
            &identity,
        ])
        .output()
        .expect("hotlease runs");
    assert!(!output.status.success());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    says(&words, &["identity of a client", "role agent"]);

    let foreign = agent(&host, &Authority::new(), &scene.manager.address, &["alice"], &[]);
    until_true("it says why it cannot register", LIMIT, || {
        foreign.log().contains("another site's authority")
    });
    assert_eq!(scene.serving(), 1, "a foreign agent is registered");
    scene.still_serves();
}

#[test]
fn no_peer_speaks_for_an_agent_of_another_certificate() {
    let scene = Scene::new();
    let victim = scene.client.agents().expect("listed").remove(0);
    let elsewhere = scene.authority.issue(&IdentityRequest {
        hosts: vec!["10.9.9.9".into()],
        ..IdentityRequest::new(CertificateRole::Agent)
    });
    let mallory = client(&scene, &elsewhere);
    let forged = AgentInfo {
        address: "https://10.9.9.9:1".into(),
        endpoint: "https://10.9.9.9:1".into(),
        ..victim.clone()
    };
    let agent = Some(forged.clone());
    let registered =
        mallory.ask(|mut manager| async move { manager.register(RegisterRequest { agent, proof: 0 }).await });
    assert!(
        matches!(registered, Err(Rejection::NotPermitted { .. })),
        "{registered:?}"
    );
    // The manager may not send the agent to a host, or a socket, that is not its own.
    for address in [victim.address.as_str(), "/run/agent.sock"] {
        let agent = Some(AgentInfo {
            id: "0a".repeat(8),
            address: address.into(),
            ..forged.clone()
        });
        let registered =
            mallory.ask(|mut manager| async move { manager.register(RegisterRequest { agent, proof: 0 }).await });
        assert!(
            matches!(registered, Err(Rejection::BadRequest { .. })),
            "{registered:?}"
        );
    }
    let heartbeat = HeartbeatRequest {
        agent: Some(AgentInfo {
            state: "gone".into(),
            ..forged
        }),
        leases: vec![],
        ..Default::default()
    };
    let reported = mallory.ask(|mut manager| async move { manager.heartbeat(heartbeat).await });
    assert!(matches!(reported, Err(Rejection::NotPermitted { .. })), "{reported:?}");
    assert_eq!(scene.serving(), 1, "the agent was taken away");
    scene.still_serves();
}

#[test]
fn replaced_certificate_counts_for_the_next_connection() {
    let scene = Scene::new();
    // A rotation issues a new folder, and replaces the old folder's files by the new ones.
    let identity = scene.agent.serving["endpoint"].as_str().expect("serves").to_owned();
    let alice = scene.authority.client("alice");
    let rotated = client(&scene, &alice);
    assert_eq!(rotated.leases().expect("served").len(), 0);
    let before = rotated.identity().described();
    let new = scene.authority.client("alice");
    std::thread::sleep(Duration::from_millis(20)); // file times have a granularity
    for file in ["key.pem", "cert.pem"] {
        fs::copy(new.join(file), alice.join(file)).expect("copied");
    }
    let after = rotated.identity().described();
    assert_ne!(
        before.peer.fingerprint, after.peer.fingerprint,
        "the old one is still used"
    );
    let grant = rotated.acquire(LONG).expect("a lease");
    assert_eq!(grant.endpoint, identity);
    rotated.attached(&grant).release();
    // A certificate of another client in its place does not change the identity of the running client.
    let bob = scene.authority.client("bob");
    std::thread::sleep(Duration::from_millis(20));
    for file in ["key.pem", "cert.pem"] {
        fs::copy(bob.join(file), alice.join(file)).expect("copied");
    }
    assert_eq!(rotated.identity().peer().name, "alice");
}
