//! One row of the table of faults.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

/// A time that was measured in each run, and its promised limit.
#[derive(Debug, Default)]
struct Measured {
    what: &'static str,
    promised: Option<Duration>,
    samples: Vec<Duration>,
}

/// Effects of a fault, over all runs.
#[derive(Debug)]
pub struct Row {
    fault: &'static str,
    promise: &'static str,
    test: &'static str,
    seed: u64,
    runs: u64,
    measured: Vec<Measured>,
}

/// On a machine with other work, a run may take at most this many times as long as promised.
const LATE_TIMES: u32 = 12;
/// Variable that is 1 if the machine has no other work.
const QUIET: &str = "HOTLEASE_FAULTS_QUIET";
/// On a machine without other work, one of this many runs may be late; also one of fewer runs.
const LATE_ONE_OF: usize = 5;

impl Row {
    /// A row for a test.
    pub fn new(fault: &'static str, promise: &'static str, test: &'static str, seed: u64) -> Self {
        Self {
            fault,
            promise,
            test,
            seed,
            runs: 0,
            measured: Vec::new(),
        }
    }

    /// Counts a run.
    pub fn ran(&mut self) {
        self.runs += 1;
    }

    /// Adds a time of a run; `promised` is the same in each run.
    pub fn took(&mut self, what: &'static str, promised: Option<Duration>, took: Duration) {
        if let Some(measured) = self.measured.iter_mut().find(|measured| measured.what == what) {
            measured.samples.push(took);
            return;
        }
        self.measured.push(Measured {
            what,
            promised,
            samples: vec![took],
        });
    }

    /// Adds the runs of another row of the same test.
    pub fn add(&mut self, other: Row) {
        self.runs += other.runs;
        for measured in other.measured {
            for sample in measured.samples {
                self.took(measured.what, measured.promised, sample);
            }
        }
    }

    /// Prints the row to standard error, which the test program does not capture, and compares its times with the
    /// promises.
    ///
    /// # Panics
    /// If one run took very much longer than promised or, on a quiet host, more than a fifth of the runs took longer.
    pub fn finish(mut self) {
        let is_quiet = std::env::var(QUIET).is_ok_and(|value| value == "1");
        let mut line = format!("| {} | {} | {} | {} |", self.fault, self.promise, self.test, self.runs);
        for measured in &mut self.measured {
            measured.samples.sort();
            let at = |part: f64| measured.samples[((measured.samples.len() - 1) as f64 * part) as usize];
            let promised = measured
                .promised
                .map(|promised| format!(" of {} promised", shown(promised)));
            let _ = write!(
                line,
                " {} {} / {} / {}{};",
                measured.what,
                shown(at(0.5)),
                shown(at(0.99)),
                shown(at(1.0)),
                promised.unwrap_or_default()
            );
        }
        let _ = writeln!(line, " seed {} |", self.seed);
        // Standard error may be closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
        for measured in &self.measured {
            let Some(promised) = measured.promised else {
                continue;
            };
            let late = measured.samples.iter().filter(|took| **took > promised).count();
            let may_be_late = (measured.samples.len() / LATE_ONE_OF).max(1);
            let longest = measured.samples.last().copied().unwrap_or_default();
            assert!(
                (late <= may_be_late || !is_quiet) && longest <= promised * LATE_TIMES,
                "{}: {}: {late} of {} runs took longer than the {} that are promised, the longest {}",
                self.fault,
                measured.what,
                measured.samples.len(),
                shown(promised),
                shown(longest)
            );
        }
    }
}

fn shown(duration: Duration) -> String {
    match duration.as_micros() {
        0..1_000 => format!("{} us", duration.as_micros()),
        1_000..100_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        100_000..1_000_000 => format!("{} ms", duration.as_millis()),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}
