//! Credit, which a receiver lends to each sender. It bounds the messages of the sender that the receiver keeps before a
//! receive asks for them.

use hotlease_wire::comm::frame::{ENTRY_COST, credit_of};

/// Credit of a sender.
#[derive(Debug)]
pub(super) struct Spender {
    left: u64,
    /// Credit that is reserved for messages that cannot be announced; messages that can be announced do not use it.
    reserve: u64,
}

impl Spender {
    pub(super) fn new(size: u32) -> Self {
        Self {
            left: credit_of(size),
            reserve: credit_of(size) / 8,
        }
    }

    /// Spends the cost of a message, if there is enough credit; returns whether there was.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        self.spend_above(0, bytes)
    }

    /// Spends the cost of a message that can also be announced, if there is enough credit above the reserve; returns
    /// whether there was.
    pub(super) fn spend_large(&mut self, bytes: u64) -> bool {
        self.spend_above(self.reserve, bytes)
    }

    fn spend_above(&mut self, reserve: u64, bytes: u64) -> bool {
        let cost = cost(bytes);
        let is_enough = self.left >= reserve + cost;
        if is_enough {
            self.left -= cost;
        }
        is_enough
    }

    pub(super) fn give_back(&mut self, amount: u64) {
        self.left = self.left.saturating_add(amount);
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}

/// Credit that a receiver has lent to a sender.
#[derive(Debug)]
pub(super) struct Lender {
    limit: u64,
    /// Credit that the sender has spent, and that was not given back.
    spent: u64,
    /// Part of `spent` that belongs to messages that were taken.
    owed: u64,
}

impl Lender {
    pub(super) fn new(size: u32) -> Self {
        Self {
            limit: credit_of(size),
            spent: 0,
            owed: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn owed(&self) -> u64 {
        self.owed
    }

    /// Counts a message that has arrived; returns `false` if the sender had no credit for it.
    pub(super) fn charge(&mut self, bytes: u64) -> bool {
        self.spent += cost(bytes);
        self.spent <= self.limit
    }

    /// Counts a message that was taken. Returns the credit to give back now. Credit is not given back for each message,
    /// but always before the sender has spent half of it.
    pub(super) fn repay(&mut self, bytes: u64) -> Option<u64> {
        self.owed += cost(bytes);
        let amount = self.owed;
        if amount < self.limit / 4 {
            return None;
        }
        self.spent -= amount;
        self.owed = 0;
        Some(amount)
    }
}

fn cost(bytes: u64) -> u64 {
    ENTRY_COST + bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::comm::RANKS_MAX;
    use hotlease_wire::comm::frame::{EAGER_BYTES_MAX, SMALL_BYTES_MAX};

    #[test]
    fn a_receiver_that_takes_its_messages_never_stops_the_sender() {
        for size in [2, 8, RANKS_MAX] {
            let (mut spender, mut lender) = (Spender::new(size), Lender::new(size));
            for number in 0..10_000_u64 {
                let bytes = (number * 7919) % (EAGER_BYTES_MAX + 1);
                assert!(spender.spend_large(bytes), "message {number} of {size} ranks");
                assert!(lender.charge(bytes));
                if let Some(amount) = lender.repay(bytes) {
                    spender.give_back(amount);
                }
            }
        }
    }

    #[test]
    fn large_messages_that_are_not_received_leave_credit_for_small_ones() {
        for size in [2, 8, RANKS_MAX] {
            let mut spender = Spender::new(size);
            while spender.spend_large(EAGER_BYTES_MAX) {}
            while spender.spend_large(SMALL_BYTES_MAX + 1) {}
            for number in 0..3 {
                assert!(spender.spend(SMALL_BYTES_MAX), "message {number} of {size} ranks");
            }
        }
    }

    #[test]
    fn no_member_keeps_more_than_it_lent() {
        let (mut spender, mut lender) = (Spender::new(2), Lender::new(2));
        let mut sent = 0;
        while spender.spend(0) {
            sent += 1;
            assert!(lender.charge(0));
        }
        assert_eq!(sent, credit_of(2) / ENTRY_COST);
        assert!(!lender.charge(0), "a sender that does not count is noticed");
    }
}
