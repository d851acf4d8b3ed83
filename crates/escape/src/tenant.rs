//! One tenant after another on the same node: each looks for what those before it have left, and leaves all that it can.

use crate::attempts::themes;
use crate::residue::{ATTEMPT, Residue, name};
use crate::syscall::kernel;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// The attempts that leave something.
const LEAVING: [&str; 6] = [
    "leave-file",
    "leave-posix-shm",
    "leave-sysv-shm",
    "leave-posix-queue",
    "keyring-add",
    "outlive-orphan",
];
/// The last line of a tenant that came to the end of its turn; before it, one that begins with `found` for each thing found.
pub const DONE: &str = "done";
/// Memory that is looked through, and then filled.
const MEMORY_BYTES: usize = 8 << 20;
/// What it is filled with.
const MARK: u8 = 0xa5;

/// The turn of one tenant of a run, whose token all of them share: what it found of others.
///
/// It is told names as an attempt is (see [`names_for`](crate::names_for)), and is to be a process of its own: what it leaves stays
/// until its end, or longer where nothing holds it.
pub fn take_turn(run: &str) -> Vec<String> {
    let mut found: Vec<String> = Residue::of_attempt(run).iter().map(ToString::to_string).collect();
    found.extend(processes(run));
    found.extend(sockets(run));
    found.extend(descriptors());
    match fresh_memory() {
        Ok(memory) => {
            if memory.iter().any(|byte| *byte != 0) {
                found.push("bytes of somebody in new memory".into());
            }
            memory.fill(MARK);
        }
        Err(why) => found.push(format!("no memory to look through: {why}")),
    }
    // Held until the end of a process, and one that stays is among what is left.
    let address = SocketAddr::from_abstract_name(name(run, ATTEMPT));
    let _held = address.and_then(|address| UnixListener::bind_addr(&address));
    for attempt in themes().iter().flat_map(|theme| theme.attempts) {
        if LEAVING.contains(&attempt.name) {
            // What is refused cannot be left.
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
            line.split(|byte| *byte == 0)
                .any(|argument| argument == run.as_bytes())
        })
        .map(|pid| format!("process {pid} of an earlier tenant"))
        .collect()
}

/// Sockets of this run that have an abstract name.
fn sockets(run: &str) -> Vec<String> {
    let name = name(run, ATTEMPT);
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let of_run = table.lines().filter(|line| line.contains(&name));
    of_run.map(|_| format!("the abstract socket {name}")).collect()
}

/// What is open but standard input, output and error.
fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let opened = entries.filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // That of the listing itself is gone again.
        let to = fs::read_link(entry.path()).ok()?;
        (number > 2 && !to.starts_with("/proc")).then(|| format!("descriptor {number}, of {}", to.display()))
    });
    opened.collect()
}

/// Pages that nobody in this process has had.
fn fresh_memory() -> Result<&'static mut [u8], String> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let mapped = kernel!(SYS_mmap, 0, MEMORY_BYTES, access, kind, -1, 0);
    let address = mapped.map_err(|_| "mmap is refused".to_owned())?;
    // SAFETY: mapped just now with this length for reading and writing, initialised by the kernel, never unmapped, and nobody
    // else's.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, MEMORY_BYTES) })
}
