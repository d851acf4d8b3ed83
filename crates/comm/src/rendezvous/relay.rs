//! Relay: forwards bytes between the two connections of a pair; one thread serves all pairs in turn.
//!
//! Two members exchange a handshake through the relay, and then their records; the relay reads neither. A member
//! that does not read delays only what is sent to it: the buffer of its pair fills up, and then the connection of the
//! other member.

mod pipe;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
pub(super) use pipe::Pipe;
use pipe::PipeState;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const BELL: Token = Token(0);

/// Handle of the relay's thread; dropping it ends the thread and all its pairs.
pub(super) struct Relay {
    pairs: Option<Sender<Pipe>>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts the thread. `running` is the number of pairs; the thread subtracts one for each pair that ends.
    pub(super) fn start(running: Arc<AtomicU32>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), BELL)?);
        let (pairs, arriving) = channel();
        let exchange = RelayLoop {
            poll,
            arriving,
            pipes: HashMap::new(),
            next: 0,
            busy: BTreeSet::new(),
            running,
        };
        let thread = std::thread::Builder::new().name("relay".into());
        Ok(Self {
            pairs: Some(pairs),
            waker,
            thread: Some(thread.spawn(move || exchange.serve())?),
        })
    }

    /// Relays between the two sides of this pipe from now on.
    pub(super) fn take(&self, pipe: Pipe) {
        if let Some(pairs) = &self.pairs {
            // Fails only if the thread is gone; then the pair ends, too.
            let _ = pairs.send(pipe);
            let _ = self.waker.wake();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.pairs = None;
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct RelayLoop {
    poll: Poll,
    arriving: Receiver<Pipe>,
    pipes: HashMap<usize, Pipe>,
    next: usize,
    /// Pairs that have something to do, and wait for their turn.
    busy: BTreeSet<usize>,
    running: Arc<AtomicU32>,
}

/// Tokens of a pair's two connections.
const fn tokens(pair: usize) -> [Token; 2] {
    [Token(2 * pair + 1), Token(2 * pair + 2)]
}

fn register(registry: &Registry, pair: usize, streams: [&mut TcpStream; 2]) -> io::Result<()> {
    let both = Interest::READABLE | Interest::WRITABLE;
    for (stream, token) in streams.into_iter().zip(tokens(pair)) {
        registry.register(stream, token, both)?;
    }
    Ok(())
}

impl RelayLoop {
    fn serve(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let at_most = (!self.busy.is_empty()).then_some(Duration::ZERO);
            match self.poll.poll(&mut events, at_most) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "a rendezvous cannot relay");
                    break;
                }
            }
            for event in events.iter().filter(|event| event.token() != BELL) {
                self.busy.insert((event.token().0 - 1) / 2);
            }
            if !self.welcome() {
                break;
            }
            // One turn for each pair, however many bytes it has.
            for pair in std::mem::take(&mut self.busy) {
                let Some(pipe) = self.pipes.get_mut(&pair) else {
                    continue;
                };
                match pipe.turn() {
                    PipeState::Idle => {}
                    PipeState::More => drop(self.busy.insert(pair)),
                    PipeState::Ended => self.end(pair),
                }
            }
        }
        self.running.fetch_sub(self.pipes.len() as u32, Ordering::AcqRel);
    }

    /// Takes in new pairs; returns `false` if there will be no more pairs, because the rendezvous ends.
    fn welcome(&mut self) -> bool {
        loop {
            let mut pipe = match self.arriving.try_recv() {
                Ok(pipe) => pipe,
                Err(error) => return error == std::sync::mpsc::TryRecvError::Empty,
            };
            let pair = self.next;
            self.next += 1;
            if register(self.poll.registry(), pair, pipe.streams()).is_ok() {
                self.pipes.insert(pair, pipe);
                self.busy.insert(pair);
            } else {
                self.running.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn end(&mut self, pair: usize) {
        if self.pipes.remove(&pair).is_some() {
            self.running.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
