//! Median time in microseconds of half a round trip, or of an allreduce, between members that `hotlease comm run`
//! starts.
//!
//! ```text
//! cargo build --release --package hotlease-comm --examples
//! hotlease comm run -n 2 target/release/examples/pingpong pingpong 8 2000
//! hotlease comm run -n 2 target/release/examples/pingpong allreduce 16777216 10
//! ```

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "its result")]

use hotlease_comm::{Communicator, Error, Operator, Options, Pattern};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [case, bytes, calls] = args.as_slice() else {
        return Err("pingpong|allreduce BYTES CALLS".into());
    };
    let (bytes, calls): (usize, usize) = (bytes.parse()?, calls.parse()?);
    let all = Communicator::join(&Options::from_env()?)?;
    let (median, parts) = match case.as_str() {
        "pingpong" => (pingpong(&all, bytes, calls)?, 2.0),
        "allreduce" => (allreduce(&all, bytes, calls)?, 1.0),
        other => return Err(format!("{other}: pingpong or allreduce").into()),
    };
    if all.rank() == 0 {
        println!("{}", median / parts);
    }
    all.finish()?;
    Ok(())
}

/// Returns the median time of the calls. A tenth of their number run before, as a warm-up.
fn measured(calls: usize, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    for _ in 0..(calls / 10).max(2) {
        call()?;
    }
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn pingpong(all: &Communicator, bytes: usize, calls: usize) -> Result<f64, Error> {
    let mut buffer = vec![0; bytes];
    let other = 1 - all.rank();
    let from = Pattern {
        source: Some(other),
        tag: None,
    };
    measured(calls, || {
        if all.rank() == 0 {
            all.send(&buffer, other, 0)?;
            all.receive(&mut buffer, from).map(drop)
        } else {
            all.receive(&mut buffer, from)?;
            all.send(&buffer, other, 0)
        }
    })
}

fn allreduce(all: &Communicator, bytes: usize, calls: usize) -> Result<f64, Error> {
    let (given, mut got) = (vec![1.0; bytes / 8], vec![0.0; bytes / 8]);
    measured(calls, || all.allreduce(&given, &mut got, &Operator::Sum))
}
