//! Output of the worker, on its way to the monitor.

use crate::guest::monitor_sender::MonitorSender;
use hotlease_wire::machine::FromGuest;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Largest number of bytes that are passed on at once.
const PIECE: usize = 4096;
/// Largest number of pieces in a row: the capacity of a pipe. It limits how long endless output delays other threads.
const PIECES_MAX: usize = 16;

/// The read end of the pipe that a worker, and each process that it starts, prints to.
pub struct OutputPipe {
    /// Locked while a piece is passed on: the thread that locks it next finds no piece under way.
    from: Mutex<PipeReader>,
    /// A clone of `from`, to wait for more output.
    more: PipeReader,
    teller: MonitorSender,
}

impl OutputPipe {
    pub fn new(from: PipeReader, teller: MonitorSender) -> io::Result<Arc<Self>> {
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Arc::new(Self {
            more: from.try_clone()?,
            from: Mutex::new(from),
            teller,
        }))
    }

    /// Passes on all output, until no process can print any more.
    pub fn listen(&self) {
        loop {
            let mut more = [PollFd::new(self.more.as_fd(), PollFlags::POLLIN)];
            match poll(&mut more, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            }
            if !self.pass_on() {
                return;
            }
        }
    }

    /// Passes on the output that has arrived; returns whether there may be more later.
    pub fn pass_on(&self) -> bool {
        let mut from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = [0; PIECE];
        for _ in 0..PIECES_MAX {
            match from.read(&mut text) {
                Ok(0) => return false,
                Ok(bytes) => self.teller.tell(&FromGuest::Printed, &text[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages;
    use std::io::{Seek, Write};

    #[test]
    fn all_that_was_printed_is_passed_on_before_the_end_even_if_a_process_could_still_print() {
        let (from, mut prints) = io::pipe().expect("a pipe");
        let told = tempfile::tempfile().expect("a file");
        let teller = MonitorSender::new(told.try_clone().expect("a clone"));
        let printed = OutputPipe::new(from, teller).expect("it can be read");
        assert!(printed.pass_on(), "nothing yet");
        let text = vec![7; PIECE + 1];
        prints.write_all(&text).expect("room");
        assert!(printed.pass_on(), "a process could print");
        drop(prints);
        assert!(!printed.pass_on());
        // Returns, because no process can print any more.
        printed.listen();
        let mut told = told;
        told.rewind().expect("the beginning");
        let mut heard = Vec::new();
        while let Some((FromGuest::Printed, brought)) = messages::receive::<FromGuest>(&mut told).expect("whole") {
            heard.extend(brought);
        }
        assert_eq!(heard, text);
    }
}
