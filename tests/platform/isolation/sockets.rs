//! Garbage on the sockets of manager and agent: it is refused or the connection is closed, and other clients are
//! served.

use hotlease_fabric::memory::sealed_copy;
use hotlease_tests::connection::send_many_fds;
use hotlease_tests::garbage::{connection_requests, mutated, random, session_requests};
use hotlease_tests::lease::{Bystander, LONG, RawLease};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::session::{NoAnswer, RawSession};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::ids::CodeHash;
use hotlease_wire::limits::{CODES_PER_LEASE_MAX, MESSAGE_BYTES_MAX};
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::{Rejection, decode};
use rand::RngExt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Descriptors that the agent has open for a worker: the pool may be filled, or a lease ended, between two
/// measurements. These tests send many times as many.
const WORKER_DESCRIPTORS: usize = 10;

#[test]
fn garbage_on_the_grpc_sockets_disturbs_no_other_client() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let mut random = random("bytes");
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for name in ["manager.sock", "agent.sock"] {
        let mut kept = Vec::new();
        for round in 0..60 {
            let mut noise = vec![0; random.random_range(1..5000)];
            random.fill(&mut noise[..]);
            let bytes = match round % 4 {
                0 => noise,
                1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
                2 => [preface, &noise].concat(),
                _ => preface[..preface.len() / 2].to_vec(),
            };
            let mut stream = UnixStream::connect(platform.directory().join(name)).unwrap();
            // The connection may be closed before all is written.
            let _ = stream.write_all(&bytes);
            if round % 3 == 0 {
                kept.push(stream);
            }
        }
        platform.manager().agents().unwrap();
    }
    bystander.finish();
    platform
        .manager()
        .lease(2, LONG)
        .map(|grant| RawSession::attached(&grant).release())
        .unwrap();
}

#[test]
fn absurd_lease_requests_are_refused_by_name() {
    let platform = Platform::start();
    let manager = platform.manager();
    let base = AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ..AcquireRequest::default()
    };
    let absurd = [
        (
            "no workers",
            AcquireRequest {
                workers: 0,
                ..base.clone()
            },
        ),
        (
            "no slots",
            AcquireRequest {
                slots_per_worker: 0,
                ..base.clone()
            },
        ),
        (
            "all workers",
            AcquireRequest {
                workers: u32::MAX,
                ..base.clone()
            },
        ),
        (
            "all slots",
            AcquireRequest {
                slots_per_worker: u32::MAX,
                ..base.clone()
            },
        ),
        (
            "product overflows",
            AcquireRequest {
                workers: 1 << 16,
                slots_per_worker: 1 << 16,
                ..base.clone()
            },
        ),
        (
            "for ever",
            AcquireRequest {
                ttl_ms: u64::MAX,
                ..base.clone()
            },
        ),
        (
            "for a moment",
            AcquireRequest {
                ttl_ms: 1,
                ..base.clone()
            },
        ),
        (
            "a GPU",
            AcquireRequest {
                gpus: 1,
                ..base.clone()
            },
        ),
        (
            "all memory",
            AcquireRequest {
                memory_bytes: u64::MAX,
                ..base.clone()
            },
        ),
        (
            "unknown sandbox",
            AcquireRequest {
                sandbox: "../../bin/sh".into(),
                ..base.clone()
            },
        ),
        (
            "unknown polling",
            AcquireRequest {
                polling: 77,
                ..base.clone()
            },
        ),
        (
            "long label",
            AcquireRequest {
                label: "x".repeat(1 << 20),
                ..base.clone()
            },
        ),
        (
            "label with an escape",
            AcquireRequest {
                label: "\x1b[31m".into(),
                ..base.clone()
            },
        ),
    ];
    for (what, request) in absurd {
        let refusal = manager.acquire(request).err();
        assert!(
            matches!(
                refusal,
                Some(
                    Rejection::BadRequest { .. }
                        | Rejection::TooMany { .. }
                        | Rejection::NoCapacity { .. }
                        | Rejection::NoGpus { .. }
                )
            ),
            "{what}: {refusal:?}"
        );
    }
    // More workers than there are cores, but not an absurd number.
    match manager.acquire(AcquireRequest {
        workers: 3,
        ..base.clone()
    }) {
        Err(Rejection::NoCapacity {
            asked: 3,
            free: 2,
            offered: 2,
        }) => {}
        other => panic!("{other:?}"),
    }
    // The tenant is the one that the kernel reports, not the one that the request names.
    let grant = manager
        .acquire(AcquireRequest {
            tenant: "uid:4711".into(),
            ..base
        })
        .unwrap();
    let lease = manager.lease_info(&grant.lease).unwrap();
    assert_eq!(lease.tenant, format!("uid:{}", nix::unistd::getuid()));
    RawSession::attached(&grant).release();
}

