//! Tests of the built worker, driven as an agent and a client do.

mod regions;
mod unreachable;

use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing};
use hotlease_fabric::claim::ClaimFile;
use hotlease_fabric::clock::measure_tick_hz;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::sealed_copy;
use hotlease_fabric::socket::Socket;
use hotlease_fabric::usage::UsageBlock;
use hotlease_wire::code;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::control::{CoreSharing, PollingPolicy, WorkerAnswer, WorkerOrder};
use hotlease_wire::frame::{Flags, InvocationStatus, ReplyHeader};
use hotlease_wire::ids::{CodeHash, Epoch, FunctionIndex, LeaseId, SlotIndex};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FUNCTIONS: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
uint32_t place(const void* in, uint32_t size, void* out) { int core = sched_getcpu(); memcpy(out, &core, 4); return 4; }
uint32_t wait_for_file(const void* in, uint32_t size, void* out) { while (access(in, F_OK)) usleep(1000); return 0; }
uint32_t echo(const void* in, uint32_t size, void* out) { memcpy(out, in, size); return size; }
uint32_t overrun(const void* in, uint32_t size, void* out) { memset(out, 1, 5000); return 1; }
uint32_t quits(const void* in, uint32_t size, void* out) { exit(3); }
uint32_t claims_64_mib(const void* in, uint32_t size, void* out) { return 64 << 20; }
uint32_t too_much(const void* in, uint32_t size, void* out) { return 70000; }
const char hotlease_context_sleepy = 1;
int32_t sleepy(void* context, const void* in, uint64_t size, void* out, uint64_t capacity, uint64_t* produced) {
  const volatile uint32_t* cancelled = *(const volatile uint32_t**)((char*)context + 32);
  while (!*cancelled) {}
  *produced = 0;
  return 0;
}
"#;

fn library() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("f.c"), dir.path().join("f.so"));
    std::fs::write(&source, FUNCTIONS).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    std::fs::read(library).unwrap()
}

struct Worker {
    child: Child,
    control: Socket,
    usage: UsageBlock,
    names: Vec<String>,
}

const SHAPE: RingShape = RingShape {
    depth: 8,
    entry_bytes: 4096,
};
const EPOCH: Epoch = Epoch(5);

impl Worker {
    fn start() -> Self {
        Self::start_on(0, None)
    }

    /// Starts a worker with one slot on this core, which it shares if it gets a file of claims.
    fn start_on(core: u32, claims: Option<&ClaimFile>) -> Self {
        let (control, theirs) = Socket::pair().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_hotlease-worker"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let usage = UsageBlock::create(1).unwrap();
        let code = library();
        let names = code::functions(&code)
            .unwrap()
            .into_iter()
            .map(|function| function.name)
            .collect();
        let mut worker = Self {
            child,
            control,
            usage,
            names,
        };
        assert!(matches!(worker.answer(), WorkerAnswer::Ready { .. }));
        let configure = WorkerOrder::Configure {
            lease: LeaseId([0; 8]),
            epoch: EPOCH,
            cores: vec![core],
            polling: PollingPolicy::Adaptive,
            hot_budget_ns: 1_000_000,
            tick_hz: measure_tick_hz(Duration::from_millis(20)),
            memory_bytes: 0,
            tenant: "uid:0".into(),
            shared: claims.map(|_| CoreSharing { call_limit_ms: 60_000 }),
            gpus: None,
        };
        let usage_fd = worker.usage.fd().try_clone_to_owned().unwrap();
        let fds: Vec<_> = [usage_fd.as_fd()]
            .into_iter()
            .chain(claims.map(ClaimFile::fd))
            .collect();
        worker.control.send(&configure, &fds).unwrap();
        assert_eq!(worker.answer(), WorkerAnswer::Done, "{configure:?}");
        let load = WorkerOrder::Load {
            hash: CodeHash::of(&code),
            size_bytes: code.len() as u64,
            base: 0,
        };
        worker.order(&load, sealed_copy("code", &code).unwrap());
        worker
    }

    fn answer(&mut self) -> WorkerAnswer {
        self.control.receive().unwrap().expect("the worker lives").0
    }

    fn order(&mut self, order: &WorkerOrder, fd: OwnedFd) {
        self.control.send(order, &[fd.as_fd()]).unwrap();
        assert_eq!(self.answer(), WorkerAnswer::Done, "{order:?}");
    }

    fn connect(&mut self) -> (Socket, ClientChannel) {
        let (socket, theirs) = Socket::pair().unwrap();
        self.order(&WorkerOrder::Introduce { lent: None }, theirs.into());
        let replies = ReplyRing::create(SHAPE).unwrap();
        let doorbell = Doorbell::create().unwrap();
        let open = ConnectionRequest::Open {
            slot: SlotIndex(0),
            request: SHAPE,
            reply: SHAPE,
        };
        socket.send(&open, &[replies.fd(), doorbell.fd()]).unwrap();
        let (reply, fds) = socket.receive::<ConnectionReply>().unwrap().unwrap();
        let ConnectionReply::Opened { generation } = reply else {
            panic!("{reply:?}")
        };
        let [ring, bell] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        (
            socket,
            ClientChannel::open(replies, generation, SHAPE, ring, bell).unwrap(),
        )
    }

