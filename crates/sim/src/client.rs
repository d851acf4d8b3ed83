//! A client's node: an application, and the client library around its state machines.

mod acquiring;
mod invocations;

use crate::hold::{ATTACH_LIMIT, CONNECT_LIMIT, HeldLease, Hold, RELEASE_LIMIT, Slot, SlotState};
use crate::message::{AgentMessage, ClientMessage, Grant, Message, Request, Response, Session};
use crate::node::{Clock, Node};
use crate::shared_state::{MessageOrder, SharedState, SimEvent};
use crate::truth::TaskTruth;
use hotlease_lease::client::{
    Acquisition, AcquisitionEvent, AttemptFailure, Attempts, Redirects, Renewal, RenewalAction, RenewalEvent,
};
use hotlease_wire::ids::WorkerIndex;
use hotlease_wire::{Rejection, RunCertainty};
use rand::RngExt;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const ACQUIRE_LIMIT: Duration = Duration::from_secs(10);
const GRANT_LIMIT: Duration = Duration::from_secs(3);
/// Time for which a client keeps a lease without work.
const IDLE_MAX: Duration = Duration::from_millis(700);
/// Largest number of invocations in flight to one slot.
const DEPTH: usize = 4;
/// Largest difference of two clocks during a lease.
const SLACK: Duration = Duration::from_millis(250);
/// Number of unresolved invocations at which the application waits.
const TASKS_MAX: usize = 20;
/// Retries of an idempotent function.
const RETRIES: u32 = 3;
const RESTART_MAX: Duration = Duration::from_secs(3);
/// Rate of crashes relative to the rate of daemons. A client can also die at any of its steps, but need not die as
/// often.
const CRASHES: f64 = 0.2;

/// Failure of an invocation.
#[derive(Debug, Clone, Copy)]
struct InvocationFailure {
    ran: RunCertainty,
    of_the_worker: bool,
}

impl AttemptFailure for InvocationFailure {
    fn ran(&self) -> RunCertainty {
        self.ran
    }
    fn is_worker_failure(&self) -> bool {
        self.of_the_worker
    }
}

struct Task {
    attempts: Attempts<InvocationFailure>,
    redirects: Redirects,
    attempt: u32,
    takes: Duration,
}

/// A client's node: an application with its client library.
pub struct ClientNode {
    number: usize,
    pub process: Option<ClientProcess>,
    runs: u32,
}

/// One run of the application.
pub struct ClientProcess {
    run: u32,
    clock: Clock,
    acquisition: Option<Acquisition>,
    /// Number of the request for whose response the acquisition waits.
    asked: Option<u64>,
    /// Whether the request was for all workers or none.
    whole: bool,
    last_call: u64,
    hold: Hold,
    sessions: u32,
    tasks: BTreeMap<usize, Task>,
    queue: VecDeque<usize>,
    idle_since: Duration,
    /// Time until which no task is sent, because no slot had a core.
    paused_until: Option<Duration>,
    wake: Option<Duration>,
}

