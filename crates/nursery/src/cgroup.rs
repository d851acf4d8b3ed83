//! Control groups of workers (version 1 or 2): limits on memory, processes and cores, if the agent may set them.
//!
//! ```text
//! <the agent's own group>/hotlease-<pid>-<start>/<worker>      one for each controller in version 1
//! ```
//!
//! Nurseries make such groups for sandboxes, and the agent itself for workers without a sandbox. If a maker is killed,
//! its folders stay; the next maker removes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PREFIX: &str = "hotlease-";

/// Controller of memory.
pub const MEMORY: &str = "memory";
/// Controllers of a sandbox's group.
const OF_SANDBOX: &[&str] = &[MEMORY, "pids", "cpuset"];

/// Interval of looks at the groups in which the kernel kills single processes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Folder in which sandboxes get their groups, and the controllers of its hierarchy.
struct Hierarchy {
    folder: PathBuf,
    controllers: Vec<&'static str>,
    /// Whether it is of version 2.
    unified: bool,
}

/// Hierarchies in which the groups of sandboxes are made.
pub struct Groups {
    hierarchies: Vec<Hierarchy>,
    /// Number of groups that were made. It names the next group.
    next: u64,
    /// Time of the last look at kills.
    looked: Instant,
}

/// Control group of one worker. Only [`ControlGroup::remove`] removes it.
pub struct ControlGroup {
    /// Folder in each hierarchy, its controllers, and whether the hierarchy is of version 2.
    folders: Vec<(PathBuf, Vec<&'static str>, bool)>,
}

impl Groups {
    /// Makes folders for this process, with these controllers; returns the controllers that cannot be used, and why.
    /// `root`: the host's root, as this process sees it.
    pub fn find(root: &Path, wanted: &[&'static str]) -> (Self, Vec<(&'static str, String)>) {
        let mut groups = Self {
            hierarchies: Vec::new(),
            next: 0,
            looked: Instant::now(),
        };
        let mut why = String::from("the agent is in no control group");
        for candidate in candidates(root, wanted) {
            match candidate.prepare(root) {
                Ok(made) if made.controllers.is_empty() => {}
                Ok(made) => groups.hierarchies.push(made),
                Err(error) => why = error,
            }
        }
        let missing = wanted.iter().filter(|name| !groups.has(name));
        let missing = missing.map(|name| (*name, why.clone())).collect();
        (groups, missing)
    }

    /// Makes folders for the groups of sandboxes; returns the resources that cannot be limited, and why.
    pub(crate) fn of_sandboxes(root: &Path) -> (Self, Vec<String>) {
        let (groups, missing) = Self::find(root, OF_SANDBOX);
        let missing = missing.into_iter().map(|(name, why)| match name {
            MEMORY => format!("memory of a sandbox by the kernel: the agent looks at it now and then ({why})"),
            "pids" => format!("processes of a sandbox, except by its user's limit ({why})"),
            _ => format!("cores of a sandbox: its code may leave those of its lease ({why})"),
        });
        (groups, missing.collect())
    }

