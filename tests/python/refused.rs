//! Imports that fail: the client is told when each node has tried, and does not wait for the end of its patience.

use crate::requests::*;
use hotlease_client::{Code, Error, Invoker, LeaseOptions, Placement, Python};
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Three starts of an interpreter take seconds where the machine is busy; a client that waits in vain waits for all of
/// this time.
const PATIENCE: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(30);

/// Modules for workers, one of which needs a library that is not on every node.
fn scene(imports: &str) -> (TempDir, Python) {
    let package = package();
    let name = library("tally");
    let name = name.file_name().expect("a name").display();
    let module = format!("import ctypes\nctypes.CDLL({:?})\n", name.to_string());
    std::fs::write(package.path().join("particular.py"), module).expect("a module");
    let mut python = python(package.path());
    let named = python
        .environment
        .insert("HOTLEASE_PYTHON_IMPORTS".into(), imports.into());
    assert_eq!(named, None);
    (package, python)
}

fn lease(nodes: &Nodes, python: &Python, placement: Placement) -> (Result<Invoker, Error>, Duration) {
    let options = LeaseOptions {
        python: Some(python.clone()),
        patience: PATIENCE,
        placement,
        label: "tried".into(),
        ..nodes.lease_options()
    };
    let begin = Instant::now();
    (Invoker::allocate(&Code::python(), options), begin.elapsed())
}

#[test]
fn an_import_that_fails_everywhere_is_told_at_once() {
    let (_package, python) = scene("no_such_module");
    let nodes = Nodes::start_with(2, &["--direct", "2"]);
    for placement in [Placement::Managed, Placement::Direct] {
        let (lease, took) = lease(&nodes, &python, placement);
        let error = lease.expect_err("there is no such module");
        assert!(took < SOON, "{took:?} for {error}");
        assert!(
            error.to_string().contains("import no_such_module: ModuleNotFoundError"),
            "{error}"
        );
        assert!(!error.retryable(), "{error}");
        assert_eq!(nodes.granted("tried").len(), 2, "both have tried: {error}");
    }
}

#[test]
fn an_import_that_one_node_can_do_is_done_there() {
    let (_package, python) = scene("particular");
    let needed = library("tally");
    let folder = needed.parent().expect("a folder");
    let nodes = Nodes::start_unlike(&[Path::new("/nowhere"), folder], &["--direct", "2"]);
    let held = nodes.ask_first(0);
    for placement in [Placement::Managed, Placement::Direct] {
        let (lease, took) = lease(&nodes, &python, placement);
        let lease = lease.expect("the second node has the library");
        assert!(took < SOON, "{took:?}");
        assert_eq!(nodes.holder(&lease.lease().to_string()), 1);
        assert_eq!(
            ask(&lease.function("hotlease.call").unwrap(), "pid", NOTHING)
                .expect("it runs")
                .0,
            PLAIN
        );
    }
    drop(held);
}
