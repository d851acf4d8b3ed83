//! Candidates without any library: a cache line and TCP sockets.

use super::Exchange;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// Processors that this process may use at its start.
static ALLOWED: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let all = (0..CpuSet::count()).filter(|number| set.is_set(*number) == Ok(true));
    all.collect()
});

/// Environment variable with the processors, for started processes: they inherit the pinning of this process, so they
/// cannot find the processors themselves.
const PROCESSORS: &str = "HOTLEASE_NEAR_PROCESSORS";

/// Pins this thread to one of the two processors.
pub fn pin(number: usize) -> Result<(), Box<dyn Error>> {
    let told = std::env::var(PROCESSORS).ok();
    let known = match &told {
        Some(told) => told.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?,
        None => ALLOWED.clone(),
    };
    let mut set = CpuSet::new();
    set.set(*known.get(number).ok_or("two processors are needed")?)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// Variable and value for the environment of started processes.
pub fn processors() -> (&'static str, String) {
    let numbers: Vec<_> = ALLOWED.iter().map(usize::to_string).collect();
    (PROCESSORS, numbers.join(","))
}

/// Candidate that writes one cache line in each direction.
pub struct Line;

#[derive(Default)]
#[repr(align(128))]
struct PaddedWord(AtomicU64);

impl PaddedWord {
    fn wait(&self, value: u64) {
        while self.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    }
}

impl Exchange for Line {
    fn name(&self) -> &'static str {
        "raw line"
    }

    fn half_round_trip(&mut self, _: usize, batches: u32) -> Result<f64, Box<dyn Error>> {
        let rounds = u64::from(super::rounds_of(batches));
        let (ping, pong) = (PaddedWord::default(), PaddedWord::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let is_pinned = pin(1).is_ok();
                for round in 1..=rounds {
                    ping.wait(round);
                    pong.0.store(round, Ordering::Release);
                }
                assert!(is_pinned);
            });
            let mut round = 0;
            super::least(batches, || {
                round += 1;
                ping.0.store(round, Ordering::Release);
                pong.wait(round);
                Ok(())
            })
        })
    }
}

/// A TCP connection on loopback, with a thread at its other end.
pub struct Sockets {
    waits: bool,
    stream: TcpStream,
    orders: Option<mpsc::Sender<(bool, usize, u32)>>,
    other: Option<JoinHandle<io::Result<()>>>,
    buffer: Vec<u8>,
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < buffer.len() {
        match stream.read(&mut buffer[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => at += got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(gone) => bytes = &bytes[gone..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Sockets {
    pub fn new(waits: bool) -> Result<Self, Box<dyn Error>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut theirs, _) = listener.accept()?;
        for stream in [&stream, &theirs] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(!waits)?;
        }
        let (orders, received) = mpsc::channel::<(bool, usize, u32)>();
        let other = std::thread::spawn(move || {
            pin(1).map_err(|error| io::Error::other(error.to_string()))?;
            let mut buffer = vec![0; 4 << 20];
            for (is_ping, bytes, rounds) in received {
                for _ in 0..rounds {
                    read(&mut theirs, &mut buffer[..bytes])?;
                    if is_ping {
                        write(&mut theirs, &buffer[..bytes])?;
                    }
                }
                if !is_ping {
                    write(&mut theirs, &[0])?;
                }
            }
            Ok(())
        });
        Ok(Self {
            waits,
            stream,
            orders: Some(orders),
            other: Some(other),
            buffer: vec![0; 4 << 20],
        })
    }

    fn order(&self, is_ping: bool, bytes: usize, rounds: u32) -> Result<(), Box<dyn Error>> {
        let orders = self.orders.as_ref().ok_or("it has ended")?;
        Ok(orders.send((is_ping, bytes, rounds))?)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(other) = self.other.take() {
            let _ = other.join();
        }
    }
}

impl Exchange for Sockets {
    fn name(&self) -> &'static str {
        if self.waits { "raw, waiting" } else { "raw, spinning" }
    }

    fn half_round_trip(&mut self, bytes: usize, batches: u32) -> Result<f64, Box<dyn Error>> {
        self.order(true, bytes, super::rounds_of(batches))?;
        let (stream, buffer) = (&mut self.stream, &mut self.buffer[..bytes]);
        Ok(super::least(batches, || {
            write(stream, buffer).and_then(|()| read(stream, buffer))
        })?)
    }

    fn stream(&mut self, bytes: usize, messages: u32) -> Result<f64, Box<dyn Error>> {
        self.order(false, bytes, messages)?;
        let began = Instant::now();
        for _ in 0..messages {
            write(&mut self.stream, &self.buffer[..bytes])?;
        }
        read(&mut self.stream, &mut [0])?;
        Ok(began.elapsed().as_secs_f64())
    }
}
