//! Whose a slot's core is: its own, or one that it has to claim for each invocation.
//!
//! A slot is compiled once for each, so that one with a core of its own does not even look.

use hotlease_fabric::claim::CoreClaim;
use hotlease_fabric::usage::UsageBlock;
use std::sync::Arc;

/// What a slot asks of its core before and after each invocation.
pub trait Core: Send + 'static {
    /// Whether the time between a wake-up and the next request is polling. On a shared core it is the time in which
    /// somebody else ran.
    const POLLS: bool;
    /// Claims it, or says at once that it cannot be had now.
    fn claim(&self) -> bool;
    /// Gives up what was claimed.
    fn give_up(&self);
    /// The time that an invocation has which asks for `timeout_us` (0: for no end), microseconds.
    fn limit_us(&self, timeout_us: u32) -> u32;
}

/// Nobody else's.
pub struct OwnCore;

impl Core for OwnCore {
    const POLLS: bool = true;

    #[inline(always)]
    fn claim(&self) -> bool {
        true
    }

    #[inline(always)]
    fn give_up(&self) {}

    #[inline(always)]
    fn limit_us(&self, timeout_us: u32) -> u32 {
        timeout_us
    }
}

/// Shared with other slots, of this worker and of others.
pub struct SharedCore {
    /// Of all slots of this worker.
    pub claim: Arc<CoreClaim>,
    /// In which the agent says whether it is somebody else's turn.
    pub usage: Arc<UsageBlock>,
    /// No invocation lasts longer.
    pub call_limit_us: u32,
}

impl Core for SharedCore {
    const POLLS: bool = false;

    #[inline]
    fn claim(&self) -> bool {
        !self.usage.is_held_back() && self.claim.try_claim()
    }

    #[inline]
    fn give_up(&self) {
        self.claim.give_up();
    }

    #[inline]
    fn limit_us(&self, timeout_us: u32) -> u32 {
        match timeout_us {
            0 => self.call_limit_us,
            timeout_us => timeout_us.min(self.call_limit_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::claim::ClaimFile;

    #[test]
    fn a_slot_that_is_held_back_does_not_claim_and_none_runs_without_an_end() {
        let file = ClaimFile::create().expect("a memfd");
        let claim = CoreClaim::attach(file.fd().try_clone_to_owned().expect("a descriptor"));
        let core = SharedCore {
            claim: Arc::new(claim.expect("it can be locked")),
            usage: Arc::new(UsageBlock::create(1).expect("memory")),
            call_limit_us: 1000,
        };
        core.usage.hold_back(true);
        assert!(!core.claim());
        core.usage.hold_back(false);
        assert!(core.claim());
        assert!(!core.claim(), "another slot has it");
        core.give_up();
        assert!(core.claim());
        assert_eq!([0, 5, 5000].map(|asked| core.limit_us(asked)), [1000, 5, 1000]);
        assert_eq!([0, 5, 5000].map(|asked| OwnCore.limit_us(asked)), [0, 5, 5000]);
    }
}
