//! Tests of links of one node with each other, and with a member that breaks the rules.

use super::*;
use crate::link::mesh::MemberConnection;
use crate::memory::{Piece, TransferMemory};
use crate::route::Route;
use hotlease_fabric::lane::BodySource;
use hotlease_fabric::loan::lend;
use hotlease_wire::comm::frame::{MessageAddress, MessageClass};
use hotlease_wire::comm::greeting::MemberNode;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sink that stores what arrives.
#[derive(Default)]
struct RecordedEvents {
    frames: Vec<MemberFrame>,
    coming: Option<TransferMemory>,
    bodies: Vec<Vec<u8>>,
}

impl Sink for RecordedEvents {
    fn frame(&mut self, _: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        self.frames.push(frame);
        let memory = TransferMemory::zeroed(frame.body_bytes() as usize);
        let into = memory.whole();
        self.coming = Some(memory);
        Ok(Some(into))
    }

    fn body(&mut self, _: Rank, bytes: u64) {
        let memory = self.coming.take().expect("a frame came before");
        assert_eq!(memory.len() as u64, bytes);
        self.bodies.push(memory.into_bytes());
    }
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (other, _) = listener.accept().expect("it has called");
    (one, other)
}

/// Makes the link of a rank; two ranks are on one node.
fn link(me: Rank, stream: TcpStream) -> Shm {
    stream.set_nodelay(true).expect("it is connected");
    stream.set_nonblocking(true).expect("it is open");
    let joined = MemberConnection {
        stream: mio::net::TcpStream::from_std(stream),
        cipher: None,
        rest: Vec::new(),
        route: Route::Direct,
        member_node: MemberNode::UNKNOWN,
    };
    let mut all = vec![None, None];
    all[1 - me as usize] = Some(joined);
    Shm::new(Tcp::new(all).expect("it can be polled"), me, &[0, 0]).expect("there is memory")
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn eager(tag: u32, length: u64) -> MemberFrame {
    let to = MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag,
    };
    MemberFrame::Eager { to, length }
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed * 17 + at / 256) as u8).collect()
}

#[test]
fn messages_keep_their_order_while_members_go_over_to_lanes() {
    let (one, other) = streams();
    let (mut one, mut other) = (link(0, one), link(1, other));
    let (mut seen_by_one, mut seen_by_other) = (RecordedEvents::default(), RecordedEvents::default());
    const MESSAGES: usize = 2000;
    let length = |number: usize| (number * 7919) % 60_000;
    for number in 0..MESSAGES {
        let body = pattern(number, length(number));
        let frame = eager(number as u32, body.len() as u64);
        one.send(1, &frame, Body::Borrowed(&body));
        if number % 3 == 0 {
            other.send(0, &frame, Body::Borrowed(&body));
        }
        if number % 10 == 0 {
            one.poll_all(&mut seen_by_one);
            other.poll_all(&mut seen_by_other);
        }
    }
    // One more message, from memory that stays valid.
    let large = TransferMemory::of(pattern(1, 1 << 20));
    let (piece, send) = (large.whole(), 77);
    let frame = MemberFrame::Data {
        landing: 1,
        length: 1 << 20,
    };
    one.send(1, &frame, Body::Lent { piece, send });
    until(|| {
        one.poll_all(&mut seen_by_one);
        other.poll_all(&mut seen_by_other);
        seen_by_other.bodies.len() > MESSAGES && !one.is_sending() && !other.is_sending()
    });
    assert_eq!(one.take_sent(), Some(77));
    let expected: Vec<_> = (0..MESSAGES).collect();
    let check = |seen: &RecordedEvents, expected: &[usize]| {
        for (place, number) in expected.iter().enumerate() {
            assert_eq!(seen.frames[place], eager(*number as u32, length(*number) as u64));
            assert!(
                seen.bodies[place] == pattern(*number, length(*number)),
                "message {number}"
            );
        }
    };
    check(&seen_by_other, &expected);
    assert!(seen_by_other.bodies[MESSAGES] == pattern(1, 1 << 20));
    let thirds: Vec<_> = expected.into_iter().step_by(3).collect();
    until(|| {
        one.poll_all(&mut seen_by_one);
        seen_by_one.bodies.len() == thirds.len()
    });
    check(&seen_by_one, &thirds);
    for link in [&one, &other] {
        assert!(matches!(link.near[0].out, OutPath::Lane(_)) && matches!(link.near[0].inbound, InPath::Lane(_)));
    }
}

