//! Turn of one of several tenants on the same node: the tenant looks for residue of earlier tenants, and leaves as much
//! residue as it can.

use crate::attempts::themes;
use crate::residue::{ATTEMPT, Residue, name};
use crate::syscall::kernel;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Attempts that leave residue.
const LEAVING_ATTEMPTS: [&str; 6] = [
    "leave-file",
    "leave-posix-shm",
    "leave-sysv-shm",
    "leave-posix-queue",
    "keyring-add",
    "outlive-orphan",
];
/// Last line of a tenant that has completed its turn; before it, a line that begins with `found` for each finding.
pub const DONE: &str = "done";
/// Size of the memory that is searched, and then filled.
const MEMORY_BYTES: usize = 8 << 20;
/// Byte with which the memory is filled.
const MARK: u8 = 0xa5;

/// Acts as one tenant. Returns its findings. All tenants of a run share the token `run`.
///
/// The tenant gets names in its environment like an attempt (see [`names_for`](crate::names_for)). It must be a
/// separate process, because some of its residue exists until the process ends, or longer if nothing removes it.
pub fn take_turn(run: &str) -> Vec<String> {
    let mut found: Vec<String> = Residue::of_attempt(run).iter().map(ToString::to_string).collect();
    found.extend(processes(run));
    found.extend(sockets(run));
    found.extend(descriptors());
    match fresh_memory() {
        Ok(memory) => {
            if memory.iter().any(|byte| *byte != 0) {
                found.push("bytes of another process in new memory".into());
            }
            memory.fill(MARK);
        }
        Err(why) => found.push(format!("no memory to look through: {why}")),
    }
    // Held until the end of the process. If the socket exists longer, later tenants find it.
    let address = SocketAddr::from_abstract_name(name(run, ATTEMPT));
    let _held = address.and_then(|address| UnixListener::bind_addr(&address));
    for attempt in themes().iter().flat_map(|theme| theme.attempts) {
        if LEAVING_ATTEMPTS.contains(&attempt.name) {
            // A refused attempt leaves nothing.
            let _ = attempt.go();
        }
    }
    found
}

/// Other processes of this run, by their command lines.
fn processes(run: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| *name != own && name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|argument| argument == run.as_bytes())
        })
        .map(|pid| format!("process {pid} of an earlier tenant"))
        .collect()
}

/// Sockets of this run with an abstract name.
fn sockets(run: &str) -> Vec<String> {
    let name = name(run, ATTEMPT);
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let of_run = table.lines().filter(|line| line.contains(&name));
    of_run.map(|_| format!("the abstract socket {name}")).collect()
}

/// Open descriptors other than standard input, output and error.
fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let opened = entries.filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // The descriptor that the listing used is closed by now.
        let to = fs::read_link(entry.path()).ok()?;
        (number > 2 && !to.starts_with("/proc")).then(|| format!("descriptor {number}, of {}", to.display()))
    });
    opened.collect()
}

/// Maps pages that this process has not used yet.
fn fresh_memory() -> Result<&'static mut [u8], String> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let mapped = kernel!(SYS_mmap, 0, MEMORY_BYTES, access, kind, -1, 0);
    let address = mapped.map_err(|_| "mmap is refused".to_owned())?;
    // SAFETY: mapped just now with this length for reading and writing, initialised by the kernel, never unmapped,
    // and used by no other code.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, MEMORY_BYTES) })
}
