//! The manager's node: a manager's daemon around its state machine, and its disk.

mod checks;
mod commit;
mod orders;

use crate::agent::{ProcessDied, id, respond};
use crate::durable::{Durable, Key};
use crate::message::{Grant, Message, Request, Response};
use crate::node::{Clock, Node};
use crate::shared_state::{MessageOrder, SharedState, SimEvent};
use crate::spread::PendingGrants;
use crate::truth::within;
use commit::Commit;
use hotlease_lease::LeaseRequest;
use hotlease_lease::manager::{
    AgentReport, Allowance, AskId, Cluster, ClusterAction, ClusterAnswer, ClusterEvent, CommitId, EndRequest,
    GrantedLease, RequestId, StateWrite,
};
use hotlease_wire::ids::AgentId;
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Rejection};
use orders::Operator;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Interval at which silent agents are looked for.
const TICK: Duration = Duration::from_millis(250);
const GRANT_LIMIT: Duration = Duration::from_secs(3);
/// Longest write of a disk without faults.
const WRITE_MAX: Duration = Duration::from_millis(20);
const END_LIMIT: Duration = Duration::from_secs(5);
/// Longest time between totals of running leases. It spans several reports.
const TOTALS_EVERY: Duration = Duration::from_secs(5);
const ORDER_LIMIT: Duration = Duration::from_secs(3);
/// The only ledger of the site.
const LEDGER: u64 = 1;
const NODE: Node = Node::Manager;
const RESTART_MAX: Duration = Duration::from_secs(5);

/// The manager's node: its daemon, its disk and its operator.
pub struct ManagerNode {
    pub process: Option<ManagerProcess>,
    pub durable: Durable,
    pub operator: Operator,
    /// Time at which each agent was last heard.
    heard: BTreeMap<AgentId, Duration>,
    runs: u32,
}

/// One run of the daemon.
pub struct ManagerProcess {
    run: u32,
    pub clock: Clock,
    pub cluster: Cluster,
    requests: BTreeMap<RequestId, Caller>,
    last_request: u64,
    /// Commits in the order of writing.
    commits: VecDeque<Commit>,
    /// Last commit of those that are being written.
    writing: Option<CommitId>,
    grants: BTreeMap<AskId, Grant>,
    granted: PendingGrants,
    /// Requests to agents that wait for a response.
    asks: BTreeSet<AskId>,
    wake: Option<Duration>,
}

/// Sender of a request, and its contents.
struct Caller {
    node: Node,
    run: u32,
    call: u64,
    wanted: Option<LeaseRequest>,
    /// Totals in the request. A response that acknowledges them promises that they are durable.
    carried: Vec<(Key, UsageTotals)>,
}

impl ManagerNode {
    pub fn new() -> Self {
        Self {
            process: None,
            durable: Durable::default(),
            operator: Operator::default(),
            heard: BTreeMap::new(),
            runs: 0,
        }
    }

    pub fn start(&mut self, site: &mut SharedState) -> Result<(), ProcessDied> {
        if self.process.is_some() {
            return Ok(());
        }
        self.runs += 1;
        let drift = site.scenario.drift_ppm_max;
        let clock = Clock::new(site.now, site.random.random_range(-drift..=drift));
        let (agents, leases) = (self.durable.agents(), self.durable.active_leases());
        let cluster = Cluster::new(agents, leases, Duration::ZERO)
            .with_wishes(self.durable.wishes())
            .with_challenges_after(site.random.random());
        site.note(NODE, || "starts".into());
        self.process = Some(ManagerProcess {
            run: self.runs,
            clock,
            cluster,
            requests: BTreeMap::new(),
            last_request: 0,
            commits: VecDeque::new(),
            writing: None,
            grants: BTreeMap::new(),
            granted: PendingGrants::default(),
            asks: BTreeSet::new(),
            wake: None,
        });
        self.check_acknowledged(site);
        self.set_timer(site);
        Ok(())
    }