/// Sink that at first has no memory for bodies.
#[derive(Default)]
struct Undecided {
    seen: RecordedEvents,
    held: usize,
    is_decided: bool,
}

impl Sink for Undecided {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        assert!(self.is_decided, "{frame:?} was to be held");
        self.seen.frame(from, frame)
    }

    fn hold(&mut self, _: Rank, _: &MemberFrame) -> bool {
        self.held += usize::from(!self.is_decided);
        !self.is_decided
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        self.seen.body(from, bytes);
    }
}

#[test]
fn a_held_body_stays_until_it_is_placed_even_if_its_sender_is_gone() {
    let (one, other) = streams();
    let (mut one, mut other) = (link(0, one), link(1, other));
    for round in 0..3 {
        let mut sink = Undecided::default();
        let body = pattern(round, 100_000);
        one.send(1, &eager(round as u32, body.len() as u64), Body::Borrowed(&body));
        until(|| {
            other.poll_all(&mut sink);
            sink.held > 2
        });
        if round == 2 {
            let is_lane = matches!(other.near[0].inbound, InPath::Lane(_));
            assert!(is_lane, "by TCP at first, and in the end over lanes");
            until(|| {
                one.poll_all(&mut RecordedEvents::default());
                !one.is_sending()
            });
            one.close(1);
        }
        sink.is_decided = true;
        until(|| {
            one.poll_all(&mut RecordedEvents::default());
            other.poll_all(&mut sink);
            !sink.seen.bodies.is_empty()
        });
        assert!(sink.seen.bodies == [body], "round {round}");
    }
    until(|| {
        other.poll_all(&mut RecordedEvents::default());
        other.take_lost().is_some()
    });
}

/// Sends these frames to a link of rank 0, as rank 1; returns the loss, if there is one.
fn said(words: &[MemberFrame]) -> Option<(Rank, Loss)> {
    let (one, mut other) = streams();
    let (mut link, mut seen) = (link(0, one), RecordedEvents::default());
    for word in words {
        other.write_all(&word.encode()).expect("it is open");
    }
    other.write_all(&MemberFrame::Goodbye.encode()).expect("it is open");
    until(|| {
        link.poll_all(&mut seen);
        !link.lost.is_empty() || seen.frames.contains(&MemberFrame::Goodbye)
    });
    link.take_lost()
}

fn no_bell() -> frame::BellLocation {
    frame::BellLocation {
        process: std::process::id(),
        memory: u32::MAX,
        pipe: 0,
        key: 1,
    }
}

#[test]
fn words_out_of_place_end_the_member() {
    let bell = no_bell();
    for words in [
        vec![MemberFrame::Accept { bell }],
        vec![MemberFrame::Decline],
        vec![MemberFrame::Switch],
    ] {
        assert_eq!(said(&words), Some((1, Loss::Protocol)), "{words:?}");
    }
}

#[test]
fn an_offer_that_cannot_be_opened_is_declined() {
    let bell = no_bell();
    let (memory, bytes) = (0, 1 << 18);
    assert_eq!(said(&[MemberFrame::Offer { bell, memory, bytes }]), None);
    let bell = frame::BellLocation {
        process: u32::MAX,
        ..bell
    };
    assert_eq!(said(&[MemberFrame::Offer { bell, memory, bytes }]), None);
}

/// Member of the same node that follows the rules until its lane is open.
struct Rogue {
    stream: TcpStream,
    lane: LaneWriter,
    _bell: Bell,
}

