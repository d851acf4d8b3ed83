//! Redirects of an invocation whose slot finds its core taken: to other slots first, then a pause.
//!
//! Redirects are bounded on purpose. Each refusal costs a wake-up on the slot's node. So clients that ask again and
//! again would disturb the invocation that has the core.

use std::time::Duration;

/// Largest number of other slots that are tried between two pauses.
pub const REDIRECTS_MAX: u32 = 8;
/// The first pause: about two wake-ups of a slot.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// The longest pause: a tenth of a turn on a shared core.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The next step after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// Try another slot at once.
    ToAnother,
    /// Enough slots were tried: try again after this pause.
    After(Duration),
}

/// The redirects of one invocation.
#[derive(Debug, Clone)]
pub struct Redirects {
    tried: u32,
    pauses: u32,
    random: u64,
}

impl Redirects {
    /// Makes the redirects of an invocation that no slot has refused yet. `seed` must differ between invocations, so
    /// that they are not all submitted again at the same moment.
    pub fn new(seed: u64) -> Self {
        Self {
            tried: 0,
            pauses: 0,
            random: seed | 1,
        }
    }

    /// Counts a refusal. `workers` is the number of workers with slots that may be tried (the slots of one worker share
    /// its core).
    pub fn count_refusal(&mut self, workers: usize) -> Redirect {
        self.tried += 1;
        let workers = u32::try_from(workers).unwrap_or(REDIRECTS_MAX);
        if self.tried < workers.min(REDIRECTS_MAX) {
            return Redirect::ToAnother;
        }
        self.tried = 0;
        let most = PAUSE_MIN.saturating_mul(1 << self.pauses.min(16)).min(PAUSE_MAX);
        self.pauses += 1;
        // Draws a pause between half of `most` and all of it.
        let half = most.as_nanos() as u64 / 2;
        Redirect::After(Duration::from_nanos(half + self.draw() % (half + 1)))
    }

    /// Draws a number by xorshift64, which is enough because the numbers only need to differ.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_worker_is_tried_once_before_each_pause() {
        let mut redirects = Redirects::new(7);
        for _ in 0..3 {
            for _ in 0..3 {
                assert_eq!(redirects.count_refusal(4), Redirect::ToAnother);
            }
            assert!(matches!(redirects.count_refusal(4), Redirect::After(_)));
        }
        assert!(
            matches!(Redirects::new(7).count_refusal(1), Redirect::After(_)),
            "there is no other"
        );
    }

    #[test]
    fn refusals_are_not_answered_by_a_storm() {
        for seed in 0..100 {
            let mut redirects = Redirects::new(seed);
            let (mut waited, mut tries, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
            while waited < Duration::from_secs(1) {
                tries += 1;
                if let Redirect::After(pause) = redirects.count_refusal(1000) {
                    assert!(pause <= PAUSE_MAX && pause >= PAUSE_MIN / 2, "seed {seed}: {pause:?}");
                    waited += pause;
                    longest = longest.max(pause);
                }
            }
            // Once the pauses have grown, eight tries take at least half a millisecond.
            assert!(tries <= 8 * 2010, "seed {seed}: {tries} tries in a second");
            assert!(longest > PAUSE_MAX * 3 / 4, "seed {seed}: the pauses do not grow");
        }
    }

    #[test]
    fn two_invocations_do_not_come_back_together() {
        let pauses = |seed| {
            let mut redirects = Redirects::new(seed);
            (0..10).map(|_| redirects.count_refusal(1)).collect::<Vec<_>>()
        };
        assert_ne!(pauses(2), pauses(4));
    }
}
