//! Threads that call, and what they were told.

use super::tally::{Call, Tally};
use hotlease_client::{Error, Function, Invoker, Ran};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What became of a call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its number.
    pub number: u64,
    /// When it was made.
    pub began: Instant,
    /// When it was resolved.
    pub ended: Instant,
    /// The error, in words and in what it says of the function.
    pub failed: Option<(String, Ran)>,
}

/// Makes a call and checks its answer.
///
/// # Panics
/// If the answer is of another call.
pub fn make(function: &Function, call: &Call) -> Outcome {
    let began = Instant::now();
    let failed = match function.call(&call.input) {
        Ok(answer) => {
            assert!(
                Tally::is_answer(call.number, &answer),
                "call {} got {answer:?}",
                call.number
            );
            None
        }
        Err(error) => Some((error.to_string(), error.ran())),
    };
    Outcome {
        number: call.number,
        began,
        ended: Instant::now(),
        failed,
    }
}

/// Holds what was told of a call that is not idempotent against its marks.
///
/// # Panics
/// If it ran twice, or if what was told is not so.
pub fn check(tally: &Tally, outcome: &Outcome) {
    let runs = tally.runs(outcome.number);
    let agrees = match &outcome.failed {
        None => runs == 1,
        Some((_, Ran::Yes)) => runs == 1,
        Some((_, Ran::No)) => runs == 0,
        Some((_, Ran::Unknown)) => runs <= 1,
    };
    assert!(agrees, "a call that ran {runs} times came to {outcome:?}");
}

/// How a caller calls.
#[derive(Debug, Clone)]
pub struct Steady {
    /// Longest time that a call computes.
    pub microseconds: u32,
    /// Longest pause between two calls.
    pub pause: Duration,
    /// The time that each call has.
    pub timeout: Option<Duration>,
    /// Of the random choices.
    pub seed: u64,
}

impl Default for Steady {
    fn default() -> Self {
        Self {
            microseconds: 300,
            pause: Duration::from_millis(4),
            timeout: None,
            seed: 0,
        }
    }
}

/// A thread that calls a function that is not idempotent, until told to stop.
pub struct Caller {
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<Outcome>>>,
    thread: JoinHandle<Result<(), Error>>,
    tally: Arc<Tally>,
    invoker: Invoker,
}

impl Caller {
    /// Begins.
    ///
    /// # Panics
    /// If the library has no such function.
    pub fn start(invoker: Invoker, tally: &Arc<Tally>, how: &Steady) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told: Arc<Mutex<Vec<Outcome>>> = Arc::default();
        let function = invoker.function("tally").expect("it is there");
        let function = function.idempotent(false).timeout(how.timeout);
        let thread = {
            let (stop, told, tally) = (Arc::clone(&stop), Arc::clone(&told), Arc::clone(tally));
            let how = how.clone();
            std::thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(how.seed);
                while !stop.load(Ordering::Relaxed) {
                    let call = tally.call(random.random_range(0..=how.microseconds));
                    let outcome = make(&function, &call);
                    let failed = outcome.failed.is_some();
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    let pause = random.random_range(Duration::ZERO..=how.pause);
                    // Not as fast as refusals come.
                    std::thread::sleep(if failed {
                        pause.max(Duration::from_millis(2))
                    } else {
                        pause
                    });
                }
                Ok(())
            })
        };
        Self {
            stop,
            told,
            thread,
            tally: Arc::clone(tally),
            invoker,
        }
    }

    fn told(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease that it calls on.
    pub fn invoker(&self) -> &Invoker {
        &self.invoker
    }

    /// The first failure that was told after a moment; when.
    pub fn failure_after(&self, moment: Instant) -> Option<Instant> {
        let told = self.told();
        let mut failures = told.iter().filter(|outcome| outcome.failed.is_some());
        failures
            .find(|outcome| outcome.ended >= moment)
            .map(|outcome| outcome.ended)
    }

    /// The first call that was made after a moment and answered; when.
    pub fn success_after(&self, moment: Instant) -> Option<Instant> {
        let told = self.told();
        let mut answered = told.iter().filter(|outcome| outcome.failed.is_none());
        answered
            .find(|outcome| outcome.began >= moment)
            .map(|outcome| outcome.ended)
    }

    /// Waits for that; how long after the moment the answer was there.
    ///
    /// # Panics
    /// If there is none within `limit`.
    pub fn until_success_after(&self, moment: Instant, limit: Duration) -> Duration {
        loop {
            if let Some(at) = self.success_after(moment) {
                return at - moment;
            }
            assert!(
                moment.elapsed() < limit,
                "no call succeeds within {limit:?}; the last was {:?}",
                self.told().last()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The longest time between two answers that came after a moment.
    pub fn longest_gap_after(&self, moment: Instant) -> Duration {
        let told = self.told();
        let answered = told.iter().filter(|outcome| outcome.failed.is_none());
        let mut last = moment;
        let mut longest = Duration::ZERO;
        for outcome in answered.filter(|outcome| outcome.ended >= moment) {
            longest = longest.max(outcome.ended - last);
            last = outcome.ended;
        }
        longest
    }

    /// Ends the calls, and holds each against its marks; what was told, and the invoker.
    ///
    /// # Panics
    /// If a call is not resolved within half a minute, ran twice, or was not told as it was.
    pub fn finish(self) -> (Vec<Outcome>, Invoker) {
        self.stop.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "a call is not resolved; the last that was is {:?}",
                self.told().last()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .expect("calls");
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for outcome in &told {
            check(&self.tally, outcome);
        }
        (told, self.invoker)
    }
}
