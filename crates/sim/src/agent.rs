//! A node with cores: an agent's daemon around its state machines, and its disk.

mod membership;
mod orders;
mod sessions;

use crate::journal::Journal;
use crate::message::{Ask, Message, Request, Response, Session, Tell};
use crate::node::{Clock, Node};
use crate::site::{Channel, Happening, Site};
use crate::workers::{Used, Workers};
use hotlease_lease::agent::{
    Action, Ask as Number, Event, LeaseBook, Membership, MembershipEvent, Outstanding, Phase, SessionId,
    Sharing, Step,
};
use hotlease_wire::Refusal;
use hotlease_wire::ids::{AgentId, BootId, LeaseId, WorkerIndex};
use rand::RngExt;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most totals that a run of an agent keeps until they are acknowledged.
const OWED_MAX: usize = 4096;
/// Time from the crash of an agent to its restart; longer than its workers take to notice the crash.
const RESTART_MIN: Duration = Duration::from_millis(30);
const RESTART_MAX: Duration = Duration::from_secs(4);

/// Error: the process has died in the middle of a step.
pub struct Died;

/// Id of the agent with this number.
pub fn id(number: usize) -> AgentId {
    AgentId([number as u8 + 1; 8])
}

/// A node with cores: an agent's daemon, its workers and its disk.
pub struct AgentNode {
    number: usize,
    pub process: Option<Process>,
    pub journal: Journal,
    pub workers: Workers,
    runs: u32,
}

/// One run of the daemon.
pub struct Process {
    run: u32,
    pub boot: BootId,
    pub clock: Clock,
    pub book: LeaseBook,
    pub membership: Membership,
    pub outstanding: Outstanding,
    sessions: BTreeMap<Session, (SessionId, LeaseId)>,
    last_session: u64,
    /// Clients that wait for a worker to be up.
    connecting: Vec<(Session, LeaseId, WorkerIndex)>,
    /// Managers that wait for a lease to be over: node, run, call.
    ending: Vec<(LeaseId, Node, u32, u64)>,
    wake: Option<Duration>,
    /// Time on the daemon's clock when the node must be empty.
    drained: Option<Duration>,
    /// Number of the last order that was carried out.
    order: u64,
}

