//! Memory that a worker holds: its process and those that it started, as far as the kernel lists them.
//!
//! A listing shows resident memory. A limit that no control group enforces is compared with the memory that the worker
//! has for itself: private pages, and memory files and shared mappings that it made. Pages of libraries and the buffers
//! that hotlease shares with clients do not count.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Most processes of one worker that are looked at.
const FAMILY_MAX: usize = 4096;
/// Names of memory files of hotlease's own begin so; clients share them with workers.
const OWN_FILES: &str = "/memfd:hotlease";
/// Names of memory files, of files in the folder of shared memory, and of mappings that processes share.
const MEMORY_FILES: [&str; 4] = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"];
/// Bytes of a block in the numbers of a file's metadata.
const BLOCK_BYTES: u64 = 512;

/// Resident memory of a process and its descendants, bytes; `None` once the process is gone.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let first = status(pid)?.resident;
    let family = family(pid);
    if family.len() == 1 {
        return Some(first);
    }
    // Pages that several of them share count once.
    let part = |pid: &u32| kilobytes(&read(*pid, "smaps_rollup")?, "Pss:").or(Some(status(*pid)?.resident));
    Some(family.iter().filter_map(part).sum())
}

/// Memory that a process and its descendants have for themselves, bytes, if it is more than `limit`. What is counted
/// exactly takes milliseconds for each gigabyte, so an upper bound is looked at first.
pub(crate) fn held_beyond(pid: u32, limit: u64) -> Result<u64, u64> {
    let family = family(pid);
    let mut files = HashMap::new();
    family.iter().for_each(|pid| add_open_files(*pid, &mut files));
    let open: u64 = files.values().sum();
    let states = family.iter().filter_map(|pid| status(*pid));
    let bound = states.fold(open, |sum, state| sum + state.private + state.shared);
    if bound <= limit {
        return Err(limit - bound);
    }
    let private: u64 = family.iter().map(|pid| private_bytes(*pid)).sum();
    let mut mapped: HashMap<u64, u64> = HashMap::new();
    family.iter().for_each(|pid| add_mapped_files(*pid, &mut mapped));
    for (file, bytes) in mapped {
        let known = files.entry(file).or_default();
        *known = bytes.max(*known);
    }
    let held = private + files.values().sum::<u64>();
    match held > limit {
        true => Ok(held),
        false => Err(limit - held),
    }
}

/// A process and its descendants. Processes whose parent has ended are not among them.
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

/// The number of kilobytes in the line of this name, as bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(number.saturating_mul(1024))
}

/// Memory of one process, bytes.
struct ProcessMemory {
    resident: u64,
    /// Pages that are no file's, swapped ones too; children of a fork count them again.
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

/// Adds the memory of each memory file that the process has open, by the file's number.
fn add_open_files(pid: u32, files: &mut HashMap<u64, u64>) {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    for file in open.into_iter().flatten().flatten() {
        let path = file.path();
        let Ok(name) = fs::read_link(&path) else { continue };
        let name = name.to_string_lossy();
        if name.starts_with(OWN_FILES) || !MEMORY_FILES.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        if let Ok(metadata) = fs::metadata(&path) {
            files.insert(metadata.ino(), metadata.blocks() * BLOCK_BYTES);
        }
    }
}

/// Private memory of a process, bytes; pages that a fork shares count in parts.
fn private_bytes(pid: u32) -> u64 {
    let text = read(pid, "smaps_rollup").unwrap_or_default();
    // Kernels before 5.13 do not divide by kind.
    let pages = kilobytes(&text, "Pss_Anon:").or(kilobytes(&text, "Anonymous:"));
    match pages {
        Some(pages) => pages + kilobytes(&text, "SwapPss:").unwrap_or(0),
        None => status(pid).map_or(0, |state| state.private),
    }
}

/// Adds the process's part of each mapping of a memory file, by the file's number. Pages that several processes map
/// count in parts.
fn add_mapped_files(pid: u32, mapped: &mut HashMap<u64, u64>) {
    let text = read(pid, "smaps").unwrap_or_default();
    let mut file = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if !words.next().unwrap_or_default().ends_with(':') {
            // The head of a mapping: addresses, rights, offset, device, file, name.
            let number = words.nth(3).and_then(|number| number.parse().ok()).unwrap_or(0);
            let name = words.next().unwrap_or_default();
            let is_counted = !name.starts_with(OWN_FILES) && MEMORY_FILES.iter().any(|start| name.starts_with(start));
            file = is_counted.then_some(number);
        } else if let (Some(file), Some(part)) = (file, kilobytes(line, "Pss:")) {
            *mapped.entry(file).or_default() += part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    const MIB: u64 = 1 << 20;

    /// What a Python program of these lines holds once they were carried out, beyond the limit, and its resident memory.
    fn held_and_resident(lines: &str, limit: u64) -> (Result<u64, u64>, u64) {
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
        let held = held_beyond(child.id(), limit);
        let resident = resident_bytes(child.id()).expect("it lives");
        drop(child.stdin.take().map(|mut input| input.write_all(b"")));
        child.wait().expect("it ends");
        (held, resident)
    }

    fn held(lines: &str, limit: u64) -> Result<u64, u64> {
        held_and_resident(lines, limit).0
    }

    /// As with a virtual machine behind its monitor.
    #[test]
    fn memory_of_a_child_is_that_of_its_worker() {
        let lines = "there, ready = os.pipe()\n\
                     if os.fork() == 0:\n    kept = bytearray(os.urandom(64 << 20))\n    os.write(ready, b'x')\n    \
                     sys.stdin.read()\n    os._exit(0)\n\
                     os.read(there, 1)";
        let (held, resident) = held_and_resident(lines, 60 * MIB);
        assert!(held.is_ok() && resident > 64 * MIB, "{held:?}, {resident}");
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
            let held = held(&lines, limit);
            assert!(matches!(held, Ok(64_000_000..=120_000_000)), "{lines}: {held:?}");
        }
        for lines in [file("hotlease-buffer"), "pass".into()] {
            let held = held(&lines, 40 * MIB);
            assert!(held.is_err(), "{lines}: {held:?}");
        }
        // What a fork shares counts once.
        let family = format!("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{forks}");
        let children = held(&family, MIB);
        assert!(matches!(children, Ok(8_000_000..=60_000_000)), "{children:?}");
    }

    #[test]
    fn resident_memory_of_this_process_is_known() {
        let bytes = resident_bytes(std::process::id()).expect("a living process");
        assert!(bytes > 100_000, "{bytes} bytes");
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
