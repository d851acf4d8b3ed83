//! Traces of the files that a run opens. A trace is recorded once, and its files are read ahead at the next mount.
//!
//! fanotify reports each file of the image that is opened, with a descriptor. It does not slow the program down, and
//! needs neither ptrace nor changes to it. Only root may use it. It watches the whole file system and not a single
//! mount, because sandboxes have their own mounts, mostly at the original path of the tree. Without a trace the
//! beginning of the image is read ahead.

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use nix::sys::stat::fstat;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit of files in a trace.
const FILES_MAX: usize = 50_000;
/// Longest trace that is read, bytes.
const TRACE_BYTES_MAX: u64 = 16 << 20;
/// Limit of bytes of an image's file that are read ahead.
const AHEAD_BYTES_MAX: i64 = 256 << 20;
/// Longest time of a recording: no program takes longer to start.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// Recorder of opened files. When it is dropped, or after a minute, it writes the trace for the next mount.
pub struct OpenRecorder {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl OpenRecorder {
    /// Starts recording for the image that is mounted at the first of these paths, and visible at all of them.
    pub(crate) fn start(places: [PathBuf; 2], trace: PathBuf) -> Option<Self> {
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let events = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
        let watch = Fanotify::init(flags, events).ok()?;
        let whole = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        watch
            .mark(whole, MaskFlags::FAN_OPEN, nix::fcntl::AT_FDCWD, Some(&places[0]))
            .ok()?;
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok()?);
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || record(watch, &stop, &places, &trace)
        });
        Some(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for OpenRecorder {
    fn drop(&mut self) {
        // Cannot fail, because the counter does not overflow below 2^64.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn record(watch: Fanotify, stop: &EventFd, places: &[PathBuf], trace: &Path) {
    let begin = Instant::now();
    let mut order = Vec::new();
    let mut known = HashSet::new();
    let mut is_last = false;
    while !is_last {
        let mut waiting = [stop.as_fd(), watch.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // A minute in milliseconds fits.
        let left = START_LIMIT.saturating_sub(begin.elapsed());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let events = match poll(&mut waiting, left) {
            Ok(events) => events,
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        // Even in the last round, earlier events may still be queued.
        is_last = events == 0 || waiting[0].any().unwrap_or(true) || begin.elapsed() >= START_LIMIT;
        while begin.elapsed() < START_LIMIT
            && let Ok(events) = watch.read_events()
            && !events.is_empty()
        {
            for event in &events {
                let Some(file) = event.fd() else { continue };
                let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
                    continue;
                };
                let in_place = places.iter().find_map(|at| path.strip_prefix(at).ok());
                // If the mount of a sandbox is gone, paths begin at the mount's own root.
                let left = || {
                    path.strip_prefix("/")
                        .ok()
                        .filter(|below| is_file_at(&places[0].join(below), file))
                };
                let Some(below) = in_place.or_else(left) else {
                    continue;
                };
                if order.len() < FILES_MAX && known.insert(below.to_owned()) {
                    order.push(below.to_owned());
                }
            }
        }
    }
    // End the watch before the trace is written.
    drop(watch);
    if !order.is_empty() {
        write(&order, trace);
    }
}

/// Whether this path names that open file.
fn is_file_at(path: &Path, file: BorrowedFd<'_>) -> bool {
    let (Ok(named), Ok(opened)) = (fs::symlink_metadata(path), fstat(file)) else {
        return false;
    };
    (named.dev(), named.ino()) == (opened.st_dev, opened.st_ino)
}

/// Writes a trace, whole or not at all. Each name ends with a zero byte, which no name contains.
fn write(order: &[PathBuf], trace: &Path) {
    let mut bytes = Vec::new();
    for path in order {
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes.push(0);
    }
    let new = trace.with_extension(format!("new-{}", std::process::id()));
    // A failure is harmless: without a trace the next mount is slower.
    let written = File::create(&new).and_then(|mut file| file.write_all(&bytes));
    if written.and_then(|()| fs::rename(&new, trace)).is_err() {
        let _ = fs::remove_file(&new);
    }
}

fn read(trace: &Path) -> Vec<PathBuf> {
    let mut bytes = Vec::new();
    let read = File::open(trace).and_then(|file| file.take(TRACE_BYTES_MAX).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let names = bytes
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .take(FILES_MAX);
    let paths = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
    // Returns only paths that stay inside the image.
    let is_inside = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    paths.filter(is_inside).collect()
}

/// Reading ahead while the image is used. When the value is dropped, reading stops, and no file stays open.
pub(crate) struct Prefetch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    pub(crate) fn start(image: &Path, trace: &Path, at: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (stop, image, trace, at) = (Arc::clone(&stop), image.to_owned(), trace.to_owned(), at.to_owned());
            move || read_ahead(&stop, &image, &trace, &at)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives only hints to the kernel: a file that is not read ahead is read when it is needed.
fn read_ahead(stop: &AtomicBool, image: &Path, trace: &Path, at: &Path) {
    let will_need = |path: &Path, bytes: i64| {
        if let Ok(file) = File::open(path) {
            let _ = posix_fadvise(&file, 0, bytes, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
        }
    };
    let traced = read(trace);
    let is_small = fs::metadata(image).is_ok_and(|found| found.len() <= AHEAD_BYTES_MAX as u64);
    // Reads the image's file in one piece, which is fast on disks.
    if is_small || traced.is_empty() {
        will_need(image, AHEAD_BYTES_MAX);
    }
    for path in traced {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let path = at.join(path);
        // Links are not followed. The target of a link was opened, too, and is in the trace under its own name.
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            will_need(&path, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_keeps_its_order_and_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        let order = ["b/c\n", "a", "../x", "/etc/passwd"].map(PathBuf::from);
        write(&order, &trace);
        assert_eq!(read(&trace), order[..2]);
        assert_eq!(read(&dir.path().join("none")), Vec::<PathBuf>::new());
    }
}
