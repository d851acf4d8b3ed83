//! The node is given back, or offered again: by its manager's orders, or for good by its own operator's signal.

use crate::node::Node;
use hotlease_lease::agent::{Event, Offer, OfferedCores, TTL_MAX};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{CoresWanted, NodeWish, OfferWanted};
use std::sync::Arc;
use std::time::Duration;

/// Longest notice of a drain; clients would hold a core as long anyway.
const WITHIN_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Cores in one offer.
const CORES_MAX: usize = 8192;

impl Node {
    /// Does what the manager's operator wants of this node.
    pub(crate) fn order(self: &Arc<Self>, wish: NodeWish) -> Result<(), Refusal> {
        let now = self.now();
        let after = |ms: u64| now + Duration::from_millis(ms).min(WITHIN_MAX);
        let offer = wish.offer.as_ref().map(|offer| self.offer(offer, &after));
        let offer = offer.transpose()?;
        let mut tables = self.tables();
        if tables.leaving {
            return Err(Refusal::Unavailable {
                what: "the agent is stopping".into(),
            });
        }
        // What was carried out, or overtaken by a later order, changes nothing.
        if wish.number > tables.order {
            tables.order = wish.number;
            let ordered = match wish.drained {
                true => Event::Drain {
                    until: after(wish.within_ms),
                },
                false => Event::Resume,
            };
            tracing::info!(number = wish.number, ?ordered, ?offer, "ordered by the manager");
            let done = self.step_locked(&mut tables, ordered);
            let offered = offer.map_or(Ok(()), |offer| self.step_locked(&mut tables, Event::Offer(offer)));
            done.and(offered)?;
        }
        Ok(())
    }

    fn offer(&self, asked: &OfferWanted, after: &dyn Fn(u64) -> Duration) -> Result<Offer, Refusal> {
        let bad = |what: &str| Err(Refusal::BadRequest { what: what.into() });
        if asked.cores.len() > CORES_MAX {
            return bad("more cores than any machine has");
        }
        let cores = match CoresWanted::try_from(asked.choice) {
            Ok(CoresWanted::CoresUnchanged) => OfferedCores::Unchanged,
            Ok(CoresWanted::CoresAll) => OfferedCores::All,
            Ok(CoresWanted::CoresCount) => OfferedCores::Count(asked.count),
            Ok(CoresWanted::CoresThese) => OfferedCores::These(asked.cores.iter().copied().collect()),
            Err(_) => return bad("unknown choice of cores"),
        };
        let memory_bytes = match asked.memory_bytes {
            0 => self.identity.memory_bytes,
            bytes => bytes,
        };
        Ok(Offer {
            cores,
            memory_bytes: Some(memory_bytes),
            gpus: Some(asked.gpus.unwrap_or(self.identity.gpus)),
            until: after(asked.within_ms),
        })
    }

    /// Gives the node back for good, at the latest after `within`; returns when no lease holds anything of it.
    pub(crate) async fn leave(self: &Arc<Self>, within: Duration) {
        let until = self.now() + within.min(WITHIN_MAX);
        {
            let mut tables = self.tables();
            tables.leaving = true;
            // Never refused: it only says so.
            let _ = self.step_locked(&mut tables, Event::Drain { until });
        }
        let mut active = self.active_leases();
        // Fails never: the sender lives in the node.
        let _ = active.wait_for(|leases| *leases == 0).await;
    }

    /// Nothing of a drained node stays in use: its owner wants all of it.
    pub(crate) fn clean(&self) {
        tracing::info!("drained: no lease holds anything of this node");
        self.codes.clear();
    }
}

// A renewal may ask for this long; a drain's notice is at least as long as that can be.
const _: () = assert!(WITHIN_MAX.as_secs() >= TTL_MAX.as_secs());