    fn call(&self, name: &str) -> CallParameters {
        let index = self
            .names
            .iter()
            .position(|known| known == name)
            .expect("function exists");
        CallParameters {
            epoch: EPOCH,
            function: FunctionIndex(index as u16),
            flags: Flags::NONE,
            timeout_us: 0,
            output_capacity: u32::MAX,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(channel: &ClientChannel, id: u64) -> ReplyHeader {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(reply) = channel.poll(id) {
            return reply.unwrap();
        }
        assert!(Instant::now() < until, "no reply to {id}");
    }
}

#[test]
fn calls_of_every_size_come_back_and_are_counted() {
    let mut worker = Worker::start();
    let (_socket, channel) = worker.connect();
    let call = worker.call("echo");
    let input: Vec<u8> = (0..4096).map(|i| i as u8).collect();
    let mut output = vec![0; 4096];
    for (id, size) in [0, 1, 32, 33, 100, 4096, 7].into_iter().enumerate() {
        channel.publish(id as u64, &call, &[&input[..size]]).unwrap();
        let header = wait(&channel, id as u64);
        assert_eq!(header.status, InvocationStatus::Ok);
        assert_eq!(channel.read(id as u64, &header, &mut output), size);
        assert_eq!(output[..size], input[..size]);
        // Long enough for the slot to go to sleep in between.
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(worker.usage.read(0).invocations, 7);
}

#[test]
fn stale_epoch_unknown_function_and_too_large_an_output_are_answered() {
    let mut worker = Worker::start();
    let (_socket, channel) = worker.connect();
    let echo = worker.call("echo");
    let cases = [
        (
            CallParameters {
                epoch: Epoch(4),
                ..echo
            },
            InvocationStatus::StaleEpoch,
        ),
        (
            CallParameters {
                function: FunctionIndex(99),
                ..echo
            },
            InvocationStatus::UnknownFunction,
        ),
        (worker.call("too_much"), InvocationStatus::OutputTooLarge),
        (
            CallParameters {
                flags: Flags::INPUT_BUFFER,
                ..echo
            },
            InvocationStatus::UnknownRegion,
        ),
        (
            CallParameters {
                timeout_us: 20_000,
                ..worker.call("sleepy")
            },
            InvocationStatus::DeadlineExceeded,
        ),
        (echo, InvocationStatus::Ok),
    ];
    for (id, (call, status)) in cases.into_iter().enumerate() {
        channel.publish(id as u64, &call, &[&[0; 24]]).unwrap();
        assert_eq!(wait(&channel, id as u64).status, status, "case {id}");
    }
}

#[test]
fn worker_on_a_shared_core_moves_between_two_invocations() {
    let usable = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let mut usable = (0..nix::sched::CpuSet::count()).filter(|core| usable.is_set(*core).unwrap());
    let (Some(here), Some(there)) = (usable.next(), usable.next()) else {
        eprintln!("skipped: this host has one core");
        return;
    };
    let (old, new) = (ClaimFile::create().unwrap(), ClaimFile::create().unwrap());
    let mut worker = Worker::start_on(here as u32, Some(&old));
    let (_socket, channel) = worker.connect();
    let place = |id| {
        channel.publish(id, &worker.call("place"), &[]).unwrap();
        let (header, mut core) = (wait(&channel, id), [0; 4]);
        assert_eq!(header.status, InvocationStatus::Ok);
        assert_eq!(channel.read(id, &header, &mut core), 4);
        u32::from_le_bytes(core) as usize
    };
    assert_eq!(place(0), here);

    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let path = [mark.as_os_str().as_encoded_bytes(), &[0]].concat();
    channel.publish(1, &worker.call("wait_for_file"), &[&path]).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while worker.usage.read(0).running.is_none() {
        assert!(Instant::now() < until, "the function does not begin");
        std::thread::yield_now();
    }
    let go = WorkerOrder::Move { core: there as u32 };
    worker.control.send(&go, &[new.fd()]).unwrap();
    let answer = worker.control.receive::<WorkerAnswer>().unwrap().expect("it lives").0;
    assert!(
        matches!(&answer, WorkerAnswer::Failed { why } if why.contains("runs a function")),
        "{answer:?}"
    );
    assert_eq!((old.holder(), new.holder()), (Some(worker.child.id()), None));
    std::fs::write(&mark, "").unwrap();
    assert_eq!(wait(&channel, 1).status, InvocationStatus::Ok);
    assert_eq!(place(2), here, "it has stayed");

    // The slot gives the core up after its reply.
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        worker.control.send(&go, &[new.fd()]).unwrap();
        match worker.control.receive::<WorkerAnswer>().unwrap().expect("it lives").0 {
            WorkerAnswer::Done => break,
            answer => assert!(Instant::now() < until, "{answer:?}"),
        }
    }
    assert_eq!(place(3), there);
    assert_eq!(worker.usage.read(0).refused, 0, "no invocation was refused");
    assert_eq!(old.holder(), None);
}

#[test]
fn dying_worker_writes_down_why() {
    for (function, overrun, exited) in [("overrun", Some(4096), false), ("quits", None, true)] {
        let mut worker = Worker::start();
        let (_socket, channel) = worker.connect();
        let call = worker.call(function);
        channel.publish(0, &call, &[]).unwrap();
        worker.child.wait().unwrap();
        let crash = worker.usage.crash().expect("a crash record");
        assert_eq!(
            (crash.slot, crash.function),
            (Some(0), Some(call.function.0)),
            "{function}"
        );
        assert_eq!((crash.overrun_capacity, crash.exited), (overrun, exited), "{function}");
        assert!(channel.poll(0).is_none());
    }
}

#[test]
fn worker_leaves_with_its_agent() {
    let mut worker = Worker::start();
    let (_socket, _channel) = worker.connect();
    let (other, _) = Socket::pair().unwrap();
    drop(std::mem::replace(&mut worker.control, other));
    assert!(worker.child.wait().unwrap().success());
}
