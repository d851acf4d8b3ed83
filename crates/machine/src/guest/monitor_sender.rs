//! The sender of all messages to the monitor, and the set of the kernel's questions about files that are not answered
//! yet.
//!
//! When a machine is saved, anything under way is lost to all machines that are resumed from it: a question that the
//! monitor has received and not answered, or an answer that the guest has not received. The guest sees both ends of
//! each exchange, so the guest reports when no exchange is under way:
//!
//! ```text
//! Pause ──► no thread sends any more ──► the last answer comes ──► Obeyed ──► saved
//! ```
//!
//! Questions that the kernel asks meanwhile wait in the machine's memory, and each resumed machine asks them. The
//! monitor sends nothing of its own to a machine without a lease, so nothing comes after the last answer.

use crate::guest::power_off;
use crate::messages;
use hotlease_wire::machine::FromGuest;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// FUSE operations without an answer: FORGET and BATCH_FORGET.
const UNANSWERED: [u32; 2] = [2, 42];

/// The sender of all messages to the monitor.
#[derive(Clone)]
pub struct MonitorSender(Arc<SenderState>);

struct SenderState {
    port: Mutex<File>,
    /// Numbers of questions whose answers have not arrived. Locked for moments, never during a send: the thread that
    /// receives from the monitor must not wait for a thread that sends to it.
    unanswered: Mutex<BTreeSet<u64>>,
    answered: Condvar,
}

impl MonitorSender {
    pub fn new(port: File) -> Self {
        Self(Arc::new(SenderState {
            port: Mutex::new(port),
            unanswered: Mutex::default(),
            answered: Condvar::new(),
        }))
    }

    fn port(&self) -> MutexGuard<'_, File> {
        self.0.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to the monitor.
    pub fn tell(&self, message: &FromGuest, brought: &[u8]) {
        send_or_end(&mut self.port(), message, brought);
    }

    /// Passes on a question of the kernel.
    pub fn ask(&self, question: &[u8]) {
        let mut port = self.port();
        // Added while the port is locked, so that no further question is added once another thread has locked the port.
        self.unanswered().extend(pending_number(question));
        send_or_end(&mut port, &FromGuest::File, question);
    }

    /// Notes that the kernel has received this answer.
    pub fn note_answer(&self, answer: &[u8]) {
        if let Some(number) = number(answer) {
            self.unanswered().remove(&number);
            self.0.answered.notify_all();
        }
    }

    /// Reports `Obeyed` once nothing is under way. As long as the caller keeps the returned guard, nothing is under way
    /// and no thread can send.
    pub fn pause(&self) -> MutexGuard<'_, File> {
        let mut port = self.port();
        let all = self.0.answered.wait_while(self.unanswered(), |asked| !asked.is_empty());
        drop(all);
        send_or_end(&mut port, &FromGuest::Obeyed(Ok(())), &[]);
        port
    }
}

/// Sends a message; if the monitor is gone, ends the machine.
fn send_or_end(port: &mut File, message: &FromGuest, brought: &[u8]) {
    if messages::send(port, message, brought).is_err() {
        power_off()
    }
}

/// Number of a question or answer, in FUSE's format.
fn number(message: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*message.get(8..)?.first_chunk()?))
}

/// Number of a question that gets an answer.
fn pending_number(question: &[u8]) -> Option<u64> {
    let what = u32::from_ne_bytes(*question.get(4..)?.first_chunk()?);
    number(question).filter(|_| !UNANSWERED.contains(&what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::machine::FromGuest::{File as Asked, Obeyed, Printed};
    use std::io;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    const LOOKUP: u32 = 1;
    const FORGET: u32 = 2;

    /// Head of a question, or of an answer if `what` is 0.
    fn head(what: u32, number: u64) -> Vec<u8> {
        [&16_u32.to_ne_bytes()[..], &what.to_ne_bytes(), &number.to_ne_bytes()].concat()
    }

    /// Next message that the monitor receives; `None` if none arrives for a while.
    fn hear(monitor: &mut UnixStream) -> Option<(FromGuest, Vec<u8>)> {
        match messages::receive(monitor) {
            Ok(heard) => heard,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }

    /// Next message that the monitor receives; waits longer.
    fn soon(monitor: &mut UnixStream) -> Option<(FromGuest, Vec<u8>)> {
        (0..300).find_map(|_| hear(monitor))
    }

    #[test]
    fn a_machine_pauses_once_all_that_it_has_asked_is_answered_and_asks_nothing_more_until_it_goes_on() {
        let (port, mut monitor) = UnixStream::pair().expect("a socket pair");
        let teller = MonitorSender::new(OwnedFd::from(port).into());
        let within = Some(Duration::from_millis(100));
        monitor.set_read_timeout(within).expect("set");
        // A machine whose monitor is gone ends; a failing test must not cause that.
        std::mem::forget(monitor.try_clone().expect("a descriptor"));
        for (what, number) in [(LOOKUP, 2), (FORGET, 4), (LOOKUP, 6)] {
            teller.ask(&head(what, number));
            assert_eq!(hear(&mut monitor), Some((Asked, head(what, number))));
        }
        let (resume, resumed) = mpsc::channel::<()>();
        let pausing = std::thread::spawn({
            let teller = teller.clone();
            move || {
                let paused = teller.pause();
                let _ = resumed.recv();
                drop(paused);
            }
        });
        // Answers arrive in any order; an answer without a question changes nothing.
        for number in [6, 0] {
            assert_eq!(hear(&mut monitor), None, "two are not answered");
            teller.note_answer(&head(0, number));
        }
        assert_eq!(hear(&mut monitor), None, "one is not answered");
        teller.note_answer(&head(0, 2));
        assert_eq!(soon(&mut monitor), Some((Obeyed(Ok(())), Vec::new())));
        let speaking = std::thread::spawn({
            let teller = teller.clone();
            move || {
                teller.ask(&head(LOOKUP, 8));
                teller.tell(&Printed, b"words");
            }
        });
        assert_eq!(hear(&mut monitor), None, "it pauses");
        drop(resume);
        for said in [(Asked, head(LOOKUP, 8)), (Printed, b"words".to_vec())] {
            assert_eq!(soon(&mut monitor), Some(said), "what waited is not lost");
        }
        pausing.join().expect("it goes on");
        speaking.join().expect("it goes on");
    }
}
