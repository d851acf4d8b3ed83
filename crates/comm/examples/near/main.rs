//! Speed of messages between two members of one node, measured in turns with other ways for two processes to
//! communicate:
//!
//! ```text
//! cargo run --release --package hotlease-comm --example near [-- TURNS [memory|tcp [BYTES]]]
//! ```
//!
//! The link over shared memory is compared with the raw round trip of a cache line between two processors, and with
//! Open MPI if `mpicc` and `mpirun` are installed. The link over TCP on loopback is compared with raw sockets, polled
//! without waiting or used with blocking calls; throughput is measured too. The link over libfabric's best provider
//! that reaches other hosts, if there is one, is compared with the link over TCP. The two sides run on the first two
//! processors that this process may use. In each turn, the time of a candidate is the least of some short batches. A
//! printed time is the least of all turns; a printed ratio is the median of the turns' ratios.

#![allow(clippy::print_stdout, reason = "it is a program that prints")]

mod members;
mod openmpi;
mod raw;

use std::error::Error;
use std::time::{Duration, Instant};

/// An exchange between two sides, measured by one of them.
trait Exchange {
    fn name(&self) -> &'static str;
    /// Measures half a round trip of `bytes` bytes. Returns the average time of the fastest batch, in seconds.
    fn half_round_trip(&mut self, bytes: usize, batches: u32) -> Result<f64, Box<dyn Error>>;
    /// Measures the time of `messages` messages in one direction and one answer, in seconds.
    fn stream(&mut self, _bytes: usize, _messages: u32) -> Result<f64, Box<dyn Error>> {
        Err("not measured".into())
    }
}

const SIZES: [usize; 9] = [8, 64, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_TCP: [usize; 8] = [8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const STREAMED: usize = 1 << 20;
/// Exchanges in a batch. A batch is short, so that in most batches no other program ran on the processor, even on a
/// busy host.
const BATCH: u32 = 10;

fn batches_of(bytes: usize) -> u32 {
    if bytes > 128 << 10 { 3 } else { 40 }
}

/// Runs batches of an exchange; returns half the average time of an exchange in the fastest batch.
fn least<E>(batches: u32, mut exchange: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    exchange()?;
    let mut least = f64::INFINITY;
    for _ in 0..batches {
        let began = Instant::now();
        (0..BATCH).try_for_each(|_| exchange())?;
        least = least.min(began.elapsed().as_secs_f64() / f64::from(BATCH) / 2.0);
    }
    Ok(least)
}

/// Number of exchanges that [`least`] runs.
fn rounds_of(batches: u32) -> u32 {
    batches * BATCH + 1
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type Measure = fn(&mut dyn Exchange, usize) -> Result<f64, Box<dyn Error>>;

/// Measures all candidates in turns, and compares the first with each of the others.
fn compare(
    what: &str,
    all: &mut [&mut dyn Exchange],
    bytes: usize,
    turns: usize,
    measure: Measure,
) -> Result<(), Box<dyn Error>> {
    let mut taken = vec![Vec::new(); all.len()];
    for _ in 0..turns {
        for (measured, taken) in all.iter_mut().zip(&mut taken) {
            taken.push(measure(*measured, bytes)?);
        }
    }
    let least = |taken: &[f64]| taken.iter().copied().fold(f64::INFINITY, f64::min) * 1e6;
    let ours = &taken[0];
    print!("{what} {bytes:>8} B: {} {:9.3} us", all[0].name(), least(ours));
    for (other, theirs) in all.iter().zip(&taken).skip(1) {
        let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let ratio = median(ratios.collect());
        print!(
            "   {} {:9.3} us, ratio {:5.2} ({:.2} of the least)",
            other.name(),
            least(theirs),
            ratio,
            least(ours) / least(theirs)
        );
    }
    println!();
    Ok(())
}

/// Compares libfabric with TCP.
fn fabric(turns: usize, ping: Measure, stream: Measure) -> Result<(), Box<dyn Error>> {
    if let Err(error) = hotlease_fabric::ofi::Libfabric::load() {
        println!("{error}");
        return Ok(());
    }
    for (waits, spin) in [(false, Duration::from_secs(10)), (true, Duration::ZERO)] {
        let names = match waits {
            true => ["ofi, waiting", "tcp, waiting"],
            false => ["ofi, spinning", "tcp, spinning"],
        };
        let mut ofi = members::MemberPair::start(names[0], "ofi", spin)?;
        let mut tcp = members::MemberPair::start(names[1], "tcp", spin)?;
        for bytes in [8, 64 << 10, 4 << 20] {
            compare("fabric", &mut [&mut ofi, &mut tcp], bytes, turns, ping)?;
        }
        compare("stream", &mut [&mut ofi, &mut tcp], STREAMED, turns, stream)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--member") {
        return members::serve(&arguments.collect::<Vec<_>>());
    }
    let turns = first.map_or(Ok(25), |turns| turns.parse())?;
    let only = arguments.next();
    let is_asked = |link: &str| only.as_deref().is_none_or(|only| only == link);
    raw::pin(0)?;
    let bytes: Option<usize> = arguments.next().map(|bytes| bytes.parse()).transpose()?;
    let sizes = |all: &[usize]| bytes.map_or(all.to_vec(), |bytes| vec![bytes]);
    if is_asked("memory") {
        memory(turns, &sizes(&SIZES))?;
    }
    if is_asked("tcp") {
        tcp(turns, &sizes(&SIZES_TCP))?;
    }
    Ok(())
}

/// Measures half a round trip.
const PING: Measure = |measured, bytes| measured.half_round_trip(bytes, batches_of(bytes));

fn memory(turns: usize, sizes: &[usize]) -> Result<(), Box<dyn Error>> {
    let mut near = members::MemberPair::start("shm", "direct", Duration::from_micros(20))?;
    let mut line = raw::Line;
    compare("memory", &mut [&mut near, &mut line], 8, turns, PING)?;
    match openmpi::OpenMpi::start("self,vader") {
        Ok(mut mpi) => {
            for bytes in sizes {
                compare("memory", &mut [&mut near, &mut mpi], *bytes, turns, PING)?;
            }
        }
        Err(error) => {
            println!("no Open MPI to compare with: {error}");
            for bytes in sizes {
                compare("memory", &mut [&mut near], *bytes, turns, PING)?;
            }
        }
    }
    Ok(())
}

fn tcp(turns: usize, sizes: &[usize]) -> Result<(), Box<dyn Error>> {
    let stream: Measure = |measured, bytes| Ok(measured.stream(bytes, 64)? / 64.0);
    for (waits, spin) in [(false, Duration::from_secs(10)), (true, Duration::ZERO)] {
        let name = if waits { "tcp, waiting" } else { "tcp, spinning" };
        let mut tcp = members::MemberPair::start(name, "tcp", spin)?;
        let mut sockets = raw::Sockets::new(waits)?;
        for bytes in sizes {
            compare("tcp   ", &mut [&mut tcp, &mut sockets], *bytes, turns, PING)?;
        }
        compare("stream", &mut [&mut tcp, &mut sockets], STREAMED, turns, stream)?;
    }
    fabric(turns, PING, stream)
}
