//! Cost of calls of one function, learned from that function itself.
//!
//! [`Model::measure`] separates the parameters of a channel with a function made for that purpose. Here only the user's
//! own function and input are available. So the time of one of many calls in a row includes two costs: the function's
//! time, and the cost of its bytes.

use crate::model::median_of;
use crate::{Error, Function, Model, Work, WorkPlan};
use std::time::{Duration, Instant};

/// Approximate time that each of four kinds of measurement may take.
const BUDGET: Duration = Duration::from_millis(100);
const RUNS_MIN: u32 = 3;
const RUNS_MAX: u32 = 101;

/// Result of [`Function::learn`]. Plain values, which are valid as long as the transport and the nodes behave as
/// during the measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallCost {
    model: Model,
    remote_time: Duration,
    slots: usize,
}

impl Function {
    /// Learns the cost of calls with inputs like this one, by 16 to some 400 calls on one slot. The function is run
    /// although its results are not needed, so these runs must do no harm. Takes half a second, or the time of 16 calls
    /// if that is longer. Other calls on that slot meanwhile spoil the measurement.
    ///
    /// # Errors
    /// Errors of the calls.
    pub fn learn(&self, input: &[u8]) -> Result<CallCost, Error> {
        let slots = self.slot.map_or_else(|| self.inner.slots(), |_| 1);
        let function = self.clone().on_slot(self.slot.unwrap_or(0))?;
        let round_trip = || {
            let begin = Instant::now();
            function.call(input)?;
            Ok(begin.elapsed())
        };
        // The first call warms caches and wakes the slot.
        round_trip()?;
        let runs = BUDGET.as_nanos() / round_trip()?.as_nanos().max(1);
        let runs = u32::try_from(runs).unwrap_or(RUNS_MAX).clamp(RUNS_MIN, RUNS_MAX) as usize;
        let round_trip = median_of(runs, round_trip)?;
        let send = median_of(runs, || {
            let begin = Instant::now();
            let invocation = function.submit(input)?;
            let took = begin.elapsed();
            invocation.wait()?;
            Ok(took)
        })?;
        let receive = median_of(runs, || {
            let invocation = function.submit(input)?;
            while !invocation.is_done() {
                std::hint::spin_loop();
            }
            let begin = Instant::now();
            invocation.wait()?;
            Ok(begin.elapsed())
        })?;
        let begin = Instant::now();
        let sent: Result<Vec<_>, _> = (0..=runs).map(|_| function.submit(input)).collect();
        for invocation in sent? {
            invocation.wait()?;
        }
        let remote_time = begin.elapsed().saturating_sub(round_trip) / runs as u32;
        Ok(CallCost::of(round_trip, send, receive, remote_time, slots))
    }
}

impl CallCost {
    /// `remote_time`: time of each call in a row, after the first.
    fn of(round_trip: Duration, send: Duration, receive: Duration, remote_time: Duration, slots: usize) -> Self {
        let remote_time = remote_time.min(round_trip);
        let (send_overhead, receive_overhead) = (send.as_secs_f64(), receive.as_secs_f64());
        let empty = (round_trip - remote_time).as_secs_f64();
        let model = Model {
            latency: (empty / 2.0 - send_overhead - receive_overhead).max(0.0),
            send_overhead,
            receive_overhead,
            // Least time between two calls on different slots: the client's own work for each.
            gap: send_overhead + receive_overhead,
            ..Model::default()
        };
        Self {
            model,
            remote_time,
            slots,
        }
    }

    /// Plans how many of `tasks` to keep and how many to send to the slots that the function uses; see [`Model::plan`].
    /// `local_time`: time of each task on the caller's core.
    pub fn plan(&self, tasks: usize, local_time: Duration) -> WorkPlan {
        let work = Work {
            tasks,
            // The cost of the bytes is part of `remote_time`.
            input_bytes: 0,
            output_bytes: 0,
            local_time,
            remote_time: self.remote_time,
        };
        self.model.plan(&work, self.slots)
    }

    /// Time that a slot takes for one of many calls in a row: the function's time and the cost of its bytes.
    pub fn remote_time(&self) -> Duration {
        self.remote_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn equal_times_share_the_tasks_between_caller_and_slots() {
        for (slots, kept) in [(1, 50), (3, 25)] {
            let learned = CallCost::of(us(1010), us(1), us(1), us(1000), slots);
            let plan = learned.plan(100, us(1000));
            assert_eq!(plan.local + plan.remote, 100);
            assert!(plan.local.abs_diff(kept) <= 2, "{slots} slots: {plan:?}");
            assert!(plan.predicted >= us(1000) * plan.local as u32, "{plan:?}");
        }
    }

    #[test]
    fn tasks_shorter_than_sending_are_kept_and_those_of_an_endless_caller_sent() {
        let learned = CallCost::of(us(20), us(2), us(1), us(5), 2);
        assert_eq!(learned.plan(1000, us(2)).remote, 0, "sending one takes 3 us");
        let plan = learned.plan(1000, Duration::from_secs(1));
        assert_eq!(
            (plan.local, plan.remote),
            (1, 999),
            "while one is kept, all others are done"
        );
        assert_eq!(
            learned.plan(0, us(10)),
            WorkPlan {
                local: 0,
                remote: 0,
                predicted: Duration::ZERO
            }
        );
    }

    #[test]
    fn measurements_that_contradict_each_other_give_no_nonsense() {
        // In a row, each call takes longer than a round trip, as on a node that was busy meanwhile.
        let learned = CallCost::of(us(10), us(50), us(50), us(30), 1);
        assert_eq!(learned.remote_time(), us(10));
        let plan = learned.plan(10, us(1000));
        assert_eq!(plan.local + plan.remote, 10);
        assert!(learned.model.latency >= 0.0);
    }
}
