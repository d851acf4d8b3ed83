//! Processors of threads that wait for each other: each thread prefers one processor.

use super::{SwitchCount, THREAD};
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const THIS: Pid = Pid::from_raw(0);

/// Processor that a thread prefers to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnProcessor(usize);

impl OwnProcessor {
    /// Returns number `index` of the processors that the calling thread may use, in this order: one processor of each
    /// core, then the other processors. Returns `None` if there are fewer processors, or if they are unknown (as on a
    /// host with more than 1,024).
    pub fn of(index: usize) -> Option<Self> {
        let all = sched_getaffinity(THIS).ok()?;
        let usable = (0..CpuSet::count()).filter(|processor| all.is_set(*processor) == Ok(true));
        in_order(usable, first_of_core).nth(index).map(Self)
    }

    /// Moves the calling thread to this processor, if the thread may use it. The thread's affinity stays as it was.
    /// Returns `false` if the thread is there already, or cannot be moved. A move ends the thread's pause.
    ///
    /// Meant for threads that wait for each other and happen to be on one processor: they hardly ever run at the same
    /// time, so the kernel does not separate them. From then on the kernel treats the affinity as set by the user, so
    /// the thread does not use processors that are added to its control group later.
    #[cold]
    pub fn occupy(self) -> bool {
        let (Ok(all), Ok(present)) = (sched_getaffinity(THIS), sched_getcpu()) else {
            return false;
        };
        if present == self.0 || all.is_set(self.0) != Ok(true) || set([self.0]).is_none() {
            return false;
        }
        if sched_setaffinity(THIS, &all).is_err() {
            // The control group has changed meanwhile. This asks for all processors; the kernel leaves out the
            // processors that are not in the group.
            set(0..CpuSet::count());
        }
        THREAD.with_borrow_mut(|thread| {
            thread.record.end_pause();
            thread.switches = SwitchCount::now();
        });
        true
    }
}

/// Restricts the calling thread to these processors.
fn set(processors: impl IntoIterator<Item = usize>) -> Option<()> {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(processor).ok()?;
    }
    sched_setaffinity(THIS, &set).ok()
}

/// Number of the first processor of the same core.
fn first_of_core(processor: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).unwrap_or_default();
    let first = siblings.split([',', '-', '\n']).next();
    first.and_then(|first| first.parse().ok()).unwrap_or(processor)
}

/// One processor of each core, then the others.
fn in_order(usable: impl Iterator<Item = usize>, core_of: impl Fn(usize) -> usize) -> impl Iterator<Item = usize> {
    let mut cores = Vec::new();
    let (firsts, others): (Vec<_>, Vec<_>) = usable.partition(|processor| {
        let core = core_of(*processor);
        let is_new = !cores.contains(&core);
        cores.push(core);
        is_new
    });
    firsts.into_iter().chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::is_contended;
    use std::time::Instant;

    #[test]
    fn threads_move_to_processors_of_their_own_and_may_use_all_as_before() {
        let all = sched_getaffinity(THIS).expect("processors");
        let number = (0..CpuSet::count())
            .filter(|core| all.is_set(*core) == Ok(true))
            .count();
        assert_eq!(OwnProcessor::of(number), None);
        for index in 0..number {
            let own = OwnProcessor::of(index).expect("there is one");
            let now = Instant::now();
            THREAD.with_borrow_mut(|thread| {
                let at = thread.ns(now);
                thread.record.note_preemption(u64::MAX, at);
            });
            let has_moved = own.occupy();
            assert_eq!(sched_getaffinity(THIS), Ok(all));
            assert!(!has_moved || !is_contended(), "the pause was that of another core");
        }
        let own = OwnProcessor::of(number - 1).expect("there is one");
        let mut one = CpuSet::new();
        one.set(sched_getcpu().expect("a processor")).expect("in range");
        sched_setaffinity(THIS, &one).expect("pinned");
        assert!(!own.occupy(), "it is there, or may not go there");
        assert_eq!(sched_getaffinity(THIS), Ok(one));
    }

    #[test]
    fn each_core_comes_once_before_its_other_processors() {
        let apart = in_order(0..8, |processor| processor % 4);
        assert_eq!(apart.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let beside = in_order(1..7, |processor| processor / 2 * 2);
        assert_eq!(beside.collect::<Vec<_>>(), [1, 2, 4, 6, 3, 5]);
    }
}
