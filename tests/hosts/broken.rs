//! Clients that break off in every state, or lie, on a worker's fabric. Manager, agent and client are on this machine,
//! and only TLS and the fabric connect them.

use crate::remote::{LONG, Scene, worker_of};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Access, Provider};
use hotlease_tests::connection::RawConnection;
use hotlease_tests::fabric::{RawLink, provider, register};
use hotlease_tests::library::library;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::Process;
use hotlease_tests::session::{Loaded, RawSession};
use hotlease_tests::wait::until_true;
use hotlease_wire::fabric::RmaMemory;
use hotlease_wire::frame::{Flags, InvocationStatus, Span};
use hotlease_wire::ids::{Epoch, RegionId};
use std::sync::Arc;

/// A lease with a library, and what is needed to reach its worker.
struct Leased {
    session: RawSession,
    code: Loaded,
    provider: Provider,
    worker: Process,
    _scene: Scene,
}

impl Leased {
    fn new() -> Option<Self> {
        let provider = provider()?;
        let scene = Scene::new();
        let grant = scene.client.acquire(LONG).expect("a lease");
        let mut session = scene.client.attached(&grant);
        let code = session.load_file(&library("behaved"));
        let worker = worker_of(&scene, &grant);
        Some(Self {
            session,
            code,
            provider,
            worker,
            _scene: scene,
        })
    }

    fn connect(&mut self) -> (RawConnection, Epoch) {
        self.session.worker(0).expect("a connection")
    }

    /// Checks that a new channel works after a client lied or broke off.
    fn still_serves(&mut self) {
        let (connection, epoch) = self.connect();
        let link = RawLink::make(&connection, &self.provider);
        link.probe();
        let mut channel = link.channel(&connection);
        channel.publish(epoch, self.code.index("process"), Flags::NONE, b"");
        let reply = channel.reply().expect("the link holds");
        assert_eq!(reply.status, InvocationStatus::Ok);
        assert!(self.worker.is_alive(), "the worker died meanwhile");
    }
}

fn memory(bytes: u64) -> Arc<Memory> {
    Arc::new(Memory::create("test", bytes).expect("memory"))
}

#[test]
fn frame_of_another_epoch_is_refused_over_a_fabric_too() {
    let Some(mut leased) = Leased::new() else { return };
    let (connection, epoch) = leased.connect();
    let link = RawLink::make(&connection, &leased.provider);
    link.probe();
    let mut channel = link.channel(&connection);
    let count = leased.code.index("count");
    for wrong in [epoch.0 - 1, epoch.0 + 1, u32::MAX] {
        channel.publish(Epoch(wrong), count, Flags::NONE, b"");
        let reply = channel.reply().expect("the link holds");
        assert_eq!(reply.status, InvocationStatus::StaleEpoch, "epoch {wrong} of {epoch:?}");
    }
    channel.publish(epoch, count, Flags::NONE, b"");
    let reply = channel.reply().expect("the link holds");
    assert_eq!(reply.status, InvocationStatus::Ok);
    let mut times = [0; 8];
    reply.inline.read(&mut times);
    assert_eq!(u64::from_le_bytes(times), 1, "it had run before");
}

#[test]
fn channel_over_another_clients_link_is_refused() {
    let Some(mut leased) = Leased::new() else { return };
    let (first, _) = leased.connect();
    let (second, _) = leased.connect();
    let link = RawLink::make(&first, &leased.provider);
    link.probe();
    let replies = hotlease_fabric::channel::ReplyRing::create(hotlease_tests::connection::SHAPE).expect("a ring");
    let near = link.port.open_channel(replies.near()).expect("an end");
    let stolen = link.open(&second, *near.end());
    assert!(stolen.is_err(), "a link of another connection was taken");
    let honest = link.open(&first, *near.end());
    honest.expect("the connection's own link");
    leased.still_serves();
}

#[test]
fn call_on_memory_that_the_client_does_not_have_does_not_run() {
    let Some(mut leased) = Leased::new() else { return };
    let first_byte = leased.code.index("first_byte");
    let real = memory(1 << 20);
    for lie in ["key", "address", "gone"] {
        let (connection, epoch) = leased.connect();
        let link = RawLink::make(&connection, &leased.provider);
        link.probe();
        let lent = link
            .port
            .register(&real, Access::PeerReadsAndWrites)
            .expect("registered");
        let told = *lent.remote();
        let told = match lie {
            "key" => RmaMemory {
                key: told.key ^ 1,
                ..told
            },
            "address" => RmaMemory {
                address: told.address.wrapping_add(1 << 40),
                ..told
            },
            _ => told,
        };
        register(&connection, 1, told);
        if lie == "gone" {
            drop(lent);
        }
        let mut channel = link.channel(&connection);
        let span = Span {
            region: RegionId(1),
            offset: 0,
            length: 1 << 20,
        };
        channel.publish(epoch, first_byte, Flags::INPUT_BUFFER, &span.encode());
        // Providers report a wrong key as an error of the operation, or as a broken connection.
        if let Some(reply) = channel.reply() {
            assert_eq!(reply.status, InvocationStatus::InputUnreachable, "{lie}");
        }
        leased.still_serves();
    }
}

