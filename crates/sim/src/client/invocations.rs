//! Invocations of a client: sending, answers, failures, and repetition.

use super::{ClientProcess, DEPTH, InvocationFailure, SLACK};
use crate::hold::{HeldLease, Hold};
use crate::message::{ClientMessage, Frame, Message, Reply, SlotResult};
use crate::node::Node;
use crate::shared_state::{MessageOrder, SharedState};
use crate::truth::FutureResult;
use hotlease_lease::client::{ChannelEnd, FENCED_AFTER, Redirect};
use hotlease_wire::RunCertainty;
use hotlease_wire::ids::Epoch;
use rand::RngExt;
use std::collections::VecDeque;

impl ClientProcess {
    pub(super) fn handle_reply(&mut self, node: Node, reply: Reply, site: &mut SharedState) {
        let Hold::Held(held) = &mut self.hold else { return };
        if held.session != reply.session || !held.remove_answered(reply.task, reply.attempt) {
            return;
        }
        let workers = held.slots.len();
        match reply.answer {
            SlotResult::Ran => self.resolve(node, reply.task, FutureResult::Result, site),
            SlotResult::Stale => {
                let refused = InvocationFailure {
                    ran: RunCertainty::No,
                    of_the_worker: true,
                };
                self.fail(node, reply.task, refused, site);
            }
            SlotResult::Busy => self.redirect(node, reply.task, workers, site),
        }
        self.idle_since = self.now(site);
        self.work(node, site);
    }

    /// Sends a refused task to another slot, or pauses all waiting tasks for a while.
    fn redirect(&mut self, node: Node, task: usize, workers: usize, site: &mut SharedState) {
        let now = self.now(site);
        let Some(kept) = self.tasks.get_mut(&task) else {
            return;
        };
        self.queue.push_back(task);
        if let Redirect::After(pause) = kept.redirects.count_refusal(workers) {
            site.note(node, || format!("has no core for task {task}, pauses for {pause:?}"));
            self.paused_until = Some(now + pause);
        }
    }

    /// Fails the invocations that a lost worker has not answered, the oldest first.
    pub(super) fn fail_unanswered(
        &mut self,
        node: Node,
        tasks: VecDeque<(usize, u32)>,
        reaped: bool,
        site: &mut SharedState,
    ) {
        let agent = match &self.hold {
            Hold::Held(held) => Some(Node::Agent(held.grant.agent)),
            _ => None,
        };
        let end = ChannelEnd {
            reaped,
            replies_seen: agent.is_some_and(|agent| site.scenario.is_same_node(node, agent)),
        };
        for (place, (task, _)) in tasks.into_iter().enumerate() {
            let failed = InvocationFailure {
                ran: end.ran(place == 0),
                of_the_worker: true,
            };
            self.fail(node, task, failed, site);
        }
        self.work(node, site);
    }

    /// Gives up a lease that is over or must be considered lost. Its invocations fail, or are sent again on another
    /// lease.
    pub(super) fn give_up_lease(&mut self, node: Node, mut held: HeldLease, site: &mut SharedState) {
        site.note(node, || format!("has lost lease {}", held.grant.lease));
        self.say(node, held.grant.agent, held.session, ClientMessage::Close, site);
        self.hold = Hold::NoLease;
        for slot in &mut held.slots {
            let tasks = std::mem::take(&mut slot.in_flight);
            self.fail_unanswered(node, tasks, false, site);
        }
        self.work(node, site);
    }

    /// Submits a failed invocation again, or resolves its future.
    pub(super) fn fail(&mut self, node: Node, task: usize, failed: InvocationFailure, site: &mut SharedState) {
        let Some(kept) = self.tasks.get_mut(&task) else {
            return;
        };
        match kept.attempts.count_failure(failed) {
            Ok(()) => self.queue.push_back(task),
            Err(error) => self.resolve(node, task, FutureResult::Error(error.ran), site),
        }
    }

    pub(super) fn resolve(&mut self, node: Node, task: usize, outcome: FutureResult, site: &mut SharedState) {
        site.note(node, || format!("task {task} resolves: {outcome:?}"));
        self.tasks.remove(&task);
        let truth = &mut site.truth.tasks[task];
        let before = truth.outcome.replace(outcome);
        truth.ended = site.now;
        let runs = truth.runs;
        site.check_promise(node, before.is_none(), || format!("task {task} resolves twice"));
        let honest = match outcome {
            FutureResult::Result => runs > 0,
            FutureResult::Error(RunCertainty::No) => runs == 0,
            FutureResult::Error(_) => true,
        };
        site.check_promise(node, honest, || {
            format!("task {task} is said to have ended as {outcome:?}, and ran {runs} times")
        });
    }

    pub(super) fn dispatch(&mut self, node: Node, site: &mut SharedState) {
        if self.is_paused(site) {
            return;
        }
        let Hold::Held(held) = &mut self.hold else { return };
        let open: Vec<(usize, Epoch)> = held.open_slots().collect();
        if open.is_empty() {
            return;
        }
        let lease = held.grant.lease;
        let expires = site.truth.leases.get(&lease).map(|truth| truth.expires_truly);
        let expired = site.scenario.awake_since(node, expires.unwrap_or_default(), site.now);
        site.check_promise(node, site.now <= expired + FENCED_AFTER + SLACK, || {
            format!("lease {lease} is still used, and expired at {expires:?}")
        });
        let mut first = site.random.random_range(0..open.len());
        let mut full = 0;
        while full < open.len()
            && let Some(task) = self.queue.front().copied()
        {
            let (index, epoch) = open[first % open.len()];
            first += 1;
            let slot = &mut held.slots[index];
            if slot.in_flight.len() >= DEPTH {
                full += 1;
                continue;
            }
            full = 0;
            self.queue.pop_front();
            let Some(kept) = self.tasks.get_mut(&task) else {
                continue;
            };
            kept.attempt += 1;
            slot.in_flight.push_back((task, kept.attempt));
            let frame = Frame {
                session: held.session,
                lease: held.grant.lease,
                boot: held.grant.boot,
                core: slot.core,
                worker: slot.worker,
                epoch,
                task,
                attempt: kept.attempt,
                takes: kept.takes,
            };
            let channel = MessageOrder::Slot(held.session, slot.core);
            site.send(node, Node::Agent(held.grant.agent), channel, Message::Frame(frame));
        }
    }
}
