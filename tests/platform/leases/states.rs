//! States that functions leave in a worker: saved when the lease ends or its memory is wanted, and restored for the
//! next lease of that name, with any library that declares the same format.

use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use hotlease_tests::lease::LONG;
use hotlease_tests::library::{compile, library};
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::session::RawSession;
use hotlease_tests::swapping::{SAVING, Swapping};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::{Rejection, RunCertainty};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A library that has functions to save and restore its state.
fn stateful() -> PathBuf {
    library("stateful")
}

/// The stateful library with other bytes.
fn rebuilt() -> PathBuf {
    compile("stateful", &["-DBIG_LIBRARY"])
}

/// The stateful library with a state in another format.
fn of_another_format() -> PathBuf {
    compile("stateful", &["-DFORMAT=text_2"])
}

fn options(nodes: &Nodes) -> LeaseOptions {
    LeaseOptions {
        state: "text".into(),
        ..nodes.lease_options()
    }
}

fn try_lease(library: &Path, options: LeaseOptions) -> Result<Invoker, Error> {
    Invoker::allocate(&Code::open(library).expect("a library"), options)
}

fn lease_of(scene: &Swapping, library: &Path) -> Invoker {
    let leased = try_lease(library, options(&scene.nodes));
    leased.unwrap_or_else(|error| panic!("no lease: {error}\n{}", scene.nodes.log()))
}

fn lease(scene: &Swapping) -> Invoker {
    lease_of(scene, &stateful())
}

fn try_refused(scene: &Swapping, library: &Path) -> Error {
    match try_lease(library, options(&scene.nodes)) {
        Err(error) => {
            assert_eq!(error.ran(), RunCertainty::No, "{error}");
            error
        }
        Ok(_) => panic!("there is a lease\n{}", scene.nodes.log()),
    }
}

fn refused(scene: &Swapping, library: &Path) -> String {
    try_refused(scene, library).to_string()
}

fn call(invoker: &Invoker, name: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    invoker.function(name)?.call(input)
}

fn put(invoker: &Invoker, what: &str) {
    call(invoker, "put", what.as_bytes()).expect("it runs");
}

fn holds(invoker: &Invoker, what: &str) {
    let held = call(invoker, "get", b"").expect("it runs");
    assert_eq!(String::from_utf8_lossy(&held), what);
}

/// Leaves a text in a worker, and releases the lease; returns the lease's name.
fn leave(scene: &Swapping, what: &str) -> String {
    let invoker = lease(scene);
    put(&invoker, what);
    let lease = invoker.lease().to_string();
    invoker.deallocate().expect("given back");
    lease
}

/// Checks that no part of a state that could not be saved is kept.
fn nothing_is_kept(scene: &Swapping) {
    assert_eq!(scene.files(), [""; 0].map(PathBuf::from), "something is left");
    holds(&lease(scene), "nothing");
}

#[test]
fn a_native_state_outlives_its_node_its_lease_and_its_library() {
    let scene = Swapping::start(2, &[]);
    let invoker = lease(&scene);
    put(&invoker, "seven");
    let first = invoker.lease().to_string();
    let holder = scene.drain_holder_of(&first);
    let (kept, took) = scene.explained(&first);
    assert!(
        kept.contains("nothing was saved under that name") && kept.contains("saved 5 bytes to "),
        "{kept}"
    );
    assert!(took.is_null(), "nothing was restored: {took}");
    holds(&invoker, "seven");
    let next = invoker.lease().to_string();
    assert_ne!(scene.nodes.holder(&next), holder, "the node was given back");
    let (kept, took) = scene.explained(&next);
    assert!(kept.contains("restored 5 bytes of "), "{kept}");
    assert!(took.as_u64().is_some_and(|ns| ns > 0), "{took}");
    assert_eq!(scene.saved(), None, "what is in a worker is nowhere else");
    invoker.deallocate().expect("given back");
    assert!(scene.saved().is_some(), "it is saved again at the end");
    let again = lease_of(&scene, &rebuilt());
    holds(&again, "seven");
    put(&again, "eight");
    again.deallocate().expect("given back");
    let other = LeaseOptions {
        state: "other".into(),
        ..options(&scene.nodes)
    };
    holds(&try_lease(&stateful(), other).expect("a lease"), "nothing");
    holds(&lease(&scene), "eight");
}

