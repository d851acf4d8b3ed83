//! Tests of members that use libfabric: by each of its providers, and the errors if they cannot.

use crate::group::{self, each_over, options, pattern, rendezvous, until};
use hotlease_comm::{Communicator, Error, JoinRejection, LinkChoice, Operator, Pattern, Route};
use hotlease_fabric::ofi::providers::find_provider;
use hotlease_fabric::ofi::{Libfabric, OfiError};
use std::process::Command;
use std::thread::scope;
use std::time::Duration;

/// Variable that names the library to load.
const LIBRARY: &str = "HOTLEASE_LIBFABRIC";

fn over(provider: &str) -> LinkChoice {
    LinkChoice::Ofi {
        provider: Some(provider.into()),
    }
}

/// Returns whether this host has a provider.
fn has(provider: &str) -> bool {
    let loopback = "127.0.0.1".parse().expect("an address");
    let found = Libfabric::load().and_then(|library| find_provider(&library, provider, Some(loopback)));
    found
        .inspect_err(|error: &OfiError| eprintln!("skipped: {error}"))
        .is_ok()
}

#[test]
fn messages_and_collectives_go_by_each_provider() {
    // Two of these names mean the same provider.
    for provider in ["tcp", "net", "tcp;ofi_rxm", "udp;ofi_rxd"] {
        if !has(provider) {
            continue;
        }
        each_over(
            &over(provider),
            3,
            |_| (),
            |all| {
                let (me, size) = (all.rank(), all.size());
                let routes = all.routes();
                for (rank, route) in (0..).zip(&routes) {
                    let by = |route: &Route| matches!(route, Route::Fabric { provider: by } if *by == provider);
                    assert!(by(route) || rank == me, "{routes:?}");
                }
                for bytes in [0, 8, 129, 16 << 10, 64 << 10, (1 << 20) + 1] {
                    let (next, last) = ((me + 1) % size, (me + size - 1) % size);
                    let mine = pattern(u64::from(me), bytes);
                    let mut theirs = vec![0; bytes];
                    let mut get = || all.receive(&mut theirs, Pattern::of(last, 5));
                    if me == 0 {
                        all.send(&mine, next, 5).expect("sent");
                        get().expect("received");
                    } else {
                        get().expect("received");
                        all.send(&mine, next, 5).expect("sent");
                    }
                    assert!(theirs == pattern(u64::from(last), bytes), "{bytes} bytes");
                    let mut sum = vec![0_u64; bytes / 8 + 1];
                    let ones = vec![u64::from(me) + 1; bytes / 8 + 1];
                    all.allreduce(&ones, &mut sum, &Operator::Sum).expect("a sum");
                    assert!(sum.iter().all(|sum| *sum == 6), "{bytes} bytes");
                }
                all.finish().expect("all have read all");
            },
        );
    }
}

/// Errors of two members that choose these links.
fn told(links: [LinkChoice; 2]) -> [Error; 2] {
    let server = rendezvous();
    let mut options = options(&server, "differ", 2);
    options.join_timeout = Duration::from_secs(4);
    scope(|scope| {
        let member = |(rank, link)| {
            let mut options = options.clone();
            (options.rank, options.link) = (Some(rank), link);
            scope.spawn(move || Communicator::join(&options).expect_err("they do not fit"))
        };
        let [one, other] = links;
        [(0, one), (1, other)]
            .map(member)
            .map(|member| member.join().expect("an error"))
    })
}

#[test]
fn a_member_with_another_provider_is_told_to_choose_the_same() {
    if !has("tcp;ofi_rxm") || !has("udp;ofi_rxd") {
        return;
    }
    // The lower rank connects, and is rejected.
    let [error, other] = told([over("tcp;ofi_rxm"), over("udp;ofi_rxd")]);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("HOTLEASE_COMM_LINK"), "{error}");
    assert!(matches!(other, Error::Unreachable { .. }), "{other}");
}

#[test]
fn members_with_libfabric_do_not_meet_members_without() {
    if !has("tcp") {
        return;
    }
    let server = rendezvous();
    let mut first = options(&server, "differ", 2);
    first.link = LinkChoice::Tcp;
    scope(|scope| {
        let one = scope.spawn(|| Communicator::join(&first).expect("the other one comes"));
        until("one waits", || server.waiting() == 1);
        let mut other = first.clone();
        other.link = LinkChoice::OFI;
        let error = Communicator::join(&other).expect_err("it is another link");
        let Error::RendezvousRefused { refused, .. } = &error else {
            panic!("{error}");
        };
        assert!(matches!(refused, JoinRejection::OtherLink { .. }), "{error}");
        assert!(error.to_string().contains("HOTLEASE_COMM_LINK"), "{error}");
        // The rejected member does not disturb the group.
        other.link = LinkChoice::Direct;
        Communicator::join(&other).expect("both are here");
        one.join().expect("no panic");
    });
}

#[test]
fn a_provider_that_cannot_be_is_an_error_before_others_wait() {
    for (provider, part) in [("carrier pigeon", "carrier pigeon"), ("shm", "no other host")] {
        if provider == "shm" && !has(provider) {
            continue;
        }
        // No peer is contacted: there is no rendezvous.
        let mut options = hotlease_comm::Options::new("n", 2, "127.0.0.1:1", group::secret());
        options.link = over(provider);
        let error = Communicator::join(&options).expect_err("there is none");
        assert!(matches!(error, Error::NoFabric { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Runs a test of this file in a process that loads this library.
fn with_library(path: &str, test: &str) {
    let program = std::env::current_exe().expect("this program");
    let done = Command::new(program)
        .args(["--exact", &format!("ofi::{test}"), "--include-ignored"])
        .env(LIBRARY, path)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && text.contains("1 passed"),
        "with {path}: {text}"
    );
}

#[test]
#[ignore = "started by the next one"]
fn without_libfabric() {
    let mut options = hotlease_comm::Options::new("n", 2, "127.0.0.1:1", group::secret());
    options.link = LinkChoice::OFI;
    let error = Communicator::join(&options).expect_err("there is no libfabric");
    assert!(matches!(error, Error::NoFabric { .. }), "{error}");
    for part in ["/nowhere/libfabric.so.1", "install libfabric1", LIBRARY] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn without_libfabric_the_error_says_what_to_install() {
    with_library("/nowhere/libfabric.so.1", "without_libfabric");
}

#[test]
fn a_second_libfabric_does_the_same() {
    match std::env::var("HOTLEASE_LIBFABRIC_TEST") {
        Ok(path) if !path.is_empty() => with_library(&path, "messages_and_collectives_go_by_each_provider"),
        _ => eprintln!("skipped: HOTLEASE_LIBFABRIC_TEST names no second libfabric"),
    }
}
