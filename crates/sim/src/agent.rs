//! A node with cores: an agent's daemon around its state machines, and its disk.

mod membership;
mod moves;
mod orders;
mod sessions;

use crate::journal::Journal;
use crate::message::{AgentMessage, ClientMessage, Message, Request, Response, Session};
use crate::node::{Clock, Node};
use crate::shared_state::{MessageOrder, SharedState, SimEvent};
use crate::workers::{WorkerUsage, Workers};
use hotlease_lease::CoreUse;
use hotlease_lease::agent::{
    BookAction, BookEvent, BookStep, LeaseBook, LeasePhase, Membership, MembershipEvent, OwedTotals,
    QuestionId as Number, SessionId,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::{AgentId, BootId, LeaseId, WorkerIndex};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

/// Largest number of totals that a run of an agent keeps until they are acknowledged.
const OWED_MAX: usize = 4096;
/// Time from the crash of an agent to its restart. It is longer than the time in which the agent's workers notice the
/// crash.
const RESTART_MIN: Duration = Duration::from_millis(30);
const RESTART_MAX: Duration = Duration::from_secs(4);

/// Error: the process has died in the middle of a step.
pub struct ProcessDied;

/// Id of the agent with this number.
pub fn id(number: usize) -> AgentId {
    AgentId([number as u8 + 1; 8])
}

/// A node with cores: an agent's daemon, its workers and its disk.
pub struct AgentNode {
    number: usize,
    pub process: Option<AgentProcess>,
    pub journal: Journal,
    pub workers: Workers,
    runs: u32,
    /// Generator for the moves of workers. It is separate, so that all other random choices are the same as without
    /// moves.
    moves: SmallRng,
}

/// One run of the daemon.
pub struct AgentProcess {
    run: u32,
    pub boot: BootId,
    pub clock: Clock,
    pub book: LeaseBook,
    pub membership: Membership,
    pub outstanding: OwedTotals,
    sessions: BTreeMap<Session, (SessionId, LeaseId)>,
    last_session: u64,
    /// Clients that wait for a worker to be up.
    connecting: Vec<(Session, LeaseId, WorkerIndex)>,
    /// Managers that wait for a lease to be over: node, run, call.
    ending: Vec<(LeaseId, Node, u32, u64)>,
    wake: Option<Duration>,
    /// Time on the daemon's clock when the node must be empty.
    drained: Option<Duration>,
    /// Number of the last order that the agent has carried out.
    order: u64,
}

impl AgentNode {
    pub fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            moves: SmallRng::seed_from_u64(!seed ^ ((number as u64 + 1) << 32)),
            process: None,
            journal: Journal::default(),
            workers: Workers::new(number),
            runs: 0,
        }
    }

    fn node(&self) -> Node {
        Node::Agent(self.number)
    }

    /// Starts the daemon.
    pub fn start(&mut self, site: &mut SharedState) -> Result<(), ProcessDied> {
        if self.process.is_some() {
            return Ok(());
        }
        self.runs += 1;
        let drift = site.scenario.drift_ppm_max;
        let clock = Clock::new(site.now, site.random.random_range(-drift..=drift));
        let boot = BootId(site.random.random());
        let mut outstanding = OwedTotals::new(OWED_MAX);
        for total in self.journal.recover() {
            outstanding.owe(total);
        }
        let node = self.node();
        site.note(node, || {
            format!("starts, boot {boot}, owes {} totals", outstanding.len())
        });
        self.process = Some(AgentProcess {
            run: self.runs,
            boot,
            clock,
            book: LeaseBook::new(0..site.scenario.agents[self.number], 0)
                .with_places(site.scenario.places_per_core)
                .with_gpus(site.scenario.gpus[self.number]),
            membership: Membership::new(Duration::ZERO),
            outstanding,
            sessions: BTreeMap::new(),
            last_session: 0,
            connecting: Vec::new(),
            ending: Vec::new(),
            wake: None,
            drained: None,
            order: 0,
        });
        self.pass_time(site)
    }

    /// Kills the daemon: its workers notice this, its connections are reset, and its disk retains synced data and
    /// perhaps unsynced data.
    pub fn crash(&mut self, site: &mut SharedState) {
        let Some(process) = self.process.take() else {
            return;
        };
        let node = self.node();
        site.note(node, || "CRASHES".into());
        for session in process.sessions.keys() {
            tell(site, node, *session, AgentMessage::Closed);
        }
        let now = site.now;
        site.truth.given_back.remove(&self.number);
        self.workers.orphan_all(site);
        for truth in site.truth.leases.values_mut() {
            if truth.boot == process.boot {
                truth.freed.get_or_insert(now);
            }
        }
        let disk_losses = site.scenario.disk_losses;
        if site.draw_fault(disk_losses) {
            self.journal.lose(site, self.number);
        } else {
            let kept: f64 = site.random.random();
            self.journal.tear(kept);
        }
        // A supervisor restarts it at once, or an operator does so later.
        let most = if site.random.random_bool(0.5) {
            RESTART_MIN
        } else {
            RESTART_MAX
        };
        let pause = RESTART_MIN + site.up_to(most);
        site.after(pause, node, SimEvent::Starts);
    }

    fn process(&mut self) -> Option<&mut AgentProcess> {
        self.process.as_mut()
    }

    pub fn handle(&mut self, what: SimEvent, site: &mut SharedState) -> Result<(), ProcessDied> {
        match what {
            SimEvent::Starts => return self.start(site),
            SimEvent::WorkerUp { process } => {
                if let Some((lease, worker, epoch)) = self.workers.up(process) {
                    self.step(BookEvent::WorkerUp { lease, worker, epoch }, site)?;
                    self.connect_waiting(site);
                }
            }
            SimEvent::WorkerReaped { process } => {
                if let Some(used) = self.workers.reap(process, site) {
                    // The daemon handles this as a separate event, possibly later.
                    site.after(Duration::ZERO, self.node(), SimEvent::WorkerGone(used));
                }
                return Ok(());
            }
            SimEvent::WorkerGone(WorkerUsage {
                lease,
                worker,
                epoch,
                used,
                functions,
            }) => {
                self.step(
                    BookEvent::WorkerGone {
                        lease,
                        worker,
                        epoch,
                        used,
                        functions,
                    },
                    site,
                )?;
                self.connect_waiting(site);
            }
            SimEvent::WorkerMoves { process, core } => {
                self.worker_moves(process, core, site);
                return Ok(());
            }
            SimEvent::WorkerMoved {
                lease,
                worker,
                epoch,
                moved,
            } => {
                let event = BookEvent::WorkerMoved {
                    lease,
                    worker,
                    epoch,
                    moved,
                };
                self.step(event, site)?;
            }
            SimEvent::FunctionReturns { process, task, attempt } => {
                self.workers.function_returns(process, task, attempt, site);
                return Ok(());
            }
            SimEvent::Arrives {
                message: Message::Frame(frame),
                ..
            } => {
                self.workers.receive(frame, site);
                return Ok(());
            }
            SimEvent::Arrives { from, message } => self.arrives(from, message, site)?,
            SimEvent::Wake => {
                let now = site.now;
                if let Some(process) = self.process()
                    && process.wake.is_some_and(|wake| wake <= now)
                {
                    process.wake = None;
                }
            }
            SimEvent::TimedOut { .. } | SimEvent::Written { .. } | SimEvent::Submits | SimEvent::Orders { .. } => {}
        }
        self.pass_time(site)
    }

    /// Lets time pass in all state machines, and sets the timer for the next due time.
    fn pass_time(&mut self, site: &mut SharedState) -> Result<(), ProcessDied> {
        if self.process.is_none() {
            return Ok(());
        }
        self.step(BookEvent::Tick, site)?;
        self.move_some_worker(site)?;
        self.step_membership(MembershipEvent::Tick, site)?;
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        let due = [process.book.next_expiry(), process.membership.next_step()];
        if let Some(due) = due.into_iter().flatten().min() {
            let at = process.clock.true_time(due).max(site.now);
            if process.wake.is_none_or(|wake| at < wake) {
                process.wake = Some(at);
                site.schedule(at, node, SimEvent::Wake);
            }
        }
        self.check(site);
        Ok(())
    }

    /// Checks those promises that this node could break.
    fn check(&self, site: &mut SharedState) {
        let Some(process) = &self.process else { return };
        let now = process.clock.shows(site.now);
        for lease in process.book.leases() {
            if matches!(lease.phase, LeasePhase::Ending(_)) {
                continue;
            }
            let expires = site.truth.leases.get(&lease.id).map(|truth| truth.expires);
            site.check_promise(self.node(), expires.is_some_and(|expires| now < expires), || {
                format!(
                    "lease {} goes on past its expiry at {expires:?} (it is {now:?})",
                    lease.id
                )
            });
            site.check_promise(self.node(), process.drained.is_none_or(|until| now < until), || {
                format!("lease {} goes on past the drain at {:?}", lease.id, process.drained)
            });
        }
        self.workers.check_outlived(site);
    }

    /// Makes a step of the book and carries out its actions. The process may die between any two of them.
    fn step(&mut self, event: BookEvent, site: &mut SharedState) -> Result<Option<Rejection>, ProcessDied> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Ok(None);
        };
        let now = process.clock.shows(site.now);
        if event != BookEvent::Tick {
            site.note(node, || format!("book: {event:?}"));
        }
        let BookStep { actions, refusal } = process.book.step(event, now);
        if let Some(refusal) = &refusal {
            site.note(node, || format!("   refused: {refusal}"));
        }
        for action in actions {
            let crashes = site.scenario.crashes;
            if site.draw_fault(crashes) {
                return Err(ProcessDied);
            }
            site.note(node, || format!("   {action:?}"));
            self.carry_out(action, site);
        }
        Ok(refusal)
    }

    fn carry_out(&mut self, action: BookAction, site: &mut SharedState) {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return;
        };
        match action {
            BookAction::StartWorker {
                lease,
                worker,
                epoch,
                cores,
                gpus,
            } => {
                let sharing = process.book.lease(lease).map(|lease| lease.request.spec.sharing);
                let shared = sharing == Some(CoreUse::Shared);
                self.workers
                    .start(process.boot, (lease, worker, epoch), (cores, gpus, shared), site);
            }
            BookAction::MoveWorker {
                lease,
                worker,
                epoch,
                core,
            } => self.order_move((lease, worker, epoch), core, site),
            BookAction::KillWorker {
                lease, worker, epoch, ..
            } => {
                self.workers.kill(lease, worker, epoch, site);
            }
            BookAction::ReportWorkerDeath {
                worker,
                epoch,
                sessions,
                ..
            } => {
                for session in process.names(&sessions) {
                    tell(site, node, session, AgentMessage::WorkerDied { worker, epoch });
                }
            }
            BookAction::LeaseEnded {
                lease, usage, sessions, ..
            } => {
                if let Some(truth) = site.truth.leases.get_mut(&lease) {
                    truth.freed = Some(site.now);
                }
                for session in process.names(&sessions) {
                    tell(site, node, session, AgentMessage::LeaseEnded);
                    process.sessions.remove(&session);
                }
                if let Some(total) = process.final_total(lease) {
                    self.journal.append(total.clone(), true, site, self.number);
                    process.outstanding.owe(total);
                }
                process.connecting.retain(|(_, of, _)| *of != lease);
                let (over, waiting) = std::mem::take(&mut process.ending)
                    .into_iter()
                    .partition(|(of, ..)| *of == lease);
                process.ending = waiting;
                for (_, to, run, call) in over as Vec<(LeaseId, Node, u32, u64)> {
                    respond(site, node, (to, run, call), Response::Released(usage));
                }
            }
            // The simulated agent has no delegations, and need not act when it is drained.
            BookAction::DelegationEnded { .. } | BookAction::Drained => {}
        }
    }

    fn arrives(&mut self, from: Node, message: Message, site: &mut SharedState) -> Result<(), ProcessDied> {
        let node = self.node();
        if self.process.is_none() {
            // If the daemon does not run, the node's kernel answers.
            if let Message::Ask { session, ask } = message
                && !matches!(ask, ClientMessage::Close)
            {
                tell(site, node, session, AgentMessage::Closed);
            }
            return Ok(());
        }
        match message {
            Message::Request { call, run, request } => self.handle_request((from, run, call), request, site),
            Message::Response { call, run, response } => {
                if self.process().is_some_and(|process| process.run == run) {
                    site.note(node, || format!("hears {response:?}"));
                    self.step_membership(membership::answered(Number(call), response), site)?;
                }
                Ok(())
            }
            Message::Ask { session, ask } => self.handle_client_message(session, ask, site),
            Message::Frame(_) | Message::Tell { .. } | Message::Reply(_) => Ok(()),
        }
    }

    fn handle_request(
        &mut self,
        caller: (Node, u32, u64),
        request: Request,
        site: &mut SharedState,
    ) -> Result<(), ProcessDied> {
        let node = self.node();
        match request {
            Request::Grant(wanted) => {
                let response = match self.grant(wanted, site)? {
                    Ok(grant) => Response::Granted(vec![grant]),
                    Err(refusal) => Response::Refused(refusal),
                };
                respond(site, node, caller, response);
            }
            Request::End(release) => {
                if let Err(refusal) = self.end(caller, release, site)? {
                    respond(site, node, caller, Response::Refused(refusal));
                }
            }
            Request::Order(ordered) => {
                let response = self.order(ordered, site)?;
                respond(site, node, caller, response);
            }
            Request::Register(..) | Request::Heartbeat(_) | Request::Acquire(_) | Request::Release(_) => {}
        }
        Ok(())
    }
}

impl AgentProcess {
    fn names(&self, ids: &[SessionId]) -> Vec<Session> {
        let named = self.sessions.iter().filter(|(_, (id, _))| ids.contains(id));
        named.map(|(session, _)| *session).collect()
    }
}

fn tell(site: &mut SharedState, node: Node, session: Session, tell: AgentMessage) {
    site.note(node, || format!("tells client{}: {tell:?}", session.client));
    let to = Node::Client(session.client);
    site.send(
        node,
        to,
        MessageOrder::Session(session),
        Message::Tell { session, tell },
    );
}

/// Answers a request.
pub fn respond(site: &mut SharedState, node: Node, (to, run, call): (Node, u32, u64), response: Response) {
    site.note(node, || format!("answers {to}: {response:?}"));
    let message = Message::Response { call, run, response };
    site.send(node, to, MessageOrder::Datagram, message);
}
