//! Manager, agents and client, each on a host of its own. Tests print that they are skipped where hosts cannot be made.

use crate::remote::LONG;
use hotlease_net::Address;
use hotlease_tests::hosts::Hosts;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, SOON, program};
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, RemoteClient, agent, agent_in};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::Grant;
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::{EndReason, Rejection};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Delay that a busy machine may add to a bound.
const GRACE: Duration = Duration::from_millis(2500);

/// A manager on `m`, agents on `a` and `b`, a client on `c`.
struct Cluster {
    client: RemoteClient,
    agents: Vec<Daemon>,
    manager: ManagerDaemon,
    authority: Authority,
    hosts: Hosts,
}

impl Cluster {
    fn new() -> Option<Self> {
        let hosts = Hosts::new(&["m", "a", "b", "c"])?;
        let authority = Authority::new();
        let manager = ManagerDaemon::start(hosts.host("m"), &authority);
        let at = |name| agent(hosts.host(name), &authority, &manager.address, &["alice"], &[]);
        let agents = vec![at("a"), at("b")];
        let client = RemoteClient::new(hosts.host("c"), &authority.client("alice"), &manager.address);
        let cluster = Self {
            client,
            agents,
            manager,
            authority,
            hosts,
        };
        until_true("both agents register", LIMIT, || cluster.serving() == 2);
        Some(cluster)
    }

    fn serving(&self) -> usize {
        self.in_state("serving")
    }

    fn in_state(&self, state: &str) -> usize {
        let Ok(agents) = self.client.agents() else {
            return 0;
        };
        agents.iter().filter(|agent| agent.state == state).count()
    }

    /// A lease on each agent, ordered by the names of the hosts.
    fn lease_on_each(&self, ttl: Duration) -> [Grant; 2] {
        let grants = [(); 2].map(|()| self.client.acquire(ttl).expect("a lease"));
        let host = |name: &str| self.hosts.host(name).address().to_string();
        let on = |name: &str| {
            let found = grants.iter().find(|grant| grant.endpoint.contains(&host(name)));
            found.expect("a lease on each").clone()
        };
        [on("a"), on("b")]
    }

    fn free_cores(&self) -> u32 {
        let agents = self.client.agents().expect("listed");
        agents.iter().map(|agent| agent.free_cores).sum()
    }
}

#[test]
fn leases_on_two_hosts_serve_a_client_on_a_third() {
    let Some(cluster) = Cluster::new() else { return };
    let bytes = std::fs::read(library("echo")).expect("a library");
    let mut sessions = Vec::new();
    for grant in cluster.lease_on_each(LONG) {
        let mut session = cluster.client.attached(&grant);
        session.load(&bytes).expect("loaded");
        let (connection, _) = session.worker(0).expect("a connection");
        sessions.push((session, connection));
    }
    match cluster.client.acquire(LONG) {
        Err(Rejection::NoCapacity { offered: 1, .. }) => {}
        other => panic!("both cores are leased: {other:?}"),
    }
    for (session, connection) in sessions {
        session.release();
        assert!(connection.is_closed(LIMIT), "the worker is gone");
    }
    until_true("both cores are free", LIMIT, || cluster.free_cores() == 2);
}

