//! An agent and workers inside the test process. They speak the real protocols over real sockets and rings, and
//! fail on command.
//!
//! Functions, by index: see [`FUNCTIONS`]. Inputs and outputs are at most 32 bytes (inline).

mod fabric;

pub(crate) use fabric::LinkBehaviour;

use crate::Error;
use crate::code::Code;
use crate::control::Control;
use crate::invoker::Invoker;
use crate::lease::{Lease, LeasePlan};
use crate::options::LeaseOptions;
use crate::session::{Expectations, Session};
use fabric::Fabric;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ring::FarRing;
use hotlease_fabric::shm::{NearRing, ShmRing};
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::frame::{
    EXPRESS_ENTRY, Flags, Inline, InvocationId, InvocationStatus, ReplyHeader, RequestHeader, Seq, Span,
};
use hotlease_wire::ids::{CodeHash, Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::{LastInvocation, SessionReply, SessionRequest, StartPhases, UsageTotals};
use hotlease_wire::{Cause, EndReason, Rejection};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Names of the functions, sorted as in a library: the position of a function is its index.
pub(crate) const FUNCTIONS: [&str; 7] = ["echo", "fail", "garbage", "liar", "number", "unread", "unwritten"];
/// Index of the first function in every fake worker.
const BASE: u16 = 10;
/// Generation of every channel.
const GENERATION: u32 = 3;

/// One incarnation of a worker.
pub(crate) struct FakeWorker {
    pub(crate) epoch: Epoch,
    index: WorkerIndex,
    /// Number of requests that may still be answered.
    pub(crate) allowed: AtomicU64,
    /// Number of requests taken from the rings.
    pub(crate) served: AtomicU64,
    pub(crate) regions: Mutex<Vec<u32>>,
    dead: AtomicBool,
    /// Last invocation that each slot began, as the agent will report it.
    begun: Mutex<Vec<LastInvocation>>,
}

/// One agent with its workers.
struct Shared {
    lease: LeaseId,
    session: Socket,
    workers: Mutex<Vec<Arc<FakeWorker>>>,
    /// Number of requests that new workers may answer.
    allowed: AtomicU64,
    epoch: AtomicU64,
    invocations: AtomicU64,
    /// Behaviour at the next links, in turn; all later links succeed.
    welcomes: Mutex<VecDeque<LinkBehaviour>>,
    /// Whether a renewal is refused before the answer to an earlier release.
    overtaken_release: AtomicBool,
    /// Number of further requests for a channel that the worker answers by closing the connection.
    closed_opens: AtomicU64,
}

pub(crate) struct FakePlatform {
    /// The first agent. All functions below act on it.
    shared: Arc<Shared>,
    others: Vec<Arc<Shared>>,
    pub(crate) invoker: Invoker,
}

impl FakePlatform {
    pub(crate) fn start(options: LeaseOptions) -> Self {
        Self::try_start(options, &[]).unwrap()
    }

    /// Starts with a worker that treats its first links as `welcomes` says, one after the other.
    pub(crate) fn try_start(options: LeaseOptions, welcomes: &[LinkBehaviour]) -> Result<Self, Error> {
        let workers = options.workers;
        Self::try_start_on(options, &[workers], welcomes)
    }

    /// Starts agents, and spreads the invoker's lease over all of them. `workers`: number of workers of each agent.
    pub(crate) fn start_on(mut options: LeaseOptions, workers: &[u16]) -> Self {
        options.workers = workers.iter().sum();
        Self::try_start_on(options, workers, &[]).unwrap()
    }

    fn try_start_on(options: LeaseOptions, workers: &[u16], welcomes: &[LinkBehaviour]) -> Result<Self, Error> {
        let (mut agents, mut sessions) = (Vec::new(), Vec::new());
        for (number, workers) in (1..).zip(workers.iter().copied()) {
            let (client, agent) = Socket::pair().unwrap();
            let shared = Arc::new(Shared {
                lease: LeaseId([number; 8]),
                session: agent,
                workers: Mutex::default(),
                allowed: AtomicU64::new(u64::MAX),
                epoch: AtomicU64::new(7),
                invocations: AtomicU64::new(0),
                welcomes: Mutex::new(welcomes.iter().copied().collect()),
                overtaken_release: AtomicBool::new(false),
                closed_opens: AtomicU64::new(0),
            });
            let (serving, slots) = (shared.clone(), options.slots);
            thread::spawn(move || serving.serve(workers, slots));
            agents.push(shared);
            sessions.push((client, workers));
        }
        let plan = LeasePlan::new(Code::pretend(&FUNCTIONS), options, Doorbell::create().unwrap());
        let taken = plan.clone();
        let taken = Control::get().unwrap().run(async move {
            let mut parts = Vec::new();
            for (client, workers) in sessions {
                let expected = Expectations::of(usize::from(workers), "");
                let session = Session::over(client, b"token".to_vec(), expected, None).await?;
                parts.push(Lease::begin(&taken, session, workers).await?);
            }
            Ok(parts)
        })?;
        let invoker = Invoker::new(plan, taken);
        Ok(Self {
            shared: agents.remove(0),
            others: agents,
            invoker,
        })
    }

    /// The latest incarnation of a worker.
    pub(crate) fn worker(&self, index: u16) -> Arc<FakeWorker> {
        let workers = self.shared.workers.lock().unwrap();
        let worker = workers.iter().rev().find(|worker| worker.index.0 == index);
        worker.expect("connected").clone()
    }

    /// Lets each worker, present or future, answer this many more requests, and then none.
    pub(crate) fn allow(&self, answers: u64) {
        self.shared.allowed.store(answers, Ordering::SeqCst);
        for worker in &*self.shared.workers.lock().unwrap() {
            worker.allowed.store(answers, Ordering::SeqCst);
        }
    }

    /// Lets workers that are started from now on answer all requests.
    pub(crate) fn allow_future(&self) {
        self.shared.allowed.store(u64::MAX, Ordering::SeqCst);
    }

    /// Kills a worker. `with_news`: the agent then reports the death, as it does after reaping.
    pub(crate) fn kill(&self, index: u16, with_news: bool) {
        self.worker(index).dead.store(true, Ordering::SeqCst);
        if with_news {
            self.report_death(index);
        }
    }

    /// Reports the death of a worker, as the agent does.
    pub(crate) fn report_death(&self, index: u16) {
        let worker = self.worker(index);
        let died = SessionReply::WorkerDied {
            worker: worker.index,
            epoch: worker.epoch,
            cause: Cause::Signal {
                signal: 11,
                function: Some(0),
            },
            output: "last words\n".into(),
            begun: worker.begun.lock().unwrap().clone(),
        };
        self.shared.session.send(&died, &[]).unwrap();
    }

    /// Ends the agent, but none of its workers: each ends some time later.
    pub(crate) fn lose_agent(&self) {
        let session = self.shared.session.as_fd().try_clone_to_owned().unwrap();
        UnixStream::from(session).shutdown(Shutdown::Both).unwrap();
    }

    /// From now on the agent refuses a renewal before it answers the release that the client sent earlier.
    pub(crate) fn overtake_release(&self) {
        self.shared.overtaken_release.store(true, Ordering::SeqCst);
    }

    /// Makes workers close the next `count` connections when the client asks for a channel.
    pub(crate) fn close_opens(&self, count: u64) {
        self.shared.closed_opens.store(count, Ordering::SeqCst);
    }

    /// Begins to end the lease as an agent with a slow disk does: sends the reason, kills the workers, and sends no
    /// total.
    pub(crate) fn begin_to_end_lease(&self, reason: EndReason) {
        let notice = SessionReply::LeaseEnding { reason };
        self.shared.session.send(&notice, &[]).unwrap();
        for worker in &*self.shared.workers.lock().unwrap() {
            worker.dead.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the lease as the agent does: kills the workers, then reports the end.
    pub(crate) fn end_lease(&self, reason: EndReason) {
        for worker in &*self.shared.workers.lock().unwrap() {
            worker.dead.store(true, Ordering::SeqCst);
        }
        let usage = UsageTotals::default();
        self.shared
            .session
            .send(&SessionReply::LeaseEnded { reason, usage }, &[])
            .unwrap();
    }
}

impl Drop for FakePlatform {
    fn drop(&mut self) {
        for agent in self.others.iter().chain([&self.shared]) {
            for worker in &*agent.workers.lock().unwrap() {
                worker.dead.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Shared {
    fn serve(self: Arc<Self>, workers: u16, slots: u16) {
        while let Ok(Some((request, _))) = self.session.receive::<SessionRequest>() {
            let mut passed = None;
            let reply = match request {
                SessionRequest::Attach { .. } => SessionReply::Attached {
                    lease: self.lease,
                    ttl_ms: 5000,
                    workers: vec![vec![0; usize::from(slots)]; usize::from(workers)],
                    start: StartPhases::default(),
                    lent: None,
                },
                SessionRequest::Load { .. } => SessionReply::Loaded {
                    hash: CodeHash::of(b"pretend"),
                    base: BASE,
                    load_us: 1,
                },
                SessionRequest::Connect { worker, .. } => {
                    let (client, end) = Socket::pair().unwrap();
                    let alive = |w: &&Arc<FakeWorker>| w.index == worker && !w.dead.load(Ordering::SeqCst);
                    let running = self.workers.lock().unwrap().iter().find(alive).cloned();
                    let running = running.unwrap_or_else(|| self.start_worker(worker));
                    passed = Some(client);
                    let epoch = running.epoch;
                    let shared = self.clone();
                    thread::spawn(move || running.serve(&end, &shared));
                    SessionReply::Connected { worker, epoch }
                }
                SessionRequest::Renew => SessionReply::Renewed {
                    ttl_ms: 5000,
                    token: Vec::new(),
                },
                SessionRequest::Delegate { .. } | SessionRequest::Revoke { .. } => {
                    SessionReply::Refused(Rejection::UnknownLease)
                }
                SessionRequest::Release => {
                    if self.overtaken_release.load(Ordering::SeqCst) {
                        let refused = SessionReply::Refused(Rejection::LeaseEnded(EndReason::Released));
                        self.session.send(&refused, &[]).unwrap();
                        // Lets the client read the refusal separately: without the pause the test proves less.
                        thread::sleep(Duration::from_millis(20));
                    }
                    SessionReply::LeaseEnded {
                        reason: EndReason::Released,
                        usage: UsageTotals {
                            invocations: self.invocations.load(Ordering::SeqCst),
                            ..UsageTotals::default()
                        },
                    }
                }
            };
            let fds: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
            if self.session.send(&reply, &fds).is_err() {
                return;
            }
        }
    }

    fn start_worker(&self, index: WorkerIndex) -> Arc<FakeWorker> {
        let worker = Arc::new(FakeWorker {
            epoch: Epoch(self.epoch.fetch_add(1, Ordering::SeqCst) as u32),
            index,
            allowed: AtomicU64::new(self.allowed.load(Ordering::SeqCst)),
            served: AtomicU64::new(0),
            regions: Mutex::default(),
            dead: AtomicBool::new(false),
            begun: Mutex::default(),
        });
        self.workers.lock().unwrap().push(worker.clone());
        worker
    }
}

impl FakeWorker {
    /// Serves a connection until dead; dropping the socket is the end of file that the client sees.
    fn serve(self: Arc<Self>, socket: &Socket, shared: &Arc<Shared>) {
        socket.set_receive_timeout(Some(Duration::from_millis(2))).unwrap();
        let mut slots = Vec::new();
        let mut fabric = Fabric::default();
        let over = Arc::new(AtomicBool::new(false));
        while !self.dead.load(Ordering::SeqCst) {
            let (request, fds) = match socket.receive::<ConnectionRequest>() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(SocketError::Io(_)) => continue,
                Err(error) => panic!("the client sent nonsense: {error}"),
            };
            let close = |left: u64| left.checked_sub(1);
            match request {
                ConnectionRequest::Open { .. }
                    if (shared.closed_opens)
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, close)
                        .is_ok() =>
                {
                    break;
                }
                ConnectionRequest::Open { request, reply, .. } => {
                    let requests = NearRing::create("fake", request).unwrap();
                    let bell = Doorbell::create().unwrap();
                    let mut fds = fds.into_iter();
                    let (ring, client_bell) = (fds.next().unwrap(), fds.next().unwrap());
                    let replies = ShmRing::attach(ring, reply, Doorbell::attach(client_bell).unwrap()).unwrap();
                    let opened = ConnectionReply::Opened { generation: GENERATION };
                    socket.send(&opened, &[requests.fd(), bell.fd()]).unwrap();
                    let (worker, shared, over) = (self.clone(), shared.clone(), over.clone());
                    slots.push(thread::spawn(move || {
                        worker.run(&requests, &replies, &bell, &shared, &over)
                    }));
                    continue;
                }
                ConnectionRequest::Register { region, .. } => self.learn(region.0),
                ConnectionRequest::Deregister { region } => {
                    self.regions.lock().unwrap().retain(|known| *known != region.0);
                }
                ConnectionRequest::Link { port, key, .. } => {
                    let welcome = shared.welcomes.lock().unwrap().pop_front();
                    let welcome = welcome.unwrap_or(LinkBehaviour::Link);
                    let (reply, port) = fabric.link(&port, key, welcome);
                    if let Some(port) = port {
                        let over = over.clone();
                        slots.push(thread::spawn(move || {
                            while !over.load(Ordering::SeqCst) {
                                port.sleep(Duration::from_millis(2), || false);
                            }
                        }));
                    }
                    socket.send(&reply, &[]).unwrap();
                    continue;
                }
                ConnectionRequest::OpenFabric { request, key, end, .. } => {
                    let (requests, replies, opened) = fabric.open(request, key, &end, GENERATION);
                    socket.send(&opened, &[]).unwrap();
                    let (worker, shared, over) = (self.clone(), shared.clone(), over.clone());
                    slots.push(thread::spawn(move || {
                        // No client rings this doorbell: the slot looks each millisecond.
                        let bell = Doorbell::create().unwrap();
                        worker.run(&requests, &replies, &bell, &shared, &over)
                    }));
                    continue;
                }
                ConnectionRequest::RegisterFabric { region, .. } => self.learn(region.0),
                ConnectionRequest::Seat { .. } => {}
                ConnectionRequest::Memory | ConnectionRequest::ShareMemory | ConnectionRequest::LinkMemory { .. } => {
                    panic!("this worker has no memory block")
                }
            }
            socket.send(&ConnectionReply::Done, &[]).unwrap();
        }
        // The client of a real process sees the end of file after all threads of the process are gone.
        over.store(true, Ordering::SeqCst);
        for slot in slots {
            slot.join().unwrap();
        }
    }

    /// Makes the agent report that this invocation of the ring was the last that the worker began, and that it did
    /// not end.
    pub(crate) fn die_in(&self, number: u64) {
        *self.begun.lock().unwrap() = vec![LastInvocation {
            invocation: InvocationId::new(Seq::new(GENERATION, number), 0),
            ended: false,
        }];
    }

    /// Notes a registered region; a worker refuses a region that is registered already.
    fn learn(&self, region: u32) {
        let mut regions = self.regions.lock().unwrap();
        assert!(!regions.contains(&region), "region {region} is registered twice");
        regions.push(region);
    }

    /// Runs a slot: answers requests in order, up to the allowed number.
    fn run(&self, requests: &NearRing, replies: &dyn FarRing, bell: &Doorbell, shared: &Shared, over: &AtomicBool) {
        // Next numbers of the ring and of the express entry.
        let mut next = [0u64; 2];
        let depth = requests.layout().depth();
        while !self.dead.load(Ordering::SeqCst) && !over.load(Ordering::SeqCst) {
            let look = || {
                let poll = |entry, number| Some((entry, requests.line(entry).poll(Seq::new(GENERATION, number))?));
                poll(EXPRESS_ENTRY, next[1]).or_else(|| poll(next[0] as u32 & (depth - 1), next[0]))
            };
            let Some((entry, words)) = look() else {
                bell.sleep_unless(|| look().is_some(), Some(Duration::from_millis(1)));
                continue;
            };
            if self.allowed.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_micros(200));
                continue;
            }
            self.allowed.fetch_sub(1, Ordering::SeqCst);
            shared.invocations.fetch_add(1, Ordering::SeqCst);
            let header = RequestHeader::decode(&words).unwrap();
            assert_eq!(header.epoch, self.epoch, "a frame of another incarnation");
            replies.publish(entry, 0, &self.answer(&header));
            self.served.fetch_add(1, Ordering::SeqCst);
            replies.ring();
            next[usize::from(entry == EXPRESS_ENTRY)] += 1;
        }
    }

    fn answer(&self, request: &RequestHeader) -> [u64; 8] {
        let mut reply = ReplyHeader::ok(request.seq, u64::from(request.length));
        if request.flags != Flags::NONE {
            reply.length = 5;
            // Only a span that is inline in the header is checked.
            let mut span = [0; Span::BYTES];
            if request.length as usize == span.len() {
                request.inline.read(&mut span);
                let region = Span::decode(&span).unwrap().region.0;
                if !self.regions.lock().unwrap().contains(&region) {
                    (reply.status, reply.length) = (InvocationStatus::UnknownRegion, 0);
                }
            }
            return reply.encode();
        }
        reply.inline = request.inline;
        match FUNCTIONS[usize::from(request.function.0 - BASE)] {
            "fail" => {
                reply.status = InvocationStatus::FunctionError;
                reply.code = -7;
            }
            "garbage" => {
                let mut words = reply.encode();
                words[1] = 0xffff;
                return words;
            }
            "liar" => reply.length = u64::from(request.output_capacity) + 1,
            "number" => {
                reply.length = 8;
                reply.inline = Inline::from_bytes(&u64::from(self.epoch.0).to_le_bytes());
            }
            "unread" => (reply.status, reply.length) = (InvocationStatus::InputUnreachable, 0),
            "unwritten" => (reply.status, reply.length) = (InvocationStatus::OutputUnreachable, 0),
            _ => {}
        }
        reply.encode()
    }
}
