//! Idle memory of this node: waiting workers in it, as many as leases are likely to need, and leases of memory alone.

use super::{Node, NodeState};
use crate::leases::active_lease::ActiveLease;
use crate::workers::pool::POOL_MAX;
use hotlease_lease::LeaseRequest;
use hotlease_lease::agent::Availability;
use hotlease_wire::Rejection;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval at which pools shrink if no leases are granted.
const FORGET_EVERY: Duration = Duration::from_secs(60);

impl Node {
    /// Sets how many workers wait: as many as leases are likely to need.
    pub(crate) fn keep_waiting(&self, tables: &NodeState) {
        let most = match tables.book.availability() {
            Availability::Serving => tables.book.offered_cores() as usize,
            _ => 0,
        };
        let short = self.borrowing.is_short();
        let native = if short { 0 } else { most.min(POOL_MAX) };
        self.supply.pools.iter().for_each(|pool| pool.set_limit(native));
        self.supply.spares.keep(most);
    }

    /// Records that a lease of this many workers was granted.
    pub(crate) fn note_beginning(&self, lease: &ActiveLease, workers: usize) {
        let terms = &lease.terms;
        match &terms.program {
            Some(program) if terms.can_wait() => {
                self.supply
                    .spares
                    .lease_began(&terms.request.tenant, terms.sandbox, program, workers);
            }
            None if terms.can_wait() => self.supply.pools.of(terms.sandbox).lease_began(workers),
            _ => {}
        }
    }

    /// Records that a lease has ended. If its workers were interpreters and all came up, spares wait for the next
    /// lease.
    pub(crate) fn leave_spares(&self, lease: &ActiveLease) {
        self.supply.starts.keep(lease.id, lease.start());
        let terms = &lease.terms;
        let workers = lease.incarnations();
        let well = workers.iter().all(|worker| worker.start.was_up());
        match &terms.program {
            Some(program) if terms.can_wait() => {
                let ended = (workers.len(), well);
                let left = self
                    .supply
                    .spares
                    .lease_over(&terms.request.tenant, terms.sandbox, program, ended);
                if let Some(left) = left.filter(|_| well) {
                    self.supply
                        .starts
                        .record_left(&terms.request.tenant, terms.sandbox, program, left);
                }
            }
            None if terms.can_wait() => self.supply.pools.of(terms.sandbox).lease_over(workers.len()),
            _ => {}
        }
    }

    /// Refuses memory alone that is not idle now. Its pages are reserved at once, so without this check the kernel would
    /// kill processes of the node to provide them.
    pub(super) fn check_idle_memory(&self, request: &LeaseRequest) -> Result<(), Rejection> {
        if !request.spec.is_memory_alone() {
            return Ok(());
        }
        let room = self.borrowing.room();
        match request.spec.all_memory_bytes() <= room {
            true => Ok(()),
            false => Err(Rejection::TooMany {
                what: "bytes of the memory that the node leaves idle now".into(),
                limit: room,
            }),
        }
    }

    /// Gives the memory of waiting workers back as soon as other processes wait for it.
    pub(crate) async fn keep_borrowing(self: Arc<Self>) {
        let changed = |short| {
            let begin = Instant::now();
            if short {
                let native = self.supply.pools.ready();
                self.supply.pools.iter().for_each(|pool| pool.set_limit(0));
                let interpreters = self.supply.spares.give_back();
                let took = begin.elapsed();
                // Set again under the lock, because a step may have read the state before memory was short.
                self.keep_waiting(&self.tables());
                tracing::info!(
                    native,
                    interpreters,
                    ?took,
                    "memory is short: no workers wait for leases"
                );
            } else {
                tracing::info!("there is memory again: workers wait for leases");
                self.supply.spares.borrow_again();
                self.keep_waiting(&self.tables());
            }
        };
        // If no leases are granted, no event makes the pools shrink.
        let forget = async {
            loop {
                sleep(FORGET_EVERY).await;
                self.keep_waiting(&self.tables());
            }
        };
        tokio::join!(self.borrowing.watch(changed), forget);
    }
}