#[test]
fn commands_reach_a_site_and_say_why_they_do_not() {
    let Some(cluster) = Cluster::new() else { return };
    let host = cluster.hosts.host("c");
    let alice = cluster.authority.client("alice");
    let hotlease = |manager: &str, arguments: &[&str]| {
        let mut command = host.command(&program("hotlease"));
        command.args(arguments).env("HOTLEASE_MANAGER", manager);
        let output = command
            .env("HOTLEASE_IDENTITY", &alice)
            .output()
            .expect("hotlease runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let manager = cluster.manager.address.to_string();
    for command in ["agents", "ps", "leases", "functions", "doctor"] {
        let (status, text) = hotlease(&manager, &[command]);
        assert_eq!(status, Some(0), "{command}: {text}");
    }
    let (_, agents) = hotlease(&manager, &["agents"]);
    assert_eq!(agents.matches("serving").count(), 2, "{agents}");
    for (manager, expected, words) in [
        ("https://no-such-host.invalid:1", 3, "does not resolve"),
        ("https://10.77.0.1:9", 3, "cannot reach the manager"),
        ("https://10.77.0.99:9", 3, "cannot reach the manager"),
        ("manager:7070", 2, "https://HOST:PORT"),
    ] {
        let (status, text) = hotlease(manager, &["agents"]);
        assert!(
            status == Some(expected) && text.contains(words),
            "{manager}: {status:?}: {text}"
        );
    }
}

#[test]
fn cores_of_a_vanished_client_are_free_within_its_time_to_live_and_a_second() {
    let Some(cluster) = Cluster::new() else { return };
    let ttl = Duration::from_secs(2);
    let near = RemoteClient::new(
        cluster.hosts.host("m"),
        &cluster.authority.client("alice"),
        &cluster.manager.address,
    );
    let grants = cluster.lease_on_each(ttl);
    let mut sessions: Vec<_> = grants.iter().map(|grant| cluster.client.attached(grant)).collect();
    for session in &mut sessions {
        let renewed = session.ask(&SessionRequest::Renew, &[]);
        assert!(matches!(renewed, Ok(SessionReply::Renewed { .. })), "{renewed:?}");
    }
    cluster.hosts.host("c").link(false);
    let start = Instant::now();
    let free = || {
        let agents = near.agents().expect("listed");
        agents.iter().map(|agent| agent.free_cores).sum::<u32>() == 2
    };
    until_true("the cores are free", LIMIT, free);
    let took = start.elapsed();
    eprintln!("cores were free after {took:?}, time to live {ttl:?}");
    assert!(took < ttl + Duration::from_secs(1) + GRACE, "free after {took:?}");
    // The client notices as well, though no message can reach it.
    for session in &sessions {
        while session.next(LIMIT).is_ok() {}
    }
    let noticed = start.elapsed();
    assert!(
        noticed < ttl + Duration::from_secs(1) + GRACE,
        "noticed after {noticed:?}"
    );
    // Back on the network, the client's requests work as before.
    cluster.hosts.host("c").link(true);
    let known = || cluster.client.agents().is_ok_and(|agents| agents.len() == 2);
    until_true("the client reaches the manager", LIMIT, known);
    let grant = cluster.client.acquire(ttl).expect("a lease");
    cluster.client.attached(&grant).release();
}

#[test]
fn vanished_agent_is_suspected_soon_and_comes_back() {
    let Some(cluster) = Cluster::new() else { return };
    let ttl = Duration::from_secs(2);
    let [on_a, on_b] = cluster.lease_on_each(ttl);
    let session_a = cluster.client.attached(&on_a);
    let mut session_b = cluster.client.attached(&on_b);
    cluster.hosts.host("a").link(false);
    let start = Instant::now();
    let mut suspected = None;
    let mut lost = None;
    while suspected.is_none() || lost.is_none() {
        let renewed = session_b.ask(&SessionRequest::Renew, &[]);
        assert!(
            matches!(renewed, Ok(SessionReply::Renewed { .. })),
            "the other session is disturbed: {renewed:?}"
        );
        if suspected.is_none() && cluster.in_state("suspected") == 1 {
            suspected = Some(start.elapsed());
        }
        if lost.is_none()
            && session_a
                .next(Duration::from_millis(20))
                .is_err_and(|no| no.is_closed())
        {
            lost = Some(start.elapsed());
        }
        assert!(start.elapsed() < LIMIT, "suspected {suspected:?}, lost {lost:?}");
    }
    eprintln!("suspected after {suspected:?}, session lost after {lost:?}, time to live {ttl:?}");
    // A listing asks the silent agent for up to a second before it is answered.
    let listing = Duration::from_secs(1);
    assert!(suspected.is_some_and(|took| took < Duration::from_millis(1500) + listing + GRACE));
    assert!(lost.is_some_and(|took| took < ttl + Duration::from_secs(1) + GRACE));
    session_b.release();
    cluster.hosts.host("a").link(true);
    let back = until_true("it is heard again", LIMIT, || cluster.serving() == 2);
    eprintln!("heard again after {back:?}");
    assert!(back < Duration::from_secs(8) + GRACE, "heard again after {back:?}");
    // The agent ended its lease by itself: no core is lost.
    until_true("its core is free", LIMIT, || cluster.free_cores() == 2);
    for grant in cluster.lease_on_each(LONG) {
        cluster.client.attached(&grant).release();
    }
}

#[test]
fn short_gap_in_the_network_ends_nothing() {
    let Some(cluster) = Cluster::new() else { return };
    let [on_a, on_b] = cluster.lease_on_each(Duration::from_secs(5));
    let mut session = cluster.client.attached(&on_a);
    let other = cluster.client.attached(&on_b);
    cluster.hosts.host("a").link(false);
    std::thread::sleep(Duration::from_secs(1)); // the gap
    cluster.hosts.host("a").link(true);
    let renewed = session.ask(&SessionRequest::Renew, &[]);
    assert!(matches!(renewed, Ok(SessionReply::Renewed { .. })), "{renewed:?}");
    session.release();
    other.release();
}

#[test]
fn agent_that_only_hears_nothing_is_suspected_as_well() {
    let Some(cluster) = Cluster::new() else { return };
    let host = cluster.hosts.host("b");
    if !host.deaf(true) {
        return;
    }
    until_true("it is suspected", LIMIT, || cluster.in_state("suspected") == 1);
    let grant = cluster.client.acquire(LONG).expect("the other agent has a core");
    assert!(grant.endpoint.contains(&cluster.hosts.host("a").address().to_string()));
    cluster.client.attached(&grant).release();
    host.deaf(false);
    until_true("it is heard again", LIMIT, || cluster.serving() == 2);
}

#[test]
fn killed_agent_comes_back_as_another_boot() {
    let Some(mut cluster) = Cluster::new() else { return };
    let [on_a, on_b] = cluster.lease_on_each(LONG);
    let session = cluster.client.attached(&on_a);
    let bystander = cluster.client.attached(&on_b);
    let before = cluster.client.agents().expect("listed");
    let start = Instant::now();
    cluster.agents[0].kill();
    while session.next(LIMIT).is_ok() {}
    assert!(start.elapsed() < SOON, "its end is a closed connection");
    let host = cluster.hosts.host("a");
    cluster.agents[0] = agent(host, &cluster.authority, &cluster.manager.address, &["alice"], &[]);
    let again = |before: &[hotlease_wire::grpc::AgentInfo]| {
        let now = cluster.client.agents().expect("listed");
        let boots: BTreeSet<_> = now.iter().map(|agent| agent.boot.clone()).collect();
        let known = before.iter().filter(|agent| boots.contains(&agent.boot)).count();
        now.len() == 2 && known == 1 && now.iter().all(|agent| agent.state == "serving")
    };
    until_true("it registers as another boot", LIMIT, || again(&before));
    let stale = Grant {
        endpoint: cluster.agents[0].serving["endpoint"]
            .as_str()
            .expect("it serves")
            .into(),
        ..on_a
    };
    let mut session = cluster.client.session(&stale).expect("let in");
    match session.attach(&stale.token) {
        Ok(SessionReply::Refused(Rejection::BadToken)) => {}
        other => panic!("a token of the boot before: {other:?}"),
    }
    let leases = cluster.client.leases().expect("listed");
    let ended = leases.iter().find(|lease| lease.id == stale.lease).expect("remembered");
    assert_eq!(ended.state, "ended", "its leases died with it");
    bystander.release();
}

#[test]
fn two_agents_on_one_node_are_two_agents() {
    let Some(cluster) = Cluster::new() else { return };
    let second = agent_in(
        cluster.hosts.host("a"),
        "second",
        &cluster.authority,
        &cluster.manager.address,
        &["alice"],
        &[],
    );
    until_true("it registers beside the other", LIMIT, || cluster.serving() == 3);
    let grants = [(); 3].map(|()| cluster.client.acquire(LONG).expect("a lease on each"));
    let agents: BTreeSet<_> = grants.iter().map(|grant| grant.agent.clone()).collect();
    assert_eq!(agents.len(), 3);
    for grant in &grants {
        cluster.client.attached(grant).release();
    }
    drop(second);
    until_true("it says goodbye", LIMIT, || cluster.serving() == 2);
}

#[test]
fn large_library_crosses_a_slow_and_lossy_link_while_its_lease_lives_on() {
    let Some(cluster) = Cluster::new() else { return };
    cluster.hosts.host("c").limit(Some(30));
    let ttl = Duration::from_secs(2);
    let grant = cluster.client.acquire(ttl).expect("a lease");
    let mut session = cluster.client.attached(&grant);
    // Packets are lost from here on: if the first packet of a connection is lost, the retry comes a second later, which
    // would be half of the lease's life.
    for agent in ["a", "b"] {
        cluster.hosts.host(agent).lose(1);
    }
    // These bytes are no library, but sending them takes more than twice as long as the lease lives without renewal.
    let bytes: Vec<u8> = (0..(20 << 20)).map(|position: u32| (position / 11) as u8).collect();
    let start = Instant::now();
    match session.load(&bytes) {
        Err(Rejection::CodeRejected { .. }) => {}
        other => panic!("{} bytes arrived as something else: {other:?}", bytes.len()),
    }
    let took = start.elapsed();
    eprintln!("20 MiB over 30 Mbit/s took {took:?}");
    assert!(took > 2 * ttl, "the link was not slow: {took:?}");
    session.release();
}

#[test]
fn site_of_ipv6_addresses_works_alike() {
    let Some(hosts) = Hosts::new(&["m", "a", "c"]) else {
        return;
    };
    let authority = Authority::new();
    let manager = ManagerDaemon::start_at(hosts.host("m"), &authority, hosts.host("m").address_v6());
    let host = hosts.host("a");
    let port = 7071;
    let listen = format!("[{}]:{port}", host.address_v6());
    let identity = authority
        .daemon(hotlease_net::CertificateRole::Agent, host)
        .display()
        .to_string();
    let at = manager.address.to_string();
    let core = format!("{},", hotlease_tests::process::cores()[0]);
    let arguments = [
        "agent",
        "--manager",
        &at,
        "--listen",
        &listen,
        "--identity",
        &identity,
        "--tenant",
        "alice",
        "--cores",
        &core,
        "--pool",
        "0",
    ];
    let agent = Daemon::start(host, &arguments);
    let endpoint: Address = agent.serving["endpoint"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("an address with brackets");
    assert_eq!(endpoint.to_string(), format!("https://{listen}"));
    let client = RemoteClient::new(hosts.host("c"), &authority.client("alice"), &manager.address);
    until_true("the agent registers", LIMIT, || {
        client.agents().is_ok_and(|agents| agents.len() == 1)
    });
    let grant = client.acquire(LONG).expect("a lease");
    let mut session = client.attached(&grant);
    session.worker(0).expect("a connection");
    session.release();
}

#[test]
fn drained_host_ends_its_leases_only_and_an_order_reaches_a_host_that_was_cut_off() {
    let Some(cluster) = Cluster::new() else { return };
    let operator = |arguments: &[&str]| -> serde_json::Value {
        let host = cluster.hosts.host("m");
        let mut command = host.command(&program("hotlease"));
        command.args(["--json", "admin", "node"]).args(arguments);
        command.env("HOTLEASE_RUNTIME_DIR", host.runtime_dir());
        let output = command.output().expect("hotlease runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let at = |name: &str| cluster.hosts.host(name).address().to_string();
    let [on_a, on_b] = cluster.lease_on_each(LONG);
    let mut sessions = [&on_a, &on_b].map(|grant| cluster.client.attached(grant));
    let drained = operator(&["drain", &at("a"), "--within", "300ms", "--wait"]);
    assert_eq!(drained["agent"], on_a.agent.as_str(), "it is named by its address");
    match sessions[0].event(LIMIT).0 {
        SessionReply::LeaseEnded {
            reason: EndReason::Reclaimed,
            ..
        } => {}
        other => panic!("told something else: {other:?}"),
    }
    match sessions[1].ask(&SessionRequest::Renew, &[]) {
        Ok(SessionReply::Renewed { .. }) => {}
        other => panic!("the other host's lease goes on: {other:?}"),
    }
    let refusal = cluster.client.acquire(LONG).expect_err("only a full host is left");
    assert!(matches!(refusal, Rejection::NoCapacity { .. }), "{refusal}");

    // From here on the host hears nothing from the manager.
    cluster.hosts.host("b").link(false);
    let removed = operator(&["remove", &on_b.agent]);
    assert_eq!(removed["done"], false, "it cannot have heard of it: {removed}");
    operator(&["resume", &on_a.agent, "--wait"]);
    let grant = cluster.client.acquire(LONG).expect("the resumed host takes leases");
    assert_eq!(
        grant.agent, on_a.agent,
        "no client is sent to a host that is to be removed"
    );
    cluster.hosts.host("b").link(true);
    until_true("the host is told when it is back", LIMIT, || {
        cluster.in_state("drained") == 1 && cluster.serving() == 1
    });
}
