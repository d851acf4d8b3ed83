//! Speed of the kernel alone: tasks that end at once, in graphs of several shapes and sizes.
//!
//! `cargo run --release --package hotlease-flow --example graphs [-- MOST]` prints one JSON object per line, for
//! graphs of up to MOST tasks (10,000,000). Rates are per second of computing time. A transition is a submission, a
//! dispatch or an end: three for each task.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use hotlease_flow::{
    Flow, FlowAction, FlowEvent, FlowLimits, FlowTask, ResultPlace, RunOutcome, SubmitError, TaskId, WorkerIndex,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::time::Instant;

type Payload = [u64; 2];
type Actions = Vec<FlowAction<Payload, u64, u64>>;

const CREDITS: u32 = 64;
const WORKERS: u32 = 4;
/// Number of earlier tasks on which a new task may depend.
const WINDOW: usize = 1000;

/// Driver that ends each run at once.
struct Bench {
    flow: Flow<Payload, u64, u64>,
    actions: Actions,
    runs: VecDeque<(TaskId, u32)>,
    done: u64,
}

impl Bench {
    fn new(pending_max: u32) -> Self {
        let limits = FlowLimits {
            pending_max,
            ..FlowLimits::default()
        };
        Self {
            flow: Flow::new(limits),
            actions: Vec::new(),
            runs: VecDeque::new(),
            done: 0,
        }
    }

    fn start(&mut self) {
        for worker in 0..WORKERS {
            let worker = WorkerIndex(worker);
            let credits = CREDITS;
            self.flow
                .step(FlowEvent::WorkerUp { worker, credits }, &mut self.actions);
        }
        self.look();
    }

