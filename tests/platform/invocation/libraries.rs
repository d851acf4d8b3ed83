//! Files that are no libraries, and libraries that misbehave while they are loaded.

use hotlease_client::{Code, Error, Invoker, RunCertainty};
use hotlease_tests::lease::{Bystander, LONG, RawLease};
use hotlease_tests::library::{compile, library};
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::session::RawSession;
use hotlease_wire::Rejection;
use hotlease_wire::code::CodeError;
use std::time::{Duration, Instant};

/// Files that are no function library, and a part of the text that each refusal must contain.
fn no_libraries() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let good = std::fs::read(library("echo")).unwrap();
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    vec![
        ("empty", Vec::new(), "ELF"),
        ("text", b"#!/bin/sh\necho hello\n".to_vec(), "ELF"),
        ("the beginning of an ELF file", good[..1000].to_vec(), "amaged"),
        ("an ELF header alone", good[..64].to_vec(), ""),
        (
            "for another processor",
            changed(18, &0xf3u16.to_le_bytes()),
            "another processor",
        ),
        ("32 bits", changed(4, &[1]), "ELF"),
        (
            "a program",
            std::fs::read("/bin/true").map_or(vec![0], |_| changed(16, &2u16.to_le_bytes())),
            "shared library",
        ),
        ("sections past the end", changed(40, &u64::MAX.to_le_bytes()), ""),
        (
            "exports nothing",
            std::fs::read(library("nothing")).unwrap(),
            "exports no function",
        ),
    ]
}

#[test]
fn file_that_is_no_library_is_refused_by_the_client_with_a_reason() {
    for (what, bytes, reason) in no_libraries() {
        let error = Code::from_bytes(what, bytes).err();
        let Some(Error::Code { name, source }) = &error else {
            panic!("{what}: {error:?}");
        };
        assert_eq!(name, what);
        assert!(source.to_string().contains(reason), "{what}: {source}");
    }
    let machine = Code::from_bytes("x", no_libraries()[4].1.clone()).unwrap_err();
    assert!(
        matches!(
            machine,
            Error::Code {
                source: CodeError::Machine { machine: 0xf3 },
                ..
            }
        ),
        "{machine:?}"
    );
    assert!(matches!(Code::open("/no/such/file.so"), Err(Error::File { .. })));
}

#[test]
fn file_that_is_no_library_is_refused_by_the_agent_too() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    for (what, bytes, _) in no_libraries() {
        let refusal = session.load(&bytes).err();
        assert!(
            matches!(
                refusal,
                Some(Rejection::CodeRejected { .. } | Rejection::BadRequest { .. })
            ),
            "{what}: {refusal:?}"
        );
    }
    // The worker never got these files, so it is not replaced.
    assert!(session.events.is_empty(), "{:?}", session.events);
    session.load_file(&library("echo"));
    session.release();
    bystander.finish();
}

/// Error about a library that the workers cannot load, and how long it took.
fn rejected(library: &std::path::Path) -> (String, Duration) {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let start = Instant::now();
    let error = Invoker::allocate(&Code::open(library).unwrap(), platform.lease_options()).err();
    let took = start.elapsed();
    let Some(Error::Refused(Rejection::CodeRejected { why })) = &error else {
        panic!("{error:?}");
    };
    eprintln!("{why} after {took:?}");
    assert_eq!(error.as_ref().map(Error::ran), Some(RunCertainty::No));

    // The same lease can load another library: the worker is replaced.
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    let refusal = session.load(&std::fs::read(library).unwrap()).err();
    assert!(matches!(refusal, Some(Rejection::CodeRejected { .. })), "{refusal:?}");
    drop(session);
    bystander.finish();
    let mut lease = RawLease::take(&platform);
    let refusal = lease.session.load(&std::fs::read(library).unwrap()).err();
    assert!(matches!(refusal, Some(Rejection::CodeRejected { .. })), "{refusal:?}");
    let (connection, epoch) = lease.session.worker(0).unwrap();
    let echo = lease.functions.index("echo");
    connection.channel(0).echo(epoch, echo, b"with the library from before");
    (why.clone(), took)
}

