//! Who is refused, by whom, and what that says. After each refusal everybody else is served as before.

use crate::remote::{LONG, Scene};
use hotlease_net::authority::{Request, init, issue};
use hotlease_net::peer::describe;
use hotlease_net::{Identity, IdentityError, NetError, Role};
use hotlease_tests::hosts::Host;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon, RemoteClient, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, HeartbeatRequest, RegisterRequest, ReleaseRequest, ShutdownRequest,
};
use hotlease_wire::session::SessionReply;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use time::OffsetDateTime;

fn client(scene: &Scene, identity: &Path) -> RemoteClient {
    RemoteClient::new(&scene.here, identity, &scene.manager.address)
}

/// What the manager says to a client with this identity.
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
    // We do not know the manager's authority, so that is said first.
    says(
        &refused(&scene, &foreign.client("alice")),
        &["manager", "another site's authority"],
    );
    // With the right authority to trust and a foreign certificate, it is the manager who refuses.
    let mixed = foreign.client("alice");
    fs::copy(scene.authority.directory().join("ca.pem"), mixed.join("ca.pem")).expect("copied");
    says(
        &refused(&scene, &mixed),
        &["does not let us in", "another site's authority"],
    );
    // So does the agent.
    let grant = scene.client.acquire(LONG).expect("a lease");
    let error = client(&scene, &mixed).session(&grant).err().expect("refused");
    assert!(matches!(error, NetError::NotLetIn { .. }), "{error}");
    scene.client.attached(&grant).release();
    scene.still_serves();
}

#[test]
fn expired_certificate_is_refused_on_either_side() {
    let scene = Scene::new();
    let month_ago = OffsetDateTime::now_utc() - time::Duration::days(31);
    let expired = scene.authority.issue(&Request {
        tenant: Some("alice".into()),
        begins: month_ago,
        ..Request::new(Role::Client)
    });
    says(
        &refused(&scene, &expired),
        &["our certificate has expired", "hotlease identity issue"],
    );
    let host = Host::here();
    let manager = scene.authority.issue(&Request {
        hosts: vec!["127.0.0.1".into()],
        begins: month_ago,
        ..Request::new(Role::Manager)
    });
    let identity = manager.display().to_string();
    let old = Daemon::start(
        &host,
        &["manager", "--listen", "127.0.0.1:0", "--identity", &identity],
    );
    let address = format!("https://{}", old.serving["listen"].as_str().expect("it listens"));
    let address = address.parse().expect("an address");
    let alice = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &address);
    let refusal = alice.acquire(LONG).expect_err("nobody trusts it");
    says(&refusal.to_string(), &["its certificate has expired"]);
    scene.still_serves();
}

#[test]
fn certificate_for_other_hosts_is_not_trusted() {
    let scene = Scene::new();
    let host = Host::here();
    let manager = scene.authority.issue(&Request {
        hosts: vec!["manager.example".into()],
        ..Request::new(Role::Manager)
    });
    let identity = manager.display().to_string();
    let other = Daemon::start(
        &host,
        &["manager", "--listen", "127.0.0.1:0", "--identity", &identity],
    );
    let address = format!(
        "https://{}",
        other.serving["listen"].as_str().expect("it listens")
    );
    let alice = RemoteClient::new(
        &scene.here,
        &scene.authority.client("alice"),
        &address.parse().expect("an address"),
    );
    let refusal = alice.acquire(LONG).expect_err("it is not for this address");
    says(&refusal.to_string(), &["cannot prove who it is", "--host"]);
}

