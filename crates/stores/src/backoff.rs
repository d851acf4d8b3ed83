//! Pauses between the reads of an object that does not exist yet. They are short at first, because the object is often
//! about to be written, and then longer each time, because each read costs money.

use std::time::Duration;

/// Number of reads with the first pause.
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