#[test]
fn garbage_on_the_session_socket_disturbs_no_other_client() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let mut random = random("messages");
    let valid = session_requests();
    let socket = platform.directory().join("session.sock");
    let file = File::open("/dev/null").unwrap();
    for round in 0..2000 {
        let session = RawSession::connect(&socket).unwrap();
        let bytes = match round % 2 {
            0 => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
            _ => mutated(&mut random, &valid),
        };
        // Wrong descriptors, and descriptors that the agent did not ask for.
        let fds = vec![file.as_fd(); random.random_range(0..4)];
        let _ = session.send_bytes(&bytes, &fds);
        if round % 4 == 0 {
            let answer = session.next(LIMIT);
            assert!(
                matches!(answer, Ok((SessionReply::Refused(_), _)) | Err(NoAnswer::Closed)),
                "{bytes:x?}: {answer:?}"
            );
        }
    }
    let session = RawSession::connect(&socket).unwrap();
    let _ = session.send_bytes(&vec![1; MESSAGE_BYTES_MAX], &[]);
    assert!(!matches!(session.next(LIMIT), Err(NoAnswer::Silent)));
    bystander.finish();
}

#[test]
fn garbage_in_an_attached_session_ends_at_most_that_session() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let mut random = random("messages");
    let valid = session_requests();
    let file = File::open("/dev/null").unwrap();
    let process = platform.process();
    let descriptors = process.descriptors();
    let grant = platform.manager().lease(1, LONG).unwrap();
    // This session keeps the lease alive while other sessions of the lease open and close.
    let mut holder = RawSession::attached(&grant);
    for _ in 0..100 {
        let mut session = RawSession::attached(&grant);
        for _ in 0..20 {
            let bytes = mutated(&mut random, &valid);
            // A valid release would be no garbage.
            if decode(&bytes) == Ok(SessionRequest::Release) {
                continue;
            }
            let fds = vec![file.as_fd(); random.random_range(0..3)];
            if session.send_bytes(&bytes, &fds).is_err() {
                break;
            }
        }
        while session.next(Duration::from_millis(5)).is_ok() {}
        session.events.clear();
    }
    holder.load_file(&library("echo"));
    holder.release();
    bystander.finish();
    until_true("sessions leave no descriptors in the agent", LIMIT, || {
        process.descriptors() <= descriptors + WORKER_DESCRIPTORS
    });
}

#[test]
fn too_many_descriptors_are_closed() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let process = platform.process();
    let descriptors = process.descriptors();
    let file = File::open("/dev/null").unwrap();
    for _ in 0..50 {
        let session = hotlease_fabric::socket::Socket::connect(&platform.directory().join("session.sock")).unwrap();
        send_many_fds(&session, &session_requests()[0], file.as_fd(), 200);
    }
    let worker = platform
        .workers()
        .into_iter()
        .map(|worker| worker.descriptors())
        .max()
        .unwrap();
    for _ in 0..20 {
        let (connection, _) = lease.session.worker(0).unwrap();
        connection.send_many_fds(&connection_requests()[0], file.as_fd(), 200);
        assert!(
            connection.is_closed(LIMIT),
            "the worker keeps a client that sends 200 descriptors"
        );
    }
    lease.echo();
    until_true("the agent closes them", LIMIT, || {
        process.descriptors() <= descriptors + WORKER_DESCRIPTORS
    });
    until_true("the worker closes them", LIMIT, || {
        platform
            .workers()
            .iter()
            .all(|process| process.descriptors() <= worker + WORKER_DESCRIPTORS)
    });
}