#[test]
fn library_that_crashes_in_its_constructor_is_rejected_with_signal_and_output() {
    let (why, took) = rejected(&compile("constructor", &["-DCRASHES"]));
    assert!(why.contains("signal 6"), "{why}");
    assert!(why.contains("constructor at work"), "its last output is shown: {why}");
    // Far less than the five seconds that a library which hangs is given.
    assert!(took < SOON, "{took:?}");
}

#[test]
fn library_that_exits_in_its_constructor_is_rejected_with_its_status() {
    let (why, took) = rejected(&compile("constructor", &["-DEXITS"]));
    assert!(why.contains("status 5"), "{why}");
    // Far less than the five seconds that a library which hangs is given.
    assert!(took < SOON, "{took:?}");
}

#[test]
fn library_that_hangs_in_its_constructor_is_rejected_after_five_seconds() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let code = Code::open(compile("constructor", &["-DHANGS"])).unwrap();
    let start = Instant::now();
    let error = Invoker::allocate(&code, platform.lease_options()).err();
    let took = start.elapsed();
    assert!(
        matches!(
            error,
            Some(Error::Refused(
                Rejection::CodeRejected { .. } | Rejection::Timeout { .. }
            ))
        ),
        "{error:?}"
    );
    assert!((Duration::from_secs(4)..LIMIT).contains(&took), "{took:?}");
    bystander.finish();
    platform.invoker("echo").function("echo").unwrap().call(b"x").unwrap();
}

#[test]
fn library_with_unresolved_symbols_is_rejected_with_the_symbol() {
    let (why, _) = rejected(&library("unresolved"));
    assert!(why.contains("symbol_that_no_library_has"), "{why}");
}

#[test]
fn function_that_a_library_lacks_is_an_error_that_lists_similar_names() {
    let platform = Platform::start();
    let invoker = platform.invoker("behaved");
    let error = invoker.function("ech0").unwrap_err();
    let Error::NoSuchFunction { name, similar, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "ech0");
    assert_eq!(similar.first().map(String::as_str), Some("echo"));
    assert!(error.to_string().contains("`echo`"), "{error}");
    // The command line prints the same.
    let output = platform.run(&["run", library("behaved").to_str().unwrap(), "ech0"]);
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("echo"), "{words}");
}

#[test]
fn many_libraries_on_one_lease_keep_their_functions_apart() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("behaved"));
    let misbehaved = lease.session.load_file(&library("misbehaved"));
    let echo = lease.session.load_file(&library("echo"));
    let epoch = lease.epoch;
    for functions in [&lease.functions, &misbehaved, &echo] {
        lease.channel.echo(epoch, functions.index("echo"), b"hello");
    }
    let fails = lease.functions.index("fails");
    let request = lease.channel.request(epoch, fails, b"");
    assert_eq!(lease.channel.send(&request.encode()).code, 7);
    // Loaded a second time: it gets the same index, and nothing is loaded twice.
    let again = lease.session.load_file(&library("misbehaved"));
    assert_eq!(again.index("echo"), misbehaved.index("echo"));
}

#[test]
fn builds_of_a_library_in_one_worker_have_their_own_unique_symbols() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    let builds = [1, 2, 3].map(|version| {
        let build = compile("unique", &[&format!("-DVERSION={version}")]);
        session.load_file(&build)
    });
    let (connection, epoch) = session.worker(0).unwrap();
    let mut channel = connection.channel(0);
    for added in [0, 10] {
        for (build, version) in builds.iter().zip(1..) {
            let request = channel.request(epoch, build.index("version"), b"");
            let reply = channel.send(&request.encode());
            assert_eq!(reply.inline.to_bytes()[..4], i32::to_le_bytes(version + added));
        }
    }
    session.release();
}
