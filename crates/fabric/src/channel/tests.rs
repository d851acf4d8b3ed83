//! Tests of a channel with both ends in one process.

use super::*;
use crate::doorbell::Doorbell;
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{Flags, Inline, InvocationStatus, RequestHeader, Seq};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use std::os::fd::AsFd;

const CALL: CallParameters = CallParameters {
    epoch: Epoch(1),
    function: FunctionIndex(0),
    flags: Flags::NONE,
    timeout_us: 0,
    output_capacity: u32::MAX,
};

fn pair(depth: u32, entry_bytes: u32) -> (ClientChannel, WorkerChannel) {
    let shape = RingShape { depth, entry_bytes };
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let (replies, requests) = (ReplyRing::create(shape).unwrap(), RequestRing::create(shape).unwrap());
    let (client_bell, slot_bell) = (Doorbell::create().unwrap(), Doorbell::create().unwrap());
    let request_fd = own(requests.fd());
    let worker = WorkerChannel::open(requests, 7, shape, own(replies.fd()), own(client_bell.fd())).unwrap();
    let client = ClientChannel::open(replies, 7, shape, request_fd, own(slot_bell.fd().as_fd())).unwrap();
    (client, worker)
}

/// Echoes one request as the worker.
fn echo(worker: &mut WorkerChannel) {
    let request = worker.take().expect("a request");
    let input = worker.input(&request);
    let output = worker.output(&request);
    // SAFETY: input and output are at least `bytes` long and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(input.start.as_ptr(), output.as_ptr(), input.bytes) };
    worker.reply_with_output(&request, InvocationStatus::Ok, 0, input.bytes);
}

#[test]
fn every_size_comes_back_whole_over_many_laps() {
    let (client, mut worker) = pair(4, 300);
    let mut output = [0; 300];
    for (id, size) in (0..=300usize).chain([300, 0, 32, 33, 64, 65]).enumerate() {
        let input: Vec<u8> = (0..size).map(|i| (i * 7 + id) as u8).collect();
        let (head, tail) = input.split_at(size / 3);
        client.publish(id as u64, &CALL, &[head, tail]).unwrap();
        assert!(client.poll(id as u64).is_none(), "no reply before the worker has run");
        echo(&mut worker);
        let header = client.poll(id as u64).expect("a reply").unwrap();
        let bytes = client.read(id as u64, &header, &mut output);
        assert_eq!(&output[..bytes], &input[..], "size {size}");
    }
}

#[test]
fn numbers_go_on_past_32_bits() {
    let (client, mut worker) = pair(2, 64);
    let start = u64::from(u32::MAX) - 2;
    worker.next = start;
    for step in 0..6 {
        let id = start + step;
        client.publish(id, &CALL, &[&step.to_le_bytes()]).unwrap();
        echo(&mut worker);
        assert!(client.poll(id).is_some(), "id {id}");
        assert!(
            client.poll(id - 2).is_none(),
            "an old number must not match a new reply"
        );
    }
}

#[test]
fn too_long_a_payload_is_refused_before_it_is_written() {
    let (client, mut worker) = pair(2, 64);
    assert_eq!(
        client.publish(0, &CALL, &[&[0; 65]]),
        Err(PayloadTooLong {
            bytes: 65,
            capacity: 64
        })
    );
    assert!(worker.take().is_none());
}

/// Publishes an arbitrary request header, as a hostile client could.
fn forge(client: &ClientChannel, change: impl FnOnce(&mut RequestHeader)) {
    let mut header = RequestHeader {
        seq: Seq::new(7, 0),
        epoch: Epoch(1),
        function: FunctionIndex(0),
        flags: Flags::NONE,
        length: 8,
        reply_entry: 0,
        timeout_us: 0,
        output_capacity: 64,
        inline: Inline::default(),
    };
    change(&mut header);
    crate::ring::FarRing::publish(client.far(), 0, 0, &header.encode());
}

#[test]
fn forged_lengths_and_entries_are_answered_and_never_run() {
    type Change = fn(&mut RequestHeader);
    let cases: [(Change, InvocationStatus); 4] = [
        (|header| header.length = 65, InvocationStatus::BadLength),
        (|header| header.output_capacity = u32::MAX, InvocationStatus::BadLength),
        (|header| header.flags = Flags::INPUT_BUFFER, InvocationStatus::BadLength),
        (|header| header.reply_entry = 1, InvocationStatus::BadHeader),
    ];
    for (change, status) in cases {
        let (client, mut worker) = pair(2, 64);
        forge(&client, change);
        assert!(worker.take().is_none());
        assert_eq!(client.poll(0).expect("an answer").unwrap().status, status);
    }
}

#[test]
fn frame_of_another_generation_is_invisible() {
    let (client, mut worker) = pair(2, 64);
    forge(&client, |header| header.seq = Seq::new(8, 0));
    assert!(worker.take().is_none());
    assert!(client.poll(0).is_none());
}

