//! When to ask a store again that had nothing: a few times soon, since what is waited for is often on its way, then ever more seldom, since
//! each question is paid for.

use std::time::Duration;

/// How often it is asked at the first pause.
const SOON: u32 = 10;

/// See the module.
pub(super) struct Backoff {
    asked: u32,
    pause: Duration,
    pause_max: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            asked: 0,
            pause: first,
            pause_max: longest,
        }
    }

    /// How long to wait before the next question.
    pub(super) fn pause(&mut self) -> Duration {
        self.asked = self.asked.saturating_add(1);
        if self.asked > SOON {
            self.pause = (self.pause * 2).min(self.pause_max);
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_short_at_first_then_double_and_have_an_end() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(5), ms(100));
        let pauses: Vec<_> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[..10].iter().all(|pause| *pause == ms(5)));
        assert_eq!(pauses[10..15], [10, 20, 40, 80, 100].map(ms));
        assert_eq!(pauses[19], ms(100));
    }
}