    /// Kills the daemon. Of the pending writes, only a first part reaches the disk.
    pub fn crash(&mut self, site: &mut SharedState) {
        let Some(process) = self.process.take() else {
            return;
        };
        site.note(NODE, || "CRASHES".into());
        for Commit { writes, .. } in process.commits {
            if site.random.random_bool(0.5) {
                break;
            }
            self.write(writes, site);
        }
        let pause = Duration::from_millis(1) + site.up_to(RESTART_MAX);
        site.after(pause, NODE, SimEvent::Starts);
    }

    pub fn handle(&mut self, what: SimEvent, site: &mut SharedState) -> Result<(), ProcessDied> {
        match what {
            SimEvent::Starts => return self.start(site),
            SimEvent::Arrives { from, message } => self.arrives(from, message, site)?,
            SimEvent::Written { run, commit } => self.finish_write(run, commit, site)?,
            SimEvent::TimedOut { run, call } => {
                let ask = AskId(call);
                let process = self.process.as_mut().filter(|process| process.run == run);
                if process.is_some_and(|process| process.asks.remove(&ask)) {
                    let refusal = Rejection::Timeout {
                        what: "the agent".into(),
                        after_ms: 0,
                    };
                    self.step(ClusterEvent::Refused { ask, refusal }, site)?;
                }
            }
            SimEvent::Wake => {
                let now = site.now;
                let due = self.process.as_mut();
                let due = due.filter(|process| process.wake.is_some_and(|wake| wake <= now));
                if let Some(process) = due {
                    process.wake = None;
                    self.step(ClusterEvent::Tick, site)?;
                    self.check_suspicion(site);
                }
            }
            SimEvent::Orders { agent, order } => self.operator.add_order(agent, order),
            _ => {}
        }
        self.give_next_order(site)?;
        self.set_timer(site);
        Ok(())
    }

    fn set_timer(&mut self, site: &mut SharedState) {
        if let Some(process) = &mut self.process
            && process.wake.is_none()
        {
            let at = site.now + TICK;
            process.wake = Some(at);
            site.schedule(at, NODE, SimEvent::Wake);
        }
    }