#[test]
fn reply_with_absurd_length_reads_no_more_than_the_entry() {
    let (client, mut worker) = pair(2, 64);
    client.publish(0, &CALL, &[b"x"]).unwrap();
    let request = worker.take().unwrap();
    worker.reply(&request, InvocationStatus::Ok, 0, u64::MAX);
    let header = client.poll(0).unwrap().unwrap();
    let mut output = vec![0; 1000];
    assert_eq!(client.read(0, &header, &mut output), 64);
}

#[test]
fn a_request_is_read_back_from_its_entry_until_that_is_used_again() {
    let (client, mut worker) = pair(2, 100);
    for (number, length) in [(0, 0), (1, 32), (2, 33), (3, 100)] {
        let input: Vec<u8> = (0..length).map(|byte| byte + 7).collect();
        client.publish(number, &CALL, &[&input]).unwrap();
        assert_eq!(client.recall(number), Some(input), "number {number}");
        echo(&mut worker);
        client.poll(number).expect("a reply").unwrap();
    }
    assert_eq!(client.recall(1), None, "its entry is another's");
    // A hostile worker may write to the ring: the length in its header is checked.
    forge(&client, |header| header.length = 101);
    assert_eq!(client.recall(0), None);
    forge(&client, |header| header.length = u32::MAX);
    assert_eq!(client.recall(0), None);
}

#[test]
fn a_request_is_begun_by_its_worker_or_withdrawn_by_its_client_and_never_both() {
    let (client, mut worker) = pair(4, 100);
    let withdrawable = CallParameters {
        flags: Flags::WITHDRAWABLE,
        ..CALL
    };
    let input = [7; 100];
    for number in 0..2 {
        client.publish(number, &withdrawable, &[&input]).unwrap();
    }
    client.publish(2, &CALL, &[&input]).unwrap();
    assert!(client.withdraw(1) && !client.withdraw(1), "once");
    assert!(!client.withdraw(2), "it was published for good");
    assert!(!client.withdraw(3), "it was not published");
    let request = worker.take().expect("the first one");
    assert!(!client.withdraw(0), "the worker has begun it");
    worker.reply(&request, InvocationStatus::Ok, 0, 0);
    assert!(!client.withdraw(0), "it has ended");
    assert!(worker.take().is_none(), "a withdrawn request is answered, and not run");
    let reply = client.poll(1).expect("an answer").unwrap();
    assert_eq!(
        (reply.status, reply.status.has_run()),
        (InvocationStatus::Withdrawn, false)
    );
    echo(&mut worker);
    assert!(client.poll(2).is_some());
}

#[test]
fn ring_and_express_entry_count_apart() {
    let (client, mut worker) = pair(4, 100);
    let mut output = [0; 100];
    let (mut in_ring, mut in_express) = (0, 0);
    for step in 0..40u64 {
        let input: Vec<u8> = (0..100).map(|i| (i * step) as u8).collect();
        let header = if step % 3 == 0 {
            let express = client.express();
            express.publish_quiet(in_express, &CALL, &[&input]).unwrap();
            echo(&mut worker);
            let header = express.poll(in_express).expect("a reply").unwrap();
            assert_eq!(express.read(&header, &mut output), 100);
            in_express += 1;
            header
        } else {
            client.publish(in_ring, &CALL, &[&input]).unwrap();
            echo(&mut worker);
            let header = client.poll(in_ring).expect("a reply").unwrap();
            assert_eq!(client.read(in_ring, &header, &mut output), 100);
            in_ring += 1;
            header
        };
        assert_eq!((header.status, &output[..]), (InvocationStatus::Ok, &input[..]));
    }
}

#[test]
fn ring_and_express_entry_are_served_in_turn() {
    let (client, mut worker) = pair(4, 64);
    for id in 0..3 {
        client.publish(id, &CALL, &[b"ring"]).unwrap();
    }
    for id in 0..3 {
        // The express entry counts its own invocations: the numbers are equal here by chance.
        client.express().publish_quiet(id, &CALL, &[b"express"]).unwrap();
        echo(&mut worker);
        echo(&mut worker);
        assert!(
            client.express().poll(id).is_some(),
            "the ring kept the express entry waiting"
        );
        assert!(client.poll(id).is_some(), "the express entry kept the ring waiting");
    }
}

/// A line that was last written 2^32 invocations ago holds the low half of the sequence word that is expected now.
#[test]
fn line_left_unwritten_for_a_whole_lap_of_32_bits_is_not_taken_again() {
    let (client, mut worker) = pair(2, 64);
    let lap = 1u64 << 32;
    client.publish(0, &CALL, &[b"ring"]).unwrap();
    echo(&mut worker);
    client.express().publish_quiet(0, &CALL, &[b"express"]).unwrap();
    echo(&mut worker);
    (worker.next, worker.express_next) = (lap, lap);
    assert!(worker.take().is_none(), "an old request was taken for a new one");
    assert!(
        client.poll(lap).is_none() && client.express().poll(lap).is_none(),
        "an old reply was taken for a new one"
    );
}
