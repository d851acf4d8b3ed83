//! Renewals of a session's lease.

use super::{AGENT, RENEW_LIMIT, SessionEnd, SessionState};
use hotlease_lease::client::{Renewal, RenewalAction, RenewalEvent};
use hotlease_wire::session::{SessionReply, SessionRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl SessionState {
    /// Renews the lease until it has ended or counts as lost: an agent that is silent past the expiry has ended the
    /// lease, or will end it before it serves any other request.
    pub(super) async fn renew(self: Arc<Self>, mut renewal: Renewal, start: Instant) {
        while let Some(due) = renewal.next_step() {
            tokio::time::sleep_until((start + due).into()).await;
            let mut event = RenewalEvent::Tick;
            loop {
                // An agent that starts a worker or loads a library answers renewals only after that.
                event = match (event, self.long_requests.oldest()) {
                    (RenewalEvent::Renewed { .. }, _) | (_, None) => event,
                    (_, Some(oldest)) => RenewalEvent::Pending { oldest },
                };
                let now = start.elapsed();
                match renewal.step(event, now) {
                    None => break,
                    Some(RenewalAction::Renew) => {
                        let limit = renewal.fenced_at().saturating_sub(now).min(RENEW_LIMIT);
                        event = self.ask_to_renew(limit).await;
                    }
                    Some(RenewalAction::Lost) => {
                        tracing::warn!("the agent is silent and the lease's time is over");
                        self.set_end(SessionEnd::Lost);
                        return;
                    }
                }
            }
            if self.news().end.is_some() {
                return;
            }
        }
    }

    async fn ask_to_renew(&self, limit: Duration) -> RenewalEvent {
        let asked = self.link.ask(&SessionRequest::Renew, &[], AGENT, limit);
        match asked.await {
            Ok((SessionReply::Renewed { ttl_ms, .. }, _)) => RenewalEvent::Renewed {
                ttl: Duration::from_millis(ttl_ms),
            },
            // If the agent is silent, it may come back in time. If the lease is over, the task that reads the session's
            // messages reports that.
            other => {
                tracing::debug!(?other, "the lease was not renewed");
                RenewalEvent::NotRenewed
            }
        }
    }
}
