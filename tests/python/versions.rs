//! Interpreters that differ from the client's.

use crate::requests::*;
use hotlease_client::{Error, Python};

/// A change to the options, and the texts that the refusal must contain.
type Spoiled<'a> = (fn(&mut Python), [&'a str; 2]);

#[test]
fn another_version_is_told_with_both_before_anything_runs() {
    let scene = Scene::new();
    let (version, hotlease) = (scene.python.version.clone(), scene.python.hotlease.clone());
    let spoiled: [Spoiled<'_>; 3] = [
        (|python| python.version = "3.99.1".into(), ["Python 3.99.1", &version]),
        (|python| python.hotlease = "0.0.7".into(), ["hotlease 0.0.7", &hotlease]),
        (
            |python| python.cloudpickle = "0.5".into(),
            ["cloudpickle 0.5", "the worker"],
        ),
    ];
    for (spoil, named) in spoiled {
        let mut python = scene.python.clone();
        spoil(&mut python);
        let told = refusal(&scene, python);
        assert!(
            named.iter().all(|version| told.contains(version)),
            "{told} does not name {named:?}"
        );
    }
}

#[test]
fn an_interpreter_that_cannot_be_one_is_told() {
    let scene = Scene::new();
    let named = |path: &str| Python {
        interpreter: path.into(),
        ..scene.python.clone()
    };
    assert!(refusal(&scene, named("/no/such/python")).contains("/no/such/python"));
    assert!(refusal(&scene, named("/bin/false")).contains("status 1"));
    let without = Python {
        environment: Default::default(),
        ..scene.python.clone()
    };
    let told = refusal(&scene, without);
    // If the package is installed for that interpreter, the worker starts nevertheless.
    assert!(told.is_empty() || told.contains("hotlease"), "{told}");
    let (_invoker, function) = scene.function();
    assert_eq!(ask(&function, "pid", NOTHING).expect("the core is free again").0, PLAIN);
}

/// Text of the refusal; empty if the lease was granted.
fn refusal(scene: &Scene, python: Python) -> String {
    match scene.allocate(python) {
        Ok(_) => String::new(),
        Err(error @ Error::Options { .. }) => panic!("{error}"),
        Err(error) => error.to_string(),
    }
}
