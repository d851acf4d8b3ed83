//! Direct leases, which clients request from agents themselves.

use hotlease_client::{Code, Error, Invoker, LeaseOptions, Placement, Rejection, Spread};
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::{LIMIT, SOON};
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::{AcquireRequest, ReleaseRequest};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tonic::transport::{Channel, Endpoint};

fn direct(nodes: &Nodes) -> LeaseOptions {
    LeaseOptions {
        placement: Placement::Direct,
        ..nodes.lease_options()
    }
}

/// Rows that a command prints with `--json`.
fn json(nodes: &Nodes, arguments: &[&str]) -> Vec<Value> {
    let output = nodes
        .hotlease(&[arguments, &["--json"]].concat())
        .output()
        .expect("hotlease runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect()
}

#[test]
fn direct_lease_needs_no_manager_and_is_billed_afterwards() {
    let mut nodes = Nodes::start_with(2, &["--direct", "2"]);
    let code = Code::open(library("behaved")).unwrap();
    let first = Invoker::allocate(&code, direct(&nodes)).expect("with the manager's list");
    nodes.kill_manager();
    let managed = Invoker::allocate(&code, nodes.lease_options()).expect_err("no manager is there to ask");
    assert!(matches!(managed, Error::NotRunning { .. }), "{managed:?}");
    let second = Invoker::allocate(&code, direct(&nodes)).expect("the list that was kept is used");
    for invoker in [&first, &second] {
        let echo = invoker.function("echo").unwrap();
        for _ in 0..10 {
            assert_eq!(echo.call(b"direct").unwrap(), b"direct");
        }
    }
    let leases: BTreeSet<String> = [&first, &second].map(|invoker| invoker.lease().to_string()).into();
    nodes.start_manager();
    nodes.wait_for_agents(2);
    until_true("both tell the manager of their leases", LIMIT, || {
        let listed = nodes.manager().leases().expect("leases are listed");
        let active = listed.iter().filter(|lease| lease.state == "active");
        active.map(|lease| lease.id.clone()).collect::<BTreeSet<_>>() == leases
            && json(&nodes, &["bill", "--by", "lease"]).len() == 2
    });
    let used: Vec<_> = [first, second]
        .map(|invoker| invoker.deallocate().expect("given back"))
        .into();
    assert!(used.iter().all(|used| used.invocations == 10), "{used:?}");
    until_true("the bill has all of it", LIMIT, || {
        let bill = json(&nodes, &["bill", "--by", "lease"]);
        let of = |row: &Value| {
            (
                row["lease"].as_str().unwrap_or_default().to_owned(),
                row["invocations"].as_u64(),
            )
        };
        let billed: BTreeSet<_> = bill.iter().map(of).collect();
        billed == leases.iter().map(|lease| (lease.clone(), Some(10))).collect()
    });
    // The bill covers all the time that the leases were held, also while the manager was away. The agents' last reports
    // are on their way.
    let told: u64 = used.iter().map(|used| used.allocated_ns).sum();
    let billed = || {
        let bill = json(&nodes, &["bill", "--by", "lease"]).into_iter();
        bill.filter_map(|row| row["allocated_ns"].as_u64()).sum::<u64>()
    };
    until_true("all the time is billed", LIMIT, || billed() >= told / 10 * 9);
    assert!(billed() <= told, "billed {} of {told}", billed());
}

#[test]
fn agents_that_do_not_let_clients_ask_are_left_out() {
    let nodes = Nodes::start(2);
    let code = Code::open(library("behaved")).unwrap();
    let error = Invoker::allocate(&code, direct(&nodes)).expect_err("no agent serves clients");
    assert!(error.to_string().contains("--direct"), "{error}");
    let spread = LeaseOptions {
        spread: Spread::AllOrNothing,
        ..direct(&nodes)
    };
    assert!(matches!(Invoker::allocate(&code, spread), Err(Error::Options { .. })));
}

#[test]
fn client_that_waits_hears_at_once_of_an_agent_that_joins() {
    let mut nodes = Nodes::start_with(2, &["--direct", "2"]);
    // The agent deregisters, so that the client's list does not contain it.
    nodes.nodes[1].process().signal(Signal::SIGINT);
    until_true("it has left", LIMIT, || nodes.manager().agents().unwrap().len() == 1);
    nodes.nodes[1].kill();
    let code = Code::open(library("behaved")).unwrap();
    let all = LeaseOptions {
        slots: 2,
        ..direct(&nodes)
    };
    let _held = Invoker::allocate(&code, all).expect("the agent that is left has two cores");
    let patient = LeaseOptions {
        patience: LIMIT,
        ..direct(&nodes)
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Invoker::allocate(&code, patient).map(|lease| (lease, Instant::now())));
        // By then the client's pauses are mostly long; it must be served at once even so.
        std::thread::sleep(Duration::from_secs(2));
        nodes.nodes[1].start();
        nodes.wait_for_agents(2);
        let joined = Instant::now();
        let (lease, served) = waiting
            .join()
            .expect("no panic")
            .expect("an agent with free cores has joined");
        assert_eq!(nodes.holder(&lease.lease().to_string()), 1);
        // In an earlier version the client learned of the agent only when its list was 30 s old.
        let late = served.saturating_duration_since(joined);
        assert!(late < SOON, "{late:?}");
    });
}

