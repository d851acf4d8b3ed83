//! Hint to a program whose tasks take longer to submit than to run. Both times are measured for one task in [`EVERY`].

use crate::client::tasks::task_times::TaskTimes;
use crate::locks::locked;
use hotlease_fabric::clock::median;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// One task in this many is measured.
const EVERY: u64 = 64;
/// Number of measured tasks that are judged together.
const SAMPLES: usize = 16;
/// Limit of the measured tasks under way.
const AWAITED_MAX: usize = 256;

/// Whether the hint was given. It is given once in the whole program.
static GIVEN: AtomicBool = AtomicBool::new(false);

/// Measurements.
#[derive(Default)]
pub struct Hint {
    seen: Mutex<Samples>,
}

#[derive(Default)]
struct Samples {
    awaited: Vec<Arc<TaskTimes>>,
    submitting: Vec<f64>,
    running: Vec<f64>,
}

impl Hint {
    /// Whether the task of this number is measured.
    pub fn is_measured(number: u64) -> bool {
        number % EVERY == EVERY - 1 && !GIVEN.load(Ordering::Relaxed)
    }

    /// Registers a task that is measured.
    pub fn measure(&self, times: &Arc<TaskTimes>) {
        let mut seen = locked(&self.seen);
        if seen.awaited.len() < AWAITED_MAX {
            seen.awaited.push(times.clone());
        }
    }

    /// Returns the median times of submitting and of running a task, in nanoseconds. Returns `None` if too few tasks
    /// were measured, if submitting does not take longer than running, or if the hint was given before.
    pub fn give(&self) -> Option<(u64, u64)> {
        let mut guard = locked(&self.seen);
        let seen = &mut *guard;
        let (submitting, running) = (&mut seen.submitting, &mut seen.running);
        seen.awaited.retain(|times| match times.cost() {
            Some((submitted, ran)) => {
                submitting.push(submitted as f64);
                running.push(ran as f64);
                false
            }
            None => !times.has_ended(),
        });
        if submitting.len() < SAMPLES {
            return None;
        }
        let [submit_ns, run_ns] = [submitting, running].map(|times| median(&std::mem::take(times)) as u64);
        let medians = (submit_ns, run_ns);
        (medians.0 > medians.1 && !GIVEN.swap(true, Ordering::Relaxed)).then_some(medians)
    }
}
