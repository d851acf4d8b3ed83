//! An agent's daemon: its membership at the manager.

use super::{AgentNode, AgentProcess, ProcessDied, id};
use crate::message::{Message, Request, Response};
use crate::node::Node;
use crate::shared_state::{MessageOrder, SharedState};
use crate::workers::Workers;
use hotlease_lease::agent::{FinalTotal, MembershipAction, MembershipEvent, QuestionId as Number};
use hotlease_lease::manager::{AgentOffer, AgentProfile, AgentReport, LeaseReport};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::UsageTotals;
use rand::RngExt;
use std::time::Duration;

impl AgentNode {
    /// Makes a step of the membership and carries out its actions.
    pub(super) fn step_membership(
        &mut self,
        event: MembershipEvent,
        site: &mut SharedState,
    ) -> Result<(), ProcessDied> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        let now = process.clock.shows(site.now);
        for action in process.membership.step(event, now) {
            let crashes = site.scenario.crashes;
            if site.draw_fault(crashes) {
                return Err(ProcessDied);
            }
            self.membership_action(action, site);
        }
        Ok(())
    }

    pub(super) fn membership_action(&mut self, action: MembershipAction, site: &mut SharedState) {
        let (node, number) = (self.node(), self.number);
        let Some(process) = self.process.as_mut() else {
            return;
        };
        match action {
            MembershipAction::Register { ask, proof } => {
                let record = AgentProfile {
                    id: id(number),
                    boot: process.boot,
                    address: String::new(),
                    session_socket: String::new(),
                    endpoint: String::new(),
                    owner: String::new(),
                    cores: process.book.offer_now().0,
                    host: String::new(),
                    availability: process.book.availability(),
                    order: process.order,
                    free_cores: process.book.free_cores(),
                    places_per_core: process.book.places_per_core(),
                    free_places: process.book.free_places(),
                    memory_bytes: 0,
                    gpus: process.book.offered_gpus(),
                    free_gpus: process.book.free_gpus(),
                    gpu_numbers: process.book.gpu_numbers().collect(),
                    // Agents with an odd number do not report limits, and reject orders themselves.
                    limits: number.is_multiple_of(2).then(|| process.book.limits().into()),
                    pool: 0,
                };
                process.ask_manager(ask, Request::Register(record, proof), node, site);
            }
            MembershipAction::Report { ask, whole, leaving } => {
                let report = process.report(ask, (whole, leaving), number, &self.workers, site.now);
                for lease in report.leases.iter().filter(|lease| lease.end_reason.is_none()) {
                    let sync = site.random.random_bool(0.5);
                    self.journal.append(snapshot(lease), sync, site, number);
                }
                process.ask_manager(ask, Request::Heartbeat(report), node, site);
            }
            MembershipAction::Acknowledged { ask } => {
                for total in process.outstanding.sent_in(ask) {
                    let key = (number, total.boot, total.lease);
                    site.truth.acknowledged.insert(key, total.usage);
                    self.journal.remove_acknowledged(total.boot, total.lease);
                }
                process.outstanding.acknowledge(ask);
            }
            MembershipAction::OweAgain => {
                let boot = process.boot;
                for ended in process.book.ended_leases() {
                    process.outstanding.owe(FinalTotal::of(ended, boot));
                }
            }
            MembershipAction::Joined | MembershipAction::Lost => {
                site.note(node, || format!("{action:?}"));
            }
            MembershipAction::Unacknowledged { .. } | MembershipAction::Left => {}
        }
    }
}

impl AgentProcess {
    pub(super) fn final_total(&self, lease: LeaseId) -> Option<FinalTotal> {
        let ended = self.book.ended_leases().rev().find(|ended| ended.id == lease)?;
        Some(FinalTotal::of(ended, self.boot))
    }

    pub(super) fn ask_manager(&self, Number(call): Number, request: Request, node: Node, site: &mut SharedState) {
        site.note(node, || format!("says {request:?}"));
        let run = self.run;
        let message = Message::Request { call, run, request };
        site.send(node, Node::Manager, MessageOrder::Datagram, message);
    }

    pub(super) fn offering(&self) -> AgentOffer {
        AgentOffer {
            cores: self.book.offer_now().0,
            memory_bytes: 0,
            gpus: self.book.offered_gpus(),
            gpu_numbers: self.book.gpu_numbers().collect(),
            availability: self.book.availability(),
            order: self.order,
        }
    }

    pub(super) fn report(
        &mut self,
        ask: Number,
        (whole, leaving): (bool, bool),
        number: usize,
        workers: &Workers,
        true_now: Duration,
    ) -> AgentReport {
        let now = self.clock.shows(true_now);
        let boot = self.boot;
        let mut leases: Vec<LeaseReport> = self.outstanding.report(ask).map(FinalTotal::report).collect();
        leases.extend(self.book.leases().filter(|_| whole).map(|lease| {
            let mut usage = UsageTotals {
                allocated_ns: lease.allocated_ns(now),
                ..lease.retired
            };
            let living = workers.used_by(boot, lease.id);
            usage.compute_ns += living.compute_ns;
            usage.invocations += living.invocations;
            let mut functions = lease.retired_functions.clone();
            functions.add_all(&workers.functions_of(boot, lease.id));
            LeaseReport {
                lease: lease.id,
                boot,
                tenant: lease.request.tenant.clone(),
                label: lease.request.label.clone(),
                epoch: lease.epoch,
                gpus: lease.gpus().len() as u32,
                cores: lease.cores(),
                usage,
                functions,
                end_reason: None,
            }
        }));
        AgentReport {
            agent: id(number),
            boot,
            whole,
            epoch: self.book.epoch(),
            free_cores: self.book.free_cores(),
            free_places: self.book.free_places(),
            free_gpus: self.book.free_gpus(),
            pool: 0,
            offering: self.offering(),
            leaving,
            leases,
        }
    }
}

/// Journal record of a running lease. If this run of the agent ends now, the record's total is the lease's final total.
fn snapshot(lease: &LeaseReport) -> FinalTotal {
    FinalTotal {
        boot: lease.boot,
        lease: lease.lease,
        tenant: lease.tenant.clone(),
        label: lease.label.clone(),
        epoch: lease.epoch,
        cores: lease.cores.clone(),
        why: "its agent was started again".into(),
        usage: lease.usage,
        functions: lease.functions.clone(),
    }
}

pub(super) fn answered(ask: Number, response: Response) -> MembershipEvent {
    match response {
        Response::Registered { ledger } => MembershipEvent::Registered {
            ask,
            heartbeat: Duration::ZERO,
            ledger,
        },
        Response::Challenged(challenge) => MembershipEvent::Challenged { ask, challenge },
        Response::Heard { known, totals_every } => MembershipEvent::ReportAnswered {
            ask,
            known,
            heartbeat: Duration::ZERO,
            totals_every,
        },
        Response::Granted(_) | Response::Released(_) | Response::Ordered(_) | Response::Refused(_) => {
            MembershipEvent::Failed { ask }
        }
    }
}
