//! Tests of an agent whose worker program is not a real worker: they cover everything except serving.

use hotlease_agent::{AGENT_SOCKET, Agent, AgentConfig, AgentError, CoreChoice, SESSION_SOCKET};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_fabric::socket::Socket;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::{AcquireRequest, CoresWanted, Grant, ListRequest, NodeWish, OfferWanted, ReleaseRequest};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::{Cause, EndReason, Rejection};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

const LIMIT: Duration = Duration::from_secs(20);

struct Scene {
    directory: RuntimeDir,
    _parent: TempDir,
    agent: Agent,
    client: AgentClient<Channel>,
}

async fn scene(worker: &str) -> Scene {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = RuntimeDir::at(&directory.path().join("hotlease")).expect("private");
    let agent = Agent::start(config(dir.path(), worker)).await.expect("started");
    let address = format!("unix:{}", dir.join(AGENT_SOCKET).display());
    let channel = Endpoint::from_shared(address).expect("an address").connect_lazy();
    Scene {
        directory: dir,
        _parent: directory,
        agent,
        client: AgentClient::new(channel),
    }
}

fn config(directory: &Path, worker: &str) -> AgentConfig {
    AgentConfig {
        manager_socket: None,
        worker_binary: Some(worker.into()),
        cores: CoreChoice::Count(1),
        pool: Some(0),
        ..AgentConfig::new(directory)
    }
}

fn one_core() -> AcquireRequest {
    AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        tenant: format!("uid:{}", nix::unistd::geteuid()),
        ..AcquireRequest::default()
    }
}

impl Scene {
    async fn grant(&mut self) -> Result<Grant, Rejection> {
        let granted = self.client.grant(one_core()).await;
        granted.map(tonic::Response::into_inner).map_err(Rejection::from)
    }

    async fn free_cores(&mut self) -> u32 {
        let status = self.client.status(ListRequest::default()).await.expect("served");
        status.into_inner().agent.expect("itself").free_cores
    }

    /// Sends requests on a new session; returns the agent's answers until it closes the session.
    async fn answers(&self, requests: Vec<Vec<u8>>) -> Vec<SessionReply> {
        let path = self.directory.join(SESSION_SOCKET);
        let asked = tokio::task::spawn_blocking(move || {
            // An agent that stops may be gone already: then there are no answers.
            let Ok(socket) = Socket::connect(&path) else {
                return Vec::new();
            };
            socket.set_receive_timeout(Some(LIMIT)).expect("set");
            for request in requests {
                // The agent may have closed the session already; the answers below show that.
                let _ = socket.send_bytes(&request, &[]);
            }
            let mut replies = Vec::new();
            while let Some((reply, _)) = socket.receive::<SessionReply>().expect("an answer in time") {
                replies.push(reply);
            }
            replies
        });
        asked.await.expect("answered")
    }
}

