//! A client in a separate process, which tests can stop, kill, or run on another host. It calls until its standard
//! input ends, and prints the outcome of each call. The last line is the usage that the lease reported at its end.
//!
//! `hotlease-test-tally LIBRARY MARKS FIRST END MICROSECONDS PAUSE_US TIMEOUT_US SEED`

use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use hotlease_tests::faults::caller::{Steady, keep_calling, monotonic, usage_line};
use hotlease_tests::faults::tally::Call;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Errors are ignored: a test that has ended no longer reads, and kills this process anyway.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, marks, rest @ ..] = &arguments[..] else {
        panic!("arguments: LIBRARY MARKS FIRST END MICROSECONDS PAUSE_US TIMEOUT_US SEED");
    };
    let numbers: Vec<u64> = rest.iter().map(|text| text.parse().expect("a number")).collect();
    let [first, end, microseconds, pause, timeout, seed] = numbers[..] else {
        panic!("six numbers");
    };
    let how = Steady {
        microseconds: microseconds as u32,
        pause: Duration::from_micros(pause),
        timeout: (timeout > 0).then_some(Duration::from_micros(timeout)),
        seed,
    };
    let options = LeaseOptions {
        ttl: Duration::from_secs(2),
        move_within: Duration::from_secs(1),
        ..LeaseOptions::default()
    };
    let invoker = Invoker::allocate(&Code::open(library)?, options)?;
    let function = invoker.function("tally")?.idempotent(false).timeout(how.timeout);
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        // The end of the input is the order to stop.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    let mut numbers = first..end;
    let now = (Instant::now(), monotonic());
    let next = |microseconds| Call::new(numbers.next().expect("a number is left"), microseconds, marks);
    keep_calling(&function, &how, &stop, next, |outcome| say(&outcome.line(now)));
    drop(function);
    let lease = invoker.lease().to_string();
    match invoker.deallocate() {
        Ok(usage) => say(&usage_line(&lease, &usage)),
        Err(error) => eprintln!("not told: {error}"),
    }
    Ok(())
}
