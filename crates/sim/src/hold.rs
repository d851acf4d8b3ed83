//! A client's hold on a lease.

use crate::message::{Grant, Session};
use hotlease_lease::client::Renewal;
use hotlease_wire::ids::{Epoch, WorkerIndex};
use std::collections::VecDeque;
use std::time::Duration;

pub const ATTACH_LIMIT: Duration = Duration::from_secs(10);
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
pub const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// State of the hold.
pub enum Hold {
    NoLease,
    /// The client has a token.
    Attaching {
        grant: Grant,
        session: Session,
        sent: Duration,
        until: Duration,
    },
    Held(Box<HeldLease>),
    /// The client releases the lease, through the manager if `call` is set.
    Releasing {
        agent: usize,
        session: Session,
        call: Option<u64>,
        until: Duration,
    },
}

/// A lease with a session.
pub struct HeldLease {
    pub grant: Grant,
    pub session: Session,
    pub slots: Vec<Slot>,
    pub renewal: Renewal,
}

pub struct Slot {
    pub worker: WorkerIndex,
    pub core: u32,
    pub state: SlotState,
    /// Task and attempt, the oldest first.
    pub in_flight: VecDeque<(usize, u32)>,
}

#[derive(Clone, Copy)]
pub enum SlotState {
    Connecting { until: Duration },
    Open(Epoch),
    Closed { again: Duration },
}

impl Hold {
    pub fn session(&self) -> Option<Session> {
        match self {
            Self::NoLease => None,
            Self::Attaching { session, .. } | Self::Releasing { session, .. } => Some(*session),
            Self::Held(held) => Some(held.session),
        }
    }

    pub fn agent(&self) -> Option<usize> {
        match self {
            Self::NoLease => None,
            Self::Attaching { grant, .. } => Some(grant.agent),
            Self::Releasing { agent, .. } => Some(*agent),
            Self::Held(held) => Some(held.grant.agent),
        }
    }

    /// Latest time of the next action.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        match self {
            Self::NoLease => None,
            Self::Attaching { until, .. } | Self::Releasing { until, .. } => Some(*until),
            Self::Held(held) => {
                let slots = held.slots.iter().filter_map(|slot| match slot.state {
                    SlotState::Connecting { until: at } | SlotState::Closed { again: at } => Some(at),
                    SlotState::Open(_) => None,
                });
                slots.chain(held.renewal.next_step()).min().map(|due| due.max(now))
            }
        }
    }
}

impl HeldLease {
    pub fn open_slots(&self) -> impl Iterator<Item = (usize, Epoch)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| match slot.state {
                SlotState::Open(epoch) => Some((index, epoch)),
                SlotState::Connecting { .. } | SlotState::Closed { .. } => None,
            })
    }

    /// Closes the slot of a dead worker, so that its replacement is requested at once. Returns the slot's unanswered
    /// tasks.
    pub fn close_dead_slot(&mut self, worker: WorkerIndex, epoch: Epoch, now: Duration) -> VecDeque<(usize, u32)> {
        let slot = &mut self.slots[usize::from(worker.0)];
        match slot.state {
            SlotState::Open(open) if open == epoch => {
                slot.state = SlotState::Closed { again: now };
                std::mem::take(&mut slot.in_flight)
            }
            _ => VecDeque::new(),
        }
    }

    /// Removes this attempt from the unanswered attempts. Returns whether it was among them.
    pub fn remove_answered(&mut self, task: usize, attempt: u32) -> bool {
        self.slots.iter_mut().any(|slot| {
            let place = slot.in_flight.iter().position(|waits| *waits == (task, attempt));
            place.is_some_and(|place| slot.in_flight.remove(place).is_some())
        })
    }

    /// Returns the workers to which the client must connect (again) now.
    pub fn slots_to_reconnect(&mut self, now: Duration) -> Vec<WorkerIndex> {
        let mut again = Vec::new();
        for slot in &mut self.slots {
            let due = match slot.state {
                SlotState::Connecting { until: at } | SlotState::Closed { again: at } => at <= now,
                SlotState::Open(_) => false,
            };
            if due {
                slot.state = SlotState::Connecting {
                    until: now + CONNECT_LIMIT,
                };
                again.push(slot.worker);
            }
        }
        again
    }
}
