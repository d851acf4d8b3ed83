//! The core of a slot: the slot's own, or shared and claimed for each invocation.
//!
//! The slot's code is compiled once for each kind of core, so that a slot with a core of its own does not even check.

use hotlease_fabric::claim::CoreClaim;
use hotlease_fabric::usage::UsageBlock;
use std::sync::Arc;

/// The core of a slot, claimed before each invocation and given up after it.
pub trait Core: Send + 'static {
    /// Whether the time between a wake-up and the next request is recorded as polling. On a shared core other slots run
    /// in that time.
    const POLLS: bool;
    /// Claims the core; returns false at once if that is not possible now.
    fn claim(&self) -> bool;
    /// Gives up the claim.
    fn give_up(&self);
    /// Time limit of an invocation that asks for `timeout_us` (0 for unlimited), microseconds.
    fn limit_us(&self, timeout_us: u32) -> u32;
}

/// A core that belongs to one slot alone.
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

/// A core that is shared with other slots, of this worker and of other workers.
pub struct SharedCore {
    /// The claim that all slots of this worker use.
    pub claim: Arc<CoreClaim>,
    /// Usage block, in which the agent marks another tenant's turn.
    pub usage: Arc<UsageBlock>,
    /// Longest invocation, microseconds.
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
        self.claim.release();
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