#[test]
fn one_tenant_holds_no_more_than_its_share_of_each_agent() {
    let nodes = Nodes::start_with(2, &["--direct", "1"]);
    let code = Code::open(library("behaved")).unwrap();
    let take = || Invoker::allocate(&code, direct(&nodes));
    let (one, other) = (take().expect("of one agent"), take().expect("of the other"));
    let held = [&one, &other].map(|invoker| nodes.holder(&invoker.lease().to_string()));
    assert_ne!(held[0], held[1]);
    let error = take().expect_err("both have given what they may");
    assert!(
        matches!(error, Error::Refused(Rejection::TooMany { limit: 1, .. })),
        "{error:?}"
    );
    // The manager, which knows quotas, can still grant the rest.
    let managed = Invoker::allocate(&code, nodes.lease_options()).expect("through the manager");
    drop((one, managed));
    until_true("what was given back can be had again", LIMIT, || take().is_ok());
}

#[test]
fn tenant_of_a_direct_lease_is_what_the_credentials_say() {
    let nodes = Nodes::start_with(1, &["--direct", "2"]);
    let grant = grant_direct(nodes.nodes[0].directory(), "uid:4242").expect("granted");
    // A listing leaves out an agent that takes too long to answer.
    let (info, _) = until("it is listed", LIMIT, || nodes.manager().lease_info(&grant));
    let own = format!("uid:{}", nix::unistd::geteuid());
    assert_eq!(info.tenant, own, "the request says uid:4242");
    // No client or manager has vouched for the lease: it is on no bill.
    until_true("its agent has reported it", LIMIT, || {
        json(&nodes, &["bill", "verify"])[0].to_string().contains(&grant)
            || nodes
                .manager()
                .lease_info(&grant)
                .is_none_or(|lease| lease.state == "ended")
    });
    assert!(json(&nodes, &["bill", "--by", "lease"]).is_empty());
}

#[test]
fn lease_that_a_manager_did_not_hand_out_is_no_disputed_usage() {
    let nodes = Nodes::start(1);
    let ended = ["unused", "released"].map(|reason| {
        ask_agent(nodes.nodes[0].directory(), async |agent| {
            let granted = agent.grant(one_worker("uid:4242")).await.expect("granted").into_inner();
            let lease = granted.lease.clone();
            let end = ReleaseRequest {
                lease,
                reason: reason.into(),
                ..ReleaseRequest::default()
            };
            agent.end_lease(end).await.expect("ended");
            granted.lease
        })
    });
    // The manager knows neither lease, and disputes what the agent wants to bill.
    let disputes = || json(&nodes, &["bill", "verify"])[0].to_string();
    until_true("the agent has reported both ends", LIMIT, || {
        disputes().contains(&ended[1])
    });
    assert!(!disputes().contains(&ended[0]), "no party has used it: {}", disputes());
}

fn one_worker(tenant: &str) -> AcquireRequest {
    AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        tenant: tenant.into(),
        ..AcquireRequest::default()
    }
}

/// Asks an agent through its own socket, as managers and clients of its host do.
fn ask_agent<T>(directory: &Path, ask: impl AsyncFnOnce(&mut AgentClient<Channel>) -> T) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = format!("unix:{}", directory.join("agent.sock").display());
        let endpoint = Endpoint::from_shared(address).expect("an address");
        let mut client = AgentClient::new(endpoint.connect().await.expect("the agent serves"));
        ask(&mut client).await
    })
}

fn grant_direct(directory: &Path, tenant: &str) -> Result<String, tonic::Status> {
    ask_agent(directory, async |agent| {
        let granted = agent.grant_direct(one_worker(tenant)).await;
        granted.map(|grant| grant.into_inner().lease)
    })
}