#[test]
fn a_state_that_was_saved_in_another_format_is_refused_and_stays_where_it_is() {
    let scene = Swapping::start(1, &[]);
    leave(&scene, "seven");
    let saved = scene.saved().expect("a state");
    let before = fs::read(&saved).expect("readable");
    let error = refused(&scene, &of_another_format());
    for words in ["saved by another program", "HOTLEASE_STATE_SAVE", "hotlease state rm"] {
        assert!(error.contains(words), "{words:?} is not in: {error}");
    }
    assert_eq!(fs::read(&saved).expect("it stays"), before);
    holds(&lease(&scene), "seven");
}

#[test]
fn a_native_worker_that_is_idle_goes_and_comes_back_with_the_next_call() {
    let scene = Swapping::start(1, &["--swap-after", "1s"]);
    let invoker = lease(&scene);
    let first = invoker.lease().to_string();
    put(&invoker, "is large");
    until_true("the idle worker is swapped out", LIMIT, || scene.saved().is_some());
    holds(&invoker, "was large");
    assert_ne!(invoker.lease().to_string(), first, "it is another one");
    // A running function counts as busy, however long it runs.
    let second = invoker.lease().to_string();
    call(&invoker, "busy", &2500_u32.to_le_bytes()).expect("it runs to its end");
    assert_eq!(invoker.lease().to_string(), second);
}

#[test]
fn a_save_function_that_fails_serves_on_and_loses_its_state_at_the_end_only() {
    let large = "it has at least 25165824 bytes, and may have 1048576: see --swap-state-bytes";
    for (state, expected) in [
        (
            "saves badly",
            "HOTLEASE_STATE_SAVE(text_1), failed with error 5: it cannot be written",
        ),
        ("is large", large),
    ] {
        let scene = Swapping::start(1, &["--swap-after", "1s", "--swap-state-bytes", "1M"]);
        let invoker = lease(&scene);
        let first = invoker.lease().to_string();
        put(&invoker, state);
        until_true("it was asked for", LIMIT, || {
            scene.explained(&first).0.contains("could not be saved")
        });
        holds(&invoker, state);
        assert_eq!(invoker.lease().to_string(), first, "the lease goes on");
        invoker.deallocate().expect("given back");
        let (kept, _) = scene.explained(&first);
        assert!(kept.contains(expected) && kept.contains("lost: "), "{kept}");
        assert!(scene.nodes.log().contains("the state of a worker is lost"));
        nothing_is_kept(&scene);
    }
}

#[test]
fn a_save_function_that_hangs_or_crashes_delays_the_end_no_longer_than_was_said() {
    for (state, least, expected) in [
        ("saves for ever", SAVING, "did not save it within 500 ms"),
        ("saves and crashes", Duration::ZERO, "its worker died while saving it"),
    ] {
        let scene = Swapping::start(1, &[]);
        let invoker = lease(&scene);
        put(&invoker, state);
        let first = invoker.lease().to_string();
        let begun = Instant::now();
        invoker.deallocate().expect("given back");
        let took = begun.elapsed();
        assert!(took >= least && took < SAVING + Duration::from_secs(5), "{took:?}");
        let (kept, _) = scene.explained(&first);
        assert!(kept.contains(expected) && kept.contains("lost: "), "{kept}");
        nothing_is_kept(&scene);
    }
}

#[test]
fn a_restore_function_that_fails_hangs_or_crashes_fails_the_lease_and_loses_nothing() {
    let named = "the restore function of its state, HOTLEASE_STATE_RESTORE(text_1),";
    // The last field says whether another attempt may succeed: it may be quicker, or not be killed by others.
    let cases = [
        (
            "restores badly",
            format!("{named} failed with error 22: it cannot be read"),
            false,
        ),
        (
            "reads more",
            format!("{named} reads 1 bytes where 0 of 10 are left"),
            false,
        ),
        (
            "restores for ever",
            "its worker was not done within 5000 ms".to_owned(),
            true,
        ),
        ("restores and crashes", "killed by signal 11".to_owned(), false),
        ("restores and is killed", "killed by signal 9".to_owned(), true),
    ];
    for (state, expected, may_pass) in cases {
        let scene = Swapping::start(1, &[]);
        leave(&scene, state);
        let saved = scene.saved().expect("a state");
        let before = fs::read(&saved).expect("readable");
        // The second attempt fails in the same way.
        for _ in 0..2 {
            let error = try_refused(&scene, &stateful());
            assert_eq!(error.retryable(), may_pass, "{error}");
            let error = error.to_string();
            for words in [
                &expected,
                "no function ran",
                saved.to_str().expect("text"),
                "hotlease state rm",
            ] {
                assert!(error.contains(words), "{words:?} is not in: {error}");
            }
        }
        until_true("the worker is gone", LIMIT, || scene.files() == [saved.clone()]);
        assert_eq!(fs::read(&saved).expect("still there"), before);
        scene.json(&["state", "rm", scene.directory(), "text"]);
        holds(&lease(&scene), "nothing");
    }
}