fn rogue() -> (Shm, Rogue) {
    let (one, mut stream) = streams();
    let mut link = link(0, one);
    let bell = Bell::create(9).expect("memory");
    let lane = LaneWriter::create(LANE_BYTES_MIN, 9).expect("memory");
    let place = bell.place();
    let offer = MemberFrame::Offer {
        bell: frame::BellLocation {
            process: place.process,
            memory: place.memory,
            pipe: place.pipe,
            key: place.key,
        },
        memory: lane.descriptor().expect("it is open"),
        bytes: LANE_BYTES_MIN as u32,
    };
    stream.write_all(&offer.encode()).expect("it is open");
    let mut seen = RecordedEvents::default();
    until(|| {
        link.poll_all(&mut seen);
        matches!(link.near[0].inbound, InPath::LaneOpened(_))
    });
    let mut answer = [0; MemberFrame::BYTES];
    stream.read_exact(&mut answer).expect("it answers");
    assert!(matches!(MemberFrame::decode(&answer), Ok(MemberFrame::Accept { .. })));
    stream.write_all(&MemberFrame::Switch.encode()).expect("it is open");
    (
        link,
        Rogue {
            stream,
            lane,
            _bell: bell,
        },
    )
}

#[test]
fn invalid_frames_in_a_lane_end_their_member() {
    let garbage = [0xff; MemberFrame::BYTES];
    let (longer, inline) = ([1; 200], [0xfe; 8]);
    for (head, body) in [
        (garbage, &[][..]),
        // A piece longer than its body, an empty piece, and a piece with an invalid length.
        (eager(1, 100).encode(), &longer[..]),
        (eager(1, 100).encode(), &[][..]),
        (eager(1, 100).encode(), &inline[..]),
    ] {
        let (mut link, mut rogue) = rogue();
        let mut seen = RecordedEvents::default();
        assert!(
            rogue
                .lane
                .begin(&head, body)
                .expect("no member has touched it")
                .is_some()
        );
        until(|| link.poll_all(&mut seen) && !link.lost.is_empty());
        assert_eq!(link.take_lost(), Some((1, Loss::Protocol)), "{head:?} {body:?}");
        // The member is dropped, and what it does now is ignored.
        link.poll_all(&mut seen);
        link.send(1, &eager(0, 0), Body::Borrowed(&[]));
        assert_eq!((link.take_lost(), seen.bodies.len()), (None, 0));
    }
}

#[test]
fn a_member_that_uses_a_connection_after_its_last_message_there_is_cut_off() {
    let (mut link, mut rogue) = rogue();
    rogue
        .stream
        .write_all(&MemberFrame::Farewell.encode())
        .expect("it is open");
    let mut seen = RecordedEvents::default();
    until(|| link.poll_all(&mut seen) && !link.lost.is_empty());
    assert_eq!(link.take_lost(), Some((1, Loss::Protocol)));
}

#[test]
fn frames_written_before_a_member_ended_are_read_first() {
    let (mut link, mut rogue) = rogue();
    for number in 0..100 {
        let body = pattern(number, 60);
        let begun = rogue.lane.begin(&eager(number as u32, 60).encode(), &body);
        assert_eq!(begun, Ok(Some(60)));
    }
    drop(rogue);
    let mut seen = RecordedEvents::default();
    until(|| {
        link.poll_all(&mut seen);
        !link.lost.is_empty()
    });
    assert_eq!(seen.bodies.len(), 100);
    assert_eq!(link.take_lost(), Some((1, Loss::Closed)));
}

/// Two links whose frames go over lanes in both directions.
fn over_lanes() -> (Shm, Shm) {
    let (one, other) = streams();
    let (mut one, mut other) = (link(0, one), link(1, other));
    one.send(1, &eager(0, 0), Body::Borrowed(&[]));
    other.send(0, &eager(0, 0), Body::Borrowed(&[]));
    let goes_over =
        |link: &Shm| matches!(&link.near[0].out, OutPath::Lane(_)) && matches!(link.near[0].inbound, InPath::Lane(_));
    until(|| {
        one.poll_all(&mut RecordedEvents::default());
        other.poll_all(&mut RecordedEvents::default());
        goes_over(&one) && goes_over(&other)
    });
    (one, other)
}

fn has_exposed(link: &Shm) -> bool {
    matches!(&link.near[0].out, OutPath::Lane(outbound) if outbound.has_exposed())
}

