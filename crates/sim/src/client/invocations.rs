//! Invocations of a client: sent, answered, failed, and sent again.

use super::{DEPTH, Failed, Process, SLACK};
use crate::hold::{Held, Hold};
use crate::message::{Answer, Ask, Frame, Message, Reply};
use crate::node::Node;
use crate::site::{Channel, Site};
use crate::truth::Outcome;
use hotlease_lease::client::{ChannelEnd, FENCED_AFTER, Redirect};
use hotlease_wire::Ran;
use hotlease_wire::ids::Epoch;
use rand::RngExt;
use std::collections::VecDeque;

impl Process {
    pub(super) fn replied(&mut self, node: Node, reply: Reply, site: &mut Site) {
        let Hold::Held(held) = &mut self.hold else { return };
        if held.session != reply.session || !held.answered(reply.task, reply.attempt) {
            return;
        }
        let workers = held.slots.len();
        match reply.answer {
            Answer::Ran => self.resolve(node, reply.task, Outcome::Result, site),
            Answer::Stale => {
                let refused = Failed {
                    ran: Ran::No,
                    of_the_worker: true,
                };
                self.fail(node, reply.task, refused, site);
            }
            Answer::Busy => self.redirect(node, reply.task, workers, site),
        }
        self.idle_since = self.now(site);
        self.work(node, site);
    }

    /// Sends a refused task to another slot, or pauses all waiting tasks for a while.
    fn redirect(&mut self, node: Node, task: usize, workers: usize, site: &mut Site) {
        let now = self.now(site);
        let Some(kept) = self.tasks.get_mut(&task) else {
            return;
        };
        self.queue.push_back(task);
        if let Redirect::After(pause) = kept.redirects.refused(workers) {
            site.note(node, || {
                format!("has no core for task {task}, pauses for {pause:?}")
            });
            self.paused_until = Some(now + pause);
        }
    }

    /// Fails the invocations that a lost worker has not answered, the oldest first.
    pub(super) fn unanswered(
        &mut self,
        node: Node,
        tasks: VecDeque<(usize, u32)>,
        reaped: bool,
        site: &mut Site,
    ) {
        let agent = match &self.hold {
            Hold::Held(held) => Some(Node::Agent(held.grant.agent)),
            _ => None,
        };
        let end = ChannelEnd {
            reaped,
            replies_seen: agent.is_some_and(|agent| site.scenario.is_one_machine(node, agent)),
        };
        for (place, (task, _)) in tasks.into_iter().enumerate() {
            let failed = Failed {
                ran: end.ran(place == 0),
                of_the_worker: true,
            };
            self.fail(node, task, failed, site);
        }
        self.work(node, site);
    }

    /// Gives up a lease that is over or must be considered lost; its invocations fail, or move to another one.
    pub(super) fn lost(&mut self, node: Node, mut held: Held, site: &mut Site) {
        site.note(node, || format!("has lost lease {}", held.grant.lease));
        self.say(node, held.grant.agent, held.session, Ask::Close, site);
        self.hold = Hold::Nothing;
        for slot in &mut held.slots {
            let tasks = std::mem::take(&mut slot.in_flight);
            self.unanswered(node, tasks, false, site);
        }
        self.work(node, site);
    }

    /// Submits a failed invocation again, or resolves its future.
    pub(super) fn fail(&mut self, node: Node, task: usize, failed: Failed, site: &mut Site) {
        let Some(kept) = self.tasks.get_mut(&task) else {
            return;
        };
        match kept.attempts.after(failed) {
            Ok(()) => self.queue.push_back(task),
            Err(error) => self.resolve(node, task, Outcome::Error(error.ran), site),
        }
    }

    pub(super) fn resolve(&mut self, node: Node, task: usize, outcome: Outcome, site: &mut Site) {
        site.note(node, || format!("task {task} resolves: {outcome:?}"));
        self.tasks.remove(&task);
        let truth = &mut site.truth.tasks[task];
        let before = truth.outcome.replace(outcome);
        truth.ended = site.now;
        let runs = truth.runs;
        site.promise(node, before.is_none(), || format!("task {task} resolves twice"));
        let honest = match outcome {
            Outcome::Result => runs > 0,
            Outcome::Error(Ran::No) => runs == 0,
            Outcome::Error(_) => true,
        };
        site.promise(node, honest, || {
            format!("task {task} is said to have ended as {outcome:?}, and ran {runs} times")
        });
    }

    pub(super) fn dispatch(&mut self, node: Node, site: &mut Site) {
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
        let expired = site
            .scenario
            .awake_since(node, expires.unwrap_or_default(), site.now);
        site.promise(node, site.now <= expired + FENCED_AFTER + SLACK, || {
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
            let channel = Channel::Slot(held.session, slot.core);
            site.send(
                node,
                Node::Agent(held.grant.agent),
                channel,
                Message::Frame(frame),
            );
        }
    }
}