#[test]
fn a_native_worker_that_dies_takes_its_state_with_it_and_the_next_one_begins_without() {
    let scene = Swapping::start(1, &[]);
    leave(&scene, "seven");
    let invoker = lease(&scene);
    holds(&invoker, "seven");
    let error = call(&invoker, "crash", b"").expect_err("it dies");
    assert_eq!(error.ran(), RunCertainty::Unknown, "{error}");
    holds(&invoker, "nothing");
    put(&invoker, "eight");
    invoker.deallocate().expect("given back");
    holds(&lease(&scene), "eight");
}

#[test]
fn states_of_libraries_are_kept_from_each_kind_of_sandbox_and_go_from_one_to_another() {
    let scene = Swapping::start(1, &[]);
    let mut last = "nothing";
    for kind in ["process", "namespace", "container", "process"] {
        let options = LeaseOptions {
            sandbox: kind.into(),
            ..options(&scene.nodes)
        };
        let invoker = match try_lease(&stateful(), options) {
            Ok(invoker) => invoker,
            Err(Error::Refused(Rejection::NoSandbox { why, .. })) => {
                eprintln!("{kind} skipped: {why}");
                continue;
            }
            Err(error) => panic!("no lease: {error}\n{}", scene.nodes.log()),
        };
        let explained = &scene.json(&["explain", &invoker.lease().to_string()])[0];
        assert_eq!(explained["sandbox"], kind);
        holds(&invoker, last);
        put(&invoker, kind);
        last = kind;
        invoker.deallocate().expect("given back");
    }
    assert_eq!(last, "process");
}

#[test]
fn a_state_is_restored_in_a_worker_that_has_waited_for_the_lease() {
    let scene = Swapping::start(1, &[]);
    leave(&scene, "seven");
    scene.nodes.wait_for_agents(1);
    let invoker = lease(&scene);
    let explained = &scene.json(&["explain", &invoker.lease().to_string()])[0];
    assert_eq!(explained["warm"], 1, "{explained}");
    holds(&invoker, "seven");
}

#[test]
fn only_one_of_two_leases_gets_a_native_state_and_the_other_learns_the_holder() {
    let scene = Swapping::start(2, &[]);
    leave(&scene, "seven");
    let got = lease(&scene);
    let error = refused(&scene, &stateful());
    let words = format!("the state `text` is in use by lease {}", got.lease());
    assert!(error.contains(&words), "{error}");
    holds(&got, "seven");
}

#[test]
fn a_library_without_the_two_functions_is_refused_before_anybody_is_asked() {
    let scene = Swapping::start(1, &[]);
    let error = refused(&scene, &library("echo"));
    assert!(
        error.contains("declares neither HOTLEASE_STATE_SAVE nor HOTLEASE_STATE_RESTORE")
            && error.contains("Nothing ran"),
        "{error}"
    );
    for (workers, slots) in [(2, 1), (1, 2)] {
        let options = LeaseOptions {
            workers,
            slots,
            ..options(&scene.nodes)
        };
        let error = try_lease(&stateful(), options).expect_err("two").to_string();
        assert!(error.contains("one worker with one slot"), "{error}");
    }
    assert!(scene.files().is_empty(), "{:?}", scene.files());
    drop(scene);
    let nodes = Nodes::start(1);
    let code = Code::open(stateful()).expect("a library");
    let error = Invoker::allocate(&code, options(&nodes)).expect_err("no directory");
    assert!(error.to_string().contains("--swap-directory"), "{error}");
}