    fn arrives(&mut self, from: Node, message: Message, site: &mut SharedState) -> Result<(), ProcessDied> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        match message {
            Message::Request { call, run, request } => {
                process.last_request += 1;
                let id = RequestId(process.last_request);
                let mut caller = Caller {
                    node: from,
                    run,
                    call,
                    wanted: None,
                    carried: Vec::new(),
                };
                let event = match request {
                    Request::Register(record, proof) => ClusterEvent::Register {
                        request: id,
                        record,
                        proof,
                    },
                    Request::Heartbeat(report) => {
                        self.heard.insert(report.agent, site.now);
                        caller.carried = carried(&report);
                        ClusterEvent::Heartbeat { request: id, report }
                    }
                    Request::Acquire(wanted) => {
                        caller.wanted = Some(wanted.clone());
                        ClusterEvent::Acquire {
                            request: id,
                            wanted,
                            allowance: Allowance::default(),
                        }
                    }
                    Request::Release(lease) => ClusterEvent::Release {
                        request: id,
                        release: EndRequest {
                            lease,
                            tenant: String::new(),
                            reason: EndReason::Released,
                            unused: false,
                        },
                        known: self.durable.lease(lease),
                    },
                    Request::Grant(_) | Request::End(_) | Request::Order(_) => return Ok(()),
                };
                process.requests.insert(id, caller);
                self.step(event, site)
            }
            Message::Response { call, run, response } if process.run == run => {
                let ask = AskId(call);
                if !process.asks.remove(&ask) {
                    // The response is too late. A lease that it grants expires.
                    return Ok(());
                }
                let event = match response {
                    Response::Granted(mut grants) => {
                        let Some(grant) = grants.pop() else {
                            return Ok(());
                        };
                        process.granted.add_lease(ask, grant.lease);
                        let granted = GrantedLease {
                            lease: grant.lease,
                            boot: grant.boot,
                            epoch: grant.epoch,
                            cores: grant.cores.clone(),
                            memory_bytes: 0,
                            granted_ms: 0,
                        };
                        process.grants.insert(ask, grant);
                        ClusterEvent::Granted { ask, granted }
                    }
                    Response::Released(usage) => ClusterEvent::LeaseOver { ask, usage },
                    Response::Ordered(offering) => ClusterEvent::Ordered { ask, offering },
                    Response::Refused(refusal) => ClusterEvent::Refused { ask, refusal },
                    Response::Registered { .. } | Response::Challenged(_) | Response::Heard { .. } => {
                        return Ok(());
                    }
                };
                self.step(event, site)
            }
            _ => Ok(()),
        }
    }

    /// Makes a step of the state machine and carries out its actions. The process may die between any two of them.
    pub(super) fn step(&mut self, event: ClusterEvent, site: &mut SharedState) -> Result<(), ProcessDied> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if event != ClusterEvent::Tick {
            site.note(NODE, || format!("{event:?}"));
        }
        let now = process.clock.shows(site.now);
        for action in process.cluster.step(event, now) {
            let crashes = site.scenario.crashes;
            if site.draw_fault(crashes) {
                return Err(ProcessDied);
            }
            site.note(NODE, || format!("   {action:?}"));
            self.carry_out(action, site);
        }
        Ok(())
    }

    fn carry_out(&mut self, action: ClusterAction, site: &mut SharedState) {
        let Some(process) = &mut self.process else { return };
        match action {
            ClusterAction::Commit {
                commit: id,
                agent,
                writes,
            } => {
                process.commits.push_back(Commit { id, agent, writes });
                if process.writing.is_none() {
                    process.begin_writing(site);
                }
            }
            ClusterAction::AskOrder { ask, agent, wish } => {
                let ordered = orders::order_for_agent(&wish, site.now);
                self.ask(ask, agent, Request::Order(ordered), ORDER_LIMIT, site);
            }
            ClusterAction::AskGrant {
                ask,
                agent,
                request,
                workers,
            } => {
                self.operator.check_grant(agent, site);
                process.granted.add_request(ask, request);
                let wanted = process.requests.get(&request).and_then(|caller| caller.wanted.clone());
                if let Some(wanted) = wanted {
                    let part = wanted.part(workers);
                    self.ask(ask, agent, Request::Grant(part), GRANT_LIMIT, site);
                }
            }
            ClusterAction::AskEnd { ask, agent, release } => {
                self.ask(ask, agent, Request::End(release), END_LIMIT, site);
            }
            ClusterAction::Answer { request, answer } => {
                let granted = process.granted.take_leases(request);
                if matches!(answer, ClusterAnswer::Refused(_)) {
                    let now = site.now;
                    site.truth.refused.extend(granted.into_iter().map(|lease| (lease, now)));
                }
                if let Some(caller) = process.requests.remove(&request) {
                    self.answer(caller, answer, site);
                }
            }
            ClusterAction::AgentJoined(record) => {
                self.heard.insert(record.id, site.now);
            }
            ClusterAction::AgentGone(_) => {}
        }
    }

    fn ask(&mut self, ask: AskId, agent: AgentId, request: Request, limit: Duration, site: &mut SharedState) {
        let Some(process) = &mut self.process else { return };
        process.asks.insert(ask);
        let run = process.run;
        let to = (0..site.scenario.agents.len()).find(|number| id(*number) == agent);
        site.after(limit, NODE, SimEvent::TimedOut { run, call: ask.0 });
        if let Some(number) = to {
            let message = Message::Request {
                call: ask.0,
                run,
                request,
            };
            site.send(NODE, Node::Agent(number), MessageOrder::Datagram, message);
        }
    }

    fn answer(&mut self, caller: Caller, answer: ClusterAnswer, site: &mut SharedState) {
        if caller.node == NODE {
            return self.operator.handle_answer(&answer, &self.durable, site);
        }
        let promises = matches!(
            answer,
            ClusterAnswer::HeartbeatAnswered { known: true } | ClusterAnswer::Released { .. }
        );
        for (key, usage) in caller.carried.iter().filter(|_| promises) {
            let durable = self.durable.usage(*key);
            site.check_promise(NODE, within(*usage, durable), || {
                format!(
                    "{usage:?} of lease {} is acknowledged and {durable:?} is durable",
                    key.2
                )
            });
        }
        let response = match answer {
            ClusterAnswer::Registered => Response::Registered { ledger: LEDGER },
            ClusterAnswer::Challenged { challenge } => Response::Challenged(challenge),
            ClusterAnswer::HeartbeatAnswered { known } => Response::Heard {
                known,
                totals_every: TOTALS_EVERY.mul_f64(site.random.random()),
            },
            ClusterAnswer::Granted { asks } => {
                let grants = self.process.as_mut().map(|process| &mut process.grants);
                let parts: Option<Vec<_>> =
                    grants.map(|grants| asks.iter().filter_map(|ask| grants.remove(ask)).collect());
                match parts.unwrap_or_default() {
                    parts if parts.len() == asks.len() => Response::Granted(parts),
                    _ => Response::Refused(Rejection::UnknownLease),
                }
            }
            ClusterAnswer::Released { usage } => Response::Released(usage),
            // Only an operator gets this answer, and it is handled above.
            ClusterAnswer::Ordered { .. } | ClusterAnswer::OtherOrder => return,
            // This answer does not occur, because the simulated ledger accepts every report.
            ClusterAnswer::Vouched => Response::Refused(Rejection::UnknownLease),
            ClusterAnswer::Refused(refusal) => Response::Refused(refusal),
        };
        respond(site, NODE, (caller.node, caller.run, caller.call), response);
    }

    fn finish_write(&mut self, run: u32, commit: CommitId, site: &mut SharedState) -> Result<(), ProcessDied> {
        // All commits that waited when this write began become durable together.
        let Some(process) = self.process.as_mut().filter(|process| process.run == run) else {
            return Ok(());
        };
        process.writing = None;
        let mut done = Vec::new();
        while process.commits.front().is_some_and(|next| next.id <= commit) {
            done.extend(process.commits.pop_front());
        }
        for last in 1..done.len() {
            if done[last].may_overtake(&done[last - 1]) && site.random.random_bool(0.3) {
                done.swap(last - 1, last);
            }
        }
        process.begin_writing(site);
        let write_errors = site.scenario.write_errors;
        for Commit { id: commit, writes, .. } in done {
            let event = if site.draw_fault(write_errors) {
                let what = "the disk is full".into();
                let refusal = Rejection::Unavailable { what };
                ClusterEvent::NotCommitted { commit, refusal }
            } else {
                self.write(writes, site);
                ClusterEvent::Committed { commit }
            };
            self.step(event, site)?;
        }
        Ok(())
    }

    /// Applies writes to the disk.
    fn write(&mut self, writes: Vec<StateWrite>, site: &mut SharedState) {
        let (mut billed, mut reported) = (Vec::new(), Vec::new());
        for write in &writes {
            if let StateWrite::Report { leases, .. } = write {
                billed.extend(leases.iter().map(|lease| lease.tenant.clone()));
                reported.extend(leases.iter().map(|lease| lease.lease));
            }
        }
        for lease in self.durable.apply(&writes) {
            let truth = site.truth.leases.get(&lease);
            site.check_promise(NODE, truth.is_none_or(|truth| truth.freed.is_some()), || {
                format!("lease {lease} is noted as over, and goes on")
            });
        }
        billed.sort_unstable();
        billed.dedup();
        for tenant in billed {
            self.check_bill(&tenant, site);
        }
        self.check_functions(&reported, site);
    }
}

impl ManagerProcess {
    fn begin_writing(&mut self, site: &mut SharedState) {
        self.writing = self.commits.back().map(|commit| commit.id);
        if let Some(commit) = self.writing {
            let most = if site.is_faulty() {
                site.scenario.write_max
            } else {
                WRITE_MAX
            };
            let takes = site.up_to(most);
            site.after(takes, NODE, SimEvent::Written { run: self.run, commit });
        }
    }
}

fn carried(report: &AgentReport) -> Vec<(Key, UsageTotals)> {
    let leases = report.leases.iter();
    leases
        .map(|lease| ((report.agent, lease.boot, lease.lease), lease.usage))
        .collect()
}
