//! Leases and sessions over TLS. Manager and agent have different runtime directories, so only TLS connects them, and
//! the client with both.

use hotlease_net::Address;
use hotlease_tests::hosts::Host;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, SOON};
use hotlease_tests::process::Process;
use hotlease_tests::session::NoAnswer;
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, RemoteClient, agent};
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::connection::ConnectionRequest;
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::{CodeHash, RegionId};
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::{Cause, EndReason, Rejection};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

pub const LONG: Duration = Duration::from_secs(600);

/// A manager, an agent and a client of one tenant; each has only the addresses of the others.
pub struct Scene {
    pub client: RemoteClient,
    pub agent: Daemon,
    pub manager: ManagerDaemon,
    pub authority: Authority,
    pub here: Host,
    agent_host: Host,
}

impl Scene {
    pub fn new() -> Self {
        let (here, agent_host) = (Host::here(), Host::here());
        let authority = Authority::new();
        let manager = ManagerDaemon::start(&here, &authority);
        let agent = agent(&agent_host, &authority, &manager.address, &["alice"], &[]);
        let client = RemoteClient::new(&here, &authority.client("alice"), &manager.address);
        let scene = Self {
            client,
            agent,
            manager,
            authority,
            here,
            agent_host,
        };
        until_true("the agent registers", LIMIT, || scene.serving() == 1);
        scene
    }

    pub fn serving(&self) -> usize {
        let agents = self.client.agents().expect("listed");
        agents.iter().filter(|agent| agent.state == "serving").count()
    }

    pub fn free_cores(&self) -> u32 {
        self.client
            .agents()
            .expect("listed")
            .iter()
            .map(|agent| agent.free_cores)
            .sum()
    }

    pub fn endpoint(&self) -> Address {
        let endpoint = self.agent.serving["endpoint"].as_str().expect("it serves other hosts");
        endpoint.parse().expect("an address")
    }

    /// Checks that the client's calls go on, whichever peer was refused before.
    pub fn still_serves(&self) {
        let grant = self.client.acquire(LONG).expect("a lease");
        self.client.attached(&grant).release();
    }
}

/// The one worker process that serves a lease of the agent.
pub fn worker_of(scene: &Scene, grant: &Grant) -> Process {
    let list = scene
        .client
        .ask(|mut manager| async move { manager.list_workers(hotlease_wire::grpc::ListRequest::default()).await });
    let workers = list.expect("listed").workers;
    let worker = workers.iter().find(|worker| worker.lease == grant.lease);
    Process::of(worker.expect("it is listed").pid as i32).expect("it runs")
}

#[test]
fn remote_client_takes_a_lease_loads_a_library_and_gives_it_back() {
    let scene = Scene::new();
    let grant = scene.client.acquire(LONG).expect("a lease");
    assert_eq!(grant.endpoint, scene.endpoint().to_string());
    let mut session = scene.client.attached(&grant);
    let bytes = std::fs::read(library("echo")).expect("the library");
    let unknown = SessionRequest::Load {
        hash: CodeHash::of(&bytes),
        size_bytes: bytes.len() as u64,
    };
    match session.ask(&unknown, &[]) {
        Ok(SessionReply::Refused(Rejection::NeedCode(_))) => {}
        other => panic!("the node cannot have it yet: {other:?}"),
    }
    session.load(&bytes).expect("the bytes travel");
    let leases = scene.client.leases().expect("listed");
    assert_eq!(leases[0].tenant, "alice", "the certificate names the tenant");
    let (connection, epoch) = session.worker(0).expect("a connection to the worker");
    assert_eq!(epoch.0, grant.epoch);
    // A message without descriptors reaches the worker and its answer comes back.
    let answer = connection.done(&ConnectionRequest::Deregister { region: RegionId(7) }, &[]);
    assert!(answer.is_err(), "the worker knows no region 7");
    session.release();
    until_true("the core is free", LIMIT, || scene.free_cores() == 1);
}

#[test]
fn large_library_arrives_whole() {
    let scene = Scene::new();
    // These bytes are no library: they arrive, are hashed, and are then rejected.
    let bytes: Vec<u8> = (0..(48 << 20)).map(|position: u32| (position / 7) as u8).collect();
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = scene.client.attached(&grant);
    match session.load(&bytes) {
        Err(Rejection::CodeRejected { .. }) => {}
        other => panic!("{} bytes arrived as something else: {other:?}", bytes.len()),
    }
}

#[test]
fn channel_to_a_worker_on_another_host_is_refused_with_the_reason() {
    let scene = Scene::new();
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = scene.client.attached(&grant);
    let (connection, _) = session.worker(0).expect("a connection");
    let shape = hotlease_tests::connection::SHAPE;
    match connection.open(0, shape, shape) {
        Some(Err(refusal @ Rejection::NeedsSharedMemory { .. })) => {
            assert!(refusal.to_string().contains("another host"), "{refusal}");
        }
        Some(Err(other)) => panic!("refused for something else: {other}"),
        Some(Ok(_)) => panic!("shared memory cannot have travelled"),
        None => panic!("the connection was closed instead"),
    }
    // The connection goes on, and answers stay in the order of the requests.
    let memory = hotlease_fabric::memory::Memory::create("test", 4096).expect("memory");
    for _ in 0..20 {
        let refused = connection.register(1, &memory);
        assert!(
            matches!(refused, Err(Rejection::NeedsSharedMemory { .. })),
            "{refused:?}"
        );
        let unknown = connection.done(&ConnectionRequest::Deregister { region: RegionId(1) }, &[]);
        assert!(
            unknown.is_err() && !matches!(unknown, Err(Rejection::NeedsSharedMemory { .. })),
            "the worker's own answer, not ours: {unknown:?}"
        );
    }
    session.release();
}

