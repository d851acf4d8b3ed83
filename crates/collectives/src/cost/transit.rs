//! Messages that have been sent but not received, in order between any two ranks.
//!
//! A ring of ten thousand ranks sends two hundred million messages, one after the other, so messages do not have an
//! allocation each.

use crate::schedule::Rank;
use foldhash::HashMap;
use std::collections::hash_map::Entry;

/// Arrival of a message: its time, and how long it occupies the input port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) occupies: f64,
}

/// Index in `arrivals`.
type ArrivalIndex = u32;

/// Messages under way from one rank to another: the first and the last.
#[derive(Clone, Copy)]
struct Queue {
    first: ArrivalIndex,
    last: ArrivalIndex,
}

/// All messages under way.
#[derive(Default)]
pub(super) struct Transit {
    /// Queues of the pairs of ranks with messages under way.
    queues: HashMap<(Rank, Rank), Queue>,
    /// Each message with the index of the next message in its queue; the last message of a queue has its own index.
    arrivals: Vec<(Arrival, ArrivalIndex)>,
    free: Vec<ArrivalIndex>,
}

impl Transit {
    pub(super) fn put(&mut self, from: Rank, to: Rank, arrival: Arrival) {
        let place = self.free.pop().unwrap_or(self.arrivals.len() as ArrivalIndex);
        match self.arrivals.get_mut(place as usize) {
            Some(unused) => *unused = (arrival, place),
            None => self.arrivals.push((arrival, place)),
        }
        match self.queues.entry((from, to)) {
            Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                self.arrivals[queue.last as usize].1 = place;
                queue.last = place;
            }
            Entry::Vacant(none) => {
                none.insert(Queue {
                    first: place,
                    last: place,
                });
            }
        }
    }

    pub(super) fn take(&mut self, from: Rank, to: Rank) -> Option<Arrival> {
        let Entry::Occupied(mut entry) = self.queues.entry((from, to)) else {
            return None;
        };
        let queue = entry.get_mut();
        let place = queue.first;
        let (arrival, next) = self.arrivals[place as usize];
        if place == queue.last {
            entry.remove();
        } else {
            queue.first = next;
        }
        self.free.push(place);
        Some(arrival)
    }

    /// A pair of ranks with a message under way, if there is one.
    pub(super) fn any(&self) -> Option<(Rank, Rank)> {
        self.queues.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_between_two_ranks_keep_their_order_and_places_are_used_again() {
        let message = |at| Arrival { at, occupies: 0.0 };
        let mut transit = Transit::default();
        for round in 0..100 {
            for number in 0..3 {
                transit.put(0, 1, message(f64::from(3 * round + number)));
                transit.put(1, 0, message(-1.0));
            }
            for number in 0..3 {
                assert_eq!(transit.take(0, 1), Some(message(f64::from(3 * round + number))));
                assert_eq!(transit.take(1, 0), Some(message(-1.0)));
            }
            assert_eq!((transit.take(0, 1), transit.any()), (None, None));
        }
        assert_eq!(transit.arrivals.len(), 6);
        transit.put(2, 3, message(0.0));
        assert_eq!(transit.any(), Some((2, 3)));
    }
}
