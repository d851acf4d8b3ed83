//! Cost model of invocations over a channel, learned by measuring, and the plan that follows from it: how many of
//! some tasks to run here and how many to send.
//!
//! The parameters are those of LogP, with a cost for each byte as in LogGP: latency `L`, overheads of sending and
//! receiving `o_s` and `o_r`, the gap `g` between invocations in a row, and `G` for each byte. All are medians of
//! what a client can measure. One end cannot separate the two directions of a round trip, so `L` is half of the round
//! trip without the overheads.
//!
//! ```text
//!  round trip  = 2 (L + o_s + o_r) + G_in input + G_out output + time of the function
//!  n in a row  = round trip + (n / slots - 1) max(time of the function + per-byte costs, slots max(g, o_s))
//! ```
//!
//! `n / slots` is rounded up.

pub(crate) mod call_cost;

use crate::{Error, Function, Invoker};
use hotlease_fabric::clock::median;
use std::time::{Duration, Instant};

/// Runs of each kind; the median of the runs is used.
const RUNS: usize = 101;
const RUNS_IN_A_ROW: usize = 500;
/// Number of sizes between 0 and the largest size of a direction.
const SIZES: usize = 5;
/// Time by which the reply to an empty invocation has arrived on any network that works.
const REPLY_THERE: Duration = Duration::from_millis(1);

/// Parameters of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Model {
    /// `L`: one way, without the overheads. Seconds, as all times here.
    pub latency: f64,
    /// `o_s`: time for which sending occupies the client's thread.
    pub send_overhead: f64,
    /// `o_r`: time for which taking an arrived reply occupies the client's thread.
    pub receive_overhead: f64,
    /// `g`: time between empty invocations in a row.
    pub gap: f64,
    /// `G` of the input, for each byte.
    pub input_byte: f64,
    /// `G` of the output, for each byte.
    pub output_byte: f64,
}

/// Measurements from which [`Model::fit`] computes the parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measurements {
    /// Input bytes and round trips, with the smallest output.
    pub by_input: Vec<(usize, Duration)>,
    /// Output bytes and round trips, with the smallest input.
    pub by_output: Vec<(usize, Duration)>,
    /// Time until an invocation is sent.
    pub send: Duration,
    /// Time to take a reply that has arrived.
    pub receive: Duration,
    /// Time for each of many invocations in a row.
    pub gap: Duration,
}

/// Tasks that are all alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Number of tasks.
    pub tasks: usize,
    /// Input of each task, bytes.
    pub input_bytes: usize,
    /// Output of each task, bytes.
    pub output_bytes: usize,
    /// Time that a task takes on the caller's core.
    pub local_time: Duration,
    /// Time that a task takes in a slot, without the invocation.
    pub remote_time: Duration,
}

/// Division of [`Work`] between the caller and the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkPlan {
    /// Tasks to keep: while they run, the results of the sent tasks arrive.
    pub local: usize,
    /// Tasks to send first.
    pub remote: usize,
    /// Time until all tasks are done.
    pub predicted: Duration,
}

impl Model {
    /// Measures a channel with a function that may be run some thousand times: `request(input, output)` returns an
    /// input of about `input` bytes for which the function returns `output` bytes at once. Occupies the slot of the
    /// function (see [`Function::on_slot`]) for some 100 ms.
    ///
    /// # Errors
    /// Errors of the invocations.
    pub fn measure(
        function: &Function,
        largest: usize,
        request: impl Fn(usize, usize) -> Vec<u8>,
    ) -> Result<Self, Error> {
        let sizes = || (0..SIZES).map(|step| largest * step / (SIZES - 1));
        let round_trip = |input: usize, output: usize| {
            let (request, mut reply) = (request(input, output), vec![0; output.max(1)]);
            median_of(RUNS, || {
                let begin = Instant::now();
                function.invoke(&request, &mut reply)?;
                Ok(begin.elapsed())
            })
            .map(|took| (request.len(), took))
        };
        let empty = request(0, 0);
        let function_empty = function.clone().output_bytes(64);
        let mut measured = Measurements::default();
        for size in sizes() {
            measured.by_input.push(round_trip(size, 0)?);
            measured.by_output.push((size, round_trip(0, size)?.1));
        }
        measured.send = median_of(RUNS, || {
            let begin = Instant::now();
            let invocation = function_empty.submit(&empty)?;
            let took = begin.elapsed();
            invocation.wait()?;
            Ok(took)
        })?;
        measured.receive = median_of(RUNS, || {
            let invocation = function_empty.submit(&empty)?;
            let sent = Instant::now();
            while sent.elapsed() < REPLY_THERE {
                std::hint::spin_loop();
            }
            let begin = Instant::now();
            invocation.wait()?;
            Ok(begin.elapsed())
        })?;
        measured.gap = median_of(5, || {
            let begin = Instant::now();
            let sent: Result<Vec<_>, _> = (0..RUNS_IN_A_ROW).map(|_| function_empty.submit(&empty)).collect();
            for invocation in sent? {
                invocation.wait()?;
            }
            Ok(begin.elapsed() / RUNS_IN_A_ROW as u32)
        })?;
        Ok(Self::fit(&measured))
    }