impl ClientNode {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            process: None,
            runs: 0,
        }
    }

    fn node(&self) -> Node {
        Node::Client(self.number)
    }

    pub fn start(&mut self, site: &mut SharedState) {
        if self.process.is_some() {
            return;
        }
        self.runs += 1;
        let drift = site.scenario.drift_ppm_max;
        let clock = Clock::new(site.now, site.random.random_range(-drift..=drift));
        self.process = Some(ClientProcess {
            run: self.runs,
            clock,
            acquisition: None,
            asked: None,
            whole: false,
            last_call: 0,
            hold: Hold::NoLease,
            sessions: 0,
            tasks: BTreeMap::new(),
            queue: VecDeque::new(),
            idle_since: Duration::ZERO,
            paused_until: None,
            wake: None,
        });
    }

    /// Kills the application; its kernel closes its connections.
    fn crash(&mut self, site: &mut SharedState) {
        let node = self.node();
        let Some(mut process) = self.process.take() else {
            return;
        };
        site.note(node, || "CRASHES".into());
        process.close(node, site);
        for task in process.tasks.keys() {
            site.truth.tasks[*task].orphaned = true;
        }
        let pause = Duration::from_millis(1) + site.up_to(RESTART_MAX);
        site.after(pause, node, SimEvent::Starts);
    }

    pub fn handle(&mut self, what: SimEvent, site: &mut SharedState) {
        let crashes = site.scenario.crashes * CRASHES;
        if site.draw_fault(crashes) {
            self.crash(site);
        }
        let (node, number) = (self.node(), self.number);
        match what {
            SimEvent::Starts => return self.start(site),
            SimEvent::Submits => {
                // The next submission does not depend on the result of this one.
                if site.now < site.scenario.last_work() {
                    let pause = site.up_to(site.scenario.clients[number].pause * 2);
                    let next = (site.now + pause).min(site.scenario.last_work());
                    site.schedule(next, node, SimEvent::Submits);
                }
                self.submit(site);
            }
            SimEvent::Arrives { message, from } => {
                if let Some(process) = &mut self.process {
                    process.arrives(node, from, message, site);
                }
            }
            SimEvent::TimedOut { run, call } => {
                let process = self.process.as_mut();
                if let Some(process) = process.filter(|process| process.run == run && process.asked == Some(call)) {
                    let refusal = Rejection::Timeout {
                        what: "the question".into(),
                        after_ms: 0,
                    };
                    process.acquire(node, AcquisitionEvent::Refused(refusal), site);
                }
            }
            SimEvent::Wake => {
                if let Some(process) = &mut self.process
                    && process.wake.is_some_and(|wake| wake <= site.now)
                {
                    process.wake = None;
                }
            }
            _ => {}
        }
        if let Some(process) = &mut self.process {
            process.pass_time(node, site);
        }
    }

    fn submit(&mut self, site: &mut SharedState) {
        let (node, number) = (self.node(), self.number);
        let plan = &site.scenario.clients[number];
        let takes = plan.takes_max;
        let takes = site.up_to(takes);
        let probe = site.now >= site.scenario.last_work();
        let idempotent = probe || site.random.random_bool(0.5);
        let Some(process) = &mut self.process else { return };
        if process.tasks.len() >= TASKS_MAX && !probe {
            return;
        }
        let task = site.truth.tasks.len();
        site.truth.tasks.push(TaskTruth {
            client: number,
            idempotent,
            submitted: site.now,
            runs: 0,
            outcome: None,
            ended: Duration::ZERO,
            orphaned: false,
            probe,
        });
        let word = if idempotent { ", idempotent" } else { "" };
        site.note(node, || format!("submits task {task}{word}"));
        let attempts = Attempts::new(idempotent, RETRIES);
        process.tasks.insert(
            task,
            Task {
                attempts,
                redirects: Redirects::new(task as u64),
                attempt: 0,
                takes,
            },
        );
        process.queue.push_back(task);
        process.work(node, site);
    }
}

impl ClientProcess {
    fn is_paused(&self, site: &SharedState) -> bool {
        self.paused_until.is_some_and(|until| self.now(site) < until)
    }

    fn now(&self, site: &SharedState) -> Duration {
        self.clock.shows(site.now)
    }

    fn plan(node: Node, site: &SharedState) -> &crate::scenario::ClientPlan {
        match node {
            Node::Client(number) => &site.scenario.clients[number],
            _ => &site.scenario.clients[0],
        }
    }

    /// Sends waiting tasks on the present lease, or begins to acquire one.
    fn work(&mut self, node: Node, site: &mut SharedState) {
        if self.queue.is_empty() {
            return;
        }
        match &mut self.hold {
            Hold::NoLease if self.acquisition.is_none() => self.begin_acquisition(node, site),
            Hold::Held(_) => self.dispatch(node, site),
            _ => {}
        }
    }

    fn request(&mut self, node: Node, to: Node, request: Request, site: &mut SharedState) -> u64 {
        self.last_call += 1;
        let (call, run) = (self.last_call, self.run);
        site.note(node, || format!("asks {to}: {request:?}"));
        site.send(
            node,
            to,
            MessageOrder::Datagram,
            Message::Request { call, run, request },
        );
        call
    }