impl AgentNode {
    pub fn new(number: usize) -> Self {
        Self {
            number,
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
    pub fn start(&mut self, site: &mut Site) -> Result<(), Died> {
        if self.process.is_some() {
            return Ok(());
        }
        self.runs += 1;
        let drift = site.scenario.drift_ppm_max;
        let clock = Clock::new(site.now, site.random.random_range(-drift..=drift));
        let boot = BootId(site.random.random());
        let mut outstanding = Outstanding::new(OWED_MAX);
        for total in self.journal.recover() {
            outstanding.owe(total);
        }
        let node = self.node();
        site.note(node, || {
            format!("starts, boot {boot}, owes {} totals", outstanding.len())
        });
        self.process = Some(Process {
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

    /// Kills the daemon: its workers notice, its connections are reset, its disk keeps what was synced and perhaps
    /// more.
    pub fn crash(&mut self, site: &mut Site) {
        let Some(process) = self.process.take() else {
            return;
        };
        let node = self.node();
        site.note(node, || "CRASHES".into());
        for session in process.sessions.keys() {
            tell(site, node, *session, Tell::Closed);
        }
        let now = site.now;
        site.truth.given_back.remove(&self.number);
        self.workers.orphan(site);
        for truth in site.truth.leases.values_mut() {
            if truth.boot == process.boot {
                truth.freed.get_or_insert(now);
            }
        }
        let disk_losses = site.scenario.disk_losses;
        if site.fails(disk_losses) {
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
        site.after(pause, node, Happening::Starts);
    }

    fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    pub fn handle(&mut self, what: Happening, site: &mut Site) -> Result<(), Died> {
        match what {
            Happening::Starts => return self.start(site),
            Happening::WorkerUp { process } => {
                if let Some((lease, worker, epoch)) = self.workers.up(process) {
                    self.step(Event::WorkerUp { lease, worker, epoch }, site)?;
                    self.connect_waiting(site);
                }
            }
            Happening::WorkerReaped { process } => {
                if let Some(used) = self.workers.reap(process, site) {
                    // The daemon handles it as an event of its own, which may be later.
                    site.after(Duration::ZERO, self.node(), Happening::WorkerGone(used));
                }
                return Ok(());
            }
            Happening::WorkerGone(Used {
                lease,
                worker,
                epoch,
                used,
                functions,
            }) => {
                self.step(
                    Event::WorkerGone {
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
            Happening::FunctionReturns {
                process,
                task,
                attempt,
            } => {
                self.workers.function_returns(process, task, attempt, site);
                return Ok(());
            }
            Happening::Arrives {
                message: Message::Frame(frame),
                ..
            } => {
                self.workers.take(frame, site);
                return Ok(());
            }
            Happening::Arrives { from, message } => self.arrives(from, message, site)?,
            Happening::Wake => {
                let now = site.now;
                if let Some(process) = self.process()
                    && process.wake.is_some_and(|wake| wake <= now)
                {
                    process.wake = None;
                }
            }
            Happening::TimedOut { .. }
            | Happening::Written { .. }
            | Happening::Submits
            | Happening::Orders { .. } => {}
        }
        self.pass_time(site)
    }

    /// Lets time pass in all state machines, and sets the timer for the next due time.
    fn pass_time(&mut self, site: &mut Site) -> Result<(), Died> {
        if self.process.is_none() {
            return Ok(());
        }
        self.step(Event::Tick, site)?;
        self.belong(MembershipEvent::Tick, site)?;
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        let due = [process.book.next_expiry(), process.membership.due()];
        if let Some(due) = due.into_iter().flatten().min() {
            let at = process.clock.true_time(due).max(site.now);
            if process.wake.is_none_or(|wake| at < wake) {
                process.wake = Some(at);
                site.schedule(at, node, Happening::Wake);
            }
        }
        self.check(site);
        Ok(())
    }

    /// Checks the promises that this node can break.
    fn check(&self, site: &mut Site) {
        let Some(process) = &self.process else { return };
        let now = process.clock.shows(site.now);
        for lease in process.book.leases() {
            if matches!(lease.phase, Phase::Ending(_)) {
                continue;
            }
            let expires = site.truth.leases.get(&lease.id).map(|truth| truth.expires);
            site.promise(self.node(), expires.is_some_and(|expires| now < expires), || {
                format!(
                    "lease {} goes on past its expiry at {expires:?} (it is {now:?})",
                    lease.id
                )
            });
            site.promise(
                self.node(),
                process.drained.is_none_or(|until| now < until),
                || {
                    format!(
                        "lease {} goes on past the drain at {:?}",
                        lease.id, process.drained
                    )
                },
            );
        }
        self.workers.check_outlived(site);
    }

    /// Makes a step of the book and carries out its actions. The process may die between any two of them.
    fn step(&mut self, event: Event, site: &mut Site) -> Result<Option<Refusal>, Died> {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return Ok(None);
        };
        let now = process.clock.shows(site.now);
        if event != Event::Tick {
            site.note(node, || format!("book: {event:?}"));
        }
        let Step { actions, refusal } = process.book.step(event, now);
        if let Some(refusal) = &refusal {
            site.note(node, || format!("   refused: {refusal}"));
        }
        for action in actions {
            let crashes = site.scenario.crashes;
            if site.fails(crashes) {
                return Err(Died);
            }
            site.note(node, || format!("   {action:?}"));
            self.carry_out(action, site);
        }
        Ok(refusal)
    }

    fn carry_out(&mut self, action: Action, site: &mut Site) {
        let node = self.node();
        let Some(process) = self.process.as_mut() else {
            return;
        };
        match action {
            Action::StartWorker {
                lease,
                worker,
                epoch,
                cores,
                gpus,
            } => {
                let sharing = process.book.lease(lease).map(|lease| lease.sharing);
                let shared = sharing == Some(Sharing::Shared);
                self.workers
                    .start(process.boot, (lease, worker, epoch), (cores, gpus, shared), site);
            }
            Action::KillWorker {
                lease, worker, epoch, ..
            } => {
                self.workers.kill(lease, worker, epoch, site);
            }
            Action::TellWorkerDied {
                worker,
                epoch,
                sessions,
                ..
            } => {
                for session in process.names(&sessions) {
                    tell(site, node, session, Tell::WorkerDied { worker, epoch });
                }
            }
            Action::LeaseEnded {
                lease,
                usage,
                sessions,
                ..
            } => {
                if let Some(truth) = site.truth.leases.get_mut(&lease) {
                    truth.freed = Some(site.now);
                }
                for session in process.names(&sessions) {
                    tell(site, node, session, Tell::LeaseEnded);
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
            // The simulated agent lends nothing.
            Action::DelegationEnded { .. } | Action::Drained => {}
        }
    }

    fn arrives(&mut self, from: Node, message: Message, site: &mut Site) -> Result<(), Died> {
        let node = self.node();
        if self.process.is_none() {
            // The node's kernel answers for a daemon that does not run.
            if let Message::Ask { session, ask } = message
                && !matches!(ask, Ask::Close)
            {
                tell(site, node, session, Tell::Closed);
            }
            return Ok(());
        }
        match message {
            Message::Request { call, run, request } => self.requested((from, run, call), request, site),
            Message::Response { call, run, response } => {
                if self.process().is_some_and(|process| process.run == run) {
                    site.note(node, || format!("hears {response:?}"));
                    self.belong(membership::answered(Number(call), response), site)?;
                }
                Ok(())
            }
            Message::Ask { session, ask } => self.asked(session, ask, site),
            Message::Frame(_) | Message::Tell { .. } | Message::Reply(_) => Ok(()),
        }
    }

    fn requested(&mut self, caller: (Node, u32, u64), request: Request, site: &mut Site) -> Result<(), Died> {
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

impl Process {
    fn names(&self, ids: &[SessionId]) -> Vec<Session> {
        let named = self.sessions.iter().filter(|(_, (id, _))| ids.contains(id));
        named.map(|(session, _)| *session).collect()
    }
}

fn tell(site: &mut Site, node: Node, session: Session, tell: Tell) {
    site.note(node, || format!("tells client{}: {tell:?}", session.client));
    let to = Node::Client(session.client);
    site.send(
        node,
        to,
        Channel::Session(session),
        Message::Tell { session, tell },
    );
}

/// Answers a request.
pub fn respond(site: &mut Site, node: Node, (to, run, call): (Node, u32, u64), response: Response) {
    site.note(node, || format!("answers {to}: {response:?}"));
    let message = Message::Response { call, run, response };
    site.send(node, to, Channel::Datagram, message);
}
