//! States that functions leave in a worker: saved when the lease ends or its memory is wanted, and restored for the
//! next lease of that name, on either of two agents that share a directory.

use crate::requests::*;
use hotlease_client::{Code, Error, Invoker, LeaseOptions, Python};
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::swapping::{SAVING, Swapping};
use hotlease_tests::wait::until_true;
use serde_json::Value;
use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Scene {
    swapping: Swapping,
    _package: TempDir,
    python: Python,
}

impl Deref for Scene {
    type Target = Swapping;

    fn deref(&self) -> &Swapping {
        &self.swapping
    }
}

impl Scene {
    fn new(count: usize) -> Self {
        Self::with(count, &[])
    }

    fn with(count: usize, arguments: &[&str]) -> Self {
        let package = package();
        let mut python = python(package.path());
        python
            .environment
            .insert("HOTLEASE_PYTHON_IMPORTS".into(), "stateful".into());
        Self {
            swapping: Swapping::start(count, arguments),
            _package: package,
            python,
        }
    }

    fn options(&self) -> LeaseOptions {
        LeaseOptions {
            python: Some(self.python.clone()),
            state: "model".into(),
            ..self.nodes.lease_options()
        }
    }

    fn try_lease(&self, options: LeaseOptions) -> Result<Invoker, Error> {
        Invoker::allocate(&Code::python(), options)
    }

    fn lease(&self) -> Invoker {
        let leased = self.try_lease(self.options());
        leased.unwrap_or_else(|error| panic!("no lease: {error}\n{}", self.nodes.log()))
    }

    fn refused(&self, options: LeaseOptions) -> String {
        match self.try_lease(options) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("there is a lease\n{}", self.nodes.log()),
        }
    }

    /// Leaves a text in a worker, and releases the lease; returns the lease's name.
    fn leave(&self, what: &str) -> String {
        let invoker = self.lease();
        put(&invoker, what);
        let lease = invoker.lease().to_string();
        invoker.deallocate().expect("given back");
        lease
    }
}

fn call(invoker: &Invoker, name: &str, arguments: &[u8]) -> Result<Vec<u8>, Error> {
    let function = invoker.function("hotlease.call").expect("the one function");
    let request = plain(&by_reference("stateful", name), true, arguments);
    let reply = function.call(&request)?;
    assert_eq!(reply[0], PLAIN, "{}", String::from_utf8_lossy(&reply));
    Ok(reply[8..].to_vec())
}

fn put(invoker: &Invoker, what: &str) {
    call(invoker, "put", &tuple(&[text(what)])).expect("it runs");
}

fn holds(invoker: &Invoker, what: &str) {
    let held = call(invoker, "get", NOTHING).expect("it runs");
    assert_eq!(String::from_utf8_lossy(&held), String::from_utf8_lossy(&text(what)));
}

#[test]
fn a_node_that_is_given_back_hands_an_idle_worker_s_state_on_and_the_lease_goes_on_elsewhere() {
    let scene = Scene::new(2);
    let invoker = scene.lease();
    put(&invoker, "seven");
    let lease = invoker.lease().to_string();
    let begun = Instant::now();
    let holder = scene.drain_holder_of(&lease);
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "an idle worker was waited for: {:?}",
        begun.elapsed()
    );
    let saved = scene.saved().expect("a state");
    assert!(saved.ends_with("model.state"), "{saved:?}");
    let (kept, _) = scene.explained(&lease);
    assert!(kept.contains("saved 5 bytes to "), "{kept}");
    holds(&invoker, "seven");
    let next = invoker.lease().to_string();
    assert_ne!(scene.nodes.holder(&next), holder, "the node was given back");
    let (kept, took) = scene.explained(&next);
    assert!(kept.contains("restored 5 bytes of "), "{kept}");
    assert!(took.as_u64().is_some_and(|ns| ns > 0), "{took}");
    assert_eq!(scene.saved(), None, "what is in a worker is nowhere else");
    invoker.deallocate().expect("given back");
    assert!(scene.saved().is_some(), "it is saved again at the end");
}

#[test]
fn a_state_outlives_its_lease_and_is_found_by_the_next_one_of_that_name_only() {
    let scene = Scene::new(1);
    let first = scene.leave("first");
    let (kept, took) = scene.explained(&first);
    assert!(
        kept.starts_with("state `model`: nothing was saved under that name"),
        "{kept}"
    );
    assert!(took.is_null(), "nothing was restored: {took}");
    for other in ["", "other"] {
        let options = LeaseOptions {
            state: other.into(),
            ..scene.options()
        };
        let invoker = scene.try_lease(options).expect("a lease");
        holds(&invoker, "nothing");
        invoker.deallocate().expect("given back");
    }
    let again = scene.lease();
    holds(&again, "first");
    put(&again, "second");
    again.deallocate().expect("given back");
    let listed = scene.json(&["state", "ls", scene.directory()]);
    let names: Vec<_> = listed.iter().map(|row| (&row["name"], &row["error"])).collect();
    assert_eq!(
        names,
        [
            (&Value::from("model"), &Value::Null),
            (&Value::from("other"), &Value::Null)
        ]
    );
    let last = scene.lease();
    holds(&last, "second");
}

