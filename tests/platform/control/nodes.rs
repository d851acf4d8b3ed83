//! Operators add nodes and take them back, on the command line.

use hotlease_client::{Error, Invoker, LeaseOptions};
use hotlease_tests::hosts::Host;
use hotlease_tests::http::ask;
use hotlease_tests::lease::LONG;
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, Platform, program};
use hotlease_tests::site::Daemon;
use hotlease_tests::wait::until_true;
use hotlease_wire::{EndReason, Rejection, RunCertainty};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, Instant};

/// A call that never returns, and has begun, on a lease that is not replaced.
fn looping(platform: &Platform) -> (Invoker, hotlease_client::Invocation) {
    let options = LeaseOptions {
        replace_lease: false,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("misbehaved", options);
    let marks = Marks::new();
    let call = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
    until_true("it has begun", LIMIT, || marks.count() == 1);
    (invoker, call)
}

/// Checks what a client is told of a call whose node was taken.
pub fn is_told_of_a_node_given_back(error: &Error) {
    let text = error.to_string();
    assert!(text.contains("given back"), "the error names the reason: {text}");
    assert_eq!(error.ran(), RunCertainty::Unknown, "it began: {text}");
    assert!(text.contains("may have run"), "{text}");
}

fn node(platform: &Platform) -> Value {
    let nodes = platform.json(&["admin", "node", "list"]);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    nodes[0].clone()
}

fn order(platform: &Platform, arguments: &[&str]) -> Value {
    let id = node(platform)["agent"].as_str().expect("an id").to_owned();
    let mut line = vec!["admin", "node", arguments[0], &id];
    line.extend(&arguments[1..]);
    platform.json(&line).remove(0)
}

#[test]
fn drain_of_the_command_line_cuts_a_hot_loop_at_its_deadline_and_says_how_long_it_took() {
    let platform = Platform::start();
    let (invoker, call) = looping(&platform);
    let start = Instant::now();
    let call = std::thread::spawn(move || (call.wait(), start.elapsed()));
    let done = order(&platform, &["drain", "--within", "1s", "--wait"]);
    assert_eq!((&done["state"], &done["done"]), (&"drained".into(), &true.into()));
    let took_ms = done["took_ms"].as_f64().expect("a time");
    assert!(
        (950.0..10_000.0).contains(&took_ms),
        "a notice of 1 s took {took_ms} ms"
    );
    let (result, took) = call.join().unwrap();
    assert!(took >= Duration::from_millis(950), "cut {took:?} after the order");
    is_told_of_a_node_given_back(&result.expect_err("it never returns"));
    assert!(invoker.function("echo").unwrap().call(b"x").is_err());

    let refusal = platform.manager().lease(1, LONG).expect_err("it is drained");
    assert!(matches!(refusal, Rejection::Unavailable { .. }), "{refusal}");
    let listed = node(&platform);
    assert_eq!(
        (&listed["state"], &listed["drained"]),
        (&"drained".into(), &true.into())
    );
    // A listing shows the last report of an agent that takes too long to answer.
    until_true("it is listed as drained", LIMIT, || {
        platform.json(&["agents"])[0]["state"] == "drained"
    });
    until_true("no worker is left, warm or not", LIMIT, || {
        platform.workers().is_empty()
    });

    assert_eq!(order(&platform, &["resume", "--wait"])["state"], "serving");
    let invoker = platform.invoker("behaved");
    assert_eq!(invoker.function("echo").unwrap().call(b"again").unwrap(), b"again");
    until_true("nothing is wanted of it any more", LIMIT, || {
        let node = node(&platform);
        node["drained"] == false && node["pending"] == false
    });
}

#[test]
fn leases_that_are_over_before_the_deadline_end_a_drain_early() {
    let platform = Platform::start();
    let invoker = platform.invoker("behaved");
    let echo = invoker.function("echo").unwrap();
    let done = order(&platform, &["drain", "--within", "60s"]);
    assert_eq!(done["done"], true);
    assert_eq!(echo.call(b"still").unwrap(), b"still", "calls go on until the deadline");
    let listed = node(&platform);
    assert_eq!((&listed["state"], &listed["leases"]), (&"draining".into(), &1.into()));
    assert!(listed["drain_left_ms"].as_u64().unwrap() > 40_000, "{listed}");
    invoker.deallocate().unwrap();
    until_true("it is drained", LIMIT, || node(&platform)["state"] == "drained");
}

#[test]
fn removal_of_a_node_in_hot_loops_ends_them_at_once_each_time() {
    let platform = Platform::start();
    for round in 0..5 {
        let calls = [looping(&platform), looping(&platform)];
        let start = Instant::now();
        let done = order(&platform, &["remove", "--wait"]);
        let took = start.elapsed();
        assert_eq!(done["state"], "drained", "round {round}");
        assert!(took < LIMIT, "round {round} took {took:?}");
        for (invoker, call) in calls {
            let lease = invoker.lease().to_string();
            is_told_of_a_node_given_back(&call.wait().expect_err("it never returns"));
            let known = platform.manager().lease_info(&lease).expect("it is remembered");
            assert_eq!(known.end_reason, EndReason::Reclaimed.to_string());
            let usage = known.usage.expect("its last total");
            assert!(usage.compute_ns > 0, "the call that was killed is billed: {usage:?}");
        }
        assert_eq!(platform.workers(), [], "round {round}: workers are left");
        let memory = platform.process().maps("memfd:hotlease");
        assert!(!memory, "round {round}: shared memory of a lease is left");
        assert_eq!(order(&platform, &["add", "--wait"])["state"], "serving");
    }
    until_true("journal and ledger agree", LIMIT, || {
        let verdict = &platform.json(&["bill", "verify"])[0];
        verdict["journal"]["waiting"] == 0
    });
}

#[test]
fn offers_grow_at_once_shrink_by_a_deadline_and_name_cores_of_the_machine() {
    let platform = Platform::start();
    let (_invoker, call) = looping(&platform);
    let held = platform.manager().leases().unwrap()[0].cores[0];
    let other = *platform.cores().iter().find(|core| **core != held).unwrap();
    let only = format!("{other},");
    order(&platform, &["add", "--cores", &only, "--within", "300ms"]);
    is_told_of_a_node_given_back(&call.wait().expect_err("its core is not offered any more"));
    until_true("only the other core is offered", LIMIT, || {
        let node = node(&platform);
        node["cores"] == Value::from(vec![other]) && node["leases"] == 0
    });
    let refusal = platform.manager().lease(2, LONG).expect_err("one core is left");
    assert!(matches!(refusal, Rejection::NoCapacity { .. }), "{refusal}");

    assert_eq!(
        order(&platform, &["add", "--cores", "none", "--wait"])["state"],
        "standby"
    );
    let refusal = platform.manager().lease(1, LONG).expect_err("it offers nothing");
    assert!(matches!(refusal, Rejection::Unavailable { .. }), "{refusal}");
    order(&platform, &["add", "--cores", "2", "--wait"]);
    platform.manager().lease(2, LONG).expect("both cores are offered again");

    let id = node(&platform)["agent"].as_str().unwrap().to_owned();
    let output = platform.run(&["admin", "node", "add", &id, "--cores", "8191,"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("core 8191"), "{words}");
    let output = platform.run(&["admin", "node", "drain", "no-such-host"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("node list"), "{words}");
}

/// Manager and agent as two processes.
struct SeparateManager {
    host: Host,
    manager: Option<Daemon>,
    agent: Option<Daemon>,
}

impl SeparateManager {
    fn start() -> Self {
        let host = Host::here();
        let manager = Some(Daemon::start(&host, &["manager"]));
        let agent = Some(Self::agent_of(&host));
        let site = Self { host, manager, agent };
        site.until_state("serving");
        site
    }

    fn agent_of(host: &Host) -> Daemon {
        Daemon::start(host, &["agent", "--cores", "1", "--pool", "0"])
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.host.command(&program("hotlease"));
        command
            .args(arguments)
            .arg("--json")
            .env("HOTLEASE_RUNTIME_DIR", self.host.runtime_dir());
        command.output().expect("hotlease runs")
    }

    fn nodes(&self) -> Vec<Value> {
        let output = self.run(&["admin", "node", "list"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    fn until_state(&self, state: &str) {
        until_true(
            state,
            LIMIT,
            || matches!(&self.nodes()[..], [node] if node["state"] == state && node["pending"] == false),
        );
    }
}

#[test]
fn drain_outlives_the_manager_and_the_agent_and_finds_a_node_that_was_away() {
    let mut site = SeparateManager::start();
    let id = site.nodes()[0]["agent"].as_str().unwrap().to_owned();
    let output = site.run(&["admin", "node", "drain", &id, "--within", "0", "--wait"]);
    assert!(output.status.success(), "{output:?}");
    site.manager.take().unwrap().kill();
    site.manager = Some(Daemon::start(&site.host, &["manager"]));
    site.until_state("drained");
    // The agent's next run has no record of the order; the manager has.
    site.agent.take().unwrap().kill();
    site.agent = Some(SeparateManager::agent_of(&site.host));
    site.until_state("drained");

    let output = site.run(&["admin", "node", "resume", &id, "--wait"]);
    assert!(output.status.success(), "{output:?}");
    drop(site.agent.take());
    let output = site.run(&["admin", "node", "remove", &id]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer["done"], false, "it is away: {answer}");
    site.until_away();
    site.manager.take().unwrap().kill();
    site.manager = Some(Daemon::start(&site.host, &["manager"]));
    site.agent = Some(SeparateManager::agent_of(&site.host));
    site.until_state("drained");
}

impl SeparateManager {
    fn until_away(&self) {
        until_true(
            "away",
            LIMIT,
            || matches!(&self.nodes()[..], [node] if node["state"] == "away" && node["pending"] == true),
        );
    }
}

/// More cores than any host of a test has.
const TOO_MANY: &str = "8000";

#[test]
fn a_rejected_order_leaves_the_one_before_in_force_also_for_a_node_that_was_away() {
    let mut site = SeparateManager::start();
    let id = site.nodes()[0]["agent"].as_str().unwrap().to_owned();
    let order = |site: &SeparateManager, arguments: &[&str]| {
        let output = site.run(&[&["admin", "node"], arguments].concat());
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    };
    let (done, text) = order(&site, &["remove", &id, "--wait"]);
    assert!(done, "{text}");
    let (done, text) = order(&site, &["add", &id, "--cores", TOO_MANY]);
    assert!(!done && text.contains(TOO_MANY), "{text}");
    let listed = &site.nodes()[0];
    assert_eq!(
        (&listed["state"], &listed["pending"], &listed["drained"]),
        (&"drained".into(), &false.into(), &true.into()),
        "the order was never in force: {listed}"
    );

    // Only the node's agent can see that it cannot carry out this order, and the node is away.
    drop(site.agent.take());
    site.until_away();
    let (done, text) = order(&site, &["add", &id, "--cores", TOO_MANY]);
    assert!(done, "{text}");
    site.manager.take().unwrap().kill();
    site.manager = Some(Daemon::start(&site.host, &["manager"]));
    site.agent = Some(SeparateManager::agent_of(&site.host));
    site.until_state("drained");
    let listed = &site.nodes()[0];
    assert!(
        listed["rejected"].as_str().is_some_and(|why| why.contains(TOO_MANY)),
        "the operator sees that it was rejected: {listed}"
    );
    site.manager.take().unwrap().kill();
    site.agent.take().unwrap().kill();
    site.manager = Some(Daemon::start(&site.host, &["manager"]));
    site.agent = Some(SeparateManager::agent_of(&site.host));
    site.until_state("drained");
    let (done, text) = order(&site, &["add", &id, "--cores", "1", "--wait"]);
    assert!(done, "{text}");
}

#[test]
fn an_order_with_a_token_is_carried_out_once_also_if_the_manager_is_restarted() {
    let mut site = SeparateManager::start();
    let id = site.nodes()[0]["agent"].as_str().unwrap().to_owned();
    let directory = site.host.runtime_dir().to_owned();
    let send = |method: &str, path: &str, token: &str, body: &str| {
        let token = match token {
            "" => String::new(),
            token => format!("Idempotency-Key: {token}\r\n"),
        };
        let headers = format!("Content-Type: application/json\r\n{token}");
        ask(&directory, method, &format!("/v1/nodes/{id}{path}"), &headers, body)
    };
    let drain = || send("POST", "/drain", "job-17", "{\"within_ms\": 600000}");
    let first = drain();
    assert_eq!((first.status, &first.json()["done"]), (200, &true.into()), "{first:?}");
    site.until_state("drained");
    assert_eq!(send("POST", "/resume", "", "").status, 200);
    site.until_state("serving");
    for is_restarted in [false, true] {
        if is_restarted {
            site.manager.take().unwrap().kill();
            site.manager = Some(Daemon::start(&site.host, &["manager"]));
            site.until_state("serving");
        }
        let again = drain();
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{again:?}");
        for (method, path, body) in [
            ("DELETE", "", ""),
            ("POST", "/drain", "{\"within_ms\": 1}"),
            ("PUT", "/offer", "{\"cores\": \"none\"}"),
        ] {
            let other = send(method, path, "job-17", body);
            let kind = other.json()["type"].as_str().unwrap_or_default().to_owned();
            assert_eq!(other.status, 409, "{method} {path}: {other:?}");
            assert!(kind.ends_with("#token-used"), "{other:?}");
        }
        let listed = &site.nodes()[0];
        assert_eq!(
            (&listed["state"], &listed["drained"], &listed["pending"]),
            (&"serving".into(), &false.into(), &false.into()),
            "restarted {is_restarted}: {listed}"
        );
    }
    for bad in ["\u{e4}", "a b", &"x".repeat(129)] {
        let refused = send("POST", "/resume", bad, "");
        assert_eq!(refused.status, 400, "{bad}: {refused:?}");
    }
    // A rejected order is not recorded: its token can be used again.
    let too_much = format!("{{\"cores\": {TOO_MANY}}}");
    assert_eq!(send("PUT", "/offer", "job-18", &too_much).status, 400);
    assert_eq!(send("PUT", "/offer", "job-18", "{\"cores\": 1}").status, 200);
}
