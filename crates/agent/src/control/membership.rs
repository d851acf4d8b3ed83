//! The agent's membership with a manager: carries out the decisions of [`hotlease_lease::agent::Membership`].

use crate::control::listing;
use crate::node::Node;
use hotlease_lease::agent::{
    ANSWER_LIMIT, FUNCTIONS_AT_ONCE_MAX, FinalTotal, Membership as Machine, MembershipAction, MembershipEvent,
    QuestionId,
};
use hotlease_net::grpc::refusal;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{HeartbeatRequest, PastUsage, PastUsageRequest, RegisterReply, RegisterRequest};
use hotlease_wire::ids::LeaseId;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};
use tonic::transport::Channel;

/// Longest heartbeat, bytes; the manager's own limit.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Largest number of answers that wait to be handled: one request is under way at a time, with a time limit.
const ANSWERS_MAX: usize = 4;
/// Largest number of totals in one report of past usage, which only the journal contains.
const PAST_MAX: usize = 1024;
/// Pause after the manager has refused a report of past usage.
const PAST_RETRY: Duration = Duration::from_secs(10);

/// Result of a request, and the refusal if it failed.
type RequestResult = (MembershipEvent, Option<Rejection>);

/// The agent's membership with a manager.
pub(crate) struct ManagerMembership {
    node: Arc<Node>,
    manager: ManagerClient<Channel>,
    registered: watch::Sender<bool>,
    /// Whether a failed attempt was logged. Further failures in a row are not logged.
    is_logged: bool,
    past: Arc<PastReporter>,
    reporting_past: Option<JoinHandle<()>>,
}

/// Reporter of past usage, shared with the task that runs it.
struct PastReporter {
    node: Arc<Node>,
    manager: ManagerClient<Channel>,
    /// Time at which the manager last refused the journal's totals.
    refused: std::sync::Mutex<Option<Instant>>,
}

impl ManagerMembership {
    /// Membership with the manager at the other end of this channel. `registered` will say whether the agent is
    /// registered.
    pub fn new(node: Arc<Node>, channel: Channel, registered: watch::Sender<bool>) -> Self {
        let manager = ManagerClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self {
            past: Arc::new(PastReporter {
                node: Arc::clone(&node),
                manager: manager.clone(),
                refused: std::sync::Mutex::default(),
            }),
            node,
            manager,
            registered,
            is_logged: false,
            reporting_past: None,
        }
    }

