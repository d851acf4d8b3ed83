//! Marks on the cores that leases hold, by which the platforms of a host avoid each other's cores.
//!
//! Each user of a workstation may have a platform, and each platform offers all cores. A mark is a Unix socket whose
//! abstract name has the core's number. Any user can take such a name, but only once in a network namespace. It needs
//! no file or folder, and is free again when the agent ends, however it ends. A mark is only a hint: an agent uses
//! unmarked cores first, and then the cores that other platforms have marked. So a user who marks all cores gains
//! nothing and harms no lease; a user who marks all but one steers the next lease to that core.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};

/// Prefix of the names; the number of the core follows.
const NAME: &str = "hotlease/core/";

/// Marks of one platform.
pub(crate) struct CoreMarks {
    prefix: String,
    marks: BTreeMap<u32, OwnedFd>,
}

impl CoreMarks {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::with_prefix(NAME)
    }

    fn with_prefix(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            marks: BTreeMap::new(),
        }
    }

    /// Marks the first `count` of these cores that no other platform has marked. Returns the cores that it skipped,
    /// because other platforms have marked them.
    pub fn mark_first(&mut self, cores: impl Iterator<Item = u32>, count: usize) -> BTreeSet<u32> {
        let (marks, of_others) = self.first(cores, count);
        self.marks.extend(marks);
        of_others
    }

    /// Returns the cores that `mark_first` would skip, and marks nothing.
    pub fn of_others(&self, cores: impl Iterator<Item = u32>, count: usize) -> BTreeSet<u32> {
        self.first(cores, count).1
    }

    /// New marks on the first `count` of these cores that others have not marked, and the cores that were skipped.
    fn first(&self, cores: impl Iterator<Item = u32>, count: usize) -> (BTreeMap<u32, OwnedFd>, BTreeSet<u32>) {
        let mut left = count;
        let (mut marks, mut of_others) = (BTreeMap::new(), BTreeSet::new());
        for core in cores {
            if left == 0 {
                break;
            }
            if !self.marks.contains_key(&core) {
                let Some(mark) = self.mark(core) else {
                    of_others.insert(core);
                    continue;
                };
                marks.insert(core, mark);
            }
            left -= 1;
        }
        (marks, of_others)
    }

    /// Keeps the marks on these cores and removes all others. Cores without a mark get a mark, unless another platform
    /// has marked them.
    pub fn keep(&mut self, held: &BTreeSet<u32>) {
        self.marks.retain(|core, _| held.contains(core));
        for core in held {
            if !self.marks.contains_key(core)
                && let Some(mark) = self.mark(*core)
            {
                self.marks.insert(*core, mark);
            }
        }
    }

    /// Takes the name of a core; returns `None` if the name is taken, or if there are no sockets left.
    ///
    /// The socket must not be able to receive: any user of the host could send it descriptors, such as a TCP socket
    /// whose close blocks, and the mark is closed under a lock of the node. A stream socket that does not listen
    /// refuses connections.
    fn mark(&self, core: u32) -> Option<OwnedFd> {
        let name = UnixAddr::new_abstract(format!("{}{core}", self.prefix).as_bytes()).ok()?;
        let mark = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
        bind(mark.as_raw_fd(), &name).ok().map(|()| mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_sent_to_a_mark() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

        let prefix = format!("hotlease/test/closed/{}/", std::process::id());
        let mut marks = CoreMarks::with_prefix(&prefix);
        assert_eq!(marks.mark_first(0..1, 1), [].into());
        let name = SocketAddr::from_abstract_name(format!("{prefix}0")).expect("an address");
        let sent = UnixDatagram::unbound().expect("a socket").send_to_addr(b"x", &name);
        assert!(sent.is_err(), "{sent:?}");
        let connected = UnixStream::connect_addr(&name);
        assert!(connected.is_err(), "{connected:?}");
    }

    #[test]
    fn platforms_see_each_others_marks_until_they_are_removed() {
        let prefix = format!("hotlease/test/{}/", std::process::id());
        let [mut ours, mut theirs] = [(); 2].map(|()| CoreMarks::with_prefix(&prefix));
        assert_eq!(ours.mark_first(0..4, 2), [].into());
        assert_eq!(theirs.mark_first(0..4, 1), [0, 1].into(), "and it marks core 2");
        assert_eq!(
            ours.mark_first(0..4, 3),
            [2].into(),
            "its own count, and it marks core 3"
        );
        assert_eq!(theirs.mark_first(0..4, 4), [0, 1, 3].into());
        // The lease got cores 0 and 2, though another platform has 2.
        ours.keep(&[0, 2].into());
        assert_eq!(theirs.mark_first(0..4, 4), [0].into());
        theirs.keep(&[].into());
        assert_eq!(theirs.of_others(0..4, 4), [0].into());
        ours.keep(&[0, 2].into());
        assert_eq!(
            theirs.of_others(0..4, 4),
            [0, 2].into(),
            "now it has the mark of 2, too"
        );
        assert_eq!(theirs.of_others(0..4, 1), [0].into(), "1 is the first that has none");
        assert_eq!(ours.mark_first(0..4, 4), [].into(), "a look marks nothing");
        ours.keep(&[0, 2, 3].into());
        assert_eq!(
            theirs.mark_first(0..4, 4),
            [0, 2, 3].into(),
            "a refused lease leaves no mark"
        );
        drop(ours);
        assert_eq!(theirs.mark_first(0..4, 4), [].into(), "its agent has ended");
    }
}
