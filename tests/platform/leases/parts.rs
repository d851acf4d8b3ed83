//! Leases that span several agents.

use hotlease_client::{Code, Error, Invoker, LeaseOptions, Rejection, Spread};
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use std::collections::BTreeSet;
use std::time::Duration;

fn spread(nodes: &Nodes, workers: u16, spread: Spread) -> LeaseOptions {
    LeaseOptions {
        workers,
        spread,
        ..nodes.lease_options()
    }
}

/// Number of the agent of each part of a lease.
fn agents(nodes: &Nodes, invoker: &Invoker) -> Vec<usize> {
    let leases = invoker.leases().into_iter();
    leases.map(|lease| nodes.holder(&lease.to_string())).collect()
}

#[test]
fn workers_of_one_lease_are_on_two_agents_and_all_of_them_are_used() {
    let nodes = Nodes::start(2);
    let invoker = nodes.invoker("behaved", spread(&nodes, 4, Spread::AllOrNothing));
    assert_eq!(invoker.slots(), 4);
    let agents = agents(&nodes, &invoker);
    assert_eq!(agents.iter().collect::<BTreeSet<_>>().len(), 2, "{agents:?}");
    assert_eq!(nodes.manager().free_cores(), 0);
    let echo = invoker.function("echo").unwrap();
    for slot in 0..4_u8 {
        let on = echo.clone().on_slot(slot.into()).unwrap();
        assert_eq!(on.call(&[slot; 100]).unwrap(), [slot; 100]);
    }
    let inputs: Vec<[u8; 8]> = (0..1000_u64).map(u64::to_le_bytes).collect();
    for (input, output) in inputs.iter().zip(echo.map(&inputs)) {
        assert_eq!(output.unwrap(), input);
    }
    let buffer = invoker.buffer::<u8>(100_000).unwrap();
    let mut output = invoker.buffer::<u8>(100_000).unwrap();
    for slot in 0..4 {
        let on = echo.clone().on_slot(slot).unwrap();
        assert_eq!(on.invoke_buffer(buffer.slice(..), &mut output).unwrap(), 100_000);
    }
    let used = invoker.deallocate().expect("all parts are given back");
    assert_eq!(used.invocations, 1008, "of all parts");
    assert_eq!(nodes.manager().free_cores(), 4);
}

#[test]
fn lease_that_fits_one_agent_is_on_one() {
    let nodes = Nodes::start(2);
    let invoker = nodes.invoker("behaved", spread(&nodes, 2, Spread::AllOrNothing));
    assert_eq!(agents(&nodes, &invoker).len(), 1);
}

#[test]
fn refused_request_never_holds_a_part() {
    let nodes = Nodes::start(2);
    let one = nodes.invoker("behaved", nodes.lease_options());
    let code = Code::open(library("behaved")).unwrap();
    for _ in 0..3 {
        let gang = LeaseOptions {
            label: "gang".into(),
            ..spread(&nodes, 4, Spread::AllOrNothing)
        };
        let error = Invoker::allocate(&code, gang).unwrap_err();
        assert!(
            matches!(error.refusal(), Some(Rejection::NotTogether { asked: 4, found: 3 })),
            "{error:?}"
        );
        assert!(error.retryable());
    }
    assert_eq!(nodes.granted("gang"), BTreeSet::new(), "not for a moment");
    let three = Invoker::allocate(&code, spread(&nodes, 4, Spread::AtLeast(2))).expect("three are enough");
    assert_eq!(three.slots(), 3);
    drop(one);
    assert!(matches!(
        Invoker::allocate(&code, spread(&nodes, 4, Spread::AtLeast(5))),
        Err(Error::Options { .. })
    ));
}

#[test]
fn workers_that_were_not_granted_are_added_when_others_give_theirs_back() {
    let nodes = Nodes::start(2);
    let others = [0, 1].map(|_| nodes.invoker("behaved", nodes.lease_options()));
    let invoker = nodes.invoker("behaved", spread(&nodes, 4, Spread::AtLeast(1)));
    assert_eq!(invoker.slots(), 2);
    let none = invoker.complete(Duration::from_millis(200)).unwrap_err();
    assert!(
        matches!(none, Error::Refused(Rejection::NotTogether { .. })),
        "{none:?}"
    );
    let echo = invoker.function("echo").unwrap();
    let buffer = invoker.buffer::<u8>(100_000).unwrap();
    drop(others);
    // Each call of `complete` may add one worker.
    while invoker.slots() < 4 {
        invoker.complete(LIMIT).expect("others' cores are free now");
    }
    invoker.complete(LIMIT).expect("nothing is missing any more");
    let mut output = invoker.buffer::<u8>(100_000).unwrap();
    for slot in 0..4_u8 {
        let on = echo.clone().on_slot(slot.into()).unwrap();
        assert_eq!(on.call(&[slot; 100]).unwrap(), [slot; 100]);
        assert_eq!(on.invoke_buffer(buffer.slice(..), &mut output).unwrap(), 100_000);
    }
    // A part that was added later is lost and replaced like any other part.
    let inputs: Vec<[u8; 8]> = (0..1000_u64).map(u64::to_le_bytes).collect();
    for (input, output) in inputs.iter().zip(echo.map(&inputs)) {
        assert_eq!(output.unwrap(), input);
    }
    let used = invoker.deallocate().expect("all parts are given back");
    assert_eq!(used.invocations, 1008, "of all parts");
    assert_eq!(nodes.manager().free_cores(), 4);
}

