//! Leases of memory alone: a client reads and writes memory of a node, which runs no function for that.

mod losses;

use super::worker_of;
use hotlease_client::{Code, Error, Invoker, LeaseOptions, MemoryOptions, RemoteMemory};
use hotlease_tests::lease::LONG;
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::session::RawSession;
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::Rejection;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::ids::RegionId;
use hotlease_wire::session::{SessionReply, SessionRequest};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn options(lease: LeaseOptions) -> MemoryOptions {
    let mut options = MemoryOptions::default();
    options.lease = lease;
    options
}

/// Writes and reads random spans, and compares each byte with a copy in this process.
fn write_and_read(memory: &RemoteMemory, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let size = memory.size_bytes();
    let mut copy = vec![0_u8; size as usize];
    for _ in 0..60 {
        let offset = random.random_range(0..size);
        let most = (size - offset).min(1 << random.random_range(0..22));
        let length = random.random_range(0..=most) as usize;
        let at = offset as usize;
        if random.random_bool(0.5) {
            let bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
            memory.write(offset, &bytes).expect("it is held");
            copy[at..at + length].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0xaa; length];
            memory.read(offset, &mut bytes).expect("it is held");
            assert_eq!(bytes, copy[at..at + length], "seed {seed}: {length} bytes at {offset}");
        }
    }
    let mut all = vec![0xaa; copy.len()];
    memory.read(0, &mut all).expect("it is held");
    assert!(all == copy, "seed {seed}: the whole");
}

#[test]
fn memory_is_read_and_written_while_functions_have_all_cores() {
    let platform = Platform::start();
    let cores = platform.cores().len() as u16;
    let busy = platform.invoker_with(
        "behaved",
        LeaseOptions {
            workers: cores,
            ..platform.lease_options()
        },
    );
    assert_eq!(platform.free_cores(), 0);
    for transport in ["shm", "tcp;ofi_rxm"] {
        let lease = LeaseOptions {
            transport: Some(transport.into()),
            ..platform.lease_options()
        };
        let memory = RemoteMemory::allocate(5 * MIB + 77, options(lease)).expect("memory without a core");
        assert_eq!(memory.transport(), transport);
        write_and_read(&memory, 1);
        let used = memory.deallocate().expect("it is held");
        assert!(
            used.allocated_ns > 0 && used.compute_ns == 0 && used.invocations == 0,
            "{used:?}"
        );
    }
    let echo = busy.function("echo").expect("a function of the fixture");
    assert_eq!(echo.call(b"x").expect("it runs"), b"x");
}

#[test]
fn spans_outside_the_memory_are_refused_and_change_nothing() {
    let platform = Platform::start();
    let memory = RemoteMemory::allocate(100, options(platform.lease_options())).expect("memory");
    memory.write(0, &[7; 100]).expect("the whole");
    for (offset, length) in [(100, 1), (99, 2), (u64::MAX, 1), (0, 101)] {
        let mut bytes = vec![1; length];
        let refused = memory.read(offset, &mut bytes).expect_err("outside");
        assert!(matches!(refused, Error::Options { .. }), "{refused}");
        let refused = memory.write(offset, &bytes).expect_err("outside");
        assert!(refused.to_string().contains("100 bytes"), "{refused}");
        assert!(memory.begin_read(offset, length).is_err());
        assert!(memory.begin_write(offset, bytes).is_err());
    }
    let refused = memory
        .write_pieces(&[(0, b"new"), (99, b"12")])
        .expect_err("the second is outside");
    assert!(matches!(refused, Error::Options { .. }), "{refused}");
    let mut all = [0; 100];
    memory.read(0, &mut all).expect("the whole");
    assert_eq!(all, [7; 100]);
    memory.write(100, &[]).expect("no bytes are inside");
    for (size, wrong) in [(0, MemoryOptions::default()), (u64::MAX, MemoryOptions::default())] {
        assert!(matches!(
            RemoteMemory::allocate(size, wrong),
            Err(Error::Options { .. })
        ));
    }
}

#[test]
fn copies_that_were_begun_are_there_after_their_wait_and_after_a_flush() {
    let platform = Platform::start();
    let memory = RemoteMemory::allocate(8 * MIB, options(platform.lease_options())).expect("memory");
    let piece = MIB as usize;
    let begun: Vec<_> = (0..8_u8)
        .map(|number| {
            let offset = u64::from(number) * MIB;
            memory.begin_write(offset, vec![number + 1; piece]).expect("a thread")
        })
        .collect();
    for (number, written) in begun.into_iter().enumerate() {
        assert_eq!(
            written.wait().expect("it is held")[0],
            number as u8 + 1,
            "the caller gets its bytes back"
        );
    }
    for number in 0..8_u8 {
        drop(memory.begin_write(u64::from(number) * MIB, vec![number + 11; piece]));
    }
    memory.flush().expect("no copy failed");
    for number in 0..8_u8 {
        let read = memory.begin_read(u64::from(number) * MIB, piece).expect("a thread");
        assert!(read.wait().expect("it is held").iter().all(|byte| *byte == number + 11));
    }
    let mut one = [0; 1];
    let mut two = [0; 2];
    memory
        .read_pieces(&mut [(0, &mut one), (MIB, &mut two)])
        .expect("it is held");
    assert_eq!((one, two), ([11], [12, 12]));
}

