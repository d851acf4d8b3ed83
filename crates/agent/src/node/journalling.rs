//! Journalling of usage: leases are noted in the journal at their end, and at intervals while they run.
//!
//! After a crash of the agent its leases have ended, and the last note is billed: a lease loses at most
//! [`NOTE_INTERVAL`] of its usage. The share of each function is noted less often while leases run. So up to two
//! seconds of computing may be billed to a lease and to none of its functions. Journalling needs no manager.

use crate::leases::active_lease::ActiveLease;
use crate::leases::running_usage::{functions_so_far, used_so_far};
use crate::node::outbox::Outbox;
use crate::node::{Node, NodeState};
use hotlease_journal::{LeaseKey, LeaseTotal};
use hotlease_lease::LeaseSpec;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::{SessionReply, UsageTotals};
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of the notes of running leases.
const NOTE_INTERVAL: Duration = Duration::from_millis(250);
/// One in this many notes also contains the usage of functions: a record for each function that was called.
const FUNCTIONS_EVERY: u64 = 8;
/// Longest time that the answer to a release waits for the journal's disk. After that the answer is sent anyway; the
/// journal reports the cause.
const DURABLE_WITHIN: Duration = Duration::from_secs(1);

impl Node {
    /// Journal key of a lease of this run of the agent.
    pub fn journal_key(&self, lease: LeaseId) -> LeaseKey {
        (self.identity.boot, lease)
    }

    /// Notes the last total of a lease.
    pub(crate) fn note_end(&self, lease: &ActiveLease, tables: &NodeState, usage: UsageTotals) {
        let Some(journal) = &self.journal else { return };
        if lease.is_unused() {
            // The manager has never recorded this lease, and must not get the notes that were made while it ran.
            return journal.discard(self.journal_key(lease.id));
        }
        let ended = tables.book.ended_leases().rev().find(|ended| ended.id == lease.id);
        let slots = ended.map_or(0, |ended| ended.cores.len());
        let functions = ended.map(|ended| ended.functions.clone()).unwrap_or_default();
        journal.note(
            self.journal_key(lease.id),
            entry(lease, slots, (usage, functions), true),
        );
    }

    /// Notes the present total of each running lease and, if `by_function`, the usage of its functions.
    fn note_leases(&self, by_function: bool) {
        let Some(journal) = &self.journal else { return };
        let tables = self.tables();
        for lease in tables.book.leases() {
            if let Some(active) = tables.leases.get(&lease.id) {
                let usage = used_so_far(lease, Some(active), self.now());
                let slots = lease.cores().len();
                let functions = match by_function {
                    true => functions_so_far(lease, Some(active), usage),
                    false => FunctionTotals::default(),
                };
                journal.note(
                    self.journal_key(lease.id),
                    entry(active, slots, (usage, functions), false),
                );
            }
        }
    }

    /// Returns once the notes are durable, so that they survive a loss of power, or once this has failed.
    pub async fn make_usage_durable(&self) {
        if let Some(journal) = self.journal.clone() {
            // The journal reports a failure itself.
            let _ = tokio::task::spawn_blocking(move || journal.make_durable(DURABLE_WITHIN)).await;
        }
    }
}

impl Node {
    /// Tells sessions the end of their lease, with a total that they can rely on because it is durable. The lease's
    /// cores are already free.
    pub(crate) fn tell_end(self: &Arc<Self>, outboxes: Vec<Arc<Outbox>>, reply: SessionReply) {
        if self.journal.is_none() || outboxes.is_empty() {
            outboxes.iter().for_each(|outbox| outbox.close(reply.clone()));
            return;
        }
        let node = Arc::clone(self);
        node.untold.send_modify(|untold| *untold += 1);
        tokio::spawn(async move {
            node.make_usage_durable().await;
            outboxes.iter().for_each(|outbox| outbox.close(reply.clone()));
            node.untold.send_modify(|untold| *untold -= 1);
        });
    }

    /// Tells sessions why their lease is being ended, only once, before its first worker is killed. So a client that
    /// sees a connection close has received the reason, even if the disk delays the total.
    pub(crate) fn tell_ending(&self, tables: &NodeState, lease: LeaseId, reason: EndReason) {
        let (Some(active), Some(booked)) = (tables.leases.get(&lease), tables.book.lease(lease)) else {
            return;
        };
        if !active.mark_ending() {
            return;
        }
        for session in booked.all_sessions() {
            if let Some(outbox) = tables.outboxes.get(&session) {
                outbox.tell(SessionReply::LeaseEnding { reason }, Vec::new());
            }
        }
    }

    /// Tells the sessions of leases with cores, memory or GPUs that another client needs these resources. `refusal` is
    /// the refusal of that client's request.
    pub(crate) fn tell_room_wanted(&self, refusal: &Rejection) {
        let has_it = |held: &LeaseSpec| match refusal {
            Rejection::NoGpus { .. } => held.gpus > 0,
            Rejection::TooMany { .. } => held.memory_bytes > 0,
            _ => true,
        };
        // Sends outside the lock: there may be many sessions.
        let outboxes: Vec<Arc<Outbox>> = {
            let tables = self.tables();
            let holders = tables.book.leases().filter(|lease| has_it(&lease.request.spec));
            let sessions = holders.flat_map(|lease| &lease.sessions);
            sessions
                .filter_map(|session| tables.outboxes.get(session).cloned())
                .collect()
        };
        for outbox in outboxes {
            outbox.hint(SessionReply::RoomWanted);
        }
    }

    /// Returns once sessions have been informed of every end that has occurred.
    pub(crate) async fn all_told(&self) {
        let mut untold = self.untold.subscribe();
        // Cannot fail: the node owns the sender.
        let _ = untold.wait_for(|untold| *untold == 0).await;
    }
}

fn entry(
    lease: &ActiveLease,
    slots: usize,
    (usage, functions): (UsageTotals, FunctionTotals),
    ended: bool,
) -> LeaseTotal {
    let request = &lease.terms.request;
    LeaseTotal {
        tenant: request.tenant.clone(),
        usage,
        functions,
        slots: slots as u32,
        memory_bytes: lease.terms.all_memory_bytes(),
        ended,
    }
}

/// Notes running leases for as long as the agent runs.
pub(crate) async fn note_running(node: Arc<Node>) {
    if node.journal.is_none() {
        return;
    }
    let mut active = node.active_leases();
    let mut notes = interval(NOTE_INTERVAL);
    notes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for note in 0_u64.. {
        // Cannot fail: the node owns the sender. Costs nothing while no lease is active.
        let _ = active.wait_for(|leases| *leases > 0).await;
        notes.tick().await;
        node.note_leases(note.is_multiple_of(FUNCTIONS_EVERY));
    }
}