#[test]
fn long_bodies_arrive_from_their_place_or_over_the_lane_if_the_reader_is_late() {
    let (mut one, mut other) = over_lanes();
    let mut seen = RecordedEvents::default();
    // Bodies of a line, of a piece, and of several pieces are not exposed, nor is one that is longer than the lane.
    let lengths = [1, 24, 25, 5_000, 17_000, 100_000, 262_144, 1 << 20];
    let (mut exposed, mut late) = (0, 0);
    for number in 0..800 {
        let body = pattern(number, lengths[number % lengths.len()]);
        let frame = match body.len() as u64 {
            length if !(100..=frame::EAGER_BYTES_MAX).contains(&length) => MemberFrame::Data { landing: 1, length },
            length => eager(number as u32, length),
        };
        lend(&body, |lent| {
            let piece = TransferMemory::Lent(lent.clone()).whole();
            one.send(
                1,
                &frame,
                Body::Lent {
                    piece,
                    send: number as Key,
                },
            );
            assert!(
                !has_exposed(&one) || (16_384..=LANE_BYTES).contains(&body.len()),
                "{} bytes",
                body.len()
            );
            exposed += usize::from(has_exposed(&one));
            // A reader that is late: the body goes into the lane, if it fits.
            if number % 7 == 0 && body.len() < LANE_BYTES && has_exposed(&one) {
                until(|| {
                    one.poll(&mut RecordedEvents::default());
                    !has_exposed(&one)
                });
                late += 1;
            }
            let mut sent = one.take_sent();
            until(|| {
                other.poll(&mut seen);
                one.poll(&mut RecordedEvents::default());
                sent = sent.or(one.take_sent());
                sent.is_some()
            });
            assert_eq!(sent, Some(number as Key));
        });
        until(|| {
            other.poll(&mut seen);
            seen.bodies.len() > number
        });
        assert!(seen.bodies[number] == body, "body {number}");
    }
    assert!(exposed > 100 && late > 10, "{exposed} exposed, {late} late");
}

#[test]
fn a_body_whose_memory_was_taken_back_ends_its_sender_and_is_never_delivered() {
    let (mut one, mut other) = over_lanes();
    let mut seen = RecordedEvents::default();
    let mut body = pattern(1, 100_000);
    lend(&body, |lent| {
        let piece = TransferMemory::Lent(lent.clone()).whole();
        one.send(1, &eager(1, 100_000), Body::Lent { piece, send: 5 });
    });
    assert!(has_exposed(&one));
    body.fill(0);
    until(|| {
        other.poll(&mut seen);
        !other.lost.is_empty()
    });
    assert_eq!((other.take_lost(), seen.bodies.len()), (Some((0, Loss::Closed)), 0));
    until(|| {
        one.poll_all(&mut RecordedEvents::default());
        one.take_unsendable() == Some(5) || one.take_lost() == Some((1, Loss::Closed))
    });
    assert_eq!(one.take_sent(), None);
}

#[test]
fn a_member_s_last_word_is_read_after_it_was_noted_that_a_body_is_sent() {
    struct Order<'a>(&'a mut Vec<MemberFrame>);
    impl Sink for Order<'_> {
        fn frame(&mut self, _: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
            self.0.push(frame);
            Ok(None)
        }
        fn body(&mut self, _: Rank, _: u64) {}
    }
    let (mut one, mut other) = over_lanes();
    let memory = TransferMemory::of(pattern(1, 100_000));
    let (piece, send) = (memory.whole(), 3);
    one.send(1, &eager(1, 100_000), Body::Lent { piece, send });
    assert!(has_exposed(&one));
    until(|| other.poll(&mut RecordedEvents::default()));
    other.send(0, &MemberFrame::Goodbye, Body::Borrowed(&[]));
    let mut frames = Vec::new();
    one.poll(&mut Order(&mut frames));
    assert_eq!((frames.len(), one.take_sent()), (0, Some(3)), "first the body is noted");
    one.poll(&mut Order(&mut frames));
    assert_eq!(frames, [MemberFrame::Goodbye]);
}

#[test]
fn exposed_memory_that_does_not_exist_ends_its_member() {
    let (mut link, mut rogue) = rogue();
    let mut seen = RecordedEvents::default();
    let source = BodySource {
        address: 8,
        validity: 8,
    };
    let exposed = rogue.lane.expose(&eager(1, 5_000).encode(), source, 5_000);
    assert!(matches!(exposed, Ok(Some(_))));
    until(|| link.poll_all(&mut seen) && !link.lost.is_empty());
    assert_eq!((link.take_lost(), seen.bodies.len()), (Some((1, Loss::Closed)), 0));
}
