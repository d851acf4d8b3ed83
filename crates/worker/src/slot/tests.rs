//! Tests of a slot with a client in the same process.

use super::*;
use crate::function::remote_worker::{RemoteCall, RemoteCallResult, RemoteWorker};
use crate::slot::core::OwnCore;
use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing, RequestRing, WorkerChannel};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::connection::RingShape;
use hotlease_wire::control::PollingPolicy;
use hotlease_wire::frame::Flags;
use hotlease_wire::machine::Assignment;

const CALL: CallParameters = CallParameters {
    epoch: Epoch(1),
    function: FunctionIndex(0),
    flags: Flags::NONE,
    timeout_us: 0,
    output_capacity: 64,
};

/// A remote worker that runs no function.
struct Unable;

impl RemoteWorker for Unable {
    fn assign(&self, _: Assignment) -> Result<(), String> {
        Ok(())
    }

    fn load(&self, _: &[u8], _: u16) -> Result<(), String> {
        Ok(())
    }

    fn call(&self, _: RemoteCall<'_>) -> Result<RemoteCallResult, InvocationStatus> {
        Err(InvocationStatus::BadSpan)
    }
}

/// A slot with one function, and its client.
fn slot_with_client(functions: FunctionTable) -> (Slot<OwnCore>, ClientChannel) {
    let usage = Arc::new(UsageBlock::create(1).expect("memory"));
    let shared = WorkerShared {
        epoch: Epoch(1),
        slots: 1,
        tenant: "ann".into(),
        clock: TickClock::new(1_000_000_000),
        usage,
        watchdog: Arc::new(Watchdog::new(1, Doorbell::create().expect("a doorbell"))),
    };
    let mailbox = Arc::new(Mailbox::new().expect("a mailbox"));
    let shape = RingShape {
        depth: 2,
        entry_bytes: 64,
    };
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let (replies, requests) = (ReplyRing::create(shape), RequestRing::create(shape));
    let (replies, requests) = (replies.expect("memory"), requests.expect("memory"));
    let bell = Doorbell::create().expect("a doorbell");
    let request_fd = own(requests.fd());
    let channel = WorkerChannel::open(requests, 7, shape, own(replies.fd()), own(bell.fd()));
    let channel = Box::new(channel.expect("a channel").map(TransportRing::Shm));
    let client = ClientChannel::open(replies, 7, shape, request_fd, own(mailbox.doorbell.fd()));
    mailbox.put(SlotMessage::Functions(Arc::new(functions)));
    mailbox.put(SlotMessage::Channel(ConnectionId(1), channel, Regions::new()));
    let idle = IdlePolicy::new(PollingPolicy::Warm, 0, |ns| ns);
    let mut slot = Slot::new(OwnCore, 0, Arc::new(shared), mailbox, idle);
    slot.read_mail();
    (slot, client.expect("a channel"))
}

#[test]
fn an_invocation_whose_function_did_not_run_is_not_billed() {
    let (mut slot, client) = slot_with_client(FunctionTable::of_remote_worker(&Unable, 1));
    client.publish(0, &CALL, &[b"input"]).expect("it fits");
    assert!(slot.serve_each_client(), "there is a request");
    let reply = client.poll(0).expect("a reply").expect("a whole one");
    assert_eq!(reply.status, InvocationStatus::BadSpan);
    let usage = slot.shared.usage.read(0);
    assert_eq!((usage.invocations, usage.running), (0, None));
}