#[test]
fn memory_that_another_lease_needs_is_taken_from_an_idle_worker_with_a_state() {
    let scene = Scene::new(1);
    let all = fs::read_to_string("/proc/meminfo").expect("readable");
    let all = all.lines().next().and_then(|line| line.split_whitespace().nth(1));
    let all: u64 = 1024 * all.expect("a number").parse::<u64>().expect("a number");
    let most = |options: LeaseOptions| LeaseOptions {
        memory_bytes: all / 10 * 7,
        ..options
    };
    let idle = scene.try_lease(most(scene.options())).expect("a lease");
    put(&idle, "seven");
    let mut plain = most(scene.options());
    plain.state = String::new();
    plain.patience = LIMIT;
    let begun = Instant::now();
    let other = scene.try_lease(plain);
    let other = other.unwrap_or_else(|error| {
        panic!(
            "no room was made in {:?}: {error}\n{}",
            begun.elapsed(),
            scene.nodes.log()
        )
    });
    assert!(scene.saved().is_some(), "the idle one's state is kept");
    holds(&other, "nothing");
    other.deallocate().expect("given back");
    holds(&idle, "seven");
}

#[test]
fn a_worker_that_is_idle_for_longer_than_the_operator_wants_goes_and_comes_back_with_the_next_call() {
    let scene = Scene::with(1, &["--swap-after", "1s"]);
    let invoker = scene.lease();
    let lease = invoker.lease().to_string();
    put(&invoker, "seven");
    until_true("the idle worker is swapped out", LIMIT, || scene.saved().is_some());
    until_true("the lease ended", LIMIT, || {
        let info = scene.nodes.manager().lease_info(&lease);
        info.is_some_and(|info| info.end_reason.contains("its state was saved"))
    });
    holds(&invoker, "seven");
    assert_ne!(invoker.lease().to_string(), lease, "it is another one");
}

#[test]
fn a_save_function_that_fails_loses_the_state_at_the_end_only_and_everybody_is_told() {
    for (state, expected) in [
        ("saves badly", "stateful._save, raised ValueError: it cannot be written"),
        ("saves a number", "stateful._save, raised TypeError"),
    ] {
        let scene = Scene::with(1, &["--swap-after", "1s"]);
        let invoker = scene.lease();
        let lease = invoker.lease().to_string();
        put(&invoker, state);
        until_true("it was asked for", LIMIT, || {
            scene.explained(&lease).0.contains("could not be saved")
        });
        holds(&invoker, state);
        assert_eq!(invoker.lease().to_string(), lease, "the lease goes on");
        invoker.deallocate().expect("given back");
        let (kept, _) = scene.explained(&lease);
        assert!(kept.contains(expected) && kept.contains("lost: "), "{kept}");
        assert!(scene.nodes.log().contains("the state of a worker is lost"));
        assert_eq!(scene.files(), [""; 0].map(PathBuf::from), "something is left");
        holds(&scene.lease(), "nothing");
    }
}

#[test]
fn a_save_function_that_hangs_delays_the_end_no_longer_than_was_said() {
    let scene = Scene::new(1);
    let invoker = scene.lease();
    put(&invoker, "saves for ever");
    let lease = invoker.lease().to_string();
    let begun = Instant::now();
    invoker.deallocate().expect("given back");
    let took = begun.elapsed();
    assert!(took >= SAVING && took < SAVING + Duration::from_secs(5), "{took:?}");
    let (kept, _) = scene.explained(&lease);
    assert!(kept.contains("did not save it within 500 ms"), "{kept}");
    assert_eq!(scene.files(), [""; 0].map(PathBuf::from), "half a state is left");
}

