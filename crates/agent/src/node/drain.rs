//! Giving the node back and offering it again: by its manager's orders, or for good by its own operator's signal.

use crate::node::Node;
use hotlease_lease::TTL_MAX;
use hotlease_lease::agent::{BookEvent, NodeOffer, OfferedCores, OfferedGpus};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{CoresWanted, NodeWish, OfferWanted};
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use std::sync::Arc;
use std::time::Duration;

/// Longest notice of a drain; clients could hold a core as long anyway.
const WITHIN_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Largest number of cores in one offer.
const CORES_MAX: usize = 8192;

impl Node {
    /// Carries out what the manager's operator orders for this node.
    pub(crate) fn order(self: &Arc<Self>, wish: NodeWish) -> Result<(), Rejection> {
        let now = self.now();
        let after = |ms: u64| now + Duration::from_millis(ms).min(WITHIN_MAX);
        let offer = wish.offer.as_ref().map(|offer| self.offer(offer, &after));
        let offer = offer.transpose()?;
        let mut tables = self.tables();
        if tables.leaving {
            return Err(Rejection::Unavailable {
                what: "the agent is stopping".into(),
            });
        }
        // An order that was carried out, or overtaken by a later order, changes nothing.
        if wish.number > tables.order {
            let ordered = match wish.drained {
                true => BookEvent::Drain {
                    until: after(wish.within_ms),
                },
                false => BookEvent::Resume,
            };
            // The offer is applied first: if it is refused, the order has no effect, and the previous order stays.
            let offered = offer.clone().map(BookEvent::Offer);
            match offered.map_or(Ok(()), |offer| self.step_locked(&mut tables, offer)) {
                // A node can still be drained if it was started with fewer resources than an earlier order offers.
                Err(refusal) if wish.drained => {
                    tracing::warn!(%refusal, "drained without the offer of an earlier order")
                }
                offered => offered?,
            }
            tracing::info!(
                number = wish.number,
                ?ordered,
                ?offer,
                "carries out an order of the manager"
            );
            self.step_locked(&mut tables, ordered)?;
            tables.order = wish.number;
        }
        Ok(())
    }

    fn offer(&self, asked: &OfferWanted, after: &dyn Fn(u64) -> Duration) -> Result<NodeOffer, Rejection> {
        let bad = |what: &str| Err(Rejection::BadRequest { what: what.into() });
        if asked.cores.len() > CORES_MAX {
            return bad("more cores than any host has");
        }
        let cores = match CoresWanted::try_from(asked.choice) {
            Ok(CoresWanted::CoresUnchanged) => OfferedCores::Unchanged,
            Ok(CoresWanted::CoresAll) => OfferedCores::All,
            Ok(CoresWanted::CoresCount) => OfferedCores::Count(asked.count),
            Ok(CoresWanted::CoresThese) => OfferedCores::These(asked.cores.iter().copied().collect()),
            Err(_) => return bad("unknown choice of cores"),
        };
        let gpus = match asked.gpus_named {
            true if asked.gpu_numbers.len() > GPUS_PER_AGENT_MAX as usize => {
                return bad("more GPUs than an agent offers");
            }
            true => OfferedGpus::These(asked.gpu_numbers.iter().copied().collect()),
            false => OfferedGpus::Count(asked.gpus.unwrap_or(self.identity.gpus)),
        };
        let memory_bytes = match asked.memory_bytes {
            0 => self.identity.memory_bytes,
            bytes => bytes,
        };
        Ok(NodeOffer {
            cores,
            memory_bytes: Some(memory_bytes),
            gpus: Some(gpus),
            until: after(asked.within_ms),
        })
    }

    /// Gives the node back for good, at the latest after `within`; returns when no lease holds any resource.
    pub(crate) async fn leave(self: &Arc<Self>, within: Duration) {
        self.leave_by(self.now() + within.min(WITHIN_MAX)).await;
    }

    /// Drains the node for good, and ends the remaining leases at `until`; returns when no lease holds any resource.
    pub(crate) async fn leave_by(self: &Arc<Self>, until: Duration) {
        {
            let mut tables = self.tables();
            tables.leaving = true;
            // The book cannot refuse a drain.
            let _ = self.step_locked(&mut tables, BookEvent::Drain { until });
        }
        let mut active = self.active_leases();
        // Cannot fail: the node owns the sender.
        let _ = active.wait_for(|leases| *leases == 0).await;
    }

    /// Drops cached libraries: the owner of a drained node wants all of its memory.
    pub(crate) fn clean(&self) {
        tracing::info!("drained: no lease holds anything of this node");
        self.codes.clear();
    }
}

// A renewal may last up to the longest time to live; a drain's notice must be allowed to be at least as long.
const _: () = assert!(WITHIN_MAX.as_secs() >= TTL_MAX.as_secs());
