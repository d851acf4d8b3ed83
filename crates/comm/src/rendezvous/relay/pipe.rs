//! Pipe between two connections: each gets what the other one sends.

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// Maximum number of bytes that are kept for each direction.
const BUFFER_BYTES: usize = 64 * 1024;
/// Number of bytes after which other pairs have their turn.
const TURN_BYTES: usize = 256 * 1024;
/// Time without a byte after which the system probes a connection. Members send signs of life several times a second,
/// so a host that is silent for this time and for [`QUESTIONS`] probes is gone.
const SILENCE: Duration = Duration::from_secs(15);
const QUESTION_EVERY: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 3;

/// State at the end of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::rendezvous) enum PipeState {
    /// There is nothing to do until the system reports an event.
    Idle,
    /// There is more to do, but other pairs have their turn first.
    More,
    /// Both sides have ended, or one of them is gone.
    Ended,
}

/// Bytes that one side has sent and the other side has not received yet.
struct Flow {
    buffer: Vec<u8>,
    at: usize,
    /// Whether the sending side sends no more.
    has_ended: bool,
    /// Whether the receiving side was told that the sending side sends no more.
    is_over: bool,
}

/// Two connections, and what is on its way between them.
pub(in crate::rendezvous) struct Pipe {
    streams: [TcpStream; 2],
    /// Both directions, by the sending side.
    flows: [Flow; 2],
}

impl Flow {
    fn new(buffer: Vec<u8>) -> Self {
        Self {
            buffer,
            at: 0,
            has_ended: false,
            is_over: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.at == self.buffer.len()
    }

    /// Moves as many bytes as possible now; returns their number. Fails if nothing more can reach the receiving side.
    fn step(&mut self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<usize> {
        if self.is_empty() && !self.has_ended {
            self.at = 0;
            self.buffer.resize(BUFFER_BYTES, 0);
            let got = from.read(&mut self.buffer);
            self.buffer.truncate(got.as_ref().copied().unwrap_or(0));
            match got {
                Ok(0) => self.has_ended = true,
                Err(error) if is_not_now(&error) => {}
                // What the side had sent before was passed on.
                Err(_) => self.has_ended = true,
                Ok(_) => {}
            }
        }
        if self.is_empty() {
            if self.has_ended && !self.is_over {
                self.is_over = true;
                // Bytes that are on their way arrive before the end does.
                to.shutdown(Shutdown::Write)?;
            }
            return Ok(0);
        }
        match to.write(&self.buffer[self.at..]) {
            Ok(gone) => {
                self.at += gone;
                Ok(gone)
            }
            Err(error) if is_not_now(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Pipe {
    /// Makes a pipe between two members. `sides` has the connection of each member, and the bytes to send to it first.
    pub(in crate::rendezvous) fn new(sides: [(TcpStream, Vec<u8>); 2]) -> Self {
        let [(one, to_one), (other, to_other)] = sides;
        let keepalive = TcpKeepalive::new().with_time(SILENCE);
        let keepalive = keepalive.with_interval(QUESTION_EVERY).with_retries(QUESTIONS);
        for stream in [&one, &other] {
            // Without keepalive, two hosts that vanish together would occupy their place for ever.
            if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&keepalive) {
                tracing::debug!(%error, "a relayed connection is not looked after");
            }
        }
        Self {
            streams: [one, other],
            flows: [Flow::new(to_other), Flow::new(to_one)],
        }
    }

    pub(in crate::rendezvous) fn streams(&mut self) -> [&mut TcpStream; 2] {
        self.streams.each_mut()
    }

    /// Moves as many bytes as possible now, in both directions.
    pub(in crate::rendezvous) fn turn(&mut self) -> PipeState {
        let [one, other] = &self.streams;
        let [from_one, from_other] = &mut self.flows;
        let mut moved = 0;
        while moved < TURN_BYTES {
            let (Ok(there), Ok(back)) = (from_one.step(one, other), from_other.step(other, one)) else {
                return PipeState::Ended;
            };
            if from_one.is_over && from_other.is_over {
                return PipeState::Ended;
            }
            if there + back == 0 {
                return PipeState::Idle;
            }
            moved += there + back;
        }
        PipeState::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Makes a pipe, and returns its two far ends.
    fn pipe(first: [&[u8]; 2]) -> (Pipe, [std::net::TcpStream; 2]) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ends = [(); 2].map(|()| {
            let far = std::net::TcpStream::connect(address).expect("it listens");
            let (near, _) = listener.accept().expect("one came");
            near.set_nonblocking(true).expect("a socket");
            (TcpStream::from_std(near), far)
        });
        let [(one, far_one), (other, far_other)] = ends;
        let sides = [(one, first[0].to_vec()), (other, first[1].to_vec())];
        (Pipe::new(sides), [far_one, far_other])
    }

    /// Gives the pipe turns until a condition holds.
    fn until(pipe: &mut Pipe, mut holds: impl FnMut(&PipeState) -> bool) {
        let began = std::time::Instant::now();
        while !holds(&pipe.turn()) {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pipe_has_ended(end: &mut std::net::TcpStream) -> bool {
        end.set_nonblocking(true).expect("a socket");
        matches!(end.read(&mut [0; 8]), Ok(0))
    }

    fn read(end: &mut std::net::TcpStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        end.read_exact(&mut bytes).expect("it comes");
        bytes
    }

    #[test]
    fn bytes_of_a_peer_follow_the_bytes_that_the_relay_sends_first() {
        let (mut pipe, [mut one, mut other]) = pipe([b"to one", b"to other"]);
        one.write_all(b", hello").expect("open");
        assert_eq!(pipe.turn(), PipeState::Idle);
        assert_eq!(read(&mut one, 6), b"to one");
        let mut got = [0; 15];
        other.set_nonblocking(true).expect("a socket");
        let mut length = 0;
        until(&mut pipe, |_| {
            length += other.read(&mut got[length..]).unwrap_or(0);
            length == got.len()
        });
        assert_eq!(&got, b"to other, hello");
    }

    #[test]
    fn a_member_that_does_not_read_costs_one_buffer_and_its_peer_waits() {
        let (mut pipe, [one, other]) = pipe([b"", b""]);
        one.set_nonblocking(true).expect("a socket");
        // Sends until neither the pipe nor the system takes any more.
        let mut sent = 0;
        let mut still = 0;
        while still < 20 {
            let gone = (&one).write(&[7; 1 << 16]).unwrap_or(0);
            sent += gone;
            pipe.turn();
            still = if gone == 0 { still + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(pipe.flows[0].buffer.capacity() <= 2 * BUFFER_BYTES);
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            (&other).read_to_end(&mut all).expect("it ends");
            all
        });
        one.shutdown(Shutdown::Write).expect("open");
        until(&mut pipe, |turn| *turn == PipeState::Ended);
        assert_eq!(read.join().expect("no panic").len(), sent, "all came");
    }

    #[test]
    fn a_closed_side_closes_the_other_side() {
        let (mut pipe, [one, mut other]) = pipe([b"", b""]);
        drop(one);
        until(&mut pipe, |_| pipe_has_ended(&mut other));
        drop(other);
        until(&mut pipe, |turn| *turn == PipeState::Ended);
    }
}
