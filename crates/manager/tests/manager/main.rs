//! Tests of a running manager, through its socket.

mod credentials;
mod fixture;
mod munge;
mod munged;
mod unfinished;

use fixture::{TestManager, connect, lease, start, tenant, used, wish};
use hotlease_manager::{MANAGER_SOCKET, Manager, ManagerConfig, ManagerError};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, InfoRequest, LeaseInfo, ListRequest, RegisterRequest, ReleaseRequest, ShutdownRequest,
};
use std::io::Write;
use std::os::unix::net::UnixStream;

#[tokio::test]
async fn the_kernel_names_the_tenant_and_defaults_are_filled_in() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 2).await;
    let request = AcquireRequest {
        tenant: "uid:4242".into(),
        ..wish(1)
    };
    let grant = scene.client.acquire(request).await.unwrap().into_inner();
    assert_eq!(grant.lease, "0b".repeat(8));
    let asked = agent.lock().unwrap().asked[0].clone();
    assert_eq!(asked.tenant, tenant());
    assert_eq!((asked.ttl_ms, asked.sandbox.as_str()), (5000, ""));
}

#[tokio::test]
async fn the_next_agent_is_asked_when_one_refuses() {
    let mut scene = TestManager::new().await;
    let full = scene.agent(1, 2).await;
    let roomy = scene.agent(2, 4).await;
    full.lock().unwrap().refusal = Some(Rejection::NoCapacity {
        asked: 1,
        free: 0,
        offered: 2,
    });
    scene.client.acquire(wish(1)).await.unwrap();
    assert_eq!(
        (full.lock().unwrap().asked.len(), roomy.lock().unwrap().asked.len()),
        (1, 1)
    );
}

#[tokio::test]
async fn refusals_carry_the_agents_own_figures() {
    let mut scene = TestManager::new().await;
    assert_eq!(scene.refusal(wish(1)).await, Rejection::NoAgent);
    let agent = scene.agent(1, 4).await;
    agent.lock().unwrap().refusal = Some(Rejection::NoCapacity {
        asked: 3,
        free: 2,
        offered: 4,
    });
    assert_eq!(
        scene.refusal(wish(3)).await,
        Rejection::NoCapacity {
            asked: 3,
            free: 2,
            offered: 4
        }
    );
    // No agent offers so many cores, so no agent is asked. The figures come from the registry, which the last refusal
    // updated.
    assert_eq!(
        scene.refusal(wish(9)).await,
        Rejection::NoCapacity {
            asked: 9,
            free: 2,
            offered: 4
        }
    );
    assert_eq!(agent.lock().unwrap().asked.len(), 1);
}

#[tokio::test]
async fn senseless_requests_reach_no_agent() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 4).await;
    let spoiled: [fn(&mut AcquireRequest); 9] = [
        |wish| wish.workers = 0,
        |wish| wish.workers = u32::MAX,
        |wish| wish.slots_per_worker = u32::MAX,
        |wish| wish.ttl_ms = 99,
        |wish| wish.ttl_ms = u64::MAX,
        |wish| wish.sandbox = "microVM".into(),
        |wish| wish.polling = 9,
        |wish| wish.label = "x".repeat(65),
        |wish| wish.label = "\x1b[2J".into(),
    ];
    for (number, spoil) in spoiled.iter().enumerate() {
        let mut request = wish(1);
        spoil(&mut request);
        let refusal = scene.refusal(request).await;
        assert!(
            matches!(refusal, Rejection::BadRequest { .. }),
            "spoiled request {number}: {refusal}"
        );
    }
    assert!(agent.lock().unwrap().asked.is_empty());
}

#[tokio::test]
async fn a_lost_agent_does_not_stop_the_others() {
    let mut scene = TestManager::new().await;
    let lost = scene.info(1, 1); // registered, but no agent listens there
    scene
        .client
        .register(RegisterRequest {
            agent: Some(lost),
            proof: 0,
        })
        .await
        .unwrap();
    assert!(matches!(scene.refusal(wish(1)).await, Rejection::Unavailable { .. }));
    scene.agent(2, 4).await;
    scene.client.acquire(wish(1)).await.unwrap();
}