/// A batch job's prolog on the node; returns what it says.
fn yielded(scene: &Swapping, job: u64) -> String {
    let mut prolog = Command::new(program("hotlease-node"));
    let directory = scene.nodes.nodes[0].directory();
    prolog
        .arg("--runtime-dir")
        .arg(directory)
        .arg("--jobs")
        .arg(directory.join("jobs"));
    let done = prolog.arg("yield").env("SLURM_JOB_ID", job.to_string()).output();
    String::from_utf8_lossy(&done.expect("it runs").stderr).into_owned()
}

#[test]
fn a_batch_job_waits_neither_for_a_save_under_way_nor_for_a_lease_that_waits_for_a_state() {
    let mut said = Vec::new();
    // A busy host causes one late answer; a fault causes a late answer each time.
    for job in 1..=3 {
        let scene = Swapping::start_with_limit("60s", 1, &["--swap-after", "1s"]);
        let holder = lease(&scene);
        put(&holder, "saves for ever");
        let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "part");
        until_true("the idle worker saves its state", LIMIT, || {
            scene.files().iter().any(is_part)
        });
        asked(&scene, |_| ()).expect("a lease that waits for the state");
        said.push(yielded(&scene, job));
        if said.iter().any(|said| said.contains("the node is free")) {
            return;
        }
    }
    panic!("{said:?}");
}

fn asked(scene: &Swapping, change: impl FnOnce(&mut AcquireRequest)) -> Result<Grant, Rejection> {
    let mut request = AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ttl_ms: LONG.as_millis() as u64,
        hot_budget_us: 1000,
        state: "text".into(),
        state_format: "text_1".into(),
        ..AcquireRequest::default()
    };
    change(&mut request);
    scene.nodes.manager().acquire(request)
}

#[test]
fn an_agent_holds_clients_to_what_its_workers_rely_on() {
    let scene = Swapping::start(1, &[]);
    leave(&scene, "seven");
    let grant = asked(&scene, |_| ()).expect("a lease");
    let mut session = RawSession::attached(&grant);
    let early = session.worker(0).err().expect("nothing is restored yet");
    assert!(
        matches!(&early, Rejection::BadRequest { what } if what.contains("load the library before connecting")),
        "{early}"
    );
    // A constructor that ran would have ended the worker.
    let crashing = compile("constructor", &["-DCRASHES"]);
    for (other, expected) in [
        (crashing, "does not say how its state is saved"),
        (of_another_format(), "another format than its lease was taken for"),
    ] {
        let bytes = fs::read(other).expect("readable");
        let refusal = session.load(&bytes).expect_err("not the one that was named");
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
    assert!(session.events.is_empty(), "{:?}", session.events);
    let loaded = session.load_file(&stateful());
    let refusal = session.load(&fs::read(library("echo")).expect("readable"));
    assert!(
        refusal
            .as_ref()
            .is_err_and(|why| why.to_string().contains("one library")),
        "{refusal:?}"
    );
    let (connection, epoch) = session.worker(0).expect("it is restored");
    let channel = connection.channel(0);
    let request = channel.request(epoch, loaded.index("get"), b"");
    channel.publish(&request);
    assert!(channel.reply(request.seq, LIMIT).is_some());
    session.release();
    for (spoil, expected) in [
        (
            (|request: &mut AcquireRequest| request.state_format.clear()) as fn(&mut AcquireRequest),
            "does not say how its state is saved",
        ),
        (|request| request.slots_per_worker = 2, "one worker with one slot"),
        (|request| request.workers = 2, "one worker with one slot"),
        (|request| request.state_format = "x".repeat(4096), "does not say how"),
    ] {
        let refusal = asked(&scene, spoil).expect_err("refused");
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
}

#[test]
fn the_shell_keeps_a_state_with_run() {
    let scene = Swapping::start(1, &[]);
    let library = stateful();
    let library = library.to_str().expect("text");
    let run = |function: &str, input: &str| {
        let mut command = scene
            .nodes
            .hotlease(&["run", "--wait", "30s", "--state", "text", library, function]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input.as_bytes()).expect("it listens");
        drop(stdin);
        let done = child.wait_with_output().expect("it runs");
        assert!(done.status.success(), "{function}: {done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    assert_eq!(run("put", "seven"), "");
    assert_eq!(run("get", ""), "seven");
}
