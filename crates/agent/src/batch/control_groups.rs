//! Control groups of Slurm's jobs: what the kernel lets each job use.
//!
//! Version 1: `cpuset/slurm/uid_U/job_J`, and the same below `memory` and `devices`; version 2:
//! `system.slice/slurmstepd.scope/job_J`. If several slurmd run on a node, the names `slurm` and `slurmstepd.scope`
//! contain the node's name. Versions of Slurm that name a job's group by another identifier were not tested.

use hotlease_wire::batch::CORE_MAX;
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Folder where control groups are mounted.
pub(crate) const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// Largest number of job groups on one node.
const GROUPS_MAX: usize = 8192;
/// Longest file that is read, bytes.
const BYTES_MAX: u64 = 64 << 10;
/// A memory limit of this many bytes or more means "no limit", for which version 1 writes the largest number of pages.
const UNLIMITED: u64 = 1 << 60;
/// Hierarchies of version 1 in which a job may have a group.
const HIERARCHIES: [&str; 4] = ["cpuset", "memory", "devices", "freezer"];
/// Folder of version 2 that is beside the jobs' folders and belongs to no job.
const NO_JOB: &str = "system";
/// Major numbers of NVIDIA's devices, and of render nodes, whose minor numbers begin at 128.
const NVIDIA: &str = "195";
const RENDER: &str = "226";

/// Control groups below a folder.
#[derive(Debug)]
pub(crate) struct ControlGroups {
    root: PathBuf,
}

/// Groups of the jobs on a node, by name: the job's number, or the name that the batch system uses in its place.
pub(crate) type GroupListing = BTreeMap<String, JobGroup>;

/// Folders of one job.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct JobGroup {
    /// Folders by the name of their hierarchy. Version 2 has one hierarchy, without a name.
    folders: BTreeMap<&'static str, PathBuf>,
    /// Whether the job has two folders in the same hierarchy.
    is_ambiguous: bool,
}

/// Resources that the kernel lets a job use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    pub cores: BTreeSet<u32>,
    pub memory_bytes: u64,
    pub gpus: GroupGpus,
}

/// GPUs of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupGpus {
    /// All GPUs of the node.
    All,
    /// The GPUs with these numbers.
    Listed(BTreeSet<u32>),
    /// The group's files do not name GPUs: version 2 has its list of devices in a kernel program, which cannot be read.
    Untold,
}

impl ControlGroups {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Groups of jobs that exist now.
    pub fn list(&self) -> io::Result<GroupListing> {
        let mut listing = GroupListing::new();
        for hierarchy in HIERARCHIES {
            let is_slurm = |name: &str| name == "slurm" || name.starts_with("slurm_");
            for slurm in folders_in(&self.root.join(hierarchy), is_slurm)? {
                for user in folders_in(&slurm, |name| name.starts_with("uid_"))? {
                    for job in folders_in(&user, |name| name.starts_with("job_"))? {
                        add(&mut listing, hierarchy, job)?;
                    }
                }
            }
        }
        let is_scope = |name: &str| name == "slurmstepd.scope" || name.ends_with("_slurmstepd.scope");
        for scope in folders_in(&self.root.join("system.slice"), is_scope)? {
            for job in folders_in(&scope, |name| name != NO_JOB)? {
                add(&mut listing, "", job)?;
            }
        }
        Ok(listing)
    }
}

/// Paths of the folders in `folder` whose names pass; empty if `folder` does not exist.
fn folders_in(folder: &Path, passes: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            // The entry was removed after the folder was opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name().to_str().is_some_and(&passes) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn add(listing: &mut GroupListing, hierarchy: &'static str, folder: PathBuf) -> io::Result<()> {
    if listing.len() == GROUPS_MAX {
        return Err(io::Error::other(format!("there are more than {GROUPS_MAX} jobs")));
    }
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_prefix("job_").unwrap_or(name).to_owned();
    let group = listing.entry(name).or_default();
    group.is_ambiguous |= group.folders.insert(hierarchy, folder).is_some();
    Ok(())
}

impl JobGroup {
    /// Resources that the kernel lets the job use; the error says what cannot be read.
    pub fn limits(&self) -> Result<GroupLimits, String> {
        if self.is_ambiguous {
            return Err("it has two control groups".into());
        }
        match self.folders.get("") {
            Some(_) if self.folders.len() > 1 => Err("it has control groups of both versions".into()),
            Some(folder) => limits_v2(folder),
            None => self.limits_v1(),
        }
    }