    fn say(&self, node: Node, agent: usize, session: Session, ask: ClientMessage, site: &mut SharedState) {
        site.note(node, || format!("says to agent{agent}: {ask:?}"));
        let message = Message::Ask { session, ask };
        site.send(node, Node::Agent(agent), MessageOrder::Session(session), message);
    }

    fn arrives(&mut self, node: Node, from: Node, message: Message, site: &mut SharedState) {
        match message {
            Message::Response { call, run, response } if run == self.run => match response {
                Response::Granted(parts) if self.asked == Some(call) => {
                    // Uses the first part, and releases the others.
                    let mut parts = parts.into_iter();
                    if let Some(first) = parts.next() {
                        self.attach(node, first, site);
                    }
                    for part in parts {
                        self.request(node, Node::Manager, Request::Release(part.lease), site);
                    }
                }
                Response::Refused(refusal) if self.asked == Some(call) => {
                    self.acquire(node, AcquisitionEvent::Refused(refusal), site);
                }
                // The manager has released the lease, or has refused to release it; in both cases the client stops
                // waiting.
                Response::Released(_) | Response::Refused(_) => {
                    if matches!(self.hold, Hold::Releasing { call: Some(asked), .. } if asked == call) {
                        self.close(node, site);
                        self.work(node, site);
                    }
                }
                _ => {}
            },
            Message::Tell { session, tell } if self.hold.session() == Some(session) => {
                site.note(node, || format!("is told by {from}: {tell:?}"));
                self.handle_agent_message(node, tell, site);
            }
            Message::Reply(reply) => self.handle_reply(node, reply, site),
            _ => {}
        }
    }

    fn attach(&mut self, node: Node, grant: Grant, site: &mut SharedState) {
        self.asked = None;
        self.sessions += 1;
        let session = Session {
            client: match node {
                Node::Client(number) => number,
                _ => 0,
            },
            run: self.run,
            number: self.sessions,
        };
        let sent = self.now(site);
        self.say(node, grant.agent, session, ClientMessage::Attach(grant.clone()), site);
        self.hold = Hold::Attaching {
            grant,
            session,
            sent,
            until: sent + ATTACH_LIMIT,
        };
    }

    fn handle_agent_message(&mut self, node: Node, tell: AgentMessage, site: &mut SharedState) {
        let now = self.now(site);
        match (tell, std::mem::replace(&mut self.hold, Hold::NoLease)) {
            (
                AgentMessage::Attached { ttl },
                Hold::Attaching {
                    grant, session, sent, ..
                },
            ) => {
                self.acquire(node, AcquisitionEvent::Granted, site);
                self.acquisition = None;
                let slots = grant.cores.iter().zip(0..);
                let until = now + CONNECT_LIMIT;
                let slots = slots.map(|(core, index)| Slot {
                    worker: WorkerIndex(index),
                    core: *core,
                    state: SlotState::Connecting { until },
                    in_flight: VecDeque::new(),
                });
                let held = HeldLease {
                    session,
                    slots: slots.collect(),
                    renewal: Renewal::new(ttl, sent, now),
                    grant,
                };
                for slot in &held.slots {
                    let connect = ClientMessage::Connect(slot.worker);
                    self.say(node, held.grant.agent, session, connect, site);
                }
                self.idle_since = now;
                self.hold = Hold::Held(Box::new(held));
            }
            (AgentMessage::Closed | AgentMessage::LeaseEnded, Hold::Attaching { .. }) => {
                let refusal = Rejection::UnknownLease;
                self.acquire(node, AcquisitionEvent::Refused(refusal), site);
            }
            (AgentMessage::Closed | AgentMessage::LeaseEnded, Hold::Held(held)) => {
                self.give_up_lease(node, *held, site);
            }
            (AgentMessage::Closed | AgentMessage::LeaseEnded, Hold::Releasing { agent, session, .. }) => {
                self.say(node, agent, session, ClientMessage::Close, site);
                self.work(node, site);
            }
            (AgentMessage::Renewed { ttl }, Hold::Held(held)) => {
                self.hold = Hold::Held(held);
                self.renew(node, RenewalEvent::Renewed { ttl }, site);
            }
            (AgentMessage::NotRenewed, Hold::Held(held)) => {
                self.hold = Hold::Held(held);
                self.renew(node, RenewalEvent::NotRenewed, site);
            }
            (AgentMessage::Connected { worker, epoch }, Hold::Held(mut held)) => {
                held.slots[usize::from(worker.0)].state = SlotState::Open(epoch);
                self.hold = Hold::Held(held);
                self.dispatch(node, site);
            }
            (AgentMessage::NotConnected { worker }, Hold::Held(mut held)) => {
                // The timer tries again after a moment.
                held.slots[usize::from(worker.0)].state = SlotState::Closed {
                    again: now + CONNECT_LIMIT / 100,
                };
                self.hold = Hold::Held(held);
            }
            (AgentMessage::WorkerDied { worker, epoch }, Hold::Held(mut held)) => {
                let unanswered = held.close_dead_slot(worker, epoch, now);
                self.hold = Hold::Held(held);
                self.fail_unanswered(node, unanswered, true, site);
            }
            (_, hold) => self.hold = hold,
        }
    }