#[test]
fn deallocating_ends_a_request_for_more_workers() {
    let nodes = Nodes::start(1);
    let other = nodes.invoker("behaved", nodes.lease_options());
    let invoker = nodes.invoker("behaved", spread(&nodes, 2, Spread::AtLeast(1)));
    let asking = invoker.clone();
    let asked = std::thread::spawn(move || asking.complete(10 * LIMIT));
    // By then the thread mostly is asking the manager; it ends in either case.
    std::thread::sleep(Duration::from_millis(50));
    invoker.deallocate().expect("it is given back");
    let error = asked.join().expect("no panic").unwrap_err();
    assert!(matches!(error, Error::LeaseEnded { .. }), "{error:?}");
    drop(other);
    // The manager may have granted the request, with the very core that was released, before it learnt that the client
    // no longer waits for the answer.
    until_true("what was granted to no client is given back", LIMIT, || {
        nodes.manager().free_cores() == 2
    });
}

#[test]
fn losing_one_part_moves_that_part_only() {
    let mut nodes = Nodes::start(3);
    let invoker = nodes.invoker("behaved", spread(&nodes, 4, Spread::AllOrNothing));
    let echo = invoker.function("echo").unwrap();
    let (leases, before) = (invoker.leases(), agents(&nodes, &invoker));
    let spare = (0..3).find(|node| !before.contains(node)).expect("one is not used");
    nodes.nodes[before[0]].kill();
    let inputs: Vec<[u8; 100]> = (0..200).map(|number| [number; 100]).collect();
    for slot in [0, 1, 2, 3, 0, 3] {
        let on = echo.clone().on_slot(slot).unwrap();
        assert_eq!(on.call(&inputs[slot]).expect("no error is seen"), inputs[slot]);
    }
    for (input, output) in inputs.iter().zip(echo.map(&inputs)) {
        assert_eq!(output.expect("no error is seen"), input);
    }
    let after = agents(&nodes, &invoker);
    assert_eq!(after, [spare, before[1]]);
    assert_eq!(invoker.leases()[1], leases[1], "the other part was not touched");
    assert_ne!(invoker.leases()[0], leases[0]);
}

#[test]
fn a_lost_part_comes_back_in_pieces_as_there_is_room() {
    let nodes = Nodes::start(1);
    let options = LeaseOptions {
        move_within: Duration::ZERO,
        ..spread(&nodes, 2, Spread::AtLeast(1))
    };
    let invoker = nodes.invoker("behaved", options);
    assert_eq!(invoker.slots(), 2);
    let echo = invoker.function("echo").unwrap();
    let lease = invoker.lease().to_string();
    nodes.manager().revoke(&lease).expect("it is revoked");
    let patient = LeaseOptions {
        patience: LIMIT,
        ..nodes.lease_options()
    };
    let other = nodes.invoker("behaved", patient);
    let on = |slot| echo.clone().on_slot(slot).unwrap();
    let is_back = |slot| on(slot).call(b"back").is_ok_and(|output| output == b"back");
    until_true("one worker is back", LIMIT, || is_back(0));
    for _ in 0..3 {
        match on(1).call(b"x") {
            Ok(_) => panic!("there is room for one worker"),
            Err(error) => assert!(error.refusal().is_some_and(|refusal| refusal.may_pass()), "{error}"),
        }
    }
    assert!(is_back(0), "the search for the other worker takes nothing from it");
    drop(other);
    until_true("the other worker is back", LIMIT, || is_back(1));
    assert_eq!((invoker.slots(), invoker.leases().len()), (2, 2));
}

#[test]
fn later_workers_are_given_back_alone() {
    let nodes = Nodes::start(1);
    let other = nodes.invoker("behaved", nodes.lease_options());
    let invoker = nodes.invoker("behaved", spread(&nodes, 2, Spread::AtLeast(1)));
    let (first, echo) = (invoker.lease(), invoker.function("echo").unwrap());
    drop(other);
    for _ in 0..2 {
        invoker.complete(LIMIT).expect("the other core is free now");
        assert_eq!((invoker.slots(), nodes.manager().free_cores()), (2, 0));
        assert_eq!(echo.clone().on_slot(1).unwrap().call(b"later").unwrap(), b"later");
        invoker.suspend_from(1).expect("the later lease is given back");
        assert_eq!((invoker.slots(), invoker.leases()), (1, vec![first]));
        assert_eq!(nodes.manager().free_cores(), 1);
        assert_eq!(echo.clone().on_slot(0).unwrap().call(b"first").unwrap(), b"first");
    }
}

#[test]
fn part_moves_to_several_agents_if_none_has_room_for_it() {
    let mut nodes = Nodes::start(3);
    let invoker = nodes.invoker("behaved", spread(&nodes, 2, Spread::AllOrNothing));
    let first = agents(&nodes, &invoker)[0];
    // One core of each of the other agents is taken.
    let code = Code::open(library("behaved")).unwrap();
    // The tightest fit comes first: the second lease fills the agent of the first lease, and the third lease is granted
    // by the next agent.
    let [one, filler, other] =
        [(); 3].map(|()| Invoker::allocate(&code, nodes.lease_options()).expect("there is room"));
    drop(filler);
    assert_ne!(agents(&nodes, &one), agents(&nodes, &other));
    until_true("the manager has heard of it", LIMIT, || {
        nodes.manager().free_cores() == 2
    });
    nodes.nodes[first].kill();
    let echo = invoker.function("echo").unwrap();
    for slot in [1, 0, 1] {
        let on = echo.clone().on_slot(slot).unwrap();
        assert_eq!(on.call(b"moved").expect("no error is seen"), b"moved");
    }
    let after: BTreeSet<_> = agents(&nodes, &invoker).into_iter().collect();
    assert_eq!(after.len(), 2, "one worker on each of the two that are left");
    let used = invoker.deallocate().expect("both are given back");
    assert_eq!(used.invocations, 3);
}
