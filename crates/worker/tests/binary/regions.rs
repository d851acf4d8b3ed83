//! Registered memory of a client that deregisters and registers it again.

use super::{Worker, wait};
use hotlease_fabric::channel::CallParameters;
use hotlease_fabric::memory::Memory;
use hotlease_fabric::socket::Socket;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::frame::{Flags, InvocationStatus, Span};
use hotlease_wire::ids::RegionId;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const REGION: RegionId = RegionId(7);

fn ask(socket: &Socket, request: &ConnectionRequest, fds: &[BorrowedFd<'_>]) {
    socket.send(request, fds).unwrap();
    let (reply, _) = socket.receive::<ConnectionReply>().unwrap().unwrap();
    assert_eq!(reply, ConnectionReply::Done, "{request:?}");
}

fn register(socket: &Socket, byte: u8) -> Memory {
    let memory = Memory::create("test", 4096).unwrap();
    // SAFETY: the first byte of the mapping, which no other code uses yet.
    unsafe { memory.start().write(byte) };
    let register = ConnectionRequest::Register {
        region: REGION,
        size_bytes: memory.size_bytes(),
    };
    ask(socket, &register, &[memory.fd()]);
    memory
}

/// A slot checks for mail once a turn. It must also handle a message that arrives within the turn: otherwise the old
/// entry in the slot's table would pass, and its memory would be read.
#[test]
fn a_region_that_is_registered_anew_is_never_taken_for_what_it_was() {
    let mut worker = Worker::start();
    let (_busy_socket, busy) = worker.connect();
    let (socket, channel) = worker.connect();
    let echo = CallParameters {
        flags: Flags::INPUT_BUFFER,
        ..worker.call("echo")
    };
    let sleepy = CallParameters {
        timeout_us: 200_000,
        ..worker.call("sleepy")
    };
    let span = Span {
        region: REGION,
        offset: 0,
        length: 1,
    };
    let _first = register(&socket, 1);
    let read = |id: u64| {
        let header = wait(&channel, id);
        assert_eq!(header.status, InvocationStatus::Ok);
        let mut byte = [0];
        assert_eq!(channel.read(id, &header, &mut byte), 1);
        byte[0]
    };
    channel.publish(0, &echo, &[&span.encode()]).unwrap();
    assert_eq!(read(0), 1);

    // The slot runs a function of another channel, in the same turn in which it serves this channel, too.
    busy.publish(0, &sleepy, &[]).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while worker.usage.read(0).running.is_none() {
        assert!(Instant::now() < until, "the function does not start");
    }
    ask(&socket, &ConnectionRequest::Deregister { region: REGION }, &[]);
    let _second = register(&socket, 2);
    channel.publish(1, &echo, &[&span.encode()]).unwrap();
    assert_eq!(read(1), 2, "memory that was forgotten was read");
    assert_eq!(wait(&busy, 0).status, InvocationStatus::DeadlineExceeded);
}
