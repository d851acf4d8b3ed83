//! Connections to a worker: garbage on the socket, and memory that is not what it should be.

use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::{Memory, sealed_copy};
use hotlease_fabric::shm::NearRing;
use hotlease_tests::connection::{RawConnection, SHAPE};
use hotlease_tests::garbage::{connection_requests, mutated, random};
use hotlease_tests::lease::{Bystander, RawLease};
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::until_true;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::ids::{RegionId, SlotIndex};
use hotlease_wire::limits::{CHANNELS_PER_SLOT_MAX, CONNECTIONS_MAX, REGION_BYTES_MAX, REGIONS_MAX};
use hotlease_wire::{Rejection, encode};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rand::RngExt;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

#[test]
fn garbage_on_the_connection_socket_ends_at_most_that_connection() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    let mut random = random("messages");
    let valid = connection_requests();
    let file = File::open("/dev/null").unwrap();
    let ring = NearRing::create("test", SHAPE).unwrap();
    for _ in 0..100 {
        let (connection, _) = lease.session.worker(0).unwrap();
        for _ in 0..20 {
            let bytes = match random.random_range(0..2) {
                0 => (0..random.random_range(1..100)).map(|_| random.random()).collect(),
                _ => mutated(&mut random, &valid),
            };
            let fds = [file.as_fd(), ring.fd(), ring.fd(), file.as_fd()];
            if connection
                .send_bytes(&bytes, &fds[..random.random_range(0..=4)])
                .is_err()
            {
                break;
            }
        }
        // The worker handles this message before the next message arrives.
        let _ = connection.is_closed(Duration::from_millis(2));
    }
    lease.echo();
    bystander.finish();
}

/// Memory that its owner can resize at any time.
fn memfd(size_bytes: u64) -> File {
    let file = File::from(memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).expect("a memfd"));
    file.set_len(size_bytes).expect("its size");
    file
}

#[test]
fn ring_that_could_be_shrunk_or_is_too_small_is_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bell = Doorbell::create().unwrap();
    let ring = NearRing::create("test", SHAPE).unwrap();
    let small = NearRing::create("test", RingShape { depth: 4, ..SHAPE }).unwrap();
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(1 << 20).unwrap();
    let growing = memfd(1 << 20);
    let null = File::open("/dev/null").unwrap();
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    let read_only = sealed_copy("test", &vec![0; 1 << 20]).unwrap();
    let cases: [(&str, Vec<std::os::fd::BorrowedFd<'_>>); 11] = [
        ("a ring that could be shrunk", vec![growing.as_fd(), bell.fd()]),
        ("a doorbell that could be shrunk", vec![ring.fd(), growing.as_fd()]),
        ("an unsealed ring", vec![unsealed.as_fd(), bell.fd()]),
        ("an unsealed doorbell", vec![ring.fd(), unsealed.as_fd()]),
        ("a small ring", vec![small.fd(), bell.fd()]),
        ("a device", vec![null.as_fd(), bell.fd()]),
        ("a pipe", vec![pipe.as_fd(), bell.fd()]),
        ("a ring that cannot be written", vec![read_only.as_fd(), bell.fd()]),
        ("no descriptors", vec![]),
        ("one descriptor", vec![ring.fd()]),
        ("three descriptors", vec![ring.fd(), bell.fd(), bell.fd()]),
    ];
    for (what, fds) in cases {
        let (connection, _) = lease.session.worker(0).unwrap();
        let open = ConnectionRequest::Open {
            slot: SlotIndex(0),
            request: SHAPE,
            reply: SHAPE,
        };
        match connection.ask(&open, &fds) {
            Some((ConnectionReply::Refused(_), _)) | None => {}
            Some((other, _)) => panic!("{what}: {other:?}"),
        }
        lease.echo();
    }
}

#[test]
fn absurd_ring_shapes_and_slots_are_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let ring = NearRing::create("test", SHAPE).unwrap();
    let bell = Doorbell::create().unwrap();
    let shape = |depth, entry_bytes| RingShape { depth, entry_bytes };
    let ask = |slot, request, reply| {
        let open = ConnectionRequest::Open {
            slot: SlotIndex(slot),
            request,
            reply,
        };
        match lease.connection.ask(&open, &[ring.fd(), bell.fd()]) {
            Some((ConnectionReply::Refused(refusal), _)) => refusal,
            other => panic!("{open:?}: {other:?}"),
        }
    };
    for absurd in [
        shape(0, 4096),
        shape(3, 4096),
        shape(1 << 31, 4096),
        shape(u32::MAX, u32::MAX),
        shape(8192, 1),
        shape(8, 0),
        shape(8, u32::MAX),
        shape(4096, 4 << 20),
    ] {
        ask(0, absurd, SHAPE);
        ask(0, SHAPE, absurd);
        ask(0, absurd, absurd);
    }
    ask(0, shape(16, 4096), SHAPE);
    for slot in [1, 2, u16::MAX] {
        let refusal = ask(slot, SHAPE, SHAPE);
        assert_eq!(refusal, Rejection::UnknownSlot { index: slot, slots: 1 });
    }
    lease.echo();
}