#[test]
fn sessions_that_never_attach_are_dropped_and_bounded() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let process = platform.process();
    let descriptors = process.descriptors();
    let socket = platform.directory().join("session.sock");
    let silent: Vec<RawSession> = (0..300).filter_map(|_| RawSession::connect(&socket).ok()).collect();
    // A client with a token gets in anyway, now or as soon as the silent sessions are dropped.
    let grant = platform.manager().lease(1, LONG).unwrap();
    until_true("a session with a token is served", LIMIT, || {
        let Ok(mut session) = RawSession::connect(&socket) else {
            return false;
        };
        matches!(session.attach(&grant.token), Ok(SessionReply::Attached { .. }))
    });
    for session in &silent {
        assert!(
            matches!(session.next(LIMIT), Err(NoAnswer::Closed)),
            "a session that never attaches is closed"
        );
    }
    bystander.finish();
    until_true("no descriptor is left of them", LIMIT, || {
        process.descriptors() <= descriptors + WORKER_DESCRIPTORS
    });
}

#[test]
fn code_that_is_not_what_was_announced_is_refused() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    let bytes = std::fs::read(library("echo")).unwrap();
    let (hash, size_bytes) = (CodeHash::of(&bytes), bytes.len() as u64);
    let ask = |session: &mut RawSession, size_bytes, fds: &[std::os::fd::BorrowedFd<'_>]| match session
        .ask(&SessionRequest::Load { hash, size_bytes }, fds)
    {
        Ok(SessionReply::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(&mut session, size_bytes, &[]), Rejection::NeedCode(hash));
    let other = sealed_copy("test", &[&bytes[..], b"x"].concat()).unwrap();
    assert_eq!(
        session.load_as(CodeHash([9; 32]), &bytes),
        Err(Rejection::CodeMismatch),
        "another hash"
    );
    let refusal = ask(&mut session, size_bytes + 1, &[other.as_fd()]);
    assert_eq!(refusal, Rejection::CodeMismatch, "one more byte");
    let sealed = sealed_copy("test", &bytes).unwrap();
    // The agent neither reads past the end nor allocates memory for missing bytes.
    for size_bytes in [size_bytes + 1, 1 << 40, u64::MAX, 0] {
        let refusal = ask(&mut session, size_bytes, &[sealed.as_fd()]);
        eprintln!("announced {size_bytes}: {refusal}");
    }
    let mut unsealed = tempfile::tempfile().unwrap();
    unsealed.write_all(&bytes).unwrap();
    eprintln!("unsealed: {}", ask(&mut session, size_bytes, &[unsealed.as_fd()]));
    let directory = File::open("/").unwrap();
    eprintln!("a directory: {}", ask(&mut session, size_bytes, &[directory.as_fd()]));
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    eprintln!("a pipe: {}", ask(&mut session, size_bytes, &[pipe.as_fd()]));
    assert_eq!(
        ask(&mut session, size_bytes, &[]),
        Rejection::NeedCode(hash),
        "nothing of it was kept"
    );
    session.load_file(&library("echo"));
    session.release();
}

#[test]
fn more_libraries_than_a_lease_may_have_are_refused() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    let bytes = std::fs::read(library("echo")).unwrap();
    // The loader ignores bytes behind the end of an ELF file, so each variant is a library of its own.
    let variant = |number: usize| [&bytes[..], &number.to_le_bytes()].concat();
    for number in 0..CODES_PER_LEASE_MAX {
        session
            .load(&variant(number))
            .unwrap_or_else(|refusal| panic!("library {number}: {refusal}"));
    }
    let refusal = session.load(&variant(CODES_PER_LEASE_MAX)).err();
    assert!(matches!(refusal, Some(Rejection::TooMany { .. })), "{refusal:?}");
    let again = session.load(&variant(3)).unwrap();
    assert_eq!(again, 3, "a library that is loaded already keeps its place");
    session.release();
}

#[test]
fn manager_answers_on_a_connection_that_sends_slowly() {
    let platform = Platform::start();
    let mut slow: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect(platform.directory().join("manager.sock")).unwrap())
        .collect();
    for stream in &mut slow {
        stream.write_all(b"PRI * HT").unwrap();
    }
    platform.manager().agents().unwrap();
    for stream in &mut slow {
        let _ = stream.write_all(b"XX");
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let _ = stream.read(&mut [0; 100]);
    }
    let directory: &Path = platform.directory();
    assert!(directory.join("manager.sock").exists());
    platform.manager().agents().unwrap();
}
