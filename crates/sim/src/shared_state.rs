//! State that all nodes share: time, random numbers, the network, and the record of what really happened.

use crate::message::{Message, Session};
use crate::node::Node;
use crate::scenario::{OperatorOrder, Scenario};
use crate::truth::Truth;
use crate::workers::WorkerUsage;
use hotlease_lease::manager::CommitId;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::time::Duration;

/// Delay of a lost segment of a stream.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Time after which a stream that is interrupted loses its messages.
const STREAM_LIMIT: Duration = Duration::from_secs(10);
/// Largest number of events of one run. More events mean that the site is in an endless loop.
const EVENTS_MAX: u64 = 5_000_000;

/// An event at a node.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most events are messages")]
pub enum SimEvent {
    /// A message arrives.
    Arrives { from: Node, message: Message },
    /// A timer expires.
    Wake,
    /// The time limit of a request is over.
    TimedOut { run: u32, call: u64 },
    /// Writes are done (or have failed).
    Written { run: u32, commit: CommitId },
    /// The process of a worker is configured.
    WorkerUp { process: u64 },
    /// The process of a worker is dead.
    WorkerReaped { process: u64 },
    /// The agent's daemon learns that a worker is dead.
    WorkerGone(WorkerUsage),
    /// The process of a worker carries out the order to move to another shared core.
    WorkerMoves { process: u64, core: u32 },
    /// The agent's daemon hears whether a worker has moved.
    WorkerMoved {
        lease: LeaseId,
        worker: WorkerIndex,
        epoch: Epoch,
        moved: bool,
    },
    /// A function returns.
    FunctionReturns { process: u64, task: usize, attempt: u32 },
    /// The application submits an invocation.
    Submits,
    /// An operator has an order for an agent.
    Orders { agent: usize, order: OperatorOrder },
    /// The daemon of the node starts again.
    Starts,
}

struct Scheduled {
    at: Duration,
    number: u64,
    node: Node,
    what: SimEvent,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Order of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageOrder {
    /// No order: each message takes its own path, may be lost, and may arrive twice.
    Datagram,
    /// Order of a session's stream.
    Session(Session),
    /// Order of a channel to a slot.
    Slot(Session, u32),
}

/// State that all nodes share.
pub struct SharedState {
    pub scenario: Scenario,
    pub now: Duration,
    pub random: SmallRng,
    pub truth: Truth,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    /// Arrival time of the last message of each stream.
    last: BTreeMap<(MessageOrder, Node), Duration>,
    violation: Option<String>,
    trace: Option<Vec<String>>,
}

impl SharedState {
    pub fn new(scenario: Scenario, tracing: bool) -> Self {
        Self {
            // A different random sequence than the scenario's.
            random: SmallRng::seed_from_u64(!scenario.seed),
            scenario,
            now: Duration::ZERO,
            truth: Truth::default(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            last: BTreeMap::new(),
            violation: None,
            trace: tracing.then(Vec::new),
        }
    }

    /// Returns the next event, or `None` at the end of the run or after a promise was broken.
    pub fn next(&mut self) -> Option<(Node, SimEvent)> {
        if self.violation.is_some() {
            return None;
        }
        if self.scheduled > EVENTS_MAX {
            self.record_violation(Node::Manager, || "the site never comes to rest".into());
            return None;
        }
        let Reverse(next) = self.queue.pop()?;
        if next.at > self.scenario.end() {
            self.now = self.scenario.end();
            return None;
        }
        self.now = next.at;
        Some((next.node, next.what))
    }

    pub fn schedule(&mut self, at: Duration, node: Node, what: SimEvent) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled {
            at: at.max(self.now),
            number: self.scheduled,
            node,
            what,
        }));
    }

    pub fn after(&mut self, pause: Duration, node: Node, what: SimEvent) {
        self.schedule(self.now + pause, node, what);
    }

    /// Whether faults may still occur.
    pub fn is_faulty(&self) -> bool {
        self.now < self.scenario.faults_end
    }

    /// Whether a fault of this probability occurs now.
    pub fn draw_fault(&mut self, probability: f64) -> bool {
        self.is_faulty() && probability > 0.0 && self.random.random_bool(probability)
    }

    /// A random time up to `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.random_range(0..=most.as_nanos() as u64))
    }

    fn delay(&mut self) -> Duration {
        let most = self.scenario.delay_max;
        let stragglers = self.scenario.stragglers;
        let factor = if self.draw_fault(stragglers) { 10 } else { 1 };
        Duration::from_micros(20) + self.up_to(most * factor)
    }

    /// Sends a message. On the same host it arrives at once, because a reply in shared memory is visible as soon as it
    /// is written, even if the worker dies afterwards.
    pub fn send(&mut self, from: Node, to: Node, channel: MessageOrder, message: Message) {
        if self.scenario.is_same_node(from, to) {
            return self.after(Duration::ZERO, to, SimEvent::Arrives { from, message });
        }
        if channel == MessageOrder::Datagram {
            let duplicates = self.scenario.duplicates;
            if self.draw_fault(duplicates) {
                self.datagram(from, to, message.clone());
            }
            self.datagram(from, to, message);
        } else {
            self.segment(from, to, channel, message);
        }
    }

    fn datagram(&mut self, from: Node, to: Node, message: Message) {
        let loss = self.scenario.loss;
        let lost = self.draw_fault(loss);
        let up = self.scenario.next_crossing(from, to, self.now) == Some(self.now);
        if lost || !up {
            let why = if lost { "lost" } else { "cut" };
            return self.note(from, || format!("   ({why}: {message:?} to {to})"));
        }
        let delay = self.delay();
        self.after(delay, to, SimEvent::Arrives { from, message });
    }

    fn segment(&mut self, from: Node, to: Node, channel: MessageOrder, message: Message) {
        let loss = self.scenario.loss;
        let mut at = self.now + self.delay();
        if self.draw_fault(loss) {
            at += RETRANSMISSION;
        }
        let last = self.last.get(&(channel, to)).copied().unwrap_or_default();
        let crosses = self.scenario.next_crossing(from, to, at.max(last));
        match crosses.filter(|at| *at <= self.now + STREAM_LIMIT) {
            Some(at) => {
                self.last.insert((channel, to), at);
                self.schedule(at, to, SimEvent::Arrives { from, message });
            }
            None => self.note(from, || format!("   (never gets through: {message:?} to {to})")),
        }
    }

    /// Adds a line to the trace, if there is one.
    pub fn note(&mut self, node: Node, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let now = self.now;
            trace.push(format!("{:>10.6} {node:>8}  {}", now.as_secs_f64(), line()));
        }
    }

    /// Records a broken promise. Only the first broken promise is kept.
    pub fn record_violation(&mut self, node: Node, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let what = format!("at {:.6} s, {node}: {}", self.now.as_secs_f64(), what());
            self.note(node, || format!("BROKEN: {what}"));
            self.violation = Some(what);
        }
    }

    /// Checks a promise.
    pub fn check_promise(&mut self, node: Node, kept: bool, what: impl FnOnce() -> String) {
        if !kept {
            self.record_violation(node, what);
        }
    }

    /// The broken promise, the trace, and the number of events.
    pub fn finish(self) -> (Option<String>, Vec<String>, u64) {
        (self.violation, self.trace.unwrap_or_default(), self.scheduled)
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("now", &self.now).finish_non_exhaustive()
    }
}
