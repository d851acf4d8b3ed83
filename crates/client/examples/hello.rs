//! Leases a worker, calls a function of a shared library on it, and prints the cost.
//!
//! ```text
//! hotlease up --detach
//! cargo run --release -p hotlease-client --example hello -- LIBRARY FUNCTION [INPUT]
//! ```

use hotlease_client::{Code, Invoker, LeaseOptions};
use std::error::Error;
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(library), Some(function)) = (arguments.next(), arguments.next()) else {
        return Err("usage: hello LIBRARY FUNCTION [INPUT]".into());
    };
    let input = arguments.next().unwrap_or_else(|| "world".to_owned());
    let mut out = std::io::stdout().lock();

    // Cold, once: lease a worker, load the library into it, connect to it.
    let invoker = Invoker::allocate(&Code::open(library)?, LeaseOptions::default())?;
    let function = invoker.function(&function)?;
    writeln!(out, "lease {} in {:.1?}", invoker.lease(), invoker.phases().total())?;

    // Hot, as often as you like: one write into the worker's memory, one write back.
    let output = function.call(input.as_bytes())?;
    writeln!(out, "{}", String::from_utf8_lossy(&output).trim_end())?;

    let mut output = vec![0; output.len().max(32)];
    let mut best = f64::INFINITY;
    for _ in 0..1000 {
        let start = Instant::now();
        function.invoke(input.as_bytes(), &mut output)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    writeln!(out, "fastest of 1000 more calls: {:.0} ns", best * 1e9)?;

    // Dropping the invoker would release the lease as well; `deallocate` also returns the lease's usage.
    let usage = invoker.deallocate()?;
    writeln!(
        out,
        "{} invocations, {} us computing, {} us polling",
        usage.invocations,
        usage.compute_ns / 1000,
        usage.hot_ns / 1000
    )?;
    Ok(())
}