    /// The parameters that explain the measurements; all 0 without measurements.
    pub fn fit(measured: &Measurements) -> Self {
        let (empty, input_byte) = line(&measured.by_input);
        let (empty_too, output_byte) = line(&measured.by_output);
        let empty = match measured.by_output.is_empty() {
            true => empty,
            false => (empty + empty_too) / 2.0,
        };
        // The latency is not negative, so both overheads together are at most half of the round trip.
        let (send, receive) = (measured.send.as_secs_f64(), measured.receive.as_secs_f64());
        let share = (empty / 2.0 / (send + receive).max(f64::MIN_POSITIVE)).min(1.0);
        let (send_overhead, receive_overhead) = (send * share, receive * share);
        Self {
            latency: (empty / 2.0 - send_overhead - receive_overhead).max(0.0),
            send_overhead,
            receive_overhead,
            gap: measured.gap.as_secs_f64(),
            input_byte,
            output_byte,
        }
    }

    /// Time of one invocation whose function takes `time`.
    pub fn round_trip(&self, input_bytes: usize, output_bytes: usize, time: Duration) -> Duration {
        seconds(self.empty() + self.bytes(input_bytes, output_bytes) + time.as_secs_f64())
    }

    /// Time of `tasks` invocations that are sent at once to this many slots.
    pub fn in_a_row(&self, work: &Work, tasks: usize, slots: usize) -> Duration {
        seconds(self.remote(work, tasks, slots))
    }

    /// How many tasks to keep and how many to send to this many slots, so that the results of the sent tasks are back
    /// when the kept tasks are done: the caller never waits, and keeps no task that it could have sent.
    ///
    /// With one slot and `T_local`, `T_inv` as in the rFaaS paper of 2021, equation 1, this means keeping at least
    /// `T_inv / T_local` tasks.
    pub fn plan(&self, work: &Work, slots: usize) -> WorkPlan {
        let overhead = self.send_overhead + self.receive_overhead;
        let local_time = work.local_time.as_secs_f64();
        let local = |remote: usize| remote as f64 * overhead + (work.tasks - remote) as f64 * local_time;
        // Sending does not pay if it costs the caller more than the task itself.
        let mut remote = 0;
        if slots > 0 && overhead < local_time {
            // Each further sent task makes the slots end later and the caller earlier: search for the largest number
            // that fits.
            let mut most = work.tasks;
            while remote < most {
                let middle = remote + (most - remote).div_ceil(2);
                if self.remote(work, middle, slots) <= local(middle) {
                    remote = middle;
                } else {
                    most = middle - 1;
                }
            }
        }
        WorkPlan {
            local: work.tasks - remote,
            remote,
            predicted: seconds(local(remote).max(self.remote(work, remote, slots))),
        }
    }

    fn empty(&self) -> f64 {
        2.0 * (self.latency + self.send_overhead + self.receive_overhead)
    }

    fn bytes(&self, input: usize, output: usize) -> f64 {
        input as f64 * self.input_byte + output as f64 * self.output_byte
    }

    fn remote(&self, work: &Work, tasks: usize, slots: usize) -> f64 {
        if tasks == 0 || slots == 0 {
            return 0.0;
        }
        let slots = slots.min(tasks);
        let bytes = self.bytes(work.input_bytes, work.output_bytes);
        let time = work.remote_time.as_secs_f64();
        let each = (time + bytes).max(slots as f64 * self.gap.max(self.send_overhead));
        self.empty() + bytes + time + (tasks.div_ceil(slots) - 1) as f64 * each
    }
}