#[test]
fn death_of_a_worker_reaches_the_remote_client_with_its_cause() {
    let scene = Scene::new();
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = scene.client.attached(&grant);
    let (connection, epoch) = session.worker(0).expect("a connection");
    worker_of(&scene, &grant).signal(Signal::SIGKILL);
    let start = Instant::now();
    assert!(connection.is_closed(LIMIT), "the worker's end is the connection's end");
    match session.event(LIMIT).0 {
        SessionReply::WorkerDied {
            cause: Cause::Signal { signal: 9, .. },
            epoch: died,
            ..
        } => assert_eq!(died, epoch),
        other => panic!("told something else: {other:?}"),
    }
    assert!(start.elapsed() < SOON, "told after {:?}", start.elapsed());
    let (_, next) = session.worker(0).expect("another worker in its place");
    assert!(next > epoch);
    session.release();
}

#[test]
fn cores_are_free_as_soon_as_a_remote_client_is_gone() {
    let scene = Scene::new();
    let client = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &scene.manager.address);
    let grant = client.acquire(LONG).expect("a lease");
    let session = client.attached(&grant);
    // A listing shows the last report of an agent that takes too long to answer.
    until_true("the core is taken", LIMIT, || scene.free_cores() == 0);
    client.vanish();
    let took = until_true("the core is free", LIMIT, || scene.free_cores() == 1);
    drop(session);
    let leases = scene.client.leases().expect("listed");
    let ended = leases.iter().find(|lease| lease.id == grant.lease).expect("remembered");
    assert_eq!(ended.end_reason, EndReason::ClientGone.to_string());
    assert!(took < SOON, "free after {took:?}");
}

#[test]
fn remote_lease_that_is_not_renewed_expires_on_both_sides() {
    let scene = Scene::new();
    // Long enough to attach within it.
    let ttl = Duration::from_secs(3);
    let grant = scene.client.acquire(ttl).expect("a lease");
    let mut session = scene.client.attached(&grant);
    match session.event(LIMIT) {
        (
            SessionReply::LeaseEnded {
                reason: EndReason::Expired,
                ..
            },
            took,
        ) => {
            assert!(took < ttl + SOON, "told after {took:?}");
        }
        other => panic!("told something else: {other:?}"),
    }
    assert!(
        matches!(session.next(LIMIT), Err(NoAnswer::Closed)),
        "the session is over"
    );
    until_true("the core is free", LIMIT, || scene.free_cores() == 1);
}

#[test]
fn remote_client_is_told_when_its_agent_stops() {
    let mut scene = Scene::new();
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = scene.client.attached(&grant);
    scene.agent.process().signal(Signal::SIGINT);
    match session.event(LIMIT).0 {
        SessionReply::LeaseEnded {
            reason: EndReason::AgentStopping,
            ..
        } => {}
        other => panic!("told something else: {other:?}"),
    }
    until_true("its goodbye is heard", LIMIT, || {
        scene.client.agents().expect("listed").is_empty()
    });
    // After its goodbye the agent still closes its state, which the next run needs.
    scene.agent.ended(LIMIT);
    // The same directory and the same agent in another boot: the old token opens nothing.
    let manager = &scene.manager.address;
    scene.agent = agent(&scene.agent_host, &scene.authority, manager, &["alice"], &[]);
    until_true("it registers again", LIMIT, || scene.serving() == 1);
    let stale = Grant {
        endpoint: scene.endpoint().to_string(),
        ..grant
    };
    let mut session = scene.client.session(&stale).expect("let in");
    match session.attach(&stale.token) {
        Ok(SessionReply::Refused(Rejection::BadToken)) => {}
        other => panic!("a token of another boot: {other:?}"),
    }
    scene.still_serves();
}

#[test]
fn client_on_the_agents_own_machine_uses_shared_memory() {
    let scene = Scene::new();
    // Host and client share the network here and thus the abstract sockets, so the client counts as on the agent's
    // machine: `run` needs a channel, and only shared memory gives it one.
    let identity = scene.authority.client("alice");
    let echo = library("echo");
    let output = scene
        .here
        .command(&hotlease_tests::platform::program("hotlease"))
        .args(["run", "--manager", &scene.manager.address.to_string()])
        .arg("--identity")
        .arg(&identity)
        .arg(&echo)
        .arg("echo")
        .output()
        .expect("hotlease runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

#[test]
fn manager_that_starts_again_knows_its_agents_soon() {
    let scene = Scene::new();
    let grant = scene.client.acquire(LONG).expect("a lease");
    let mut session = scene.client.attached(&grant);
    let Scene {
        mut manager,
        authority,
        here,
        agent,
        client,
        agent_host,
    } = scene;
    manager.daemon.kill();
    match session.ask(&SessionRequest::Renew, &[]) {
        Ok(SessionReply::Renewed { .. }) => {}
        other => panic!("a session needs no manager: {other:?}"),
    }
    let identity = authority.daemon(hotlease_net::CertificateRole::Manager, &here);
    let listen = manager.address.authority();
    let identity = identity.display().to_string();
    let again = Daemon::start(&here, &["manager", "--listen", &listen, "--identity", &identity]);
    let known = || client.agents().ok().filter(|agents| agents.len() == 1);
    let (_, took) = until("the agent registers again", LIMIT, known);
    assert!(took < Duration::from_secs(5) + SOON, "after {took:?}");
    let info = client.leases().expect("listed");
    assert!(info.iter().any(|lease| lease.id == grant.lease), "its lease goes on");
    session.release();
    drop((agent, again, agent_host));
}