#[test]
fn memory_that_was_given_back_is_zero_for_the_next_tenant_and_free_although_a_client_keeps_the_descriptor() {
    let platform = Nodes::start_with(1, &["--memory", "64M"]);
    let grant = |bytes| {
        platform.manager().acquire(AcquireRequest {
            workers: 1,
            slots_per_worker: 0,
            memory_bytes: bytes,
            ..AcquireRequest::default()
        })
    };
    let first = grant(60 * MIB).expect("memory");
    assert!(first.cores.is_empty());
    let session = RawSession::attached(&first);
    let mut session = session;
    let connection = session.worker(0).expect("it runs").0;
    let reserved = || match connection.ask(&ConnectionRequest::Memory, &[]) {
        Some((
            ConnectionReply::Memory {
                size_bytes,
                reserved_bytes,
            },
            _,
        )) => {
            assert_eq!(size_bytes, 60 * MIB);
            reserved_bytes == size_bytes
        }
        other => panic!("{other:?}"),
    };
    until_true("its pages are reserved", LIMIT, reserved);
    let Some((ConnectionReply::Done, fds)) = connection.ask(&ConnectionRequest::ShareMemory, &[]) else {
        panic!("no block");
    };
    let kept = std::fs::File::from(fds.into_iter().next().expect("one descriptor"));
    kept.write_all_at(b"secret", 5).expect("it is held");
    let used = || kept.metadata().expect("a file").blocks() * 512;
    assert!(used() >= 60 * MIB);

    // The node has no more memory; it has again as soon as the lease has ended.
    let refused = grant(60 * MIB).expect_err("the node is full");
    assert!(matches!(refused, Rejection::TooMany { .. }), "{refused}");
    session.release();
    assert_eq!(
        used(),
        4096,
        "the node has its memory back, except the page that says so"
    );
    let mut bytes = [1; 6];
    kept.read_exact_at(&mut bytes, 5).expect("the file has its length");
    assert_eq!(bytes, [0; 6], "the bytes are gone");

    let memory = RemoteMemory::allocate(60 * MIB, options(platform.lease_options())).expect("memory");
    let mut bytes = vec![1; 60 * MIB as usize];
    memory.read(0, &mut bytes).expect("it is held");
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn a_memory_server_runs_nothing_and_a_worker_has_no_block() {
    let platform = Platform::start();
    let grant = platform.manager().acquire(AcquireRequest {
        workers: 1,
        memory_bytes: MIB,
        ..AcquireRequest::default()
    });
    let mut session = RawSession::attached(&grant.expect("memory"));
    let bytes = std::fs::read(library("behaved")).expect("a fixture");
    let load = SessionRequest::Load {
        hash: hotlease_wire::ids::CodeHash::of(&bytes),
        size_bytes: bytes.len() as u64,
    };
    match session.ask(&load, &[]) {
        Ok(SessionReply::Refused(Rejection::BadRequest { what })) => assert!(what.contains("no functions"), "{what}"),
        other => panic!("{other:?}"),
    }
    let connection = session.worker(0).expect("it runs").0;
    let refused = connection.done(&ConnectionRequest::Deregister { region: RegionId(1) }, &[]);
    assert!(matches!(refused, Err(Rejection::BadRequest { .. })));
    let shape = hotlease_wire::connection::RingShape {
        depth: 8,
        entry_bytes: 64,
    };
    match connection.open(0, shape, shape) {
        Some(Err(Rejection::UnknownSlot { slots: 0, .. })) => {}
        other => panic!("a slot of a memory server: {}", other.is_some()),
    }
    session.release();

    let lease = hotlease_tests::lease::RawLease::take(&platform);
    for request in [ConnectionRequest::Memory, ConnectionRequest::ShareMemory] {
        match lease.connection.ask(&request, &[]) {
            Some((ConnectionReply::Refused(Rejection::BadRequest { what }), _)) => {
                assert!(what.contains("no memory block"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Functions need slots.
    let code = Code::open(library("behaved")).expect("a fixture");
    let without = LeaseOptions {
        slots: 0,
        memory_bytes: MIB,
        ..platform.lease_options()
    };
    let refused = Invoker::allocate(&code, without).expect_err("no slots");
    assert!(refused.to_string().contains("slots must be 1"), "{refused}");
}

#[test]
fn requests_for_memory_alone_that_make_no_sense_are_refused() {
    let platform = Platform::start();
    let alone = || AcquireRequest {
        workers: 1,
        memory_bytes: MIB,
        ..AcquireRequest::default()
    };
    for (request, word) in [
        (
            AcquireRequest {
                memory_bytes: 0,
                ..alone()
            },
            "slots",
        ),
        (AcquireRequest { gpus: 1, ..alone() }, "gpus"),
        (
            AcquireRequest {
                state: "s".into(),
                ..alone()
            },
            "state",
        ),
        (
            AcquireRequest {
                sharing: hotlease_wire::grpc::Sharing::Shared.into(),
                ..alone()
            },
            "sharing",
        ),
        (
            AcquireRequest {
                memory_bytes: u64::MAX,
                ..alone()
            },
            "memory",
        ),
    ] {
        match platform.manager().acquire(request) {
            Err(Rejection::BadRequest { what }) => assert!(what.contains(word), "{what}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    // The node offers all its memory, of which other processes use a part.
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("of this host");
    let total = meminfo
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok());
    let all = AcquireRequest {
        memory_bytes: 1024 * total.expect("MemTotal") - 64 * MIB,
        ..alone()
    };
    let refused = platform.manager().acquire(all).expect_err("nearly all of the node");
    assert!(refused.to_string().contains("idle now"), "{refused}");
    // Within the limits, but more than the node has.
    let much = AcquireRequest {
        memory_bytes: 1 << 43,
        ..alone()
    };
    let refused = platform.manager().acquire(much).expect_err("8 TiB");
    assert!(refused.to_string().contains("memory"), "{refused}");
}

#[test]
fn memory_is_billed_by_its_size_and_time_and_no_core_is() {
    let platform = Platform::start();
    let memory = RemoteMemory::allocate(64 * MIB, options(platform.lease_options())).expect("memory");
    std::thread::sleep(Duration::from_millis(300));
    let lease = memory.leases()[0].to_string();
    let used = memory.deallocate().expect("it is held");
    assert!(used.allocated_ns >= 300_000_000, "{used:?}");
    let mut row = serde_json::Value::Null;
    until_true("the lease is on the bill", LIMIT, || {
        let rows = platform.json(&["bill", "--by", "lease"]);
        let found = rows.into_iter().find(|row| row["lease"] == lease.as_str());
        let has_end = |row: &serde_json::Value| {
            let billed = row["memory_mib_ms"].as_u64().unwrap_or(0);
            billed * 1_000_000 / 64 + 1_000_000 > used.allocated_ns
        };
        row = found.unwrap_or_default();
        has_end(&row)
    });
    assert_eq!(row["allocated_ns"], 0, "{row}");
    assert_eq!(row["compute_ns"], 0, "{row}");
    let billed_ms = row["memory_mib_ms"].as_u64().expect("a number") / 64;
    assert!((300..10_000).contains(&billed_ms), "{row}");
}

#[test]
fn memory_is_not_idle_and_ends_when_its_program_does() {
    let platform = Nodes::start_with(1, &["--memory", "64M", "--lease-idle", "200ms"]);
    let memory = RemoteMemory::allocate(32 * MIB, options(platform.lease_options())).expect("memory");
    memory.write(0, b"here").expect("it is held");
    std::thread::sleep(Duration::from_secs(1));
    let mut bytes = [0; 4];
    memory
        .read(0, &mut bytes)
        .expect("no invocation runs on it, ever: it is not idle");
    assert_eq!(&bytes, b"here");
    drop(memory);
    let again = until("the memory is free again", SOON, || {
        RemoteMemory::allocate(60 * MIB, options(platform.lease_options())).ok()
    });
    drop(again);
}

#[test]
fn a_memory_over_several_nodes_is_one_and_each_node_has_its_share() {
    let nodes = Nodes::start(2);
    for stripe in [4096, 1 << 20] {
        let mut spread = options(nodes.lease_options());
        spread.nodes = 2;
        spread.stripe_bytes = stripe;
        let memory = RemoteMemory::allocate(4 * MIB + 5, spread).expect("memory");
        let leases = memory.leases();
        let agent = |lease: usize| {
            nodes
                .manager()
                .lease_info(&leases[lease].to_string())
                .map(|info| info.agent)
        };
        assert_eq!(leases.len(), 2);
        assert_ne!(agent(0), agent(1), "each on its own node");
        write_and_read(&memory, 7);
    }
    // More shares than nodes: some nodes have two.
    let mut spread = options(nodes.lease_options());
    spread.nodes = 3;
    let memory = RemoteMemory::allocate(MIB, spread).expect("memory");
    write_and_read(&memory, 8);
}

#[test]
fn a_memory_server_needs_no_core_of_the_listing_and_is_listed() {
    let platform = Platform::start();
    let grant = platform.manager().acquire(AcquireRequest {
        workers: 1,
        memory_bytes: MIB,
        ..AcquireRequest::default()
    });
    let grant = grant.expect("memory");
    let session = RawSession::attached(&grant);
    let server = worker_of(&platform, &grant);
    assert!(server.is_alive());
    assert_eq!(platform.free_cores(), platform.cores().len() as u32);
    let info = platform.manager().lease_info(&grant.lease).expect("listed");
    assert!(info.cores.is_empty(), "{info:?}");
    let functions = platform.manager().lease(platform.cores().len() as u32, LONG);
    assert!(functions.is_ok(), "all cores are still free");
    session.release();
    assert!(!server.is_alive());
}