#[tokio::test]
async fn a_repeated_or_late_heartbeat_bills_once() {
    let mut scene = TestManager::new().await;
    scene.agent(1, 2).await;
    for invocations in [5, 9, 9, 5] {
        let info = scene.info(1, 2);
        assert!(scene.heartbeat(info, vec![lease(3, invocations, "active")]).await);
    }
    assert_eq!(scene.billed("uid:7"), 9);
}

#[tokio::test]
async fn a_restarted_manager_heals_by_registration() {
    let mut scene = TestManager::new().await;
    scene.agent(1, 2).await;
    scene.manager.shutdown().await;
    assert!(
        !scene.dir.path().join(MANAGER_SOCKET).exists(),
        "the socket was left behind"
    );
    scene.manager = start(scene.dir.path(), &scene.store).await;
    scene.client = connect(scene.dir.path()).await;
    let info = scene.info(1, 2);
    assert!(
        !scene.heartbeat(info.clone(), vec![]).await,
        "the new manager cannot know the agent"
    );
    scene
        .client
        .register(RegisterRequest {
            agent: Some(info.clone()),
            proof: 0,
        })
        .await
        .unwrap();
    assert!(scene.heartbeat(info, vec![lease(3, 1, "active")]).await);
    scene.client.acquire(wish(1)).await.unwrap();
}

#[tokio::test]
async fn listings_are_the_agents_answers_and_else_what_was_reported() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 2).await;
    let reported = vec![lease(3, 5, "active"), lease(4, 6, "ended")];
    let info = scene.info(1, 2);
    scene.heartbeat(info, reported).await;
    agent.lock().unwrap().leases = vec![lease(5, 1, "active")];
    let ids = |leases: &[LeaseInfo]| leases.iter().map(|lease| lease.id[..2].to_owned()).collect::<Vec<_>>();
    let listed = scene.leases().await;
    assert_eq!(
        ids(&listed),
        ["04", "05"],
        "lease 3 is over: its agent does not name it"
    );
    let workers = scene
        .client
        .list_workers(ListRequest::default())
        .await
        .unwrap()
        .into_inner()
        .workers;
    assert_eq!(workers[0].pid, 77);

    agent.lock().unwrap().hangs = true;
    let listed = scene.leases().await;
    assert_eq!(ids(&listed), ["03", "04"], "as reported, for the agent does not answer");
    assert_eq!(listed[0].usage, used(5));
    let other = ListRequest { tenant: "uid:8".into() };
    assert!(
        scene
            .client
            .list_leases(other)
            .await
            .unwrap()
            .into_inner()
            .leases
            .is_empty()
    );
}

#[tokio::test]
async fn a_lease_that_a_heartbeat_written_after_its_grant_lacks_is_over() {
    let mut scene = TestManager::new().await;
    scene.agent(1, 2).await;
    let info = scene.info(1, 2);
    let epoch = scene.client.acquire(wish(1)).await.unwrap().into_inner().epoch;
    let active =
        async |scene: &mut TestManager| scene.client.get_info(InfoRequest {}).await.unwrap().into_inner().leases;
    for _ in 0..3 {
        scene.heartbeat_of(info.clone(), vec![], epoch - 1).await; // written during the grant
        assert_eq!(active(&mut scene).await, 1);
    }
    scene.heartbeat_of(info, vec![], epoch).await;
    assert_eq!(active(&mut scene).await, 0);
}

#[tokio::test]
async fn release_ends_the_lease_and_settles_its_bill() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 2).await;
    let lease = scene.client.acquire(wish(1)).await.unwrap().into_inner().lease;
    let request = ReleaseRequest {
        lease: lease.clone(),
        tenant: "uid:4242".into(),
        ..Default::default()
    };
    let reply = scene.client.release(request).await.unwrap().into_inner();
    assert_eq!(reply.usage, used(70));
    assert_eq!(
        agent.lock().unwrap().ended[0].tenant,
        tenant(),
        "the client's word for its tenant counted"
    );
    assert_eq!(scene.billed(&tenant()), 70);
    let gone = ReleaseRequest {
        lease: "no lease".into(),
        ..Default::default()
    };
    let refusal = Rejection::from(scene.client.release(gone).await.unwrap_err());
    assert!(matches!(refusal, Rejection::BadRequest { .. }));
}

