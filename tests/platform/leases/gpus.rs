//! GPUs: devices that an agent counts.

use hotlease_client::{Code, Invoker, LeaseOptions, Placement, Rejection, Spread};
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;

fn with_gpus(nodes: &Nodes, gpus: u16) -> LeaseOptions {
    LeaseOptions {
        gpus,
        ..nodes.lease_options()
    }
}

/// GPU numbers that a lease's functions see, for each slot.
fn told(invoker: &Invoker) -> Vec<String> {
    let gpus = invoker.function("gpus").expect("a function of the fixture");
    let on = |slot| {
        let output = gpus
            .clone()
            .on_slot(slot)
            .and_then(|gpus| gpus.call(b""))
            .expect("it runs");
        String::from_utf8(output).expect("a text")
    };
    (0..invoker.slots()).map(on).collect()
}

/// Free and offered GPUs of each agent, as listed.
fn listed(nodes: &Nodes) -> Vec<(u32, u32)> {
    let mut agents = nodes.manager().agents().expect("the manager serves");
    agents.sort_by_key(|agent| (agent.free_gpus, agent.gpus));
    agents.iter().map(|agent| (agent.free_gpus, agent.gpus)).collect()
}

#[track_caller]
fn refused(nodes: &Nodes, options: LeaseOptions) -> Rejection {
    let code = Code::open(library("behaved")).expect("a library");
    match Invoker::allocate(&code, options) {
        Err(error) => error.refusal().unwrap_or_else(|| panic!("{error}")).clone(),
        Ok(invoker) => panic!("{} was granted; {:?}", invoker.lease(), listed(nodes)),
    }
}

#[test]
fn gpus_are_never_granted_twice_and_come_back() {
    let nodes = Nodes::start_with(2, &["--unseen-gpus", "--gpus", "2"]);
    let both = nodes.invoker("behaved", with_gpus(&nodes, 2));
    assert_eq!(told(&both), ["0,1"]);
    let one = nodes.invoker("behaved", with_gpus(&nodes, 1));
    assert_eq!(told(&one), ["0"], "the first of the other agent");
    let lease = one.lease().to_string();
    let info = nodes.manager().lease_info(&lease).expect("it is listed");
    assert_eq!(info.gpus, [0]);
    assert_eq!(
        refused(&nodes, with_gpus(&nodes, 2)),
        Rejection::NoGpus {
            asked: 2,
            free: 1,
            offered: 2
        }
    );
    until_true("the listing shows what is free", LIMIT, || {
        listed(&nodes) == [(0, 2), (1, 2)]
    });
    one.deallocate().expect("it goes on until now");
    let none = nodes.invoker("behaved", nodes.lease_options());
    assert_eq!(told(&none), [""], "it has asked for none");
    drop(none);
    let again = nodes.invoker("behaved", with_gpus(&nodes, 2));
    assert_eq!(told(&again), ["0,1"]);
    drop((both, again));
    let apart = LeaseOptions {
        workers: 2,
        spread: Spread::AllOrNothing,
        ..with_gpus(&nodes, 2)
    };
    let apart = nodes.invoker("behaved", apart);
    assert_eq!(told(&apart), ["0,1", "0,1"], "two for each worker: on two agents");
}

#[test]
fn node_that_takes_gpus_back_ends_the_leases_that_hold_them() {
    let nodes = Nodes::start_with(1, &["--unseen-gpus", "--gpus", "2"]);
    let first = nodes.invoker("behaved", with_gpus(&nodes, 1));
    let keeps = LeaseOptions {
        replace_lease: false,
        ..with_gpus(&nodes, 1)
    };
    let second = nodes.invoker("behaved", keeps);
    assert_eq!((told(&first), told(&second)), (vec!["0".into()], vec!["1".into()]));
    let node = nodes.nodes[0].id();
    let add = [
        "admin", "node", "add", &node, "--cores", "all", "--gpus", "1", "--within", "0s",
    ];
    let output = nodes.hotlease(&add).output().expect("hotlease runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let gpus = second.function("gpus").expect("known already");
    until_true("the lease with GPU 1 ends", LIMIT, || gpus.call(b"").is_err());
    assert_eq!(told(&first), ["0"], "the other one is not disturbed");
    until_true("one is offered", LIMIT, || listed(&nodes) == [(0, 1)]);
}

#[test]
fn gpus_are_offered_by_name() {
    let nodes = Nodes::start_with(1, &["--unseen-gpus", "--gpus", "3"]);
    let node = nodes.nodes[0].id();
    let order = |gpus: &str| {
        let add = ["admin", "node", "add", &node, "--gpus", gpus, "--wait"];
        nodes.hotlease(&add).output().expect("hotlease runs")
    };
    let output = order("1-2");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let both = nodes.invoker("behaved", with_gpus(&nodes, 2));
    assert_eq!(told(&both), ["1,2"]);
    let output = order("0,7");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("GPU 7"), "{words}");
    let list = nodes.hotlease(&["admin", "node", "list", "--json"]).output();
    let list = String::from_utf8(list.expect("hotlease runs").stdout).expect("text");
    assert!(
        list.contains(r#""gpu_numbers":[1,2]"#),
        "a refused order changed nothing: {list}"
    );
    assert!(list.contains(r#""pending":false"#), "{list}");
}

#[test]
fn gpus_without_the_manager_have_a_bound_of_their_own() {
    let nodes = Nodes::start_with(
        1,
        &["--unseen-gpus", "--gpus", "2", "--direct", "2", "--direct-gpus", "1"],
    );
    let direct = |gpus| LeaseOptions {
        placement: Placement::Direct,
        ..with_gpus(&nodes, gpus)
    };
    let refusal = refused(&nodes, direct(2));
    assert!(matches!(refusal, Rejection::TooMany { limit: 1, .. }), "{refusal}");
    let invoker = nodes.invoker("behaved", direct(1));
    assert_eq!(told(&invoker), ["0"]);
}
