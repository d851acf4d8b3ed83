//! The agent's side of belonging to a manager: register, report, and do so again whenever the manager
//! was started anew. Leases and invocations go on whether or not there is a manager.

use crate::listing::{self, Availability};
use crate::node::Node;
use hotlease_net::grpc::refusal;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{HeartbeatRequest, PastUsage, PastUsageRequest, RegisterRequest};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::UsageTotals;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

/// Pause between heartbeats until the manager says another.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// What a manager may say.
const HEARTBEAT_MIN: Duration = Duration::from_millis(50);
const HEARTBEAT_MAX: Duration = Duration::from_secs(10);
/// First pause after a failed attempt to register; doubled each time.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest: a manager that was started again knows its agents soon after.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How long a manager may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long the goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_millis(500);
/// Longest heartbeat, bytes; the manager's own limit.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Totals that only the journal knows, in one report.
const PAST_MAX: usize = 1024;
/// Pause after a report of those was refused.
const PAST_RETRY: Duration = Duration::from_secs(10);

/// Why there is no manager for now.
enum Lost {
    /// It does not know us (any more).
    Unknown,
    /// It did not answer, or refused.
    Failed(Refusal),
}

/// See the module.
pub(crate) struct Membership {
    node: Arc<Node>,
    manager: ManagerClient<Channel>,
    registered: watch::Sender<bool>,
    heartbeat: Duration,
    /// Leases that ended before this moment have been reported.
    reported: Duration,
    /// When the manager last refused what the journal holds.
    past_refused: Option<Instant>,
}

impl Membership {
    /// Of the manager that this channel leads to. `registered` will say whether it knows us.
    pub fn new(node: Arc<Node>, channel: Channel, registered: watch::Sender<bool>) -> Self {
        Self {
            node,
            manager: ManagerClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX),
            registered,
            heartbeat: HEARTBEAT,
            reported: Duration::ZERO,
            past_refused: None,
        }
    }

    /// Keeps up the membership until told to stop, then says goodbye.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            never = self.belong() => match never {},
        }
        let known = *self.registered.borrow();
        if known
            && timeout(GOODBYE_LIMIT, self.report(Availability::Gone))
                .await
                .is_err()
        {
            tracing::debug!("the manager did not take the goodbye in time");
        }
        self.registered.send_replace(false);
    }

    async fn belong(&mut self) -> std::convert::Infallible {
        let mut backoff = BACKOFF_MIN;
        let mut said = false;
        loop {
            if let Err(refusal) = self.register().await {
                if !said {
                    tracing::warn!(%refusal, "not registered with the manager; trying again for ever");
                    said = true;
                }
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
                continue;
            }
            tracing::info!(agent = %self.node.identity.agent, "registered with the manager");
            (backoff, said) = (BACKOFF_MIN, false);
            self.registered.send_replace(true);
            let lost = loop {
                if let Err(lost) = self.report(Availability::Serving).await {
                    break lost;
                }
                sleep(self.heartbeat).await;
            };
            self.registered.send_replace(false);
            match lost {
                Lost::Unknown => tracing::info!("the manager was started again"),
                Lost::Failed(refusal) => tracing::warn!(%refusal, "lost the manager"),
            }
        }
    }

    async fn register(&mut self) -> Result<(), Refusal> {
        let request = RegisterRequest {
            agent: Some(listing::agent(&self.node, Availability::Serving)),
        };
        let reply = in_time(self.manager.register(request)).await?;
        self.heartbeat = match reply.heartbeat_ms {
            0 => HEARTBEAT,
            ms => Duration::from_millis(ms).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX),
        };
        // Whoever knows nothing of us is told of every end that we remember.
        self.reported = Duration::ZERO;
        Ok(())
    }

    async fn report(&mut self, availability: Availability) -> Result<(), Lost> {
        let now = self.node.now();
        let leases = listing::leases_since(&self.node, self.reported);
        let ended: Vec<(LeaseId, UsageTotals)> = leases
            .iter()
            .filter(|lease| lease.state == "ended")
            .filter_map(|lease| Some((lease.id.parse().ok()?, listing::totals(lease.usage.as_ref()?))))
            .collect();
        let request = HeartbeatRequest {
            agent: Some(listing::agent(&self.node, availability)),
            leases,
        };
        let reply = in_time(self.manager.heartbeat(request))
            .await
            .map_err(Lost::Failed)?;
        if !reply.known {
            return Err(Lost::Unknown);
        }
        // Only now: what was not acknowledged is sent again.
        self.reported = now;
        if let Some(journal) = &self.node.journal {
            for (lease, usage) in ended {
                journal.acknowledge(self.node.journal_key(lease), usage, false);
            }
        }
        self.report_past().await
    }

    /// Reports what only the journal knows: totals of earlier runs, and of leases that ended so long ago that
    /// heartbeats name them no more.
    async fn report_past(&mut self) -> Result<(), Lost> {
        let Some(journal) = self.node.journal.clone() else {
            return Ok(());
        };
        if self.past_refused.is_some_and(|at| at.elapsed() < PAST_RETRY) {
            return Ok(());
        }
        let boot = self.node.identity.boot;
        let running: HashSet<LeaseId> = self.node.tables().leases.keys().copied().collect();
        let past = journal.unacknowledged(PAST_MAX, |(run, lease)| *run != boot || !running.contains(lease));
        if past.is_empty() {
            return Ok(());
        }
        let usage = past.iter().map(|((run, lease), entry)| PastUsage {
            boot: run.to_string(),
            lease: lease.to_string(),
            tenant: entry.tenant.clone(),
            usage: Some(listing::message(entry.usage)),
        });
        let request = PastUsageRequest {
            agent: self.node.identity.agent.to_string(),
            boot: boot.to_string(),
            usage: usage.collect(),
        };
        match in_time(self.manager.report_past(request)).await {
            Ok(reply) if reply.known => {
                for (key, entry) in past {
                    journal.acknowledge(key, entry.usage, key.0 != boot);
                }
                Ok(())
            }
            Ok(_) => Err(Lost::Unknown),
            Err(refusal) => {
                tracing::warn!(%refusal, "the manager does not take usage of earlier leases; trying again");
                self.past_refused = Some(Instant::now());
                Ok(())
            }
        }
    }
}

async fn in_time<R>(
    answer: impl Future<Output = Result<tonic::Response<R>, tonic::Status>>,
) -> Result<R, Refusal> {
    match timeout(ANSWER_LIMIT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(refusal(status)),
        Err(_) => Err(Refusal::Timeout {
            what: "the manager".into(),
            after_ms: ANSWER_LIMIT.as_millis() as u64,
        }),
    }
}