#[tokio::test]
async fn garbage_on_the_socket_and_closed_connections_disturb_no_other_client() {
    let mut scene = TestManager::new().await;
    scene.agent(1, 2).await;
    let mut word = 0x9e37_79b9_u32;
    for length in [1, 9, 24, 100, 5000] {
        let mut stream = UnixStream::connect(scene.dir.path().join(MANAGER_SOCKET)).unwrap();
        let garbage: Vec<u8> = std::iter::repeat_with(|| {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            word as u8
        })
        .take(length)
        .collect();
        // The manager may close before everything is written.
        let _ = stream.write_all(&garbage);
        let mut preface = UnixStream::connect(scene.dir.path().join(MANAGER_SOCKET)).unwrap();
        let _ = preface.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let _ = preface.write_all(&garbage);
    }
    scene.client.acquire(wish(1)).await.unwrap();
    connect(scene.dir.path()).await.get_info(InfoRequest {}).await.unwrap();
}

#[tokio::test]
async fn a_second_manager_is_refused_and_shutdown_is_told_to_the_owner() {
    let mut scene = TestManager::new().await;
    let second = Manager::start(ManagerConfig::new(scene.dir.path())).await;
    assert!(matches!(second, Err(ManagerError::AlreadyRunning { .. })));
    scene.client.shutdown(ShutdownRequest {}).await.unwrap();
    scene.manager.shutdown_requested().await;
    // The owner stops the manager; until then the manager serves.
    scene.client.get_info(InfoRequest {}).await.unwrap();
    scene.manager.shutdown().await;
    assert!(scene.client.get_info(InfoRequest {}).await.is_err());
}

#[tokio::test]
async fn a_goodbye_is_final_for_its_boot_only() {
    let mut scene = TestManager::new().await;
    scene.agent(1, 2).await;
    let info = scene.info(1, 2);
    scene.heartbeat(info.clone(), vec![lease(3, 5, "active")]).await;
    let again = AgentInfo {
        boot: "0e".repeat(8),
        ..info.clone()
    };
    let mut request = RegisterRequest {
        agent: Some(again.clone()),
        proof: 0,
    };
    let reply = scene.client.register(request.clone()).await.unwrap().into_inner();
    assert_ne!(reply.challenge, 0, "what is late of a dead run replaces none");
    request.proof = reply.challenge;
    let reply = scene.client.register(request).await.unwrap().into_inner();
    assert_eq!(reply.challenge, 0, "it repeated what it was answered");
    let goodbye = |info: &AgentInfo| AgentInfo {
        state: "gone".into(),
        ..info.clone()
    };
    assert!(!scene.heartbeat(goodbye(&info), vec![]).await, "the first boot is over");
    assert!(scene.heartbeat(again.clone(), vec![]).await, "the second one serves");
    assert!(scene.heartbeat(goodbye(&again), vec![lease(4, 2, "ended")]).await);
    let agents = scene.client.list_agents(ListRequest::default()).await.unwrap();
    assert!(agents.into_inner().agents.is_empty());
    assert_eq!(scene.refusal(wish(1)).await, Rejection::NoAgent);
    assert_eq!(
        scene.billed("uid:7"),
        7,
        "what both boots reported, the goodbye's included"
    );
}

#[tokio::test]
async fn agents_are_listed_as_they_are_now_and_else_as_last_heard() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 4).await;
    let listed = async |scene: &mut TestManager| {
        let list = scene.client.list_agents(ListRequest::default()).await.unwrap();
        let agent = list.into_inner().agents.remove(0);
        (agent.free_cores, agent.state)
    };
    assert_eq!(listed(&mut scene).await, (4, "serving".into()));
    // On a busy node an agent may answer late, and is then listed as last heard: so each answer gets three attempts.
    for (free, expected) in [(1, 1), (99, 4)] {
        agent.lock().unwrap().free_cores = Some(free);
        let mut found = Vec::new();
        while found.len() < 3 && found.last() != Some(&(expected, "draining".to_string())) {
            found.push(listed(&mut scene).await);
        }
        let last = found.pop().expect("it was listed");
        assert_eq!(last, (expected, "draining".into()), "no more are free than it has");
    }
    agent.lock().unwrap().hangs = true;
    assert_eq!(listed(&mut scene).await, (4, "serving".into()));
}