    fn limits_v1(&self) -> Result<GroupLimits, String> {
        let folder = |hierarchy| {
            let folder = self.folders.get(hierarchy);
            folder.ok_or_else(|| format!("it has no control group for {hierarchy}"))
        };
        let cpuset = folder("cpuset")?;
        let mut cores = cores_in(&read(&cpuset.join("cpuset.cpus"))?)?;
        // Kernels before 3.17 do not have this file. While a change takes effect, only one of the two files may list a
        // core that the job can use.
        if let Some(text) = read_if_there(&cpuset.join("cpuset.effective_cpus"))? {
            cores.extend(cores_in(&text)?);
        }
        let gpus = match self.folders.get("devices") {
            Some(folder) => gpus_in(&read(&folder.join("devices.list"))?),
            None => GroupGpus::Untold,
        };
        Ok(GroupLimits {
            cores: not_empty(cores)?,
            memory_bytes: memory_in(&read(&folder("memory")?.join("memory.limit_in_bytes"))?)?,
            gpus,
        })
    }
}

fn limits_v2(folder: &Path) -> Result<GroupLimits, String> {
    let mut cores = cores_in(&read(&folder.join("cpuset.cpus.effective"))?)?;
    cores.extend(cores_in(&read(&folder.join("cpuset.cpus"))?)?);
    Ok(GroupLimits {
        cores: not_empty(cores)?,
        memory_bytes: memory_in(&read(&folder.join("memory.max"))?)?,
        gpus: GroupGpus::Untold,
    })
}

fn not_empty(cores: BTreeSet<u32>) -> Result<BTreeSet<u32>, String> {
    match cores.is_empty() {
        true => Err("its control group names no core".into()),
        false => Ok(cores),
    }
}

fn read(path: &Path) -> Result<String, String> {
    read_if_there(path)?.ok_or_else(|| format!("{} is not there", path.display()))
}

fn read_if_there(path: &Path) -> Result<Option<String>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(format!("{} is longer than {BYTES_MAX} bytes", path.display())),
        false => Ok(Some(text)),
    }
}