    fn has(&self, controller: &str) -> bool {
        self.hierarchies
            .iter()
            .any(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    /// Makes a group and puts this process into it.
    ///
    /// # Errors
    /// The kernel refuses; nothing of the group is left.
    pub fn make(&mut self, pid: libc::pid_t, processes: u32, memory_bytes: u64) -> io::Result<ControlGroup> {
        self.next += 1;
        let mut group = ControlGroup::none();
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.folder.join(self.next.to_string());
            let made = fs::create_dir(&folder);
            if made.is_ok() {
                let controllers = hierarchy.controllers.clone();
                group.folders.push((folder.clone(), controllers, hierarchy.unified));
            }
            let joined = made.and_then(|()| {
                if hierarchy.controllers.contains(&"cpuset") && !hierarchy.unified {
                    copy_cpuset(&hierarchy.folder, &folder)?;
                }
                if hierarchy.controllers.contains(&"pids") {
                    // Pid 1 is one more process.
                    fs::write(folder.join("pids.max"), (u64::from(processes) + 1).to_string())?;
                }
                fs::write(folder.join("cgroup.procs"), pid.to_string())
            });
            if let Err(error) = joined {
                group.remove();
                return Err(io::Error::other(format!("{}: {error}", folder.display())));
            }
        }
        if let Err(error) = group.limit_memory(memory_bytes) {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// Time of the next look for groups in which the kernel has killed a single process; `None` if no look is needed.
    /// Version 1 cannot kill all processes of a group, and the other processes would wait for ever.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let kills_one = |hierarchy: &Hierarchy| hierarchy.controllers.contains(&MEMORY) && !hierarchy.unified;
        let looks = self.hierarchies.iter().any(kills_one);
        looks.then(|| self.looked + LOOK_EVERY)
    }

    /// Notes that the groups are looked at now: the next look is due one interval later.
    pub(crate) fn note_look(&mut self) {
        self.looked = Instant::now();
    }

    /// Removes the folders of this process, once all groups in them are gone.
    pub fn close(&self) {
        for hierarchy in &self.hierarchies {
            remove_with_processes(&hierarchy.folder);
        }
    }
}

impl ControlGroup {
    /// A group without folders, which limits nothing.
    pub fn none() -> Self {
        Self { folders: Vec::new() }
    }

    /// Whether the group has this controller.
    pub fn has(&self, controller: &str) -> bool {
        self.folders.iter().any(|(_, with, _)| with.contains(&controller))
    }

    /// Moves a process, with all its threads, into the group.
    pub(crate) fn join(&self, pid: libc::pid_t) -> io::Result<()> {
        let mut folders = self.folders.iter();
        folders.try_for_each(|(folder, ..)| fs::write(folder.join("cgroup.procs"), pid.to_string()))
    }

    /// Limits the memory of all processes of the group together; 0 for no limit. If memory is short, the kernel kills
    /// all of them (version 2) or one of them ([`ControlGroup::read_oom_kill`]).
    ///
    /// # Errors
    /// The kernel refuses the limit.
    pub fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        for (folder, controllers, unified) in &self.folders {
            if !controllers.contains(&"memory") {
                continue;
            }
            // Kernels before 4.19 do not have this file.
            let all = folder.join("memory.oom.group");
            if *unified && all.exists() {
                fs::write(all, "1")?;
            }
            let none = if *unified { "max" } else { "-1" };
            let limit = if bytes == 0 { none.to_owned() } else { bytes.to_string() };
            let (plain, swap) = match unified {
                true => ("memory.max", "memory.swap.max"),
                false => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            };
            // In version 1 the limit of memory with swap is never below the limit of memory. So to raise both, the
            // limit with swap is raised first.
            let swap = folder.join(swap);
            let with_swap = if *unified && bytes != 0 {
                "0".to_owned()
            } else {
                limit.clone()
            };
            let set_swap = || match swap.exists() {
                true => fs::write(&swap, &with_swap),
                false => Ok(()),
            };
            let raised = set_swap();
            fs::write(folder.join(plain), &limit)?;
            raised.or_else(|_| set_swap())?;
        }
        Ok(())
    }

    /// Limits the group to these processors; if there are none, to all processors of the folder above.
    pub(crate) fn limit_cores(&self, cores: &[u32]) -> io::Result<()> {
        let list: Vec<String> = cores.iter().map(u32::to_string).collect();
        let sets = self.folders.iter().filter(|(_, with, _)| with.contains(&"cpuset"));
        for (folder, _, unified) in sets {
            let above = folder.parent().unwrap_or(folder);
            match (list.is_empty(), unified) {
                (true, true) => fs::write(folder.join("cpuset.cpus"), "\n")?,
                (true, false) => copy_cpuset(above, folder)?,
                (false, _) => fs::write(folder.join("cpuset.cpus"), list.join(","))?,
            }
        }
        Ok(())
    }

    /// Whether the kernel has killed a process of the group for lack of memory; `None` if the kernel does not report
    /// kills of this group.
    pub fn read_oom_kill(&self) -> Option<bool> {
        self.folders.iter().find_map(|(folder, _, unified)| {
            let file = if *unified {
                "memory.events"
            } else {
                "memory.oom_control"
            };
            let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
            let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            kills.map(|kills| kills.trim() != "0")
        })
    }

    /// Removes the group's folders; returns whether all are gone. A folder cannot be removed while a process is in it.
    pub fn remove(&mut self) -> bool {
        self.folders.retain(|(folder, ..)| match fs::remove_dir(folder) {
            Ok(()) => false,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
        self.folders.is_empty()
    }
}

/// One of the agent's groups, as the kernel lists it.
struct Candidate {
    /// Path of the agent's group, seen from the nursery.
    own: PathBuf,
    controllers: Vec<&'static str>,
    unified: bool,
}

fn known_controllers(wanted: &[&'static str], names: &str, separator: char) -> Vec<&'static str> {
    let is_named = |known: &&&str| names.split(separator).any(|name| name.trim() == **known);
    wanted.iter().filter(is_named).copied().collect()
}

/// Lists the agent's groups, which are also the nursery's groups, if their file systems are mounted.
fn candidates(root: &Path, wanted: &[&'static str]) -> Vec<Candidate> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounted = |wanted: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, at) = (place.next()?, place.next()?);
            let mut kind = kind.split(' ');
            let (name, _, options) = (kind.next()?, kind.next()?, kind.next()?);
            wanted(name, options).then(|| (root.to_owned(), PathBuf::from(at)))
        })
    };
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let unified = names.is_empty();
        let place = mounted(&|kind, options| match unified {
            true => kind == "cgroup2",
            false => {
                kind == "cgroup"
                    && options
                        .split(',')
                        .any(|option| names.split(',').any(|name| name == option))
            }
        });
        let Some((root, at)) = place else { continue };
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let own = at.join(below);
        let own = if below.as_os_str().is_empty() { at } else { own };
        let controllers = match unified {
            true => known_controllers(
                wanted,
                &fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default(),
                ' ',
            ),
            false => known_controllers(wanted, names, ','),
        };
        found.push(Candidate {
            own,
            controllers,
            unified,
        });
    }
    found
}

impl Candidate {
    fn prepare(self, root: &Path) -> Result<Hierarchy, String> {
        if self.controllers.is_empty() {
            return Ok(Hierarchy {
                folder: self.own,
                controllers: Vec::new(),
                unified: self.unified,
            });
        }
        match self.unified {
            // A group that has processes cannot hand controllers down, so sandboxes get a folder beside the agent's own
            // group.
            true => {
                let above = self.own.parent().filter(|above| above.join("cgroup.procs").exists());
                let tried = [Some(self.own.as_path()), above];
                let mut why = String::new();
                for place in tried.into_iter().flatten() {
                    match self.prepare_in(root, place) {
                        Ok(made) => return Ok(made),
                        Err(error) => why = format!("{}: {error}", display_path(place)),
                    }
                }
                Err(why)
            }
            false => self
                .prepare_in(root, &self.own)
                .map_err(|error| format!("{}: {error}", display_path(&self.own))),
        }
    }

    fn prepare_in(&self, root: &Path, place: &Path) -> io::Result<Hierarchy> {
        sweep(root, place);
        let folder = place.join(own_name(root));
        fs::create_dir(&folder)?;
        let mut made = Hierarchy {
            folder,
            controllers: self.controllers.clone(),
            unified: self.unified,
        };
        let enabled = match self.unified {
            true => enable(place, &made.folder, &mut made.controllers),
            false if made.controllers.contains(&"cpuset") => copy_cpuset(place, &made.folder),
            false => Ok(()),
        };
        if let Err(error) = enabled {
            // The folder is empty.
            let _ = fs::remove_dir(&made.folder);
            return Err(error);
        }
        Ok(made)
    }
}

/// The path without `/host`, for operators.
fn display_path(path: &Path) -> String {
    path.display().to_string().trim_start_matches("/host").to_owned()
}

/// Hands controllers down two levels in version 2. Fails only if no controller could be handed down.
fn enable(above: &Path, folder: &Path, controllers: &mut Vec<&'static str>) -> io::Result<()> {
    let mut last = io::Error::other("it has no controllers");
    controllers.retain(|name| {
        let given = [above, folder].iter().try_for_each(|at| {
            let control = at.join("cgroup.subtree_control");
            let has = fs::read_to_string(&control)?;
            match has.split_whitespace().any(|given| given == *name) {
                true => Ok(()),
                false => fs::write(control, format!("+{name}")),
            }
        });
        given.map_err(|error| last = error).is_ok()
    });
    if controllers.is_empty() { Err(last) } else { Ok(()) }
}

/// Copies processors and memory nodes from the group above: in version 1, both lists of a new group are empty.
fn copy_cpuset(from: &Path, to: &Path) -> io::Result<()> {
    for file in ["cpuset.mems", "cpuset.cpus"] {
        let own = fs::read_to_string(from.join(file))?;
        fs::write(to.join(file), own.trim())?;
    }
    Ok(())
}

fn own_name(root: &Path) -> String {
    let pid = std::process::id();
    format!("{PREFIX}{pid}-{}", start_time(root, pid).unwrap_or(0))
}

/// Start time of a process in the kernel's ticks. Together with the pid it makes a name that is never used again.
fn start_time(root: &Path, pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Removes the folders of makers that have ended.
fn sweep(root: &Path, place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let Some((pid, start)) = name.split_once('-') else {
            continue;
        };
        let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else {
            continue;
        };
        if start_time(root, pid) != Some(start) {
            remove_with_processes(&entry.path());
        }
    }
}

/// Removes a folder and the folders in it, as far as no process is left in them.
fn remove_with_processes(folder: &Path) {
    if let Ok(entries) = fs::read_dir(folder) {
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        folders.for_each(|entry| remove_with_processes(&entry.path()));
    }
    // The sandboxes of a nursery die with it, and the workers of an agent end. Processes that are still here are about
    // to end. The next sweep finds the folder empty.
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_out_of_memory_is_killed_as_a_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = ["memory.max", "memory.swap.max", "memory.oom.group"].map(|name| directory.path().join(name));
        for file in &files {
            fs::write(file, "").expect("written");
        }
        let group = ControlGroup {
            folders: vec![(directory.path().to_owned(), vec![MEMORY], true)],
        };
        group.limit_memory(1 << 20).expect("limited");
        let written = files.each_ref().map(|file| fs::read_to_string(file).expect("a text"));
        assert_eq!(written, ["1048576", "0", "1"]);
    }
}
