//! One hint for a program whose tasks take longer to submit than to run: of one task in [`EVERY`], both are measured.

use super::times::Times;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Tasks of which one is measured.
const EVERY: u64 = 64;
/// Measured tasks that are looked at together.
const SAMPLES: usize = 16;
/// Tasks under way that are measured.
const AWAITED_MAX: usize = 256;

/// It was given, or is not wanted: once for the whole program.
static GIVEN: AtomicBool = AtomicBool::new(false);

/// What was measured.
#[derive(Default)]
pub struct Hint {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    awaited: Vec<Arc<Times>>,
    submitting: Vec<u64>,
    running: Vec<u64>,
}

impl Hint {
    /// Whether the task of this number is measured.
    pub fn wants(number: u64) -> bool {
        number % EVERY == EVERY - 1 && !GIVEN.load(Ordering::Relaxed)
    }

    /// This one is measured.
    pub fn measure(&self, times: &Arc<Times>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.awaited.len() < AWAITED_MAX {
            seen.awaited.push(times.clone());
        }
    }

    /// Medians of what submitting and running a task took, nanoseconds, if the first is more and nobody was told yet.
    pub fn give(&self) -> Option<(u64, u64)> {
        let mut guard = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *guard;
        let (submitting, running) = (&mut seen.submitting, &mut seen.running);
        seen.awaited.retain(|times| match times.cost() {
            Some((submitted, ran)) => {
                submitting.push(submitted);
                running.push(ran);
                false
            }
            None => !times.has_ended(),
        });
        if submitting.len() < SAMPLES {
            return None;
        }
        let medians = (median(submitting), median(running));
        (medians.0 > medians.1 && !GIVEN.swap(true, Ordering::Relaxed)).then_some(medians)
    }
}

fn median(values: &mut Vec<u64>) -> u64 {
    let middle = values.len() / 2;
    let median = *values.select_nth_unstable(middle).1;
    values.clear();
    median
}