#[test]
fn buffers_that_are_not_what_was_announced_are_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let memory = Memory::create("test", 8192).unwrap();
    let register = |region, size_bytes| ConnectionRequest::Register {
        region: RegionId(region),
        size_bytes,
    };
    for size_bytes in [0, 8193, 1 << 40, REGION_BYTES_MAX + 1, u64::MAX] {
        let (connection, _) = lease.session.worker(0).unwrap();
        let answer = connection.ask(&register(1, size_bytes), &[memory.fd()]);
        assert!(
            matches!(answer, None | Some((ConnectionReply::Refused(_), _))),
            "{size_bytes} bytes: {answer:?}"
        );
    }
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let growing = memfd(8192);
    let read_only = sealed_copy("test", &[0; 8192]).unwrap();
    for (what, fds) in [
        ("an unsealed file", vec![file.as_fd()]),
        ("memory that could be shrunk", vec![growing.as_fd()]),
        ("memory that cannot be written", vec![read_only.as_fd()]),
        ("nothing", vec![]),
        ("two", vec![memory.fd(), memory.fd()]),
    ] {
        let (connection, _) = lease.session.worker(0).unwrap();
        let answer = connection.ask(&register(1, 8192), &fds);
        assert!(
            matches!(answer, None | Some((ConnectionReply::Refused(_), _))),
            "{what}: {answer:?}"
        );
    }
    lease.connection.done(&register(5, 8192), &[memory.fd()]).unwrap();
    let twice = lease.connection.done(&register(5, 8192), &[memory.fd()]);
    eprintln!("the same number twice: {twice:?}");
    let unknown = ConnectionRequest::Deregister { region: RegionId(99) };
    eprintln!("an unknown number: {:?}", lease.connection.done(&unknown, &[]));
    lease.echo();
}

#[test]
fn more_than_a_worker_takes_is_refused_and_freed_again() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    // Limit of buffers of one connection.
    let (connection, _) = lease.session.worker(0).unwrap();
    let memory = Memory::create("test", 4096).unwrap();
    for region in 0..REGIONS_MAX {
        connection
            .register(region, &memory)
            .unwrap_or_else(|refusal| panic!("buffer {region}: {refusal}"));
    }
    let refusal = connection.register(REGIONS_MAX, &memory).err();
    assert!(matches!(refusal, Some(Rejection::TooMany { .. })), "{refusal:?}");
    connection
        .done(&ConnectionRequest::Deregister { region: RegionId(3) }, &[])
        .unwrap();
    connection.register(REGIONS_MAX, &memory).unwrap();
    drop(connection);
    // Limit of channels of one slot; the lease has one already.
    let (connection, _) = lease.session.worker(0).unwrap();
    let small = RingShape {
        depth: 1,
        entry_bytes: 64,
    };
    let mut channels = Vec::new();
    let refusal = loop {
        match connection.open(0, small, small) {
            Some(Ok(channel)) => channels.push(channel),
            Some(Err(refusal)) => break refusal,
            None => panic!("closed after {} channels", channels.len()),
        }
        assert!(channels.len() < CHANNELS_PER_SLOT_MAX, "no limit");
    };
    assert!(matches!(refusal, Rejection::TooMany { .. }), "{refusal:?}");
    let (epoch, echo) = (lease.epoch, lease.functions.index("echo"));
    for channel in &mut channels {
        channel.echo(epoch, echo, b"one of many");
    }
    drop((channels, connection));
    // Limit of connections.
    let mut connections = Vec::new();
    let mut last = None;
    for _ in 0..CONNECTIONS_MAX + 1 {
        match lease.session.worker(0) {
            // The worker may also close the connection that is one too many.
            Ok((connection, _)) => connections.push(connection),
            Err(refusal) => {
                last = Some(refusal);
                break;
            }
        }
    }
    let limit = format!("a limit of less than {} connections", connections.len());
    until_true(&limit, LIMIT, || {
        let is_closed = |connection: &RawConnection| connection.is_closed(Duration::from_millis(1));
        last.is_some() || connections.iter().any(is_closed)
    });
    lease.echo();
    drop(connections);
    until_true("connections that are closed make room", LIMIT, || {
        lease
            .session
            .worker(0)
            .is_ok_and(|(connection, _)| !connection.is_closed(Duration::from_millis(50)))
    });
    lease.echo();
    bystander.finish();
}

#[test]
fn client_that_asks_and_never_listens_blocks_no_other_client() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    let (deaf, _) = lease.session.worker(0).unwrap();
    let request = encode(&ConnectionRequest::Deregister { region: RegionId(77) });
    // Runs in a thread: a worker may go on reading without being able to answer, or stop reading; both are right.
    let flood = std::thread::spawn(move || {
        for _ in 0..20_000 {
            if deaf.send_bytes(&request, &[]).is_err() {
                break;
            }
        }
        deaf
    });
    for _ in 0..50 {
        lease.echo();
        let (connection, _) = lease.session.worker(0).unwrap();
        let mut channel = connection.channel(0);
        channel.echo(lease.epoch, lease.functions.index("echo"), b"beside a deaf client");
    }
    bystander.finish();
    // Releasing the lease ends the flood if it is stuck.
    lease.session.release();
    drop(flood.join().unwrap());
}
