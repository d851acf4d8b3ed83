//! Memory that a worker holds: its process and the processes that it started, as far as the kernel lists them.
//!
//! A listing shows resident memory. If no control group enforces a limit, the limit is compared with the worker's own
//! memory: private pages, and memory files and shared mappings that the worker made. Pages of libraries and the buffers
//! that hotlease shares with clients do not count.
//!
//! A file in the node's `/dev/shm` may belong to another program. A control group would charge its pages to the process
//! that touched them first. Here the pages that the worker maps count, unless the file is older than the worker or
//! processes outside the worker map the same pages. A file that is open but not mapped does not count while it has a
//! name.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

/// Largest number of processes of one worker that are examined.
const FAMILY_MAX: usize = 4096;
/// Longest time that a listing spends on counting each shared page only once, for which the kernel visits all pages of
/// each process. After that, shared pages of the remaining processes count for each process.
const EXACT_LIMIT: Duration = Duration::from_millis(100);
/// Beginning of the names of hotlease's own memory files, which clients share with workers.
const OWN_FILES: &str = "/memfd:hotlease";
/// Folder of files in memory that processes share.
const SHARED_FOLDER: &str = "/dev/shm";
/// Beginnings of the names of memory files, of files in the shared folder, and of shared mappings.
const MEMORY_FILES: [&str; 4] = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"];
/// Bytes of a block in the numbers of a file's metadata.
const BLOCK_BYTES: u64 = 512;

/// Device and number of a file.
type FileId = (u64, u64);

/// Mappings of a memory file in a worker's processes.
#[derive(Default)]
struct MappedFile {
    name: String,
    /// Bytes of the pages in these mappings. A page that N processes map counts as 1/N of its size.
    part: u64,
    /// Resident pages of the largest mapping, bytes.
    largest: u64,
}

impl MappedFile {
    /// Whether processes outside the worker map the pages, too. Otherwise the parts of the worker's processes add up to
    /// whole pages.
    fn is_shared_with_others(&self) -> bool {
        self.part + self.largest / 64 < self.largest
    }

    fn is_older_than(&self, file: FileId, time: Option<SystemTime>) -> bool {
        let found = fs::metadata(&self.name).ok().filter(|found| id_of(found) == file);
        let born = found.and_then(|found| found.created().ok());
        born.is_some_and(|born| time.is_some_and(|time| born < time))
    }
}

fn id_of(metadata: &fs::Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Resident memory of a process and its descendants, bytes; `None` once the process is gone. Takes [`EXACT_LIMIT`] at
/// most, however many processes there are.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    resident_within(pid, EXACT_LIMIT)
}

fn resident_within(pid: u32, limit: Duration) -> Option<u64> {
    let (begun, first) = (Instant::now(), status(pid)?.resident);
    let family = family(pid);
    if family.len() == 1 {
        return Some(first);
    }
    // Counts pages that several of the processes share only once, until the time limit.
    let exact = |pid: u32| match begun.elapsed() < limit {
        true => kilobytes(&read(pid, "smaps_rollup")?, "Pss:"),
        false => None,
    };
    let part = |pid: &u32| exact(*pid).or(Some(status(*pid)?.resident));
    Some(family.iter().filter_map(part).sum())
}

/// Compares the own memory of a process and its descendants with `limit`. Returns `Ok` with the bytes that are left, or
/// `Err` with the bytes in use if they exceed the limit. An exact count takes milliseconds for each gigabyte, so an
/// upper bound is checked first.
pub(crate) fn check_memory_limit(pid: u32, limit: u64) -> Result<u64, u64> {
    let family = family(pid);
    let shared_folder = fs::metadata(SHARED_FOLDER).ok().map(|folder| folder.dev());
    let is_in_folder = |(device, _): FileId| Some(device) == shared_folder;
    let mut files = HashMap::new();
    for pid in &family {
        add_open_files(*pid, is_in_folder, &mut files);
    }
    let open: u64 = files.values().sum();
    let states = family.iter().filter_map(|pid| status(*pid));
    let bound = states.fold(open, |sum, state| sum + state.private + state.shared);
    if bound <= limit {
        return Ok(limit - bound);
    }
    let private: u64 = family.iter().map(|pid| private_bytes(*pid)).sum();
    let mut mapped = HashMap::new();
    family.iter().for_each(|pid| add_mapped_files(*pid, &mut mapped));
    let start = start_time(pid);
    for (file, mapped) in mapped {
        let known = files.entry(file).or_default();
        *known = match is_in_folder(file) {
            true if mapped.is_shared_with_others() || mapped.is_older_than(file, start) => 0,
            true => mapped.part,
            false => mapped.part.max(*known),
        };
    }
    let held = private + files.values().sum::<u64>();
    match held > limit {
        true => Err(held),
        false => Ok(limit - held),
    }
}