#[test]
fn each_role_gets_what_is_its_own_and_nothing_else() {
    let scene = Scene::new();
    let not_permitted = |what: &str, refusal: Refusal| {
        assert!(
            matches!(refusal, Refusal::NotPermitted { .. }),
            "{what}: {refusal}"
        );
    };
    // An agent takes no leases, and a client is no agent and no operator.
    let node = scene.authority.daemon(Role::Agent, &scene.here);
    let as_agent = client(&scene, &node);
    not_permitted("an agent's lease", as_agent.acquire(LONG).expect_err("refused"));
    not_permitted("an agent's listing", as_agent.leases().expect_err("refused"));
    let register = scene.client.ask(|mut manager| async move {
        let agent = Some(AgentInfo::default());
        manager.register(RegisterRequest { agent }).await
    });
    not_permitted("a client registers", register.expect_err("refused"));
    let heartbeat = scene
        .client
        .ask(|mut manager| async move { manager.heartbeat(HeartbeatRequest::default()).await });
    not_permitted("a client reports", heartbeat.expect_err("refused"));
    let identities = [scene.authority.client("alice"), node.clone()];
    let manager = scene.authority.daemon(Role::Manager, &scene.here);
    for identity in identities.iter().chain([&manager]) {
        let shutdown = client(&scene, identity)
            .ask(|mut manager| async move { manager.shutdown(ShutdownRequest {}).await });
        not_permitted("a stranger stops the manager", shutdown.expect_err("refused"));
    }
    // Only managers ask agents for grants; only clients have sessions.
    for identity in &identities {
        let asked = client(&scene, identity);
        let (address, own) = (scene.endpoint(), asked.identity());
        let granted = asked.block_on(async move {
            let channel = hotlease_net::grpc::channel(address, own, Role::Agent);
            let request = AcquireRequest {
                workers: 1,
                slots_per_worker: 1,
                tenant: "alice".into(),
                ..AcquireRequest::default()
            };
            let mut agent = AgentClient::new(channel);
            let ended = agent
                .end_lease(ReleaseRequest::default())
                .await
                .expect_err("refused");
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
    // A manager where an agent should be, and the other way round.
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
        Err(refusal @ Refusal::TenantNotServed { .. }) => {
            says(&refusal.to_string(), &["bob", "alice", "--tenant"]);
        }
        other => panic!("an agent that serves alice: {other:?}"),
    }
    // With her token he is still not her.
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = bob.session(&grant).expect("a session of his own");
    match session.attach(&grant.token) {
        Ok(SessionReply::Refused(Refusal::WrongTenant)) => {}
        other => panic!("bob attached to alice's lease: {other:?}"),
    }
    assert!(
        bob.leases().expect("his own").is_empty(),
        "bob sees alice's lease"
    );
    let lease = grant.lease.clone();
    let released = bob.ask(|mut manager| async move {
        let lease = ReleaseRequest {
            lease,
            tenant: "alice".into(),
            reason: "revoked".into(),
        };
        manager.release(lease).await
    });
    assert!(matches!(released, Err(Refusal::WrongTenant)), "{released:?}");
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
fn nobody_speaks_for_an_agent_of_another_certificate() {
    let scene = Scene::new();
    let victim = scene.client.agents().expect("listed").remove(0);
    let elsewhere = scene.authority.issue(&Request {
        hosts: vec!["10.9.9.9".into()],
        ..Request::new(Role::Agent)
    });
    let mallory = client(&scene, &elsewhere);
    let forged = AgentInfo {
        address: "https://10.9.9.9:1".into(),
        endpoint: "https://10.9.9.9:1".into(),
        ..victim.clone()
    };
    let agent = Some(forged.clone());
    let registered =
        mallory.ask(|mut manager| async move { manager.register(RegisterRequest { agent }).await });
    assert!(
        matches!(registered, Err(Refusal::NotPermitted { .. })),
        "{registered:?}"
    );
    // Nor sends it the manager to a host, or a socket, that is not its own.
    for address in [victim.address.as_str(), "/run/agent.sock"] {
        let agent = Some(AgentInfo {
            id: "0a".repeat(8),
            address: address.into(),
            ..forged.clone()
        });
        let registered =
            mallory.ask(|mut manager| async move { manager.register(RegisterRequest { agent }).await });
        assert!(
            matches!(registered, Err(Refusal::BadRequest { .. })),
            "{registered:?}"
        );
    }
    let heartbeat = HeartbeatRequest {
        agent: Some(AgentInfo {
            state: "gone".into(),
            ..forged
        }),
        leases: vec![],
    };
    let reported = mallory.ask(|mut manager| async move { manager.heartbeat(heartbeat).await });
    assert!(
        matches!(reported, Err(Refusal::NotPermitted { .. })),
        "{reported:?}"
    );
    assert_eq!(scene.serving(), 1, "the agent was taken away");
    scene.still_serves();
}

#[test]
fn folder_whose_key_others_can_read_is_refused() {
    let authority = Authority::new();
    let identity = authority.client("alice");
    let key = identity.join("key.pem");
    assert_eq!(
        fs::metadata(&key).expect("a key").permissions().mode() & 0o777,
        0o600
    );
    Identity::load(&identity).expect("as issued");
    for path in [&key, &identity] {
        let before = fs::metadata(path).expect("there").permissions();
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("opened");
        let error = Identity::load(&identity).expect_err("others can read it");
        assert!(matches!(error, IdentityError::Unsafe { .. }), "{error}");
        fs::set_permissions(path, before).expect("closed again");
    }
    // A key of another certificate, and files that are no PEM.
    fs::copy(authority.client("bob").join("key.pem"), &key).expect("copied");
    assert!(
        Identity::load(&identity).is_err(),
        "the key is not the certificate's"
    );
    fs::write(&key, "nothing").expect("written");
    assert!(matches!(
        Identity::load(&identity),
        Err(IdentityError::Malformed { .. })
    ));
}

#[test]
fn nobody_is_issued_what_could_be_mistaken() {
    let authority = Authority::new();
    let out = authority.directory().join("out");
    let client = |tenant: &str| Request {
        tenant: Some(tenant.into()),
        ..Request::new(Role::Client)
    };
    let refused = [
        Request::new(Role::Client),
        Request::new(Role::Agent),
        Request::new(Role::Manager),
        client("uid:0"),
        client("alice/../bob"),
        client(""),
        Request {
            days: 0,
            ..client("alice")
        },
        Request {
            hosts: vec!["m".into()],
            tenant: Some("alice".into()),
            ..Request::new(Role::Manager)
        },
    ];
    for request in refused {
        assert!(
            issue(&authority.directory(), &request, &out).is_err(),
            "issued {request:?}"
        );
        assert!(!out.exists(), "something was written for {request:?}");
    }
    assert!(
        init(&authority.directory()).is_err(),
        "an authority was overwritten"
    );
    issue(&authority.directory(), &client("alice"), &out).expect("well-formed");
    assert!(
        issue(&authority.directory(), &client("bob"), &out).is_err(),
        "overwritten"
    );
}

#[test]
fn commands_make_an_authority_issue_and_show() {
    let host = Host::here();
    let path = |name: &str| host.directory().join(name).display().to_string();
    let hotlease = |arguments: &[&str]| {
        let mut command = host.command(&program("hotlease"));
        let output = command
            .arg("--json")
            .arg("identity")
            .args(arguments)
            .output()
            .expect("it runs");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        (output.status.success(), shown, words)
    };
    let (authority, out) = (path("authority"), path("node"));
    let issue = ["issue", "--dir", &authority, "--role", "agent", "--out", &out];
    let (done, _, words) = hotlease(&[&issue[..], &["--host", "node1"]].concat());
    assert!(
        !done && words.contains("hotlease identity init"),
        "without an authority: {words}"
    );
    let (done, _, words) = hotlease(&["init", "--dir", &authority]);
    assert!(done, "{words}");
    let mode = fs::metadata(&authority).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others can enter the authority's folder");
    let (done, _, words) = hotlease(&issue);
    assert!(
        !done && words.contains("--host"),
        "an agent that nobody can reach: {words}"
    );
    let hosts = [
        "--host", "node1", "--host", "fd00::1", "--tenant", "alice", "--days", "2",
    ];
    let (done, issued, words) = hotlease(&[&issue[..], &hosts].concat());
    assert!(done, "{words}");
    let (done, shown, words) = hotlease(&["show", "--identity", &out]);
    assert!(done, "{words}");
    assert_eq!(shown, issued, "what was issued is what is there");
    assert_eq!(shown["role"], "agent");
    assert_eq!(shown["tenant"], "alice");
    assert_eq!(shown["hosts"], serde_json::json!(["node1", "fd00::1"]));
    assert_eq!(shown["valid"], true);
    let lasts = |field: &str| shown[field].as_i64().expect("a time");
    let days = (lasts("not_after") - lasts("not_before")) as f64 / 86400.0;
    assert!((2.0..2.1).contains(&days), "it lasts {days} days");
}

#[test]
fn replaced_certificate_counts_for_the_next_connection() {
    let scene = Scene::new();
    // What a rotation does: issue a new folder, and put its files in the old one's place.
    let identity = scene.agent.serving["endpoint"]
        .as_str()
        .expect("serves")
        .to_owned();
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
    // Another's certificate in its place changes nobody's identity.
    let bob = scene.authority.client("bob");
    std::thread::sleep(Duration::from_millis(20));
    for file in ["key.pem", "cert.pem"] {
        fs::copy(bob.join(file), alice.join(file)).expect("copied");
    }
    assert_eq!(rotated.identity().peer().name, "alice");
}

#[test]
fn certificates_of_any_bytes_are_read_without_harm() {
    let authority = Authority::new();
    let pem = fs::read_to_string(authority.client("alice").join("cert.pem")).expect("a certificate");
    let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = base64(&text);
    assert!(describe(&der).is_ok(), "as issued");
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..100_000 {
        let mut bytes = der.clone();
        for _ in 0..random.random_range(1..8) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.next_u32() as u8;
        }
        bytes.truncate(random.random_range(0..=bytes.len()));
        // Any answer will do, but one.
        if let Ok(described) = describe(&bytes) {
            assert!(!described.peer.name.is_empty());
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(digit(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
