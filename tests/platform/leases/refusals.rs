//! Refusals that no waiting changes: they come at once when no other agent is left that could serve the lease.

use hotlease_client::{Code, Error, Invoker, LeaseOptions, Placement, Python, Rejection, RunCertainty};
use hotlease_tests::library::{compile, library};
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::SOON;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Far more than [`SOON`]: a client that waits in vain is noticed.
const PATIENCE: Duration = Duration::from_secs(30);

const WAYS: [Placement; 2] = [Placement::Managed, Placement::Direct];

fn options(nodes: &Nodes, placement: Placement, label: &str) -> LeaseOptions {
    LeaseOptions {
        placement,
        label: label.into(),
        patience: PATIENCE,
        ..nodes.lease_options()
    }
}

/// Leases what none of the nodes can serve, checks that the refusal comes soon, and returns it.
fn refused(code: &Code, options: LeaseOptions) -> Rejection {
    let begin = Instant::now();
    let error = Invoker::allocate(code, options).expect_err("no agent can serve it");
    let took = begin.elapsed();
    assert!(took < SOON, "{took:?} for {error}");
    assert_eq!((error.ran(), error.retryable()), (RunCertainty::No, false), "{error}");
    match error {
        Error::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// A library that needs a second library, and the folder that contains the second library.
fn in_need() -> (Code, PathBuf) {
    let needed = library("tally");
    let (folder, name) = (needed.parent().expect("a folder"), needed.file_name().expect("a name"));
    let arguments = [
        "-Wl,--no-as-needed".to_owned(),
        format!("-L{}", folder.display()),
        format!("-l:{}", name.display()),
    ];
    let library = compile("behaved", &arguments.each_ref().map(String::as_str));
    (Code::open(library).expect("a library"), folder.to_owned())
}

#[test]
fn code_that_no_node_can_load_is_refused_when_each_has_tried() {
    let nodes = Nodes::start_with(2, &["--direct", "2"]);
    let code = Code::open(library("unresolved")).expect("a library");
    for (way, label) in WAYS.into_iter().zip(["managed", "direct"]) {
        let refusal = refused(&code, options(&nodes, way, label));
        let told = refusal.to_string();
        assert!(told.contains("symbol_that_no_library_has"), "{told}");
        assert_eq!(nodes.granted(label).len(), 2, "both have tried: {told}");
    }
}

#[test]
fn code_that_one_node_can_load_goes_there() {
    let (code, folder) = in_need();
    let nodes = Nodes::start_unlike(&[Path::new("/nowhere"), &folder], &["--direct", "2"]);
    let held = nodes.ask_first(0);
    for (way, label) in WAYS.into_iter().zip(["managed", "direct"]) {
        let begin = Instant::now();
        let invoker = Invoker::allocate(&code, options(&nodes, way, label)).expect("the second node can");
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        assert_eq!(invoker.function("echo").unwrap().call(b"there").unwrap(), b"there");
        assert_eq!(nodes.holder(&invoker.lease().to_string()), 1);
    }
    assert_eq!(nodes.granted("managed").len(), 2, "the first one was tried before");
    // Without patience each node is tried once, too.
    let once = LeaseOptions {
        patience: Duration::ZERO,
        ..options(&nodes, Placement::Managed, "once")
    };
    Invoker::allocate(&code, once).expect("the second node can");
    drop(held);
}

#[test]
fn a_node_that_can_and_is_full_is_waited_for() {
    let (code, folder) = in_need();
    let nodes = Nodes::start_unlike(&[Path::new("/nowhere"), &folder], &[]);
    let two = LeaseOptions {
        workers: 2,
        ..options(&nodes, Placement::Managed, "all of it")
    };
    let holder = Invoker::allocate(&code, two).expect("the second node can");
    let waiting = std::thread::spawn({
        let options = options(&nodes, Placement::Managed, "waits");
        let code = code.clone();
        move || Invoker::allocate(&code, options)
    });
    hotlease_tests::wait::until_true("the first node has tried", SOON, || !nodes.granted("waits").is_empty());
    assert!(!waiting.is_finished(), "the second may be free again");
    drop(holder);
    let invoker = waiting.join().expect("no panic").expect("it is free");
    assert_eq!(nodes.holder(&invoker.lease().to_string()), 1);
}

#[test]
fn requests_that_no_node_can_grant_are_refused_at_once() {
    let nodes = Nodes::start_with(2, &["--direct", "2"]);
    let code = Code::open(library("echo")).expect("a library");
    for way in WAYS {
        let told = refused(
            &code,
            LeaseOptions {
                // The operator has configured no kernel.
                sandbox: "microvm".into(),
                ..options(&nodes, way, "no such sandbox")
            },
        );
        assert!(matches!(told, Rejection::NoSandbox { .. }), "{told:?}");
        let missing = "/no/such/directory".parse().expect("a directory");
        let mut asked = options(&nodes, way, "not granted");
        asked.reach.directories.push(missing);
        let told = refused(&code, asked);
        assert!(
            matches!(told, Rejection::OutOfReach { .. } | Rejection::NoSuitableAgent { .. }),
            "{told:?}"
        );
    }
    let image = Python {
        image: Some("00ff".repeat(16)),
        interpreter: "bin/python".into(),
        ..Python::default()
    };
    for way in WAYS {
        let asked = LeaseOptions {
            python: Some(image.clone()),
            ..options(&nodes, way, "no environment")
        };
        let told = refused(&Code::python(), asked);
        assert!(matches!(told, Rejection::NoEnvironment { .. }), "{told:?}");
    }
}

#[test]
fn each_node_s_reason_is_told_where_they_differ() {
    let needed = library("tally");
    let folder = needed.parent().expect("a folder");
    // One node has a file of that name that is not a library; the other node has no file of that name.
    let broken = tempfile::tempdir().expect("a folder");
    std::fs::write(broken.path().join(needed.file_name().expect("a name")), "no library").expect("written");
    let nodes = Nodes::start_unlike(&[Path::new("/nowhere"), broken.path()], &["--direct", "2"]);
    let (code, _) = in_need();
    for way in WAYS {
        let refusal = refused(&code, options(&nodes, way, "differs"));
        let Rejection::NoSuitableAgent { reasons } = &refusal else {
            panic!("{refusal:?} (the library is in {})", folder.display());
        };
        let told = refusal.to_string();
        for node in &nodes.nodes {
            assert!(told.contains(&node.id()), "{told} does not name {}", node.id());
        }
        assert_eq!(reasons.len(), 2, "{told}");
        assert!(told.contains("nothing ran"), "{told}");
    }
}
