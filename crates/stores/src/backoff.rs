//! Pauses between the reads of an object that is not there yet: short at first, since it is often on its way, then ever
//! longer, since each read is paid for.

use std::time::Duration;

/// Number of reads at the first pause.
const SOON: u32 = 10;

/// Growing pause.
pub(crate) struct Backoff {
    reads: u32,
    pause: Duration,
    pause_max: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            reads: 0,
            pause: first,
            pause_max: longest,
        }
    }

    /// Pause before the next read.
    pub(crate) fn pause(&mut self) -> Duration {
        self.reads = self.reads.saturating_add(1);
        if self.reads > SOON {
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
