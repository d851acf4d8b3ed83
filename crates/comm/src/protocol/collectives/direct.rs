//! Collectives whose schedule the calling thread runs itself, until it hands the rest over.

use super::{CollectiveWork, RunningCollective, Work};
use crate::arena::Key;
use crate::error::{Activity, Error};
use crate::memory::TransferMemory;
use crate::protocol::contexts::is_before;
use crate::protocol::{Protocol, RequestState};
use hotlease_collectives::Rank;
use std::sync::Arc;

/// Collective that this member has begun and counted.
#[derive(Debug)]
pub(crate) struct StartedCollective {
    pub(crate) context: u64,
    pub(crate) number: u32,
    pub(crate) members: Arc<[Rank]>,
}

impl Protocol {
    /// Counts the next collective of a communicator, which the calling thread will run. Returns `None`, and counts
    /// nothing, if the collective would fail, or if messages go through a store.
    pub(crate) fn start_directly(&mut self, context: u64) -> Option<StartedCollective> {
        let of_context = self.contexts.get(&context)?;
        let number = of_context.number;
        let members = of_context.members.clone()?;
        let during = Activity::Collective { number };
        let is_hopeless = self.is_stored()
            || of_context.broken.is_some()
            || members.iter().any(|rank| self.peers[*rank as usize].lost.is_some())
            || self.departure(self.me, during).is_some();
        if is_hopeless {
            return None;
        }
        let of_context = self.context(context);
        of_context.number = number.wrapping_add(1);
        of_context.direct += 1;
        Some(StartedCollective {
            context,
            number,
            members,
        })
    }

    /// Whether the collective must fail: a member is lost, even if this member does not wait for it, or a member had an
    /// error in this collective or an earlier one.
    pub(crate) fn is_broken(&self, started: &StartedCollective) -> bool {
        let of_context = self.contexts.get(&started.context);
        let broken = of_context.and_then(|of_context| of_context.broken);
        let during = Activity::Collective { number: started.number };
        broken.is_some_and(|(_, first)| !is_before(started.number, first))
            || self.failure_of_members(&started.members, during).is_some()
    }

    /// Notes that the calling thread has run the whole collective.
    pub(crate) fn end_directly(&mut self, started: &StartedCollective) {
        self.context(started.context).direct -= 1;
        self.is_leaving_due = true;
    }

    /// Takes over the rest of a collective, from `round` on. The transfers of this round with a bit in `done` are done.
    /// Returns the request of the collective.
    pub(crate) fn hand_over(
        &mut self,
        started: StartedCollective,
        collective: CollectiveWork,
        scratch: TransferMemory,
        round: usize,
        done: u64,
    ) -> Key {
        let (context, number) = (started.context, started.number);
        self.context(context).direct -= 1;
        let during = Activity::Collective { number };
        let request = self.requests.insert(RequestState::Pending(during));
        let broken = self.contexts.get(&context).and_then(|of_context| of_context.broken);
        let error = broken
            .filter(|(_, first)| !is_before(number, *first))
            .map(|(rank, _)| Error::CollectiveFailed { during, rank })
            .or_else(|| self.failure_of_members(&started.members, during));
        let mut running = RunningCollective::new(started, request, Work { collective, scratch }, None);
        running.round = round;
        let key = self.collectives.insert(running);
        match error {
            Some(error) => self.fail_collective(key, error),
            None => self.begin_transfers(key, done),
        }
        request
    }
}