#[test]
fn a_restore_function_that_fails_or_hangs_fails_the_lease_and_loses_nothing() {
    // The last field says whether another attempt may pass: it would raise the same, but may be quicker.
    for (state, expected, may_pass) in [
        (
            "restores badly",
            "stateful._restore, raised ValueError: it cannot be read",
            false,
        ),
        ("restores for ever", "its worker was not done within 5000 ms", true),
    ] {
        let scene = Scene::new(1);
        scene.leave(state);
        let saved = scene.saved().expect("a state");
        let before = fs::read(&saved).expect("readable");
        let error = scene.try_lease(scene.options()).expect_err("not restored");
        assert_eq!(error.retryable(), may_pass, "{error}");
        let error = error.to_string();
        for words in [
            expected,
            "no function ran",
            saved.to_str().expect("text"),
            "hotlease state rm",
        ] {
            assert!(error.contains(words), "{words:?} is not in: {error}");
        }
        until_true("the worker is gone", LIMIT, || scene.files() == [saved.clone()]);
        assert_eq!(fs::read(&saved).expect("still there"), before);
        scene.json(&["state", "rm", scene.directory(), "model"]);
        holds(&scene.lease(), "nothing");
    }
}

#[test]
fn a_damaged_state_or_another_program_s_is_refused_and_stays_where_it_is() {
    let scene = Scene::new(1);
    scene.leave("seven");
    let saved = scene.saved().expect("a state");
    let whole = fs::read(&saved).expect("readable");
    let mut python = scene.python.clone();
    python
        .environment
        .insert("HOTLEASE_PYTHON_IMPORTS".into(), "stateful json".into());
    let other = LeaseOptions {
        python: Some(python),
        ..scene.options()
    };
    let error = scene.refused(other);
    assert!(error.contains("saved by another program"), "{error}");
    let cut = whole[..whole.len() - 2].to_vec();
    let mut altered = whole.clone();
    *altered.last_mut().expect("not empty") ^= 1;
    for (bytes, expected) in [
        (cut, "cut short"),
        (altered, "not those that were saved"),
        (b"something else".to_vec(), "no state of a worker"),
    ] {
        fs::write(&saved, &bytes).expect("written");
        let error = scene.refused(scene.options());
        assert!(error.contains(expected), "{error}, not {expected}");
        assert_eq!(fs::read(&saved).expect("it stays"), bytes);
    }
    fs::write(&saved, &whole).expect("written");
    holds(&scene.lease(), "seven");
}

#[test]
fn only_one_of_two_leases_gets_a_state_and_the_other_learns_the_holder() {
    let scene = Scene::new(2);
    scene.leave("seven");
    let results = std::thread::scope(|scope| {
        let lease = || scene.try_lease(scene.options());
        let both = [scope.spawn(lease), scope.spawn(lease)];
        both.map(|one| one.join().expect("no panic"))
    });
    let (got, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((got.len(), refused.len()), (1, 1), "{}", scene.nodes.log());
    let got = got.into_iter().next().expect("one").expect("a lease");
    let lease = got.lease().to_string();
    let error = refused
        .into_iter()
        .next()
        .expect("one")
        .expect_err("an error")
        .to_string();
    assert!(
        error.contains("the state `model` is in use by lease ") && error.contains(&lease),
        "{error}"
    );
    holds(&got, "seven");
}

#[test]
fn an_agent_that_is_killed_while_it_saves_leaves_no_half_state_and_no_lease_locked_out() {
    let mut scene = Scene::new(2);
    let invoker = scene.lease();
    put(&invoker, "is large");
    let holder = scene.nodes.holder(&invoker.lease().to_string());
    let giving = std::thread::spawn(move || drop(invoker.deallocate()));
    until_true("it is being written", LIMIT, || {
        let files = scene.files();
        files
            .iter()
            .any(|path| fs::metadata(path).is_ok_and(|there| there.len() > 4096))
    });
    scene.swapping.nodes.nodes[holder].kill();
    giving.join().expect("no panic");
    let is_whole = scene.saved().is_some();
    let begun = Instant::now();
    let next = loop {
        match scene.try_lease(scene.options()) {
            Ok(next) => break next,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
    };
    holds(&next, if is_whole { "was large" } else { "nothing" });
    put(&next, "small");
    next.deallocate().expect("given back");
    assert_eq!(scene.files().len(), 1, "{:?}", scene.files());
}

#[test]
fn a_lease_with_a_state_needs_functions_that_save_it_and_an_agent_that_keeps_it() {
    let scene = Scene::new(1);
    let mut options = scene.options();
    if let Some(python) = &mut options.python {
        python.environment.remove("HOTLEASE_PYTHON_IMPORTS");
    }
    let error = scene.refused(options);
    assert!(error.contains("hotlease.state(save=..., restore=...)"), "{error}");
    drop(scene);
    let package = package();
    let nodes = Nodes::start(1);
    let options = LeaseOptions {
        python: Some(python(package.path())),
        state: "model".into(),
        ..nodes.lease_options()
    };
    let error = Invoker::allocate(&Code::python(), options).expect_err("no directory");
    assert!(error.to_string().contains("--swap-directory"), "{error}");
}