    fn look(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                FlowAction::Run { task, attempt, .. } => self.runs.push_back((task, attempt)),
                FlowAction::Done { .. } => self.done += 1,
                _ => {}
            }
        }
    }

    /// Ends the oldest run. Returns `false` if no task runs.
    fn end_one(&mut self) -> bool {
        let Some((task, attempt)) = self.runs.pop_front() else {
            return false;
        };
        let outcome = RunOutcome::Done {
            result: 1,
            bytes: 8,
            place: ResultPlace::Worker,
        };
        let ended = FlowEvent::Ended { task, attempt, outcome };
        self.flow.step(ended, &mut self.actions);
        self.look();
        true
    }

    /// Submits a task, and ends other tasks while there is no room.
    fn submit(&mut self, inputs: &[TaskId]) -> TaskId {
        let mut task = FlowTask::new([7, 7]);
        loop {
            match self.flow.submit(task, inputs, &mut self.actions) {
                Ok(admission) => {
                    self.look();
                    return admission.task();
                }
                Err(SubmitError::Full { payload, .. }) => {
                    task = FlowTask::new(payload);
                    assert!(self.end_one(), "full, and nothing runs");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn release(&mut self, task: TaskId) {
        self.flow.step(FlowEvent::Release { task }, &mut self.actions);
        self.look();
    }
}

/// A chain: each task depends on the one before.
fn chain(bench: &mut Bench, tasks: u64) {
    let mut last = bench.submit(&[]);
    for _ in 1..tasks {
        let next = bench.submit(&[last]);
        bench.release(last);
        last = next;
    }
    bench.release(last);
}

/// Chains of a thousand tasks, one after the other. There are many chains, because computing time is counted in ticks.
fn chains(bench: &mut Bench, tasks: u64) {
    for _ in 0..tasks / 1000 {
        chain(bench, 1000);
        while bench.end_one() {}
    }
}

/// A root, then leaves that depend on it (seven eighths of all tasks), then sums of eight tasks each, until one task is
/// left.
fn tree(bench: &mut Bench, tasks: u64) {
    let root = bench.submit(&[]);
    let mut rows: Vec<Vec<TaskId>> = vec![Vec::new()];
    for _ in 0..tasks * 7 / 8 {
        let leaf = bench.submit(&[root]);
        rows[0].push(leaf);
        let mut level = 0;
        while rows[level].len() == 8 {
            let inputs = std::mem::take(&mut rows[level]);
            let sum = bench.submit(&inputs);
            inputs.into_iter().for_each(|task| bench.release(task));
            level += 1;
            if rows.len() == level {
                rows.push(Vec::new());
            }
            rows[level].push(sum);
        }
    }
    let rest = rows.concat();
    let last = bench.submit(&rest);
    rest.into_iter()
        .chain([root, last])
        .for_each(|task| bench.release(task));
}

/// A random graph: each task depends on up to three of the thousand tasks before it.
fn random(bench: &mut Bench, tasks: u64) {
    let mut random = StdRng::seed_from_u64(tasks);
    let mut held = VecDeque::with_capacity(WINDOW);
    for _ in 0..tasks {
        let mut inputs = [None; 3];
        let count = random.random_range(0..=3.min(held.len()));
        for input in &mut inputs[..count] {
            *input = Some(held[random.random_range(0..held.len())]);
        }
        let inputs: smallvec::SmallVec<[TaskId; 3]> = inputs.into_iter().flatten().collect();
        held.push_back(bench.submit(&inputs));
        if held.len() > WINDOW
            && let Some(oldest) = held.pop_front()
        {
            bench.release(oldest);
        }
    }
    held.into_iter().for_each(|task| bench.release(task));
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0_u64) * 1024
}

/// Time for which this process, which has one thread, was on a core; time of other programs is not included.
fn computed() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.unwrap_or(f64::NAN) / 1e9
}

fn measure(name: &str, tasks: u64, pending_max: u32, all_first: bool, graph: fn(&mut Bench, u64)) {
    let before = resident();
    let mut bench = Bench::new(pending_max);
    let (begin, computed_before) = (Instant::now(), computed());
    if !all_first {
        bench.start();
    }
    graph(&mut bench, tasks);
    let (submitted, grown) = (begin.elapsed(), resident().saturating_sub(before));
    if all_first {
        bench.start();
    }
    while bench.end_one() {}
    let (elapsed, on_core) = (begin.elapsed(), computed() - computed_before);
    let load = bench.flow.load();
    assert_eq!((load.known, load.inputs, load.pending), (0, 0, 0), "something is left");
    // Computing time is counted in ticks, and so may be 0 for a small graph.
    let on_core = if on_core < 0.02 { elapsed.as_secs_f64() } else { on_core };
    let rate = bench.done as f64 / on_core;
    println!(
        "{{\"bench\": \"flow\", \"params\": {{\"graph\": \"{name}\", \"tasks\": {}, \"pending_max\": {pending_max}, \
         \"all_pending_first\": {all_first}}}, \"unit\": \"tasks\", \"per_second\": {rate:.0}, \
         \"transitions_per_second\": {:.0}, \"submit_seconds\": {:.3}, \"core_seconds\": {on_core:.3}, \"seconds\": {:.3}, \"grown_bytes\": {grown}}}",
        bench.done,
        3.0 * rate,
        submitted.as_secs_f64(),
        elapsed.as_secs_f64(),
    );
}

fn main() {
    let most: u64 = match std::env::args().nth(1) {
        Some(text) => text.parse().expect("a number of tasks"),
        None => 10_000_000,
    };
    measure("chains of 1,000", 1_000_000.min(most), 100_000, false, chains);
    for (name, graph) in [("tree", tree as fn(&mut Bench, u64)), ("random", random)] {
        for tasks in [10_000, 100_000, 1_000_000, 10_000_000] {
            if tasks <= most {
                measure(name, tasks, 100_000, false, graph);
            }
        }
    }
    // No task runs until all are submitted.
    measure("chain", 1_000_000.min(most), 1 << 20, true, chain);
    measure("random", 1_000_000.min(most), 1 << 20, true, random);
}