#[test]
fn slot_does_not_wait_for_memory_of_a_client_that_is_gone() {
    let Some(mut leased) = Leased::new() else { return };
    for _ in 0..50 {
        // The request is in the ring, and the client is gone when the worker reads its memory.
        break_off(&mut leased, 6);
    }
    let start = std::time::Instant::now();
    leased.still_serves();
    // The transfer alone would be retried for 30 s.
    assert!(start.elapsed().as_secs() < 10, "served after {:?}", start.elapsed());
}

/// Number of states in which a client can break off.
const STATES: u64 = 9;

fn break_off(leased: &mut Leased, state: u64) {
    let (connection, epoch) = leased.connect();
    if state == 0 {
        return;
    }
    let link = RawLink::make(&connection, &leased.provider);
    if state == 1 {
        return;
    }
    link.probe();
    if state == 2 {
        return;
    }
    if state == 3 {
        let replies = hotlease_fabric::channel::ReplyRing::create(hotlease_tests::connection::SHAPE).expect("a ring");
        let near = link.port.open_channel(replies.near()).expect("an end");
        link.open(&connection, *near.end()).expect("opened");
        return;
    }
    let mut channel = link.channel(&connection);
    if state == 4 {
        return;
    }
    if state == 5 {
        // A request is under way that no client waits for.
        return channel.publish(epoch, leased.code.index("count"), Flags::NONE, b"");
    }
    let lent = memory(256 << 10);
    let lent = link
        .port
        .register(&lent, Access::PeerReadsAndWrites)
        .expect("registered");
    register(&connection, 1, *lent.remote());
    let span = Span {
        region: RegionId(1),
        offset: 0,
        length: 256 << 10,
    };
    channel.publish(
        epoch,
        leased.code.index("first_byte"),
        Flags::INPUT_BUFFER,
        &span.encode(),
    );
    match state {
        // The worker is reading the memory.
        6 => {}
        // A whole call has ended.
        7 => {
            let reply = channel.reply().expect("the link holds");
            assert_eq!(reply.status, InvocationStatus::Ok);
        }
        // The client sends nonsense, and the worker breaks off.
        _ => {
            connection.send_bytes(&[0xff; 40], &[]).expect("sent");
            assert!(connection.is_closed(LIMIT), "nonsense was taken");
        }
    }
}

#[test]
fn thousand_clients_that_break_off_in_every_state_leave_nothing_on_either_side() {
    let Some(mut leased) = Leased::new() else { return };
    let ours = Process::of(std::process::id() as i32).expect("this process");
    let memory_of = |process: &Process| process.rss_bytes();
    (0..4 * STATES).for_each(|state| break_off(&mut leased, state % STATES));
    leased.still_serves();
    let worker = leased.worker;
    let settled = |process: &Process| {
        let mut least = usize::MAX;
        for _ in 0..30 {
            least = least.min(process.descriptors());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        least
    };
    let descriptors = [settled(&worker), settled(&ours)];
    let memory = [memory_of(&worker), memory_of(&ours)];
    (0..1000).for_each(|number| break_off(&mut leased, number % STATES));
    leased.still_serves();
    for (process, before, name) in [(&worker, descriptors[0], "worker"), (&ours, descriptors[1], "client")] {
        until_true(
            &format!("descriptors of the {name} are back at {before}"),
            LIMIT,
            || settled(process) <= before + 2,
        );
    }
    let after = [memory_of(&worker), memory_of(&ours)];
    for ((before, after), name) in memory.into_iter().zip(after).zip(["worker", "client"]) {
        let grown = after.saturating_sub(before) >> 10;
        eprintln!(
            "{name}: {} KiB before, {grown} KiB more after 1,000 broken connections",
            before >> 10
        );
        // The provider `net` of libfabric 1.17 leaks 0.7 KB with every connection that it accepts (in the worker), and
        // as much with every endpoint, which also fragments 17 KB of the heap. Here each of the client's ports has an
        // endpoint.
        let allowed = if name == "client" { 24 << 10 } else { 4 << 10 };
        assert!(grown < allowed, "the {name} has {grown} KiB more");
    }
}
