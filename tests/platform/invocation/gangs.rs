//! Functions that run at the same time on all workers of a lease, and their messages. (On one agent, from C:
//! `bindings/tests/gang.c`.)

use hotlease_client::{Code, Invoker, LeaseOptions, Rejection};
use hotlease_gang::{Error, Gang, GangCall, Inputs};
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use std::path::Path;

/// The library that is built from `tests/functions/gang.rs`.
fn code() -> Code {
    let program = std::env::current_exe().expect("a test is a program");
    let folder = program
        .parent()
        .and_then(Path::parent)
        .expect("it is in target/release/deps");
    Code::open(folder.join("examples/libgang_functions.so")).expect("cargo test builds the examples")
}

fn ranks(nodes: &Nodes, workers: u16) -> LeaseOptions {
    LeaseOptions {
        workers,
        patience: LIMIT,
        ..nodes.lease_options()
    }
}

fn totals(gang: &Gang, inputs: &[f64]) -> Result<Vec<[f64; 2]>, Error> {
    let inputs: Vec<[u8; 8]> = inputs.iter().map(|input| input.to_le_bytes()).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(<[u8; 8]>::as_slice).collect();
    let outputs = gang.call_with(GangCall {
        function: "total",
        inputs: Inputs::Each(&inputs),
        output_bytes: Some(16),
    })?;
    let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("a double"));
    let pair = |output: &Vec<u8>| [number(&output[..8]), number(&output[8..])];
    Ok(outputs.iter().map(pair).collect())
}

#[test]
fn functions_of_a_gang_on_two_agents_have_a_communicator() {
    let mut nodes = Nodes::start(2);
    let gang = Gang::lease(&code(), ranks(&nodes, 4), None).expect("four cores are free");
    assert_eq!(gang.ranks(), 4);
    let sums = |sum: f64| [0.0, 1.0, 2.0, 3.0].map(|rank| [sum, rank]);
    assert_eq!(totals(&gang, &[1.0, 2.0, 3.0, 4.0]).expect("all are well"), sums(10.0));
    assert_eq!(totals(&gang, &[1.0; 4]).expect("all are well"), sums(4.0));
    assert!(
        matches!(totals(&gang, &[1.0; 3]), Err(Error::Options { .. })),
        "not as many as ranks"
    );

    // A gang has all workers or none.
    let others = LeaseOptions {
        workers: 1,
        ..nodes.lease_options()
    };
    let refused = Gang::lease(&code(), others, None).map(|_| ());
    let is_refused = matches!(
        &refused,
        Err(Error::Lease(error)) if matches!(error.refusal(), Some(Rejection::NotTogether { .. }))
    );
    assert!(is_refused, "{refused:?}");

    // With half of its workers gone, the next call has four other workers.
    nodes.nodes[1].kill();
    nodes.nodes[1].start();
    nodes.wait_for_agents(2);
    let mut last = totals(&gang, &[2.0; 4]);
    until_true("the gang has workers again", LIMIT, || {
        if last.is_err() {
            last = totals(&gang, &[2.0; 4]);
        }
        last.is_ok()
    });
    assert_eq!(last.expect("it is well"), sums(8.0));
    assert!(gang.end().expect("it is given back").invocations >= 4);
    assert_eq!(nodes.manager().free_cores(), 4);
}

#[test]
fn a_function_that_runs_alone_has_no_communicator() {
    let nodes = Nodes::start(1);
    let invoker = Invoker::allocate(&code(), ranks(&nodes, 1)).expect("a core is free");
    let failed = invoker
        .function("total")
        .expect("it is there")
        .call(&1f64.to_le_bytes());
    match failed {
        Err(hotlease_client::Error::Function { output, .. }) => {
            let said = String::from_utf8_lossy(&output);
            assert!(said.contains("call it on a gang"), "{said}");
        }
        other => panic!("{other:?}"),
    }
}