/// A process and its descendants. Processes whose parent has ended are not included.
fn family(pid: u32) -> Vec<u32> {
    let (mut found, mut seen) = (vec![pid], HashSet::from([pid]));
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{parent}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|child| child.parse().ok());
            found.extend(children.filter(|child| seen.insert(*child)));
        }
        if found.len() >= FAMILY_MAX {
            break;
        }
    }
    found
}

fn read(pid: u32, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

/// Returns the number of kilobytes in the line of this name, converted to bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(number.saturating_mul(1024))
}

/// Memory of one process, bytes.
struct ProcessMemory {
    resident: u64,
    /// Pages that belong to no file, including swapped pages. After a fork, parent and child both count the pages that
    /// they share.
    private: u64,
    /// Pages of memory files and shared mappings.
    shared: u64,
}

fn status(pid: u32) -> Option<ProcessMemory> {
    let text = read(pid, "status")?;
    let of = |name| kilobytes(&text, name).unwrap_or(0);
    Some(ProcessMemory {
        resident: kilobytes(&text, "VmRSS:")?,
        private: of("RssAnon:") + of("VmSwap:"),
        shared: of("RssShmem:"),
    })
}

/// Start time of the process; `None` once it is gone.
fn start_time(pid: u32) -> Option<SystemTime> {
    let stat = read(pid, "stat")?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: takes an integer and touches no memory of this process.
    let in_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let age = uptime - ticks as f64 / in_second as f64;
    SystemTime::now().checked_sub(Duration::try_from_secs_f64(age.max(0.0)).ok()?)
}

/// Adds the memory of each memory file that the process has open. `is_in_folder`: whether a file is in the node's
/// folder of shared memory.
fn add_open_files(pid: u32, is_in_folder: impl Fn(FileId) -> bool, files: &mut HashMap<FileId, u64>) {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    for file in open.into_iter().flatten().flatten() {
        let path = file.path();
        let Ok(name) = fs::read_link(&path) else { continue };
        let name = name.to_string_lossy();
        if name.starts_with(OWN_FILES) || !MEMORY_FILES.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let Ok(metadata) = fs::metadata(&path) else { continue };
        // The end of the worker would not free a file that has a name.
        if metadata.nlink() == 0 || !is_in_folder(id_of(&metadata)) {
            files.insert(id_of(&metadata), metadata.blocks() * BLOCK_BYTES);
        }
    }
}

/// Private memory of a process, bytes. A page that N processes share after a fork counts as 1/N of its size.
fn private_bytes(pid: u32) -> u64 {
    let text = read(pid, "smaps_rollup").unwrap_or_default();
    // Kernels before 5.13 do not divide these pages by kind.
    let pages = kilobytes(&text, "Pss_Anon:").or(kilobytes(&text, "Anonymous:"));
    match pages {
        Some(pages) => pages + kilobytes(&text, "SwapPss:").unwrap_or(0),
        None => status(pid).map_or(0, |state| state.private),
    }
}

/// Adds the process's mappings of memory files.
fn add_mapped_files(pid: u32, mapped: &mut HashMap<FileId, MappedFile>) {
    let text = read(pid, "smaps").unwrap_or_default();
    let mut file = None;
    for line in text.lines() {
        if !line.split(' ').next().unwrap_or_default().ends_with(':') {
            file = memory_file(line).map(|(file, name)| {
                let mapped: &mut MappedFile = mapped.entry(file).or_default();
                name.clone_into(&mut mapped.name);
                file
            });
        } else if let Some(mapped) = file.and_then(|file| mapped.get_mut(&file)) {
            mapped.part += kilobytes(line, "Pss:").unwrap_or(0);
            mapped.largest = mapped.largest.max(kilobytes(line, "Rss:").unwrap_or(0));
        }
    }
}

