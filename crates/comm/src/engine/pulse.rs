//! Pulse of members: each member sends something in every beat, and a member that was silent for some beats is dead.

/// Beats without a sound after which a member is taken for dead.
const SILENT_BEATS_MAX: u32 = 4;
/// Beats in a failure bound: one more than [`SILENT_BEATS_MAX`], for the beat in which the silence began.
pub(super) const BEATS: u32 = SILENT_BEATS_MAX + 1;

/// Silent beats of each member.
pub(super) struct Pulse {
    /// `None` until the member has sent something: it is not connected with all others yet.
    silent: Vec<Option<u32>>,
}

impl Pulse {
    pub(super) fn new(members: usize) -> Self {
        Self {
            silent: vec![None; members],
        }
    }

    /// Counts a beat of a member; returns whether the member has been silent for too long. While members are still
    /// joining, a member that was never heard may be silent.
    pub(super) fn count_beat(&mut self, member: usize, was_heard: bool, is_joining: bool) -> bool {
        let silent = match self.silent[member] {
            _ if was_heard => 0,
            None if is_joining => return false,
            silent => silent.unwrap_or(0) + 1,
        };
        self.silent[member] = Some(silent);
        silent >= SILENT_BEATS_MAX
    }

    /// Resets the counts because this process did not run for a while: it has not read the messages of the other
    /// members meanwhile, so their silence proves nothing.
    pub(super) fn reset(&mut self) {
        self.silent.iter_mut().flatten().for_each(|silent| *silent = 0);
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
                assert!(!pulse.count_beat(0, false, false));
            }
            assert!(!pulse.count_beat(0, true, false));
        }
        for beat in 1..SILENT_BEATS_MAX {
            assert!(!pulse.count_beat(1, false, false), "beat {beat}");
        }
        pulse.reset();
        assert!(!pulse.count_beat(1, false, false), "it was forgiven");
        for _ in 2..SILENT_BEATS_MAX {
            assert!(!pulse.count_beat(1, false, false));
        }
        assert!(pulse.count_beat(1, false, false));
    }

    #[test]
    fn a_member_that_still_joins_may_be_silent() {
        let mut pulse = Pulse::new(2);
        for _ in 0..10 * SILENT_BEATS_MAX {
            assert!(!pulse.count_beat(0, false, true) && !pulse.count_beat(1, false, true));
        }
        // Rank 0 was heard, so its silence counts from now on; rank 1 is never heard.
        assert!(!pulse.count_beat(0, true, true));
        for _ in 1..SILENT_BEATS_MAX {
            assert!(!pulse.count_beat(0, false, true) && !pulse.count_beat(1, false, false));
        }
        assert!(pulse.count_beat(0, false, true) && pulse.count_beat(1, false, false));
    }
}
