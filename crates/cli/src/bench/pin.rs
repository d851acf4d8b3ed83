//! Which core the client's thread runs on: never the slot's, where there is another.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where both ends run; `None`: not known, or not pinned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cores {
    pub(super) client: Option<usize>,
    pub(super) slot: Option<usize>,
}

/// The calling thread's affinity, restored on drop.
pub(super) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to a core that it may use and that is not `slot`. `None`, and nothing
    /// changed, if there is no such core.
    pub(super) fn away_from(slot: usize) -> Option<(Self, usize)> {
        let before = sched_getaffinity(Pid::from_raw(0)).ok()?;
        let core = (0..CpuSet::count()).find(|core| *core != slot && before.is_set(*core) == Ok(true))?;
        pin(core)?;
        Some((Self { before }, core))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The set was this thread's own a moment ago.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// The cores that the calling thread may use, in order.
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