/// Parses the first line of a mapping (addresses, rights, offset, device, number, name). Returns the id and name of its
/// memory file.
fn memory_file(head: &str) -> Option<(FileId, &str)> {
    let mut words = head.split_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let device = |text| u32::from_str_radix(text, 16).ok();
    let device = libc::makedev(device(major)?, device(minor)?);
    let number = words.next()?.parse().ok()?;
    let name = words.next()?;
    let is_counted = !name.starts_with(OWN_FILES) && MEMORY_FILES.iter().any(|start| name.starts_with(start));
    is_counted.then_some(((device, number), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    const MIB: u64 = 1 << 20;

    /// Runs a Python program of these lines, and calls `look` with its pid after the last line.
    fn look_at<R>(lines: &str, look: impl FnOnce(u32) -> R) -> R {
        let program = format!("import os, sys, mmap\n{lines}\nprint(flush=True)\nsys.stdin.read()");
        let mut child = Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let output = child.stdout.take().expect("piped");
        BufReader::new(output)
            .read_line(&mut String::new())
            .expect("it is ready");
        let seen = look(child.id());
        drop(child.stdin.take().map(|mut input| input.write_all(b"")));
        child.wait().expect("it ends");
        seen
    }

    /// Result of [`check_memory_limit`] for a program, and the program's resident memory.
    fn left_and_resident(lines: &str, limit: u64) -> (Result<u64, u64>, u64) {
        look_at(lines, |pid| {
            (check_memory_limit(pid, limit), resident_bytes(pid).expect("it lives"))
        })
    }

    fn left(lines: &str, limit: u64) -> Result<u64, u64> {
        left_and_resident(lines, limit).0
    }

    /// For example, a virtual machine (QEMU) is a child of its monitor, which is the worker.
    #[test]
    fn memory_of_a_child_is_that_of_its_worker() {
        let lines = "there, ready = os.pipe()\n\
                     if os.fork() == 0:\n    kept = bytearray(os.urandom(64 << 20))\n    os.write(ready, b'x')\n    \
                     sys.stdin.read()\n    os._exit(0)\n\
                     os.read(there, 1)";
        let (left, resident) = left_and_resident(lines, 60 * MIB);
        assert!(left.is_err() && resident > 64 * MIB, "{left:?}, {resident}");
    }

    #[test]
    fn memory_files_shared_mappings_and_children_count_and_our_own_buffers_do_not() {
        let file = |name: &str| format!("f = os.memfd_create('{name}'); os.write(f, bytes(64 << 20))");
        let shared = "m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))";
        let forks = "kept = bytearray(os.urandom(8 << 20))\n\
                     for child in range(8):\n    if os.fork() == 0:\n        sys.stdin.read()\n        os._exit(0)";
        for (lines, limit) in [
            (file("x"), 60 * MIB),
            (shared.into(), 60 * MIB),
            ("kept = bytearray(os.urandom(64 << 20))".into(), 60 * MIB),
        ] {
            let left = left(&lines, limit);
            assert!(matches!(left, Err(64_000_000..=120_000_000)), "{lines}: {left:?}");
        }
        for lines in [file("hotlease-buffer"), "pass".into()] {
            let left = left(&lines, 40 * MIB);
            assert!(left.is_ok(), "{lines}: {left:?}");
        }
        // Pages that forked processes share count once.
        let family = format!("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{forks}");
        let children = left(&family, MIB);
        assert!(matches!(children, Err(8_000_000..=60_000_000)), "{children:?}");
    }

    #[test]
    fn shared_memory_of_another_program_does_not_count() {
        let file = tempfile::NamedTempFile::new_in(SHARED_FOLDER).expect("a file");
        let map = |touched: &str| {
            format!(
                "f = os.open('{}', os.O_RDWR)\nos.ftruncate(f, 64 << 20)\nm = mmap.mmap(f, 64 << 20)\n{touched}",
                file.path().display()
            )
        };
        let (write_all, read_all) = (map("m.write(bytes(64 << 20))"), map("m.read()"));
        // The file was made before the worker started, so it does not count, whether the worker maps one page or all
        // pages.
        look_at(&write_all, |_| {
            for lines in [map("m[0]"), read_all.clone()] {
                let left = left(&lines, 40 * MIB);
                assert!(left.is_ok(), "{lines}: {left:?}");
            }
        });
        let left = left(&map("m[0]"), 40 * MIB);
        assert!(left.is_ok(), "its maker has ended: {left:?}");
        // The worker makes the file after it was started; another program reads the file later.
        let made = "os.unlink(NAME)\nopen(NAME, 'x').close()\n";
        let made = made.replace("NAME", &format!("'{}'", file.path().display())) + &write_all;
        look_at(&made, |worker| {
            let alone = check_memory_limit(worker, 40 * MIB);
            assert!(matches!(alone, Err(64_000_000..=120_000_000)), "{alone:?}");
            let beside = look_at(&read_all, |_| check_memory_limit(worker, 40 * MIB));
            assert!(beside.is_ok(), "{beside:?}");
            let unlinked = fs::remove_file(file.path()).map(|()| check_memory_limit(worker, 40 * MIB));
            assert!(unlinked.as_ref().is_ok_and(Result::is_err), "{unlinked:?}");
        });
    }

    #[test]
    fn a_listing_does_not_take_longer_the_more_a_worker_shares() {
        let lines = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                     m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))\n\
                     there, ready = os.pipe()\n\
                     if os.fork() == 0:\n    m.seek(0); m.read(); os.write(ready, b'x')\n    \
                     sys.stdin.read()\n    os._exit(0)\n\
                     os.read(there, 1)";
        let (exact, hasty) = look_at(lines, |pid| {
            let within = |limit| resident_within(pid, limit).expect("it lives");
            (within(Duration::MAX), within(Duration::ZERO))
        });
        assert!((64 * MIB..120 * MIB).contains(&exact), "{exact}");
        assert!(hasty > 128 * MIB, "{hasty}: the pages of each process were looked at");
    }

    #[test]
    fn resident_memory_of_this_process_is_known() {
        let bytes = resident_bytes(std::process::id()).expect("a living process");
        assert!(bytes > 100_000, "{bytes} bytes");
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
