//! How fast two members of one node talk, beside what two processes can do at all, interleaved:
//!
//! ```text
//! cargo run --release --package hotlease-comm --example near [-- TURNS]
//! ```
//!
//! Over shared memory: the raw round trip of a cache line between two processors, and Open MPI's if `mpicc` and `mpirun` are there. Over TCP
//! on loopback: raw sockets that are read again and again without waiting, raw sockets that are waited for, and how
//! many bytes go in a second. Whoever is measured sits on the first two processors that this process may use, and takes the least of some short
//! batches each time that it is its turn; each figure is the least of all turns, each ratio the median of those of the turns.

#![allow(clippy::print_stdout, reason = "it is a program that prints")]

mod openmpi;
mod ours;
mod raw;

use std::error::Error;
use std::time::{Duration, Instant};

/// Something that two sides do, measured by one of them.
trait Measured {
    fn name(&self) -> &'static str;
    /// Seconds of half a round trip of so many bytes: the least of so many batches, on average of each.
    fn half_round_trip(&mut self, bytes: usize, batches: u32) -> Result<f64, Box<dyn Error>>;
    /// Seconds of so many messages in one direction, and an answer.
    fn stream(&mut self, _bytes: usize, _messages: u32) -> Result<f64, Box<dyn Error>> {
        Err("not measured".into())
    }
}

const SIZES: [usize; 9] = [8, 64, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const STREAMED: usize = 1 << 20;
/// A batch is short, so that in most of them nobody else has had a processor, also on a machine that does other things.
const BATCH: u32 = 10;

fn batches_of(bytes: usize) -> u32 {
    if bytes > 128 << 10 { 3 } else { 40 }
}

/// Runs batches of this; the least time of one round of them, halved.
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

/// How many rounds [`least`] runs.
fn rounds_of(batches: u32) -> u32 {
    batches * BATCH + 1
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type Measure = fn(&mut dyn Measured, usize) -> Result<f64, Box<dyn Error>>;

/// Measures all of these by turns, and compares the first with each of the others.
fn compare(
    what: &str,
    all: &mut [&mut dyn Measured],
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--member") {
        return ours::serve(&arguments.collect::<Vec<_>>());
    }
    let turns = first.map_or(Ok(25), |turns| turns.parse())?;
    raw::pin(0)?;
    let ping: Measure = |measured, bytes| measured.half_round_trip(bytes, batches_of(bytes));
    let stream: Measure = |measured, bytes| Ok(measured.stream(bytes, 64)? / 64.0);

    let mut near = ours::Ours::start("shm", "direct", Duration::from_micros(20))?;
    let mut line = raw::Line;
    compare("memory", &mut [&mut near, &mut line], 8, turns, ping)?;
    match openmpi::OpenMpi::start("self,vader") {
        Ok(mut mpi) => {
            for bytes in SIZES {
                compare("memory", &mut [&mut near, &mut mpi], bytes, turns, ping)?;
            }
        }
        Err(error) => {
            println!("no Open MPI to compare with: {error}");
            for bytes in SIZES {
                compare("memory", &mut [&mut near], bytes, turns, ping)?;
            }
        }
    }
    drop(near);
    for (waits, spin) in [(false, Duration::from_secs(10)), (true, Duration::ZERO)] {
        let name = if waits { "tcp, waiting" } else { "tcp, spinning" };
        let mut tcp = ours::Ours::start(name, "tcp", spin)?;
        let mut sockets = raw::Sockets::new(waits)?;
        for bytes in [8, 1024, 16 << 10, 256 << 10, 4 << 20] {
            compare("tcp   ", &mut [&mut tcp, &mut sockets], bytes, turns, ping)?;
        }
        compare("stream", &mut [&mut tcp, &mut sockets], STREAMED, turns, stream)?;
    }
    Ok(())
}