    /// Makes a step of the renewal and carries out its action.
    fn renew(&mut self, node: Node, event: RenewalEvent, site: &mut SharedState) {
        let now = self.now(site);
        let Hold::Held(held) = &mut self.hold else { return };
        match held.renewal.step(event, now) {
            None => {}
            Some(RenewalAction::Renew) => {
                let (agent, session) = (held.grant.agent, held.session);
                self.say(node, agent, session, ClientMessage::Renew, site);
            }
            Some(RenewalAction::Lost) => {
                if let Hold::Held(held) = std::mem::replace(&mut self.hold, Hold::NoLease) {
                    self.give_up_lease(node, *held, site);
                }
            }
        }
    }

    /// Lets time pass in all state machines, and sets the timer for the next due time.
    fn pass_time(&mut self, node: Node, site: &mut SharedState) {
        let now = self.now(site);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.work(node, site);
        }
        self.step_acquisition(node, now, site);
        self.renew(node, RenewalEvent::Tick, site);
        self.step_hold(node, now, site);
        let due = [
            self.acquisition.as_ref().and_then(Acquisition::next_step),
            self.hold.due(now),
            self.idle_until(),
            self.paused_until,
        ];
        let Some(due) = due.into_iter().flatten().min() else {
            return;
        };
        let at = self.clock.true_time(due).max(site.now);
        if self.wake.is_none_or(|wake| at < wake) {
            self.wake = Some(at);
            site.schedule(at, node, SimEvent::Wake);
        }
    }

    fn idle_until(&self) -> Option<Duration> {
        (self.tasks.is_empty() && matches!(self.hold, Hold::Held(_))).then_some(self.idle_since + IDLE_MAX)
    }

    fn step_hold(&mut self, node: Node, now: Duration, site: &mut SharedState) {
        let idle = self.idle_until().is_some_and(|until| until <= now);
        match &mut self.hold {
            Hold::Held(held) if idle => {
                let (agent, session, lease) = (held.grant.agent, held.session, held.grant.lease);
                let until = now + RELEASE_LIMIT;
                let call = if Self::plan(node, site).through_manager {
                    Some(self.request(node, Node::Manager, Request::Release(lease), site))
                } else {
                    self.say(node, agent, session, ClientMessage::Release, site);
                    None
                };
                self.hold = Hold::Releasing {
                    agent,
                    session,
                    call,
                    until,
                };
            }
            Hold::Held(held) => {
                let (agent, session) = (held.grant.agent, held.session);
                for worker in held.slots_to_reconnect(now) {
                    self.say(node, agent, session, ClientMessage::Connect(worker), site);
                }
            }
            Hold::Releasing { until, .. } if *until <= now => {
                self.close(node, site);
                self.work(node, site);
            }
            _ => {}
        }
    }

    /// Closes the session, if there is one.
    fn close(&mut self, node: Node, site: &mut SharedState) {
        let hold = std::mem::replace(&mut self.hold, Hold::NoLease);
        if let (Some(session), Some(agent)) = (hold.session(), hold.agent()) {
            self.say(node, agent, session, ClientMessage::Close, site);
        }
    }
}