fn attach(token: Vec<u8>) -> Vec<u8> {
    hotlease_wire::encode(&SessionRequest::Attach {
        version: PROTOCOL_VERSION,
        token,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_refused_lets_a_drained_node_grant_nothing() {
    let mut scene = scene("/bin/false").await;
    let impossible = |number, drained| NodeWish {
        number,
        drained,
        offer: Some(OfferWanted {
            choice: CoresWanted::CoresCount.into(),
            count: 8000,
            ..OfferWanted::default()
        }),
        ..NodeWish::default()
    };
    let drained = NodeWish {
        number: 1,
        drained: true,
        ..NodeWish::default()
    };
    scene.client.order(drained).await.expect("it can be drained");
    let refused = scene.client.order(impossible(2, false)).await.map_err(Rejection::from);
    assert!(matches!(refused, Err(Rejection::BadRequest { .. })), "{refused:?}");
    let refusal = scene.grant().await.expect_err("it is still drained");
    assert!(matches!(refusal, Rejection::Unavailable { .. }), "{refusal}");
    // The agent can be drained even if this run of it cannot carry out an earlier order.
    let resumed = NodeWish {
        number: 3,
        ..NodeWish::default()
    };
    scene.client.order(resumed).await.expect("it can serve");
    scene
        .client
        .order(impossible(4, true))
        .await
        .expect("it can be drained");
    scene.grant().await.expect_err("it is drained again");
    scene.agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_start_is_told_to_the_client_and_its_core_is_free_again() {
    let mut scene = scene("/bin/false").await;
    let grant = scene.grant().await.expect("a free core");
    let replies = scene.answers(vec![attach(grant.token)]).await;
    let [.., SessionReply::Refused(Rejection::WorkerDied { cause, .. })] = &replies[..] else {
        panic!("{replies:?}");
    };
    let Cause::NotStarted { why, lasts } = cause else {
        panic!("{cause:?}");
    };
    assert!(
        why.contains("status 1") && *lasts,
        "the next one would do the same: {why}"
    );
    scene.grant().await.expect("the core is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_core_is_granted_once_and_freed_by_the_end_of_its_lease() {
    // The program lives, and never reports that it is ready.
    let mut scene = scene("/bin/cat").await;
    let grant = scene.grant().await.expect("a free core");
    assert_eq!(
        scene.grant().await,
        Err(Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 1
        })
    );
    let end = |tenant: &str| ReleaseRequest {
        lease: grant.lease.clone(),
        tenant: tenant.into(),
        reason: "revoked".into(),
    };
    let stranger = scene.client.end_lease(end("uid:4294967294")).await;
    assert_eq!(stranger.map_err(Rejection::from).err(), Some(Rejection::WrongTenant));
    let begun = Instant::now();
    let ended = scene.client.end_lease(end("")).await.expect("ended").into_inner();
    // Less than the time that the worker has to become ready.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(ended.usage.expect("known").allocated_ns > 0);
    assert_eq!(scene.free_cores().await, 1);
    let late = scene.answers(vec![attach(grant.token.clone())]).await;
    let over = Rejection::LeaseEnded(EndReason::Revoked);
    assert_eq!(late, [SessionReply::Refused(over.clone())]);
    let again = scene.client.end_lease(end("")).await;
    assert_eq!(again.map_err(Rejection::from).err(), Some(over));
}

type Expected<'a> = &'a dyn Fn(&Rejection) -> bool;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_begin_with_anything_else_are_refused_and_closed() {
    let mut scene = scene("/bin/cat").await;
    let grant = scene.grant().await.expect("a free core");
    let mut forged = grant.token.clone();
    forged[3] ^= 1;
    let version = hotlease_wire::encode(&SessionRequest::Attach {
        version: PROTOCOL_VERSION + 1,
        token: grant.token,
    });
    let bad_request = |refusal: &Rejection| matches!(refusal, Rejection::BadRequest { .. });
    let cases: [(Vec<u8>, Expected<'_>); 5] = [
        (vec![0xff; 100], &bad_request),
        (hotlease_wire::encode(&SessionRequest::Release), &bad_request),
        (attach(forged), &|refusal| *refusal == Rejection::BadToken),
        (attach(Vec::new()), &|refusal| *refusal == Rejection::BadToken),
        (version, &|refusal| matches!(refusal, Rejection::Version { .. })),
    ];
    for (request, expected) in cases {
        let replies = scene.answers(vec![request.clone()]).await;
        let [SessionReply::Refused(refusal)] = &replies[..] else {
            panic!("{request:?} was answered {replies:?}");
        };
        assert!(expected(refusal), "{request:?} was answered {refusal:?}");
    }
    assert_eq!(scene.free_cores().await, 0, "the lease is not concerned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_no_client_attaches_to_expires() {
    let mut scene = scene("/bin/cat").await;
    let request = AcquireRequest {
        ttl_ms: 100,
        ..one_core()
    };
    let begun = Instant::now();
    scene.client.grant(request).await.expect("a free core");
    while scene.free_cores().await == 0 {
        assert!(begun.elapsed() < LIMIT, "it does not expire");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    let status = scene.client.status(ListRequest::default()).await.expect("served");
    let lease = &status.into_inner().leases[0];
    let reason = EndReason::Expired.to_string();
    assert_eq!(
        (lease.state.as_str(), lease.end_reason.as_str()),
        ("ended", reason.as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_leaves_nothing_behind_and_another_can_start() {
    let mut scene = scene("/bin/cat").await;
    let second = Agent::start(config(scene.directory.path(), "/bin/cat")).await;
    assert!(matches!(second, Err(AgentError::AlreadyRunning { .. })), "{second:?}");
    let grant = scene.grant().await.expect("a free core");
    let (replies, ()) = tokio::join!(scene.answers(vec![attach(grant.token)]), async {
        scene.agent.shutdown().await;
    });
    if let Some(SessionReply::LeaseEnded { reason, .. }) = replies.last() {
        assert_eq!(*reason, EndReason::AgentStopping);
    }
    for name in [AGENT_SOCKET, SESSION_SOCKET] {
        assert!(!scene.directory.join(name).exists(), "{name} is left");
    }
    let id = scene.agent.id();
    let next = Agent::start(config(scene.directory.path(), "/bin/cat"))
        .await
        .expect("free");
    assert_eq!(next.id(), id, "the same agent as before");
    next.shutdown().await;
}