/// Cores of a list such as `0-3,8`.
fn cores_in(text: &str) -> Result<BTreeSet<u32>, String> {
    let bad = || format!("{:?} is no list of cores", text.trim());
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| bad())?;
        let last: u32 = last.parse().map_err(|_| bad())?;
        if first > last || last > CORE_MAX {
            return Err(bad());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// Bytes of a memory limit; `u64::MAX` if there is no limit.
fn memory_in(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if text == "max" {
        return Ok(u64::MAX);
    }
    let bytes: u64 = text.parse().map_err(|_| format!("{text:?} is no limit of memory"))?;
    Ok(if bytes >= UNLIMITED { u64::MAX } else { bytes })
}

/// GPUs of the devices that a group may use, one device a line: `c 195:0 rwm`. A line that cannot be parsed could name
/// any GPU, so the result is then all GPUs.
fn gpus_in(text: &str) -> GroupGpus {
    let mut gpus = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, numbers, access] = words[..] else {
            return GroupGpus::All;
        };
        // The permission to create a device's file (`m`) does not include the use of the device.
        if kind == "b" || !access.contains(['r', 'w']) {
            continue;
        }
        let Some((major, minor)) = numbers.split_once(':') else {
            return GroupGpus::All;
        };
        let first = match major {
            NVIDIA => 0,
            RENDER => 128,
            "*" => return GroupGpus::All,
            _ if kind == "a" => return GroupGpus::All,
            _ => continue,
        };
        match minor.parse::<u32>() {
            // Devices that control all GPUs (NVIDIA: 254 and 255) and devices of screens are not GPUs.
            Ok(minor) => gpus.extend(
                minor
                    .checked_sub(first)
                    .filter(|gpu| *gpu < GPUS_PER_AGENT_MAX && (major != NVIDIA || *gpu < 254)),
            ),
            Err(_) => return GroupGpus::All,
        }
    }
    GroupGpus::Listed(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a folder.
    fn files(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }

    fn limits(root: &Path, job: &str) -> Result<GroupLimits, String> {
        let listing = ControlGroups::new(root.to_owned()).list().expect("a listing");
        listing.get(job).ok_or("it is not there")?.limits()
    }

    #[test]
    fn groups_of_version_1_are_read_with_their_devices() {
        let root = tempfile::tempdir().expect("a folder");
        let job = "slurm/uid_1000/job_17";
        files(
            root.path(),
            &[
                (&format!("cpuset/{job}/cpuset.cpus"), "2-3\n"),
                (&format!("cpuset/{job}/cpuset.effective_cpus"), "2-3\n"),
                (&format!("cpuset/{job}/step_0/cpuset.cpus"), "2\n"),
                (&format!("memory/{job}/memory.limit_in_bytes"), "4294967296\n"),
                (
                    &format!("devices/{job}/devices.list"),
                    "c 1:3 rwm\nc 195:1 rwm\nc 195:255 rwm\n",
                ),
            ],
        );
        let expected = GroupLimits {
            cores: [2, 3].into(),
            memory_bytes: 4 << 30,
            gpus: GroupGpus::Listed([1].into()),
        };
        assert_eq!(limits(root.path(), "17"), Ok(expected.clone()));
        // A change that has not taken effect yet: the job may use both its old and its new cores.
        files(root.path(), &[(&format!("cpuset/{job}/cpuset.cpus"), "5")]);
        assert_eq!(
            limits(root.path(), "17").map(|limits| limits.cores),
            Ok([2, 3, 5].into())
        );
        fs::remove_dir_all(root.path().join("devices")).expect("it is gone");
        assert_eq!(
            limits(root.path(), "17").map(|limits| limits.gpus),
            Ok(GroupGpus::Untold)
        );
        fs::remove_dir_all(root.path().join("memory")).expect("it is gone");
        let why = limits(root.path(), "17").expect_err("no limit of memory");
        assert!(why.contains("memory"), "{why}");
        // Two slurmd on one node, with a job of the same number.
        files(root.path(), &[("cpuset/slurm_n1/uid_0/job_17/cpuset.cpus", "0")]);
        assert!(limits(root.path(), "17").is_err());
    }

    #[test]
    fn groups_of_version_2_are_read_also_with_other_names() {
        let root = tempfile::tempdir().expect("a folder");
        let scope = "system.slice/slurmstepd.scope";
        files(
            root.path(),
            &[
                (&format!("{scope}/job_17/cpuset.cpus"), "0,4-5"),
                (&format!("{scope}/job_17/cpuset.cpus.effective"), "0,4-5"),
                (&format!("{scope}/job_17/memory.max"), "1048576"),
                (&format!("{scope}/job_18/cpuset.cpus"), "\n"),
                (&format!("{scope}/job_18/cpuset.cpus.effective"), "0-7"),
                (&format!("{scope}/job_18/memory.max"), "max"),
                (&format!("{scope}/sABC/cpuset.cpus"), "1"),
                (&format!("{scope}/system/cpuset.cpus"), "1"),
                ("system.slice/n1_slurmstepd.scope/job_19/memory.max", "1"),
                ("system.slice/sshd.service/job_20/memory.max", "1"),
            ],
        );
        let listing = ControlGroups::new(root.path().to_owned()).list().expect("a listing");
        assert_eq!(listing.keys().collect::<Vec<_>>(), ["17", "18", "19", "sABC"]);
        let job = limits(root.path(), "17").expect("limits");
        assert_eq!((job.cores, job.memory_bytes), ([0, 4, 5].into(), 1 << 20));
        let unlimited = limits(root.path(), "18").expect("limits");
        assert_eq!((unlimited.cores.len(), unlimited.memory_bytes), (8, u64::MAX));
        for (job, file) in [("19", "cpuset.cpus"), ("sABC", "cpuset.cpus.effective")] {
            let why = limits(root.path(), job).expect_err("a file is missing");
            assert!(why.contains(file), "{why}");
        }
    }

    #[test]
    fn without_control_groups_there_are_none() {
        let root = tempfile::tempdir().expect("a folder");
        let groups = ControlGroups::new(root.path().join("nowhere"));
        assert_eq!(groups.list().expect("a listing"), GroupListing::new());
        files(root.path(), &[("cpuset", "a file")]);
        assert!(ControlGroups::new(root.path().to_owned()).list().is_err());
    }

    #[test]
    fn lists_of_cores_and_limits_are_read_or_refused() {
        for (text, cores) in [
            ("", vec![]),
            ("\n", vec![]),
            ("0\n", vec![0]),
            ("0-2,7", vec![0, 1, 2, 7]),
        ] {
            assert_eq!(cores_in(text).map(|cores| cores.into_iter().collect()), Ok(cores));
        }
        for bad in [
            "x",
            "1-",
            "-1",
            "3-1",
            "0-65536",
            "0-4294967295",
            "1,,2",
            "1-2-3",
            "0-7:2",
            "18446744073709551616",
        ] {
            assert!(cores_in(bad).is_err(), "{bad:?}");
        }
        for (text, bytes) in [
            ("0", 0),
            ("max\n", u64::MAX),
            ("9223372036854771712", u64::MAX),
            ("4096\n", 4096),
        ] {
            assert_eq!(memory_in(text), Ok(bytes));
        }
        for bad in ["", "-1", "1G", "99999999999999999999"] {
            assert!(memory_in(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn devices_that_are_not_understood_are_all_gpus() {
        let listed = |gpus: &[u32]| GroupGpus::Listed(gpus.iter().copied().collect());
        for (text, gpus) in [
            ("", listed(&[])),
            ("c *:* m\nb *:* rwm\nc 1:3 rwm", listed(&[])),
            ("c 195:0 rwm\nc 195:3 rw\nc 195:255 rw\nc 195:254 rw", listed(&[0, 3])),
            ("c 226:129 rw\nc 226:1 rw", listed(&[1])),
            ("a *:* rwm", GroupGpus::All),
            ("c 195:* rwm", GroupGpus::All),
            ("c *:* rwm", GroupGpus::All),
            ("a 7:7 rwm", GroupGpus::All),
            ("nonsense", GroupGpus::All),
            ("c 195 rwm", GroupGpus::All),
        ] {
            assert_eq!(gpus_in(text), gpus, "{text:?}");
        }
    }
}
