//! Descriptors that another process chose, and threads that close them.
//!
//! The last close of a descriptor may wait for minutes: a TCP socket with `SO_LINGER` waits for its peer, a file on a
//! file server waits for the server, and a Unix socket closes the descriptors in its queue. The process that sends a
//! descriptor chooses its kind. So the receiver closes the descriptor on a thread for which no other work waits.

use crate::forks::PerProcess;
use nix::fcntl::{FcntlArg, fcntl};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest number of threads that close descriptors. If all these threads wait, further descriptors stay open until a
/// thread is free.
const THREADS_MAX: usize = 32;
const STACK_BYTES: usize = 64 << 10;

#[derive(Default)]
struct Closer {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
}

static CLOSER: PerProcess<Mutex<Closer>> = PerProcess::new();

fn closer() -> MutexGuard<'static, Closer> {
    CLOSER.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a descriptor on a thread of its own. Never waits for the close.
pub fn close_aside(descriptor: OwnedFd) {
    {
        let mut closer = closer();
        closer.waiting.push_back(descriptor);
        if closer.threads >= THREADS_MAX {
            return;
        }
        closer.threads += 1;
    }
    let thread = std::thread::Builder::new()
        .name("closing".into())
        .stack_size(STACK_BYTES);
    if thread.spawn(close_all).is_err() {
        // The descriptor stays open until the next call: closing it here could wait.
        closer().threads -= 1;
    }
}

fn close_all() {
    loop {
        let descriptor = {
            let mut closer = closer();
            let Some(descriptor) = closer.waiting.pop_front() else {
                closer.threads -= 1;
                return;
            };
            descriptor
        };
        drop(descriptor);
    }
}

/// A descriptor that another process chose. Dropping it closes it by [`close_aside`].
#[derive(Debug)]
pub struct ForeignDescriptor(Option<OwnedFd>);

impl ForeignDescriptor {
    /// Returns the descriptor if it is memory (memfd_create(2)), whose close never waits.
    ///
    /// # Errors
    /// If the descriptor is not memory; it is then returned unchanged.
    pub fn into_memory(mut self) -> Result<OwnedFd, Self> {
        match self.0.take_if(|fd| fcntl(fd, FcntlArg::F_GET_SEALS).is_ok()) {
            Some(fd) => Ok(fd),
            None => Err(self),
        }
    }

    /// Returns the descriptor, for a receiver that trusts the sender, or that closes the descriptor where a wait does
    /// no harm.
    pub fn into_trusted(mut self) -> OwnedFd {
        self.0.take().expect("taken only where `self` ends")
    }
}

impl From<OwnedFd> for ForeignDescriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for ForeignDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken only where `self` ends").as_fd()
    }
}

impl Drop for ForeignDescriptor {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close_aside(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sealed_copy;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// Two TCP sockets. The close of the first waits for a minute, or until the second is closed.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut full = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 60,
        };
        nix::sys::socket::setsockopt(&full, nix::sys::socket::sockopt::Linger, &linger).unwrap();
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 1 << 16]).is_ok() {}
        (full, peer)
    }

    #[test]
    fn a_close_that_waits_holds_up_neither_its_caller_nor_other_closes() {
        let start = Instant::now();
        let pairs: Vec<_> = (0..3).map(|_| lingering()).collect();
        let mut peers = Vec::new();
        for (full, peer) in pairs {
            drop(ForeignDescriptor::from(OwnedFd::from(full)));
            peers.push(peer);
        }
        let (mut reader, writer) = std::io::pipe().unwrap();
        drop(ForeignDescriptor::from(OwnedFd::from(writer)));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "closed beside those that wait");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }

    #[test]
    fn only_memory_is_taken_for_memory() {
        let memory = sealed_copy("test", b"hello").unwrap();
        assert!(ForeignDescriptor::from(memory).into_memory().is_ok());
        let (reader, _) = std::io::pipe().unwrap();
        assert!(ForeignDescriptor::from(OwnedFd::from(reader)).into_memory().is_err());
    }
}
