//! A whole site, which handles one event after the other.

use crate::agent::AgentNode;
use crate::client::ClientNode;
use crate::manager::ManagerNode;
use crate::node::Node;
use crate::scenario::{SETTLE, Scenario};
use crate::shared_state::{SharedState, SimEvent};
use crate::spread::GIVEN_BACK_WITHIN;
use crate::truth::{FutureResult, within};
use hotlease_lease::agent::Availability;
use hotlease_lease::manager::AgentState;
use std::time::Duration;

/// If no other client has held cores for this long, a client must have got its lease. This covers several pauses
/// between attempts.
const CALM: Duration = Duration::from_secs(4);

/// Result of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The promise that was broken, with the time.
    pub violation: Option<String>,
    /// The trace, line by line, if it was requested.
    pub trace: Vec<String>,
    /// Number of events.
    pub events: u64,
    /// Number of invocations, and number of invocations with a result.
    pub tasks: (usize, usize),
}

/// A whole site.
pub struct World {
    site: SharedState,
    manager: ManagerNode,
    agents: Vec<AgentNode>,
    clients: Vec<ClientNode>,
}

impl World {
    /// The site of a scenario, before its first event.
    pub fn new(scenario: Scenario, tracing: bool) -> Self {
        let mut site = SharedState::new(scenario, tracing);
        for node in site.scenario.nodes() {
            let at = site.up_to(Duration::from_millis(200));
            site.schedule(at, node, SimEvent::Starts);
            if let Node::Client(_) = node {
                site.schedule(at, node, SimEvent::Submits);
            }
        }
        for (at, agent, order) in site.scenario.orders.clone() {
            site.schedule(at, Node::Manager, SimEvent::Orders { agent, order });
        }
        Self {
            manager: ManagerNode::new(),
            agents: (0..site.scenario.agents.len())
                .map(|number| AgentNode::new(number, site.scenario.seed))
                .collect(),
            clients: (0..site.scenario.clients.len()).map(ClientNode::new).collect(),
            site,
        }
    }

    /// Handles all events; returns the result.
    pub fn run(mut self) -> RunResult {
        while let Some((node, what)) = self.site.next() {
            self.handle_event(node, what);
        }
        self.check_rest();
        let tasks = &self.site.truth.tasks;
        let results = tasks
            .iter()
            .filter(|task| task.outcome == Some(FutureResult::Result))
            .count();
        let tasks = (tasks.len(), results);
        let (violation, trace, events) = self.site.finish();
        RunResult {
            violation,
            trace,
            events,
            tasks,
        }
    }

    fn handle_event(&mut self, node: Node, what: SimEvent) {
        let site = &mut self.site;
        // A paused daemon does nothing, but its workers are separate processes and continue.
        let is_physical = matches!(
            what,
            SimEvent::WorkerReaped { .. }
                | SimEvent::WorkerMoves { .. }
                | SimEvent::FunctionReturns { .. }
                | SimEvent::Arrives {
                    message: crate::message::Message::Frame(_),
                    ..
                }
        );
        if !is_physical && let Some(end) = site.scenario.pause_end(node, site.now) {
            return site.schedule(end, node, what);
        }
        match node {
            Node::Manager => {
                if self.manager.handle(what, site).is_err() {
                    self.manager.crash(site);
                }
            }
            Node::Agent(number) => {
                let agent = &mut self.agents[number];
                if agent.handle(what, site).is_err() {
                    agent.crash(site);
                }
            }
            Node::Client(number) => self.clients[number].handle(what, site),
        }
    }

    /// Checks the promises that must hold once everything is at rest.
    fn check_rest(&mut self) {
        self.check_futures();
        for number in 0..self.agents.len() {
            self.check_agent(number);
        }
        self.manager.check_acknowledged(&mut self.site);
        self.check_refused();
    }

    /// Checks that leases granted for refused requests were ended.
    fn check_refused(&mut self) {
        let site = &mut self.site;
        let calm = site.scenario.faults_end + SETTLE;
        let mut kept = None;
        for (lease, refused) in &site.truth.refused {
            let Some(truth) = site.truth.leases.get(lease) else {
                continue;
            };
            let apart = site.scenario.are_apart(Node::Agent(truth.agent), Node::Manager);
            let prompt = truth.freed.is_some_and(|freed| freed <= *refused + GIVEN_BACK_WITHIN);
            if truth.freed.is_none() || (*refused > calm && !apart && !prompt) {
                kept = Some((
                    truth.agent,
                    format!("{truth:?}, granted for a request refused at {refused:?}"),
                ));
            }
        }
        if let Some((agent, kept)) = kept {
            site.record_violation(Node::Agent(agent), || format!("lease {kept} is kept"));
        }
    }

