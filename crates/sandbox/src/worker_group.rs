//! Control groups of workers without a sandbox: each limits the memory of a worker and of all processes that it starts.
//!
//! Joining a group takes the kernel up to about 20 ms, so a worker joins while it starts. A lease then only sets the
//! limit.

use hotlease_nursery::cgroup::{ControlGroup, Groups, MEMORY};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Pause between attempts to remove the groups of ended workers, when the process ends.
const REMOVE_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Time limit for all attempts to remove groups when the process ends.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// The folder for the groups of this process's workers. There is only one, because it is named after the process.
pub(crate) struct WorkerGroups {
    found: OnceLock<Result<Mutex<FoundGroups>, String>>,
}

struct FoundGroups {
    groups: Groups,
    /// Groups of ended workers that could not be removed yet.
    dying: Vec<ControlGroup>,
}

impl FoundGroups {
    /// Tries again to remove groups that were busy. Returns whether all of them are gone.
    fn remove_dying(&mut self) -> bool {
        self.dying.retain_mut(|group| !group.remove());
        self.dying.is_empty()
    }
}

static SHARED: Mutex<Weak<WorkerGroups>> = Mutex::new(Weak::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerGroups {
    /// The groups of this process. Nothing is made before the first worker.
    pub fn shared() -> Arc<Self> {
        let mut shared = locked(&SHARED);
        shared.upgrade().unwrap_or_else(|| {
            let groups = Arc::new(Self { found: OnceLock::new() });
            *shared = Arc::downgrade(&groups);
            groups
        })
    }

    /// Returns a value without groups, as on a host without control groups.
    #[cfg(test)]
    pub fn none() -> Arc<Self> {
        let found = OnceLock::from(Err("there are none in this test".to_owned()));
        Arc::new(Self { found })
    }

    fn found(&self) -> Result<&Mutex<FoundGroups>, &str> {
        let found = self.found.get_or_init(|| {
            let (groups, missing) = Groups::find(Path::new("/"), &[MEMORY]);
            match missing.into_iter().next() {
                Some((_, why)) => Err(why),
                None => Ok(Mutex::new(FoundGroups {
                    groups,
                    dying: Vec::new(),
                })),
            }
        });
        found.as_ref().map_err(String::as_str)
    }

    /// Returns the reason if the kernel does not limit the memory of workers here.
    pub fn lacking(&self) -> Option<String> {
        let why = self.found().err()?;
        Some(format!(
            "memory of a worker by the kernel: the agent looks at it now and then ({why})"
        ))
    }
}

impl Drop for WorkerGroups {
    fn drop(&mut self) {
        if let Some(Ok(found)) = self.found.get() {
            let found = &mut *locked(found);
            // Groups are busy for a moment after their last process.
            let until = Instant::now() + REMOVED_WITHIN;
            while !found.remove_dying() && Instant::now() < until {
                std::thread::sleep(REMOVE_AGAIN_AFTER);
            }
            found.groups.close();
        }
    }
}

/// The group of one worker.
pub(crate) struct WorkerGroup {
    groups: Arc<WorkerGroups>,
    pid: u32,
    /// `None` if the worker has no group.
    made: OnceLock<Option<Mutex<ControlGroup>>>,
}

impl WorkerGroup {
    pub fn new(groups: Arc<WorkerGroups>, pid: u32) -> Self {
        Self {
            groups,
            pid,
            made: OnceLock::new(),
        }
    }

    /// Puts the worker into a group of its own, unless it has one already or this host has no groups. Blocks for
    /// milliseconds.
    pub fn join(&self) -> Option<&Mutex<ControlGroup>> {
        let made = self.made.get_or_init(|| {
            let mut found = locked(self.groups.found().ok()?);
            // The limit on processes is not in use.
            found.groups.make(self.pid as i32, 0, 0).ok().map(Mutex::new)
        });
        made.as_ref()
    }

    /// Limits the memory of the worker and of all processes that it starts; returns whether the kernel does so.
    pub fn limit(&self, bytes: u64) -> io::Result<bool> {
        match self.join() {
            Some(group) => locked(group).limit_memory(bytes).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether the kernel has killed a process of the group for lack of memory. Returns `None` if it does not count
    /// these kills.
    pub fn read_oom_kill(&self) -> Option<bool> {
        locked(self.made.get()?.as_ref()?).read_oom_kill()
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        let Some(Some(made)) = self.made.take() else { return };
        let mut group = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Ok(found) = self.groups.found() else { return };
        let mut found = locked(found);
        found.remove_dying();
        if !group.remove() {
            // Processes that have left the worker's process group continue to run, without the worker's limit.
            let _ = group.limit_memory(0);
            found.dying.push(group);
        }
    }
}
