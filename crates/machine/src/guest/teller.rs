//! What all threads tell the monitor through, and which of the kernel's questions about files are not answered yet.
//!
//! What is under way when a machine is saved is lost to all that go on from there: a question that the monitor has heard and not answered, an
//! answer that the guest has not heard. The guest sees both ends of each, so it is the guest that says when there is none:
//!
//! ```text
//! Pause ──► nobody says anything any more ──► the last answer comes ──► Obeyed ──► saved
//! ```
//!
//! What the kernel asks meanwhile waits in the machine's memory, and is asked by each that goes on. The monitor says nothing of its own to a
//! machine that has no lease: behind the last answer comes nothing.

use crate::guest::power_off;
use crate::link;
use hotlease_wire::machine::FromGuest;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What the kernel says and wants no answer to: that it forgets one file, or several.
const UNANSWERED: [u32; 2] = [2, 42];

/// See the module.
#[derive(Clone)]
pub struct Teller(Arc<Shared>);

struct Shared {
    port: Mutex<File>,
    /// Numbers of questions whose answers have not come. Locked for moments, never while something is said: who hears the monitor must not
    /// wait for who speaks to it.
    asked: Mutex<BTreeSet<u64>>,
    answered: Condvar,
}

impl Teller {
    pub fn new(port: File) -> Self {
        Self(Arc::new(Shared {
            port: Mutex::new(port),
            asked: Mutex::default(),
            answered: Condvar::new(),
        }))
    }

    fn port(&self) -> MutexGuard<'_, File> {
        self.0.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the monitor.
    pub fn tell(&self, message: &FromGuest, brought: &[u8]) {
        say(&mut self.port(), message, brought);
    }

    /// Passes on a question of the kernel's.
    pub fn ask(&self, question: &[u8]) {
        let mut port = self.port();
        // With the port in hand, so that there are no more of them once somebody else has it.
        self.asked().extend(awaited(question));
        say(&mut port, &FromGuest::File, question);
    }

    /// The kernel has this answer.
    pub fn answered(&self, answer: &[u8]) {
        if let Some(number) = number(answer) {
            self.asked().remove(&number);
            self.0.answered.notify_all();
        }
    }

    /// Obeys once nothing is under way. Nothing is, and nobody says anything, as long as what this gives is kept.
    pub fn pause(&self) -> MutexGuard<'_, File> {
        let mut port = self.port();
        let all = self
            .0
            .answered
            .wait_while(self.asked(), |asked| !asked.is_empty());
        drop(all);
        say(&mut port, &FromGuest::Obeyed(Ok(())), &[]);
        port
    }
}

/// A monitor that is gone takes the machine with it.
fn say(port: &mut File, message: &FromGuest, brought: &[u8]) {
    if link::send(port, message, brought).is_err() {
        power_off()
    }
}

/// The number of a question or answer, as FUSE has it.
fn number(message: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*message.get(8..)?.first_chunk()?))
}

/// The number of a question that gets an answer.
fn awaited(question: &[u8]) -> Option<u64> {
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

    /// The head of a question, or with no `what` of an answer.
    fn head(what: u32, number: u64) -> Vec<u8> {
        [
            &16_u32.to_ne_bytes()[..],
            &what.to_ne_bytes(),
            &number.to_ne_bytes(),
        ]
        .concat()
    }

    /// What the monitor hears next; `None`: nothing for a while.
    fn hear(monitor: &mut UnixStream) -> Option<(FromGuest, Vec<u8>)> {
        match link::receive(monitor) {
            Ok(heard) => heard,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }

    /// The same, of what does come.
    fn soon(monitor: &mut UnixStream) -> Option<(FromGuest, Vec<u8>)> {
        (0..300).find_map(|_| hear(monitor))
    }

    #[test]
    fn a_machine_pauses_once_all_that_it_has_asked_is_answered_and_asks_nothing_more_until_it_goes_on() {
        let (port, mut monitor) = UnixStream::pair().expect("a socket pair");
        let teller = Teller::new(OwnedFd::from(port).into());
        let within = Some(Duration::from_millis(100));
        monitor.set_read_timeout(within).expect("set");
        // A machine whose monitor is gone ends, which is not for a test that fails.
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
        // Answers come in any order; one that nobody waits for changes nothing.
        for number in [6, 0] {
            assert_eq!(hear(&mut monitor), None, "two are not answered");
            teller.answered(&head(0, number));
        }
        assert_eq!(hear(&mut monitor), None, "one is not answered");
        teller.answered(&head(0, 2));
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
