//! The command line: results on stdout, JSON that programs can read, exit statuses as documented.

use hotlease_client::{Code, Invoker, LeaseOptions};
use hotlease_tests::lease::{LONG, RawLease};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, SOON, private_directory};
use hotlease_tests::session::RawSession;
use hotlease_tests::wait::until_true;
use serde_json::Value;
use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Duration;

fn path(name: &str) -> String {
    library(name).to_str().unwrap().to_owned()
}

fn run_with_input(platform: &Platform, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = platform.hotlease(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn has(object: &Value, fields: &[&str]) {
    for field in fields {
        assert!(object.get(field).is_some(), "{object} lacks {field}");
    }
}

#[test]
fn run_invokes_a_function_on_bytes() {
    let platform = Platform::start();
    let output = run_with_input(&platform, &["run", &path("behaved"), "echo"], b"hello\0world");
    assert_eq!(
        (code(&output), output.stdout.as_slice()),
        (0, &b"hello\0world"[..]),
        "{}",
        words(&output)
    );
    let large = vec![7; 300_000];
    let output = run_with_input(&platform, &["run", &path("behaved"), "echo_context"], &large);
    assert!(output.stdout == large, "{}", words(&output));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("input");
    std::fs::write(&file, b"from a file").unwrap();
    let output = platform.run(&["run", &path("behaved"), "echo", "--input", file.to_str().unwrap()]);
    assert_eq!(output.stdout, b"from a file", "{}", words(&output));
    assert_eq!(platform.free_cores(), 2, "it gives its lease back");
}

#[test]
fn run_says_in_json_what_it_did() {
    let platform = Platform::start();
    let arguments = ["run", &path("behaved"), "count", "--repeat", "20"];
    let objects = platform.json(&arguments);
    let [ran] = &objects[..] else {
        panic!("{objects:?}");
    };
    has(
        ran,
        &[
            "function",
            "lease",
            "input_bytes",
            "output_bytes",
            "output_base64",
            "cold_us",
            "call_ns",
            "usage",
        ],
    );
    assert_eq!(ran["function"], "count");
    assert_eq!(ran["invocations"], 20);
    assert_eq!(ran["usage"]["invocations"], 20);
    assert_eq!(ran["output_base64"], "FAAAAAAAAAA=", "the 20th count");
}

#[test]
fn listings_are_json_with_every_field() {
    let platform = Platform::start();
    assert_eq!(platform.json(&["leases"]), [Value::Null; 0]);
    let lease = RawLease::take(&platform);
    let leases = platform.json(&["leases"]);
    assert_eq!(leases.len(), 1);
    has(
        &leases[0],
        &[
            "id",
            "agent",
            "tenant",
            "label",
            "state",
            "epoch",
            "expires_in_ms",
            "cores",
            "usage",
        ],
    );
    assert_eq!(leases[0]["id"], lease.grant.lease.as_str());
    assert_eq!(leases[0]["cores"].as_array().unwrap().len(), 1);
    let workers = platform.json(&["ps"]);
    has(
        &workers[0],
        &[
            "agent",
            "lease",
            "index",
            "pid",
            "epoch",
            "cores",
            "state",
            "rss_bytes",
            "usage",
        ],
    );
    let serving = workers
        .iter()
        .find(|worker| worker["lease"] == lease.grant.lease.as_str())
        .unwrap();
    assert_eq!(serving["state"], "serving");
    assert!(serving["rss_bytes"].as_u64().unwrap() > 0);
    assert_eq!(platform.json(&["ps", "--leased"]).len(), 1);
    let agents = platform.json(&["agents"]);
    assert_eq!(agents.len(), 1);
    assert_eq!(agents[0]["state"], "serving");
    let cached = platform.json(&["functions"]);
    assert_eq!(cached[0]["functions"][0], "echo");
    lease.session.release();
    assert_eq!(platform.json(&["leases"]).len(), 0);
    let all = platform.json(&["leases", "--all"]);
    assert_eq!(
        (&all[0]["state"], &all[0]["end_reason"]),
        (&Value::from("ended"), &Value::from("released"))
    );
}

#[test]
fn functions_of_a_library_are_listed_without_a_platform() {
    let platform = Platform::start();
    let mut command = platform.hotlease(&["functions", &path("misbehaved"), "--json"]);
    let nowhere = private_directory();
    let output = command.env("HOTLEASE_RUNTIME_DIR", nowhere.path()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", words(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let functions: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |name: &str| functions.iter().find(|function| function["name"] == name).unwrap();
    assert_eq!(find("dies_once")["idempotent"], true);
    assert_eq!(find("dies_once")["interface"], "plain");
    assert_eq!(find("claims_everything")["interface"], "context");
    let names: Vec<&str> = functions
        .iter()
        .map(|function| function["name"].as_str().unwrap())
        .collect();
    assert!(names.is_sorted(), "the index is the position among sorted names");
}

#[test]
fn version_and_doctor_know_the_running_platform() {
    let platform = Platform::start();
    let version = platform.json(&["version"]);
    assert_eq!(version[0]["running"], version[0]["version"]);
    let findings = platform.json(&["doctor"]);
    assert!(findings.len() > 3);
    for finding in &findings {
        has(finding, &["check", "verdict", "finding", "advice"]);
        assert_ne!(finding["verdict"], "fail", "{finding}");
    }
}

#[test]
fn an_inherited_state_directory_does_not_contradict_a_database() {
    let platform = Platform::start();
    let mut command = platform.hotlease(&["manager", "--database", "host=/nowhere dbname=x"]);
    let output = command
        .env("HOTLEASE_STATE_DIR", "/nowhere")
        .output()
        .expect("hotlease runs");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("PostgreSQL"), "{words}");
    let named = platform.run(&["manager", "--database", "host=/nowhere", "--state-dir", "/nowhere"]);
    let words = String::from_utf8_lossy(&named.stderr).into_owned();
    assert!(words.contains("cannot be used with"), "{words}");
}

#[test]
fn doctor_praises_only_transports_that_can_be_used() {
    let platform = Platform::start();
    let findings = platform.json(&["doctor", "--peer"]);
    let of = |check: &'static str| findings.iter().filter(move |finding| finding["check"] == check);
    assert!(of("transport").count() > 0, "what would be chosen: {findings:?}");
    // None without libfabric.
    for provider in of("provider") {
        let text = provider["finding"].as_str().unwrap();
        let praised = provider["verdict"] == "ok";
        assert_eq!(praised, text.contains(" usable on "), "{provider}");
        assert!(praised || provider["verdict"] == "note", "{provider}");
    }
}

#[test]
fn exit_status_says_what_kind_of_failure_it_was() {
    let platform = Platform::start();
    let fails = |arguments: &[&str], status: i32, part: &str| {
        let output = platform.run(arguments);
        let words = words(&output);
        assert_eq!(code(&output), status, "{arguments:?}: {words}");
        assert!(words.contains(part), "{arguments:?}: {words:?} lacks {part:?}");
        assert!(!words.contains("panicked"), "{words}");
    };
    fails(&["run", &path("behaved"), "fails"], 1, "no luck today");
    fails(&["run", &path("nothing"), "f"], 1, "exports no function");
    fails(&["run", "/no/such/library.so", "f"], 1, "/no/such/library.so");
    fails(&["run", &path("misbehaved"), "segfault"], 6, "signal 11");
    // On a machine that is busy for the 50 ms of grace the worker is killed: two more attempts.
    let hurried = ["run", &path("behaved"), "until_cancelled", "--timeout", "50ms"];
    let is_told = (0..3).any(|_| {
        let output = platform.run(&hurried);
        assert!([1, 6].contains(&code(&output)), "{}", words(&output));
        code(&output) == 1 && words(&output).contains("50ms")
    });
    assert!(is_told, "three times it was not told as a deadline");
    fails(&["no-such-command"], 2, "no-such-command");
    fails(&["run", &path("behaved")], 2, "FUNCTION");
    fails(&["leases", "--release", "ffff"], 1, "no active lease");
    fails(&["up"], 5, "runs already");
    let all = platform.manager().lease(2, LONG).unwrap();
    let session = RawSession::attached(&all);
    fails(&["run", &path("behaved"), "echo"], 4, "hotlease leases");
    fails(&["run", &path("behaved"), "echo", "--workers", "3"], 4, "offered: 2");
    session.release();
    assert_eq!(
        code(&platform.run(&["run", &path("behaved"), "echo"])),
        0,
        "it works again"
    );

    let nowhere = private_directory();
    for arguments in [&["ps"][..], &["leases"], &["down"], &["run", &path("behaved"), "echo"]] {
        let mut command = platform.hotlease(arguments);
        let output = command.env("HOTLEASE_RUNTIME_DIR", nowhere.path()).output().unwrap();
        assert_eq!(code(&output), 3, "{arguments:?}: {}", words(&output));
        let advice = match arguments {
            ["down"] => "nothing to stop",
            _ => "hotlease up",
        };
        assert!(words(&output).contains(advice), "{arguments:?}: {}", words(&output));
    }
}

#[test]
fn errors_are_json_too_when_asked_for() {
    let platform = Platform::start();
    let output = platform.run(&["run", &path("misbehaved"), "segfault", "--json"]);
    let text = words(&output);
    let line = text.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(
        (&error["exit_status"], &error["ran"]),
        (&Value::from(6), &Value::from("unknown"))
    );
    assert_eq!(error["billed"], true);
    assert!(output.stdout.is_empty());
}

#[test]
fn lease_is_ended_by_the_beginning_of_its_id() {
    let platform = Platform::start();
    let lease = RawLease::take(&platform);
    let released = platform.json(&["leases", "--release", &lease.grant.lease[..6]]);
    assert_eq!(released[0]["released"], lease.grant.lease.as_str());
    assert_eq!(platform.free_cores(), 2);
}

#[test]
fn bench_of_several_workers_prints_a_record_each_and_leaves_out_what_does_not_fit() {
    let platform = Platform::start();
    let offered = platform.cores().len();
    let too_many = (offered + 1).to_string();
    let arguments = [
        "bench",
        "scaling",
        "--transport",
        "shm",
        "--samples",
        "20",
        "--sizes",
        "64,16384",
    ];
    let records = platform.json(&[&arguments[..], &["--workers", &format!("{too_many},1")]].concat());
    assert_eq!(records.len(), 2, "{too_many} workers do not fit, one does: {records:?}");
    for (record, (size, payload)) in records.iter().zip([(64, "copied"), (16384, "registered")]) {
        has(record, &["baseline", "ratio_p50", "machine"]);
        let params = &record["params"];
        assert_eq!(
            (&params["workers"], &params["size_bytes"]),
            (&Value::from(1), &Value::from(size))
        );
        assert_eq!(params["payload"], payload);
        assert_eq!(record["samples"], 20);
        let details = &record["details"];
        has(
            details,
            &[
                "cores_each",
                "client_cores",
                "bytes_per_second",
                "calls_per_second_alone",
            ],
        );
        assert_eq!(details["slot_cores"].as_array().map(Vec::len), Some(1));
        assert!(details["calls_per_second"].as_f64() > Some(0.0), "{record}");
        assert!(record["measured"]["p50"].as_u64() > Some(0), "{record}");
        assert!(
            record.get("targets").is_none(),
            "one worker is judged against itself: {record}"
        );
    }
    assert_eq!(platform.free_cores() as usize, offered, "it gives its leases back");
}

#[test]
fn detached_up_serves_when_it_returns_and_goes_with_down() {
    let platform = Platform::start();
    // Another runtime directory makes another platform of the same user, on the same cores.
    let directory = private_directory();
    let hotlease = |arguments: &[&str]| {
        let mut command = platform.hotlease(arguments);
        command.env("HOTLEASE_RUNTIME_DIR", directory.path()).output().unwrap()
    };
    let output = hotlease(&["up", "--detach", "--cores", "2", "--pool", "1", "--json"]);
    assert_eq!(code(&output), 0, "{}", words(&output));
    let up: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = hotlease_tests::process::Process::of(up["pid"].as_i64().unwrap() as i32).expect("it runs");
    let ran = hotlease(&["run", &path("behaved"), "tenant"]);
    let second = hotlease(&["up", "--detach"]);
    let down = hotlease(&["down"]);
    assert_eq!(code(&ran), 0, "{}", words(&ran));
    assert_eq!(code(&second), 5, "{}", words(&second));
    assert_eq!(code(&down), 0, "{}", words(&down));
    // Its sockets and locks are gone; the kernel may still be freeing the rest of the process.
    until_true("it is gone when `down` returns", SOON, || !process.is_alive());
    let left = std::fs::read_dir(directory.path()).unwrap().flatten();
    let sockets: Vec<_> = left
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "sock"))
        .collect();
    assert!(sockets.is_empty(), "{sockets:?}");
}

#[test]
fn platform_with_an_idle_limit_outlasts_its_leases_and_then_ends() {
    let platform = Platform::start();
    let directory = private_directory();
    let mut up = platform.hotlease(&[
        "up",
        "--detach",
        "--cores",
        "1",
        "--pool",
        "0",
        "--json",
        "--idle-limit",
        "3s",
    ]);
    let output = up.env("HOTLEASE_RUNTIME_DIR", directory.path()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", words(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = hotlease_tests::process::Process::of(summary["pid"].as_i64().unwrap() as i32).expect("it runs");
    let options = LeaseOptions {
        runtime_dir: Some(directory.path().to_owned()),
        ..LeaseOptions::default()
    };
    let library = Code::open(library("behaved")).unwrap();
    let held = Invoker::allocate(&library, options).expect("it serves");
    std::thread::sleep(Duration::from_secs(4));
    assert!(process.is_alive(), "it has a lease");
    held.function("echo").unwrap().call(b"x").expect("the lease goes on");
    held.deallocate().expect("it is given back");
    until_true("it has ended", LIMIT, || !process.is_alive());
    assert!(!directory.path().join("manager.sock").exists());
}
