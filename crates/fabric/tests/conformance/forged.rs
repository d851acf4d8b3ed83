//! Forged messages, which no correct peer sends.

use crate::served::{CALL, pattern};
use crate::transport::{Fabric, GENERATION, LONG, connected, open, shape};
use hotlease_fabric::channel::{ReplyRing, RequestRing, WorkerChannel};
use hotlease_fabric::ofi::Counters;
use hotlease_fabric::ring::FarRing;
use hotlease_wire::connection::RingShape;
use hotlease_wire::fabric::RingDescription;
use hotlease_wire::frame::{EXPRESS_ENTRY, Flags, Inline, LineWords, RequestHeader, Seq};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use std::time::Instant;

/// The request for which the worker waits: the worker would take it if the port delivered it.
fn request(entry: u32) -> LineWords {
    let header = RequestHeader {
        seq: Seq::new(GENERATION, 0),
        epoch: Epoch(1),
        function: FunctionIndex(0),
        flags: Flags::NONE,
        length: 8,
        reply_entry: entry,
        timeout_us: 0,
        output_capacity: 64,
        inline: Inline::default(),
    };
    header.encode()
}

/// A change of the worker's description that a client gets, a frame that is sent by the changed description, and the
/// count that the frame must raise.
struct Forgery {
    what: &'static str,
    change: fn(&mut RingDescription),
    entry: u32,
    payload_bytes: usize,
    count: fn(&Counters) -> u64,
}

pub fn forged_frames_are_counted_and_change_nothing(fabric: &Fabric) {
    let forgeries = [
        Forgery {
            what: "unknown channel",
            change: |end| end.channel ^= 1,
            entry: 0,
            payload_bytes: 0,
            count: |seen| seen.unknown_channel,
        },
        Forgery {
            what: "channel of another life of the same place",
            change: |end| end.channel ^= 1 << 31,
            entry: 0,
            payload_bytes: 0,
            count: |seen| seen.unknown_channel,
        },
        Forgery {
            what: "wrong key",
            change: |end| end.key ^= 1,
            entry: EXPRESS_ENTRY,
            payload_bytes: 0,
            count: |seen| seen.wrong_key,
        },
        Forgery {
            what: "entry behind the ring",
            change: |end| end.shape.depth = 8,
            entry: 5,
            payload_bytes: 0,
            count: |seen| seen.bad_entry,
        },
        Forgery {
            what: "longer than the entry",
            change: |end| end.shape.entry_bytes = 4000,
            entry: 0,
            payload_bytes: 900,
            count: |seen| seen.bad_entry,
        },
    ];
    for forgery in forgeries {
        refused(fabric, &forgery);
    }
    stranger_is_refused(fabric);
}

/// A client with a correct description, except for one field, sends one frame; the worker must not see this frame, but
/// must see the next honest frame.
fn refused(fabric: &Fabric, forgery: &Forgery) {
    let (client, slot) = (fabric.port(), fabric.port());
    let (to_worker, to_client) = connected(&client, &slot);
    let real = shape(4, 64);
    let request_ring = RequestRing::create(real).unwrap();
    let worker_end = slot.open_channel(request_ring.near()).unwrap();
    let mut lie = *worker_end.end();
    (forgery.change)(&mut lie);
    // Announces memory that is large enough for the forged ring.
    lie.ring.size = 1 << 20;
    let forger_shape = RingShape {
        depth: lie.shape.depth,
        entry_bytes: 64,
    };
    let forger_replies = ReplyRing::create(forger_shape).unwrap();
    let forger = client.open_channel(forger_replies.near()).unwrap();
    let forger = forger.connect(&to_worker, &lie, false).unwrap();
    let honest_replies = ReplyRing::create(real).unwrap();
    let honest = client.open_channel(honest_replies.near()).unwrap();
    let honest_says = *honest.end();
    let worker_says = *worker_end.end();
    let replies = worker_end.connect(&to_client, &honest_says, true).unwrap();
    let mut worker = WorkerChannel::over(request_ring, GENERATION, replies);
    let honest = honest.connect(&to_worker, &worker_says, false).unwrap();

    forger.publish(forgery.entry, forgery.payload_bytes, &request(forgery.entry));
    let begin = Instant::now();
    while (forgery.count)(&slot.counters()) == 0 {
        assert!(
            begin.elapsed() < LONG,
            "{}: never counted: {:?}",
            forgery.what,
            slot.counters()
        );
        client.progress();
        slot.progress();
    }
    assert!(worker.take().is_none(), "{}: it got through", forgery.what);
    assert_eq!(slot.counters().delivered, 0, "{}", forgery.what);

    honest.publish(0, 0, &request(0));
    let begin = Instant::now();
    while worker.take().is_none() {
        assert!(
            begin.elapsed() < LONG,
            "{}: and then nothing got through any more",
            forgery.what
        );
        client.progress();
        slot.progress();
    }
    assert_eq!(slot.counters().delivered, 1);
}

/// A stranger that has everything that a client was given, but is not that client.
fn stranger_is_refused(fabric: &Fabric) {
    if !fabric.provider.quirks().reports_source {
        return eprintln!("a frame with stolen keys gets through: the provider names no sources");
    }
    let (client, slot, stranger) = (fabric.port(), fabric.port(), fabric.port());
    let (to_worker, to_client) = connected(&client, &slot);
    let (stolen, _known) = connected(&stranger, &slot);
    let request_ring = RequestRing::create(shape(4, 64)).unwrap();
    let worker_end = slot.open_channel(request_ring.near()).unwrap();
    let told = *worker_end.end();
    let replies = ReplyRing::create(shape(4, 64)).unwrap();
    let client_end = client.open_channel(replies.near()).unwrap();
    let replies_far = worker_end.connect(&to_client, client_end.end(), true).unwrap();
    let mut worker = WorkerChannel::over(request_ring, GENERATION, replies_far);
    let strangers_replies = ReplyRing::create(shape(4, 64)).unwrap();
    let thief = stranger.open_channel(strangers_replies.near()).unwrap();
    let thief = thief.connect(&stolen, &told, false).unwrap();
    thief.publish(0, 0, &request(0));
    let begin = Instant::now();
    while slot.counters().wrong_source == 0 {
        assert!(begin.elapsed() < LONG, "never counted: {:?}", slot.counters());
        stranger.progress();
        slot.progress();
    }
    assert!(worker.take().is_none(), "a frame from another peer got through");
    drop((client_end, to_worker));
    // The channel still works for its owners.
    let (to_worker, to_client) = connected(&client, &slot);
    let ends = open(&to_worker, &to_client, shape(4, 64), shape(4, 64));
    ends.client.publish(0, &CALL, &[&pattern(1, 40)]).unwrap();
    let mut worker = ends.worker;
    let begin = Instant::now();
    while worker.take().is_none() {
        assert!(begin.elapsed() < LONG, "nothing gets through any more");
        client.progress();
        slot.progress();
    }
}