    fn check_futures(&mut self) {
        let site = &mut self.site;
        let mut broken = None;
        for (number, task) in site.truth.tasks.iter().enumerate() {
            if task.orphaned {
                continue;
            }
            if task.outcome.is_none() {
                broken = Some((
                    task.client,
                    format!("task {number}, submitted at {:?}, never resolves", task.submitted),
                ));
                break;
            }
            let home = Node::Client(task.client);
            let others = site.scenario.nodes();
            let reaches_all = site.scenario.outages.iter().all(|outage| outage.end.is_some())
                && others.iter().all(|other| !site.scenario.are_apart(home, *other));
            let plan = &site.scenario.clients[task.client];
            let mut agents = site.scenario.agents.iter().zip(&site.scenario.gpus);
            let fits = agents.any(|(cores, gpus)| *cores >= plan.cores && *gpus >= plan.gpus * plan.cores);
            // If another client held cores until shortly before, the client's patience was too short, and an error
            // is correct.
            let crowded = site.truth.leases.values().any(|lease| {
                let others = lease.tenant != home.to_string();
                let lately = lease.freed.is_none_or(|freed| freed + CALM > task.ended);
                others && lease.granted < task.ended && lately
            });
            if task.probe && reaches_all && fits && !crowded && task.outcome != Some(FutureResult::Result) {
                broken = Some((
                    task.client,
                    format!(
                        "task {number}, submitted at {:?} when nothing failed any more, ended as {:?}",
                        task.submitted, task.outcome
                    ),
                ));
                break;
            }
        }
        if let Some((client, what)) = broken {
            site.record_violation(Node::Client(client), || what);
        }
    }

    fn check_agent(&mut self, number: usize) {
        let site = &mut self.site;
        let (node, agent) = (Node::Agent(number), &self.agents[number]);
        let Some(process) = &agent.process else {
            return site.record_violation(node, || "the agent was not started again".into());
        };
        let book = &process.book;
        let clean = book.leases().next().is_none() && agent.workers.is_empty();
        site.check_promise(node, clean && book.free_cores() == book.offered_cores(), || {
            format!(
                "at rest, {} of {} cores are free",
                book.free_cores(),
                book.offered_cores()
            )
        });
        if site.scenario.are_apart(node, Node::Manager) {
            return;
        }
        let owed = process.outstanding.len();
        site.check_promise(node, process.membership.is_member() && owed == 0, || {
            format!("at rest, the agent is no member or owes {owed} totals")
        });
        let Some(manager) = &self.manager.process else {
            return site.record_violation(Node::Manager, || "the manager was not started again".into());
        };
        let id = crate::agent::id(number);
        let known = manager.cluster.registry().agent(id);
        let served = known.is_some_and(|(record, state, _)| {
            state == AgentState::Serving && record.boot == process.boot && record.free_cores == book.free_cores()
        });
        site.check_promise(Node::Manager, served, || {
            let state = known.map(|(record, state, _)| (record.boot, state, record.free_cores));
            format!("at rest, agent{number} of boot {} is known as {state:?}", process.boot)
        });
        let wanted = self.manager.cluster_wishes();
        site.check_promise(
            Node::Manager,
            self.manager.operator.is_idle() && wanted == 0 && process.book.availability() == Availability::Serving,
            || {
                format!(
                    "at rest, orders wait, {wanted} are not carried out, and agent{number} is {}",
                    process.book.availability()
                )
            },
        );
        let active = self.manager.durable.active_leases().find(|(_, note)| note.agent == id);
        site.check_promise(Node::Manager, active.is_none(), || {
            format!("at rest, {active:?} is still noted as active")
        });
        // Totals that a journal kept through all crashes are in the ledger. The last reported totals are in the ledger,
        // too.
        let mut lost = None;
        for ((of, boot, lease), usage) in &site.truth.journalled {
            if *of != number {
                continue;
            }
            let billed = self.manager.durable.usage((id, *boot, *lease));
            if !within(*usage, billed) {
                lost = Some(format!(
                    "{usage:?} of lease {lease} was journalled and {billed:?} is billed"
                ));
            }
        }
        if let Some(lost) = lost {
            site.record_violation(node, || lost);
        }
    }
}
