//! Attempts to stay after the end of the lease, and to leave residue.

use super::files::own_path;
use super::floods::{sleep_forever, spawn};
use crate::attempt::{AttemptResult, StopReason, Threat, attempts, with_place};
use crate::residue::{ATTEMPT, FOLDERS};
use crate::syscall::kernel;
use crate::variables::{number, text};
use std::ffi::CString;
use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::path::Path;

pub(super) const THEME: Threat = Threat {
    threat: "stay on after the lease's end, or leave something behind for the next tenant",
    attempts: attempts! {
        "outlive-session", "leave the process group by a session of its own, and stay", outlive_session, by_effect();
        "outlive-orphan", "stay on as a child whose parents have ended", outlive_orphan, by_effect();
        "outlive-deadline", "go on without end, with every signal blocked",
            outlive_deadline, endless(), need_not_succeed();
        "outlive-stopped", "stop itself, so that no signal but one is seen",
            outlive_stopped, endless(), need_not_succeed();
        "outlive-many", "stay on behind thirty generations of parents, all of which have ended",
            outlive_many, by_effect();
        "leave-file", "leave a file in each folder for temporary files", leave_file, by_effect();
        "leave-posix-shm", "leave a segment in /dev/shm", leave_posix_shm, by_effect();
        "leave-sysv-shm", "leave a System V segment", leave_sysv_shm, by_effect();
        "leave-posix-queue", "leave a POSIX queue", leave_posix_queue, by_effect(), needs("POSIX message queues");
    },
};

fn outlive_session() -> AttemptResult {
    let (mut done, said) = std::io::pipe()?;
    spawn(|| {
        // A new session has a new process group, which signals to the old group do not reach.
        let _ = kernel!(SYS_setsid);
        let _ = (&said).write_all(b"k");
        sleep_forever();
    })?;
    drop(said);
    // Waits until the child has its session. Before that, the child would be killed with all other processes of the
    // group.
    let _ = done.read(&mut [0])?;
    Ok("left a child in a session of its own".into())
}

fn outlive_orphan() -> AttemptResult {
    let parent = spawn(|| {
        let _ = kernel!(SYS_setsid);
        let _ = spawn(|| sleep_forever());
    })?;
    kernel!(SYS_wait4, parent, 0, 0, 0)?;
    Ok("left a grandchild".into())
}

fn outlive_deadline() -> AttemptResult {
    let all = u64::MAX;
    kernel!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8)?;
    sleep_forever()
}

fn outlive_stopped() -> AttemptResult {
    kernel!(SYS_kill, std::process::id(), libc::SIGSTOP)?;
    sleep_forever()
}

fn outlive_many() -> AttemptResult {
    let generations = number("GENERATIONS")?;
    let (mut done, said) = std::io::pipe()?;
    let told = said.try_clone()?;
    spawn(move || {
        let _ = kernel!(SYS_setsid);
        generation(generations, &told);
    })?;
    drop(said);
    // Returns when the last child has started, or when all children are gone.
    let _ = done.read(&mut [0])?;
    Ok("left the last of a family".into())
}

/// Starts a child, which continues with the next generation, and ends. The last generation reports, and stays.
fn generation(left: usize, said: &PipeWriter) {
    if left == 0 {
        let _ = (&mut &*said).write_all(b"k");
        sleep_forever();
    }
    let _ = spawn(|| generation(left - 1, said));
}

fn leave_file() -> AttemptResult {
    let name = own_path("")?;
    let name = name.file_name().unwrap_or_default();
    let mut stopped = StopReason::Denied("none of them is there".into());
    let mut left = Vec::new();
    for folder in FOLDERS.iter().take_while(|folder| !folder.starts_with("/etc")) {
        match fs::write(Path::new(folder).join(name), "left") {
            Ok(()) => left.push(*folder),
            Err(error) => stopped = with_place(folder)(error),
        }
    }
    match left.is_empty() {
        true => Err(stopped),
        false => Ok(format!("left a file in {}", left.join(" "))),
    }
}

fn leave_posix_shm() -> AttemptResult {
    let token = text("TOKEN")?;
    fs::write(format!("/dev/shm/hotlease-escape-{token}.{ATTEMPT}"), "left").map_err(with_place("create"))?;
    Ok("left a segment".into())
}

fn leave_sysv_shm() -> AttemptResult {
    let flags = libc::IPC_CREAT | 0o600;
    kernel!(SYS_shmget, number::<i32>("LEFT_SYSV")?, 4096, flags)?;
    Ok("left a segment".into())
}

fn leave_posix_queue() -> AttemptResult {
    let name = CString::new(text("LEFT_MQUEUE")?).expect("a variable has no null byte");
    kernel!(SYS_mq_open, name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, 0)?;
    Ok("left a queue".into())
}