    /// Maintains the membership until `stop` is true, then sends the last report.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut machine = Machine::new(self.node.now());
        let (answers, mut answered) = mpsc::channel::<RequestResult>(ANSWERS_MAX);
        let mut leaving = false;
        while let Some(due) = machine.next_step() {
            let event = tokio::select! {
                biased;
                // An error says that the sender is gone, which means to stop.
                _ = stop.wait_for(|stop| *stop), if !leaving => {
                    leaving = true;
                    MembershipEvent::Leave
                }
                Some((event, refusal)) = answered.recv() => {
                    self.log_refusal(refusal);
                    event
                }
                () = sleep_until(self.node.instant(due)) => MembershipEvent::Tick,
            };
            for action in machine.step(event, self.node.now()) {
                self.carry_out(action, &answers);
            }
        }
        self.registered.send_replace(false);
    }

    fn log_refusal(&mut self, refusal: Option<Rejection>) {
        let Some(refusal) = refusal else { return };
        if *self.registered.borrow() {
            tracing::warn!(%refusal, "lost the manager");
        } else if !self.is_logged {
            self.is_logged = true;
            tracing::warn!(%refusal, "not registered with the manager; trying again for ever");
        }
    }

    fn carry_out(&mut self, action: MembershipAction, answers: &mpsc::Sender<RequestResult>) {
        match action {
            MembershipAction::Register { ask, proof } => self.register(ask, proof, answers.clone()),
            MembershipAction::Report { ask, whole, leaving } => {
                self.report(ask, (whole, leaving), answers.clone());
            }
            MembershipAction::Acknowledged { ask } => self.note_acknowledged(ask),
            MembershipAction::Unacknowledged { ask } => {
                tracing::debug!(ask = ask.0, "a report is not acknowledged; its totals are sent again");
            }
            MembershipAction::OweAgain => self.node.owe_again(),
            MembershipAction::Joined => {
                tracing::info!(agent = %self.node.identity.agent, "registered with the manager");
                self.is_logged = false;
                self.registered.send_replace(true);
            }
            MembershipAction::Lost => {
                tracing::info!("the manager does not know this agent any more, or does not answer");
                self.registered.send_replace(false);
            }
            MembershipAction::Left => {}
        }
    }

    fn register(&self, ask: QuestionId, proof: u64, answers: mpsc::Sender<RequestResult>) {
        let request = RegisterRequest {
            agent: Some(listing::agent_with_limits(&self.node)),
            proof,
        };
        let mut manager = self.manager.clone();
        tokio::spawn(async move {
            let answer = match in_time(manager.register(request)).await {
                Ok(RegisterReply { challenge, .. }) if challenge != 0 => {
                    (MembershipEvent::Challenged { ask, challenge }, None)
                }
                Ok(reply) => {
                    let registered = MembershipEvent::Registered {
                        ask,
                        heartbeat: Duration::from_millis(reply.heartbeat_ms),
                        ledger: reply.ledger,
                    };
                    (registered, None)
                }
                Err(refusal) => (MembershipEvent::Failed { ask }, Some(refusal)),
            };
            // After the last report the receiver is gone.
            let _ = answers.send(answer).await;
        });
    }

    fn report(&self, ask: QuestionId, (whole, leaving): (bool, bool), answers: mpsc::Sender<RequestResult>) {
        let (leases, epoch) = listing::report(&self.node, ask, whole);
        let request = HeartbeatRequest {
            agent: Some(listing::agent(&self.node, leaving)),
            leases,
            epoch: epoch.0,
            partial: !whole,
        };
        let mut manager = self.manager.clone();
        tokio::spawn(async move {
            let answer = match in_time(manager.heartbeat(request)).await {
                Ok(reply) => {
                    let heard = MembershipEvent::ReportAnswered {
                        ask,
                        known: reply.known,
                        heartbeat: Duration::from_millis(reply.heartbeat_ms),
                        totals_every: Duration::from_millis(reply.totals_every_ms),
                    };
                    (heard, None)
                }
                Err(refusal) => (MembershipEvent::Failed { ask }, Some(refusal)),
            };
            let _ = answers.send(answer).await;
        });
    }

    /// Handles an acknowledgement: the report's content is in the ledger.
    fn note_acknowledged(&mut self, ask: QuestionId) {
        let totals: Vec<FinalTotal> = {
            let mut tables = self.node.tables();
            let totals = tables.outstanding.sent_in(ask).cloned().collect();
            tables.outstanding.acknowledge(ask);
            totals
        };
        let Some(journal) = &self.node.journal else { return };
        for total in totals {
            journal.acknowledge((total.boot, total.lease), total.usage, false);
        }
        let busy = self.reporting_past.as_ref().is_some_and(|task| !task.is_finished());
        if !busy {
            self.reporting_past = Some(tokio::spawn(Arc::clone(&self.past).report()));
        }
    }
}

impl PastReporter {
    /// Reports usage that only the journal contains: totals of earlier runs, and of leases that ended so long ago that
    /// heartbeats no longer name them.
    async fn report(self: Arc<Self>) {
        let Some(journal) = self.node.journal.clone() else {
            return;
        };
        if self.refused().is_some_and(|at| at.elapsed() < PAST_RETRY) {
            return;
        }
        let boot = self.node.identity.boot;
        let running: HashSet<LeaseId> = self.node.tables().leases.keys().copied().collect();
        let mut past = journal.unacknowledged(PAST_MAX, |(run, lease)| *run != boot || !running.contains(lease));
        let mut functions = 0;
        let fit = past.iter().take_while(|(_, entry)| {
            let fits = functions < FUNCTIONS_AT_ONCE_MAX;
            functions += entry.functions.len();
            fits
        });
        let fit = fit.count();
        past.truncate(fit);
        if past.is_empty() {
            return;
        }
        let usage = past.iter().map(|((run, lease), entry)| PastUsage {
            boot: run.to_string(),
            lease: lease.to_string(),
            tenant: entry.tenant.clone(),
            usage: Some(entry.usage.into()),
            functions: listing::rows(&entry.functions),
        });
        let request = PastUsageRequest {
            agent: self.node.identity.agent.to_string(),
            boot: boot.to_string(),
            usage: usage.collect(),
        };
        match in_time(self.manager.clone().report_past(request)).await {
            Ok(reply) if reply.known => {
                for (key, entry) in past {
                    journal.acknowledge(key, entry.usage, key.0 != boot);
                }
            }
            // The agent is not registered with the manager. The answer to the next heartbeat says so, too.
            Ok(_) => {}
            Err(refusal) => {
                tracing::warn!(%refusal, "the manager does not take usage of earlier leases; trying again");
                *self.refused() = Some(Instant::now());
            }
        }
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn in_time<R>(answer: impl Future<Output = Result<tonic::Response<R>, tonic::Status>>) -> Result<R, Rejection> {
    match timeout(ANSWER_LIMIT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(refusal(status)),
        Err(_) => Err(Rejection::Timeout {
            what: "the manager".into(),
            after_ms: ANSWER_LIMIT.as_millis() as u64,
        }),
    }
}
