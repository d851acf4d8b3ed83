//! Attempts at shared memory, queues and pipes of neighbours.

use crate::attempt::{AttemptResult, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use crate::variables::{number, path, text};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

pub(super) const THEME: Threat = Threat {
    threat: "read or change memory, queues and pipes that neighbours share among themselves",
    attempts: attempts! {
        "posix-shm-read", "read the neighbour's segment in /dev/shm", posix_shm_read, by_secret();
        "posix-shm-write", "write the neighbour's segment in /dev/shm", posix_shm_write, by_effect();
        "posix-shm-list", "find the neighbour's segment in a listing of /dev/shm", posix_shm_list;
        "sysv-shm-read", "attach and read the neighbour's System V segment", sysv_shm_read, by_secret();
        "sysv-shm-write", "attach and write the neighbour's System V segment", sysv_shm_write, by_effect();
        "sysv-shm-list", "find System V segments of others by their indices", sysv_shm_list;
        "sysv-shm-proc", "find System V segments of others in /proc/sysvipc", sysv_shm_proc;
        "sysv-queue", "put a message into the neighbour's System V queue", sysv_queue, by_effect();
        "sysv-remove", "remove the neighbour's System V queue", sysv_remove, by_effect();
        "posix-queue", "put a message into the neighbour's POSIX queue",
            posix_queue, by_effect(), needs("POSIX message queues");
        "fifo", "write into the neighbour's FIFO", fifo, by_effect();
    },
};

fn posix_shm_read() -> AttemptResult {
    fs::read_to_string(path("SHM")?).map_err(with_place("open"))
}

fn posix_shm_write() -> AttemptResult {
    // Opens the segment if it exists, but does not create it.
    let mut segment = OpenOptions::new()
        .write(true)
        .open(path("SHM")?)
        .map_err(with_place("open"))?;
    segment.write_all(b"overwritten")?;
    Ok("wrote the segment".into())
}

fn posix_shm_list() -> AttemptResult {
    let token = text("NEIGHBOUR_TOKEN")?;
    let mut names = fs::read_dir("/dev/shm").map_err(with_place("/dev/shm"))?.flatten();
    match names.find(|entry| entry.file_name().to_string_lossy().contains(&token)) {
        Some(entry) => Ok(format!("sees {}", entry.path().display())),
        None => denied("not in the listing"),
    }
}

fn sysv_shm_read() -> AttemptResult {
    let address = kernel!(SYS_shmat, number::<i32>("SYSV_SHM")?, 0, libc::SHM_RDONLY)?;
    // SAFETY: attached just now, at least a page long, and not detached as long as this process lives.
    let read = unsafe { std::slice::from_raw_parts(address as *const u8, 32) };
    Ok(String::from_utf8_lossy(read).into_owned())
}

fn sysv_shm_write() -> AttemptResult {
    let address = kernel!(SYS_shmat, number::<i32>("SYSV_SHM")?, 0, 0)?;
    // SAFETY: attached just now for writing, at least a page long; the other side only compares bytes.
    unsafe { std::ptr::write_volatile(address as *mut [u8; 11], *b"overwritten") };
    Ok("wrote the segment".into())
}

fn sysv_shm_list() -> AttemptResult {
    let mut about = [0u8; 256];
    // Searches by index, not by id. Any segment that is found belongs to another process, because this process has made
    // none.
    for index in 0..1024 {
        const SHM_STAT: i32 = 13;
        if let Ok(id) = kernel!(SYS_shmctl, index, SHM_STAT, about.as_mut_ptr()) {
            return Ok(format!("sees segment {id}"));
        }
    }
    denied("no segment at any index")
}

fn sysv_shm_proc() -> AttemptResult {
    let list = fs::read_to_string("/proc/sysvipc/shm").map_err(with_place("/proc/sysvipc/shm"))?;
    match list.lines().nth(1) {
        Some(line) => Ok(format!("sees {line}")),
        None => denied("no segment in the listing"),
    }
}

fn sysv_queue() -> AttemptResult {
    let message = [1u64, 0x2121_2121];
    kernel!(
        SYS_msgsnd,
        number::<i32>("SYSV_QUEUE")?,
        message.as_ptr(),
        8,
        libc::IPC_NOWAIT
    )?;
    Ok("sent a message".into())
}

fn sysv_remove() -> AttemptResult {
    kernel!(SYS_msgctl, number::<i32>("SYSV_QUEUE")?, libc::IPC_RMID, 0)?;
    Ok("removed the queue".into())
}

fn posix_queue() -> AttemptResult {
    let name = CString::new(text("MQUEUE")?).expect("a variable has no null byte");
    let queue = kernel!(SYS_mq_open, name.as_ptr(), libc::O_WRONLY | libc::O_NONBLOCK, 0, 0)?;
    kernel!(SYS_mq_timedsend, queue, c"hello".as_ptr(), 5, 0, 0)?;
    Ok("sent a message".into())
}

fn fifo() -> AttemptResult {
    let mut fifo = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path("FIFO")?)
        .map_err(with_place("open"))?;
    fifo.write_all(b"hello")?;
    Ok("wrote into the FIFO".into())
}