impl Invoker {
    /// How many of some tasks to keep and how many to send to the slots of this invoker; see [`Model::plan`]. The model
    /// must describe a channel of this invoker, or a channel over the same transport.
    pub fn plan(&self, model: &Model, work: &Work) -> WorkPlan {
        model.plan(work, self.slots())
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

pub(crate) fn median_of(runs: usize, mut run: impl FnMut() -> Result<Duration, Error>) -> Result<Duration, Error> {
    // The first run warms caches and wakes the slot.
    run()?;
    let times = (0..runs).map(|_| Ok(run()?.as_secs_f64()));
    Ok(seconds(median(&times.collect::<Result<Vec<_>, Error>>()?)))
}

/// Fits a line to points by the median of all slopes (Theil and Sen), which outliers do not bend. Returns the line's
/// value at 0 in seconds, and its slope in seconds for each byte. Neither is negative.
fn line(points: &[(usize, Duration)]) -> (f64, f64) {
    let points: Vec<(f64, f64)> = points
        .iter()
        .map(|(bytes, time)| (*bytes as f64, time.as_secs_f64()))
        .collect();
    let mut slopes = Vec::new();
    for (index, (bytes, time)) in points.iter().enumerate() {
        let others = points[index + 1..].iter().filter(|(other, _)| other != bytes);
        slopes.extend(others.map(|(other, later)| (later - time) / (other - bytes)));
    }
    let slope = median(&slopes).max(0.0);
    let starts: Vec<f64> = points.iter().map(|(bytes, time)| time - slope * bytes).collect();
    (median(&starts).max(0.0), slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: f64 = 1e-6;
    const TRUE: Model = Model {
        latency: 3.0 * US,
        send_overhead: 0.5 * US,
        receive_overhead: 0.25 * US,
        gap: 1.0 * US,
        input_byte: 0.5e-9,
        output_byte: 1e-9,
    };

    fn measured() -> Measurements {
        let none = Duration::ZERO;
        let sizes = || (0..6).map(|step| step * 4096);
        Measurements {
            by_input: sizes().map(|size| (size, TRUE.round_trip(size, 0, none))).collect(),
            by_output: sizes().map(|size| (size, TRUE.round_trip(0, size, none))).collect(),
            send: seconds(TRUE.send_overhead),
            receive: seconds(TRUE.receive_overhead),
            gap: seconds(TRUE.gap),
        }
    }

    fn assert_near(found: &Model) {
        for (name, found, wanted) in [
            ("latency", found.latency, TRUE.latency),
            ("send overhead", found.send_overhead, TRUE.send_overhead),
            ("receive overhead", found.receive_overhead, TRUE.receive_overhead),
            ("gap", found.gap, TRUE.gap),
            ("input byte", found.input_byte, TRUE.input_byte),
            ("output byte", found.output_byte, TRUE.output_byte),
        ] {
            let error = (found - wanted).abs() / wanted;
            assert!(error < 0.01, "{name}: {found} instead of {wanted}");
        }
    }

    #[test]
    fn the_parameters_that_made_the_times_are_found_again() {
        assert_near(&Model::fit(&measured()));
    }

    #[test]
    fn an_outlier_does_not_bend_the_fitted_line() {
        let mut measured = measured();
        measured.by_input[4].1 *= 100;
        assert_near(&Model::fit(&measured));
    }

    #[test]
    fn no_parameter_is_negative_after_any_measurement() {
        let falling = Measurements {
            by_input: vec![(0, Duration::from_micros(9)), (4096, Duration::from_micros(1))],
            send: Duration::from_millis(1),
            ..Measurements::default()
        };
        for model in [Model::fit(&falling), Model::fit(&Measurements::default())] {
            let all = [
                model.latency,
                model.send_overhead,
                model.receive_overhead,
                model.input_byte,
            ];
            assert!(all.iter().all(|value| *value >= 0.0), "{model:?}");
        }
    }

    fn work(tasks: usize, local_us: u64) -> Work {
        Work {
            tasks,
            input_bytes: 64,
            output_bytes: 64,
            local_time: Duration::from_micros(local_us),
            remote_time: Duration::from_micros(local_us),
        }
    }

    #[test]
    fn sent_tasks_return_before_kept_ones_end_and_one_more_would_not() {
        for (tasks, local_us, slots) in [(100, 50, 1), (1000, 20, 4), (17, 1000, 2), (1, 100, 1)] {
            let work = work(tasks, local_us);
            let plan = TRUE.plan(&work, slots);
            assert_eq!(plan.local + plan.remote, tasks, "every task is in the plan");
            let overhead = TRUE.send_overhead + TRUE.receive_overhead;
            let local = |remote: usize| remote as f64 * overhead + (tasks - remote) as f64 * local_us as f64 * US;
            let remote = TRUE.remote(&work, plan.remote, slots);
            assert!(remote <= local(plan.remote), "{plan:?}: the caller waits");
            let more = plan.remote + 1;
            assert!(
                more > tasks || TRUE.remote(&work, more, slots) > local(more),
                "{plan:?}: one more could have been sent"
            );
        }
    }

    #[test]
    fn a_single_slot_takes_half_of_long_tasks_and_none_that_are_shorter_than_sending() {
        let plan = TRUE.plan(&work(100, 10_000), 1);
        assert!((49..=50).contains(&plan.remote), "{plan:?}");
        let mut tiny = work(100, 0);
        tiny.local_time = Duration::from_nanos(100);
        assert_eq!(TRUE.plan(&tiny, 8).remote, 0);
        assert_eq!(TRUE.plan(&work(100, 50), 0).remote, 0, "no slots");
        let endless = TRUE.plan(&work(usize::MAX, u64::MAX), 1);
        assert_eq!(endless.local + endless.remote, usize::MAX);
    }
}
