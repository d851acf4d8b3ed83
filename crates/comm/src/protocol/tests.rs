//! Tests of members without links: frames go through queues. Only frames between the same two members keep their order.

use super::*;
use crate::matching::{MessageEnvelope, Pattern};
use crate::memory::TransferMemory;
use hotlease_collectives::{Area, AreaSpan, Round, Schedule, Step};
use hotlease_wire::comm::frame::{MessageAddress, credit_of};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

mod collectives;
mod contexts;
mod direct;
mod failures;
mod messages;

const SMALL: u64 = 1024;
const EAGER: u64 = 4096;
const EARLY: u64 = 1 << 20;

fn seed() -> u64 {
    let seed = std::env::var("HOTLEASE_SEED").map_or_else(
        |_| rand::random(),
        |text| text.parse().expect("HOTLEASE_SEED is a number"),
    );
    eprintln!("replay with HOTLEASE_SEED={seed}");
    seed
}

/// Frame on its way, its body, and the number under which the sender is told that the body is sent.
struct SentFrame {
    frame: MemberFrame,
    body: Vec<u8>,
    send: Option<Key>,
}

struct Net {
    members: Vec<Protocol>,
    /// By sender, then by receiver.
    wires: Vec<Vec<VecDeque<SentFrame>>>,
    /// Members that have ended: frames to them are lost.
    dead: Vec<Rank>,
    random: StdRng,
}

impl Net {
    fn new(size: Rank, seed: u64) -> Self {
        let bounds = Bounds {
            small_bytes: SMALL,
            eager_bytes: EAGER,
            early_bytes: EARLY,
        };
        let member = |rank| {
            let mut member = Protocol::new(rank, size, bounds);
            member.open(0, (0..size).collect());
            member
        };
        let wires = || (0..size).map(|_| VecDeque::new()).collect();
        Self {
            members: (0..size).map(member).collect(),
            wires: (0..size).map(|_| wires()).collect(),
            dead: Vec::new(),
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn at(&mut self, rank: Rank) -> &mut Protocol {
        &mut self.members[rank as usize]
    }

    /// Puts what a member sends onto its wires, and does its local work.
    fn collect(&mut self, from: usize) -> bool {
        let mut any = false;
        loop {
            let member = &mut self.members[from];
            member.settle();
            if let Some(job) = member.next_job() {
                let done = job.run();
                member.end_job(done);
                any = true;
                continue;
            }
            let Some(action) = member.next_action() else {
                return any;
            };
            any = true;
            let read = |body: Piece| body.read(<[u8]>::to_vec).expect("the memory of a message");
            let (to, sent) = match action {
                Action::Store(order) => panic!("{order:?} without a store"),
                Action::Frame { to, frame } => (to, (frame, Vec::new(), None)),
                Action::Eager { to, frame, body } => (to, (frame, read(body), None)),
                Action::Data { to, frame, body, send } => (to, (frame, read(body), Some(send))),
                Action::Close { rank } => {
                    self.wires[from][rank as usize].clear();
                    continue;
                }
            };
            let (frame, body, send) = sent;
            assert_eq!(frame.body_bytes(), body.len() as u64, "{frame:?}");
            self.wires[from][to as usize].push_back(SentFrame { frame, body, send });
        }
    }

    /// Delivers one frame of a random wire; returns `false` if there is none.
    fn step(&mut self) -> bool {
        let size = self.members.len();
        let mut any = false;
        for from in 0..size {
            any |= self.collect(from);
        }
        let busy: Vec<(usize, usize)> = (0..size)
            .flat_map(|from| (0..size).map(move |to| (from, to)))
            .filter(|(from, to)| !self.wires[*from][*to].is_empty())
            .collect();
        if busy.is_empty() {
            return any;
        }
        let (from, to) = busy[self.random.random_range(0..busy.len())];
        let sent = self.wires[from][to].pop_front().expect("it is not empty");
        // Encoded and decoded, as over a link.
        let frame = MemberFrame::decode(&sent.frame.encode()).expect("a frame of our own");
        if let Some(send) = sent.send {
            self.members[from].handle_sent(send);
        }
        if self.dead.contains(&(to as Rank)) {
            return true;
        }
        let receiver = &mut self.members[to];
        let into = receiver
            .frame(from as Rank, frame)
            .unwrap_or_else(|loss| panic!("rank {to} did not take {frame:?} of rank {from}: {loss}"));
        if matches!(frame, MemberFrame::Eager { .. } | MemberFrame::Data { .. }) {
            if let Some(into) = into {
                into.write(|into| into.copy_from_slice(&sent.body));
            }
            receiver.body(from as Rank, sent.body.len() as u64);
        }
        true
    }

    fn run(&mut self) {
        for _ in 0..10_000_000_u64 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn send(&mut self, from: Rank, to: Rank, tag: u32, bytes: Vec<u8>) -> Key {
        let during = Activity::Send { to, tag };
        let member = self.at(from);
        let key = member.request(during).expect("room");
        let body = TransferMemory::of(bytes).whole();
        member.send(to, message(tag), body, Owner::Request(key));
        key
    }

    fn receive(&mut self, at: Rank, pattern: Pattern, memory: &TransferMemory) -> Key {
        let during = Activity::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let member = self.at(at);
        let key = member.request(during).expect("room");
        let into = memory.whole();
        member.receive(MessageClass::Message, 0, pattern, into, Owner::Request(key));
        key
    }
}

fn message(tag: u32) -> MessageAddress {
    MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag,
    }
}

/// Bytes that depend on their sender and number.
fn text(from: Rank, number: u32, length: usize) -> Vec<u8> {
    let mut word = u64::from(from) << 32 | u64::from(number);
    let bytes = (0..length).map(|_| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 56) as u8
    });
    bytes.collect()
}
