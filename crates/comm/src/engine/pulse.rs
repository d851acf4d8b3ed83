//! Who is alive: everybody says something in each beat, and who was not heard for some beats is not.

/// After so many beats without a sound a member is taken for dead.
const SILENT_BEATS_MAX: u32 = 4;
/// Beats in a failure bound: one more than that, for the beat in which the silence began.
pub(super) const BEATS: u32 = SILENT_BEATS_MAX + 1;

/// Counts the silence of each member.
pub(super) struct Pulse {
    silent: Vec<u32>,
}

impl Pulse {
    pub(super) fn new(members: usize) -> Self {
        Self {
            silent: vec![0; members],
        }
    }

    /// A beat is over; whether this member has been silent for too long.
    pub(super) fn beat(&mut self, member: usize, was_heard: bool) -> bool {
        let silent = &mut self.silent[member];
        *silent = if was_heard { 0 } else { *silent + 1 };
        *silent >= SILENT_BEATS_MAX
    }

    /// This process stood still: what others said meanwhile has not been read, and they are not to blame.
    pub(super) fn forgive(&mut self) {
        self.silent.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_only_without_a_break() {
        let mut pulse = Pulse::new(2);
        for _ in 0..10 {
            for _ in 0..SILENT_BEATS_MAX - 1 {
                assert!(!pulse.beat(0, false));
            }
            assert!(!pulse.beat(0, true));
        }
        for beat in 1..SILENT_BEATS_MAX {
            assert!(!pulse.beat(1, false), "beat {beat}");
        }
        pulse.forgive();
        assert!(!pulse.beat(1, false), "it was forgiven");
        for _ in 2..SILENT_BEATS_MAX {
            assert!(!pulse.beat(1, false));
        }
        assert!(pulse.beat(1, false));
    }
}
