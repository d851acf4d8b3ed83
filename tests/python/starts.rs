//! Starts of Python leases: why an interpreter was not ready.

use crate::requests::*;
use hotlease_client::{Code, Invoker, LeaseOptions};
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use serde_json::Value;

fn start(invoker: &Invoker) -> hotlease_client::StartPhases {
    invoker.phases().start
}

fn spares(scene: &Scene) -> usize {
    let workers = scene.platform.manager().workers().expect("listed");
    workers
        .iter()
        .filter(|worker| worker.state == "spare" && worker.rss_bytes > 0)
        .count()
}

#[test]
fn first_warm_and_late_leases_report_their_kind_of_start() {
    let scene = Scene::new();
    let begin = std::time::Instant::now();
    let (first, function) = scene.function();
    assert_eq!(ask(&function, "pid", NOTHING).expect("it runs").0, PLAIN);
    let all = begin.elapsed();
    let told = start(&first);
    assert!(told.cold.starts_with("the first lease"), "{told:?}");
    let steps = told.steps;
    let (Some(sandbox), Some(interpreter), Some(imports)) = (steps.sandbox_us, steps.interpreter_us, steps.imports_us)
    else {
        panic!("a step is missing: {told:?}");
    };
    assert!(
        imports > 0 && interpreter > 0,
        "the worker says how long its imports took: {told:?}"
    );
    assert!(
        sandbox + interpreter + imports + told.grant_us <= all.as_micros() as u64,
        "{told:?} in {all:?}"
    );
    let listed = scene.platform.json(&["explain"]);
    assert_eq!(listed[0]["why"], told.cold.as_str());
    assert_eq!(listed[0]["phases"]["imports"], 1000 * imports);
    drop(function);
    first.deallocate().expect("given back");

    until_true("a spare is ready", LIMIT, || spares(&scene) == 1);
    // The spare worker may not be ready yet: then the lease waits for it.
    let (second, function) = scene.function();
    let told = start(&second);
    assert!(
        told.cold.is_empty() && told.steps == Default::default() || told.cold.contains("still being started"),
        "{told:?}"
    );
    drop(function);
    let third = scene.allocate(scene.python.clone());
    match third {
        Ok(third) => {
            let told = start(&third);
            assert!(
                told.cold.starts_with("all spares were taken") && told.cold.ends_with("left 1"),
                "{told:?}"
            );
            third.deallocate().expect("given back");
        }
        Err(error) => eprintln!("skipped: one core holds one lease: {error}"),
    }
    second.deallocate().expect("given back");
}

#[test]
fn memory_that_waiting_interpreters_borrow_is_shown_and_counted_against_no_lease() {
    let scene = Scene::new();
    let (first, function) = scene.function();
    assert_eq!(ask(&function, "pid", NOTHING).expect("it runs").0, PLAIN);
    drop(function);
    first.deallocate().expect("given back");
    until_true("a spare is ready", LIMIT, || spares(&scene) == 1);
    let listed = scene.platform.run(&["ps"]).stdout;
    let listed = String::from_utf8(listed).expect("text");
    assert!(listed.contains("of idle memory"), "{listed}");
    // A lease may get all the memory that the node offers, and the spare worker as well.
    let offered = scene.platform.json(&["agents"])[0]["memory_bytes"].clone();
    let options = LeaseOptions {
        python: Some(scene.python.clone()),
        memory_bytes: offered.as_u64().expect("bytes"),
        ..scene.platform.lease_options()
    };
    let second = Invoker::allocate(&Code::python(), options).expect("granted");
    let told = start(&second);
    assert!(
        told.cold.is_empty() || told.cold.contains("still being started"),
        "{told:?}"
    );
    second.deallocate().expect("given back");
}

#[test]
fn bench_of_cold_starts_has_a_row_for_each_kind_whose_phases_add_up_to_no_more_than_the_start() {
    let scene = Scene::new();
    let interpreter = scene.python.interpreter.to_str().expect("a path");
    let arguments = [
        "--json",
        "bench",
        "cold",
        "--rounds",
        "2",
        "--dropped",
        "0",
        "--programs",
        "c,python",
        "--python",
        interpreter,
    ];
    let mut command = scene.platform.hotlease(&arguments);
    let done = command
        .env("PYTHONPATH", &scene.python.environment["PYTHONPATH"])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    let rows = String::from_utf8(done.stdout).expect("text");
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (skipped, rows): (Vec<Value>, Vec<Value>) = rows.into_iter().partition(|row| row.get("skipped").is_some());
    for row in &skipped {
        assert!(
            row["skipped"].as_str().is_some_and(|why| !why.is_empty()),
            "no reason: {row}"
        );
        eprintln!("left out: {row}");
    }
    let of = |program: &str, kind: &str, start: &str| {
        let wanted = |row: &&Value| {
            let params = &row["params"];
            params["program"] == program && params["in"] == kind && params["start"] == start
        };
        rows.iter().find(wanted)
    };
    let mut kinds = vec!["process"];
    let is_skipped = |kind: &str| {
        skipped
            .iter()
            .any(|row| row["params"]["in"] == kind && row["params"].get("program").is_none())
    };
    kinds.extend(
        ["namespace", "container", "microvm"]
            .into_iter()
            .filter(|kind| !is_skipped(kind)),
    );
    for kind in &kinds {
        for (program, start) in [("C", "first"), ("Python", "first"), ("Python", "warm")] {
            let row = of(program, kind, start)
                .unwrap_or_else(|| panic!("no row of {program} in {kind}, {start}: {skipped:?}"));
            let details = &row["details"];
            let phases = details["phases_us"].as_object().expect("an object");
            let sum: f64 = phases.values().filter_map(Value::as_f64).sum();
            let total = details["total_us"].as_f64().expect("a time");
            assert!(sum > 0.0 && sum <= total, "{sum} us of {total}: {row}");
            assert!(
                row["measured"]["p50"].as_u64() > Some(0) && row["baseline"]["p50"].as_u64() > Some(0),
                "{row}"
            );
            assert_eq!(
                (&row["samples"], details["why"] == ""),
                (&Value::from(2), start == "warm"),
                "{row}"
            );
            assert!(details["private_bytes"].as_u64() > Some(0), "{row}");
        }
        let hot = of("C", kind, "hot call");
        assert!(
            matches!(*kind, "process" | "microvm") || hot.is_some_and(|row| row["difference_p50"].is_number()),
            "{hot:?}"
        );
    }
    for kind in &kinds {
        assert!(of("C", kind, "warm").is_some(), "native workers wait in {kind}");
    }
    assert!(
        skipped.iter().any(|row| row["skipped"] == "by --dropped 0"),
        "{skipped:?}"
    );
}
