//! Placement of the client's thread: on another core than the slot, if there is one.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Cores of both ends; `None` if the core is unknown or the thread is not pinned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cores {
    pub(super) client: Option<usize>,
    pub(super) slot: Option<usize>,
}

/// Previous affinity of the calling thread, which is restored on drop.
pub(super) struct AffinityGuard {
    before: CpuSet,
}

impl AffinityGuard {
    /// Pins the calling thread to an allowed core other than `slot`. Returns `None`, and changes nothing, if there is
    /// no allowed core other than `slot`.
    pub(super) fn away_from(slot: usize) -> Option<(Self, usize)> {
        let before = sched_getaffinity(Pid::from_raw(0)).ok()?;
        let core = (0..CpuSet::count()).find(|core| *core != slot && before.is_set(*core) == Ok(true))?;
        pin(core)?;
        Some((Self { before }, core))
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // Cannot fail in practice: the thread had this set before.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// Cores that the calling thread may use, in order.
pub(super) fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    (0..CpuSet::count())
        .filter(|core| set.is_set(*core) == Ok(true))
        .collect()
}

/// Pins the calling thread, and threads that it starts later, to a core.
pub(super) fn pin(core: usize) -> Option<()> {
    let mut only = CpuSet::new();
    only.set(core).ok()?;
    sched_setaffinity(Pid::from_raw(0), &only).ok()
}
