//! Memory of a pending task, and proof that nothing grows with the number of past tasks.
//!
//! This is a single test, so that no other test allocates memory in this process meanwhile. Memory is the resident
//! memory that Linux reports.

use hotlease_flow::{
    Flow, FlowAction, FlowEvent, FlowLimits, FlowTask, MemoKey, ResultPlace, RunOutcome, TaskId, WorkerIndex,
};

type Actions = Vec<FlowAction<[u64; 2], u64, u64>>;

const PENDING: u64 = 1_000_000;
/// The promised maximum, bytes.
const PENDING_TASK_MAX: u64 = 400;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .expect("a size")
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib * 1024
}

fn key(number: u64) -> MemoKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    MemoKey(key)
}

/// Submits a million tasks with two inputs each; returns the bytes of each task.
fn pending(keyed: bool) -> u64 {
    let mut actions = Actions::new();
    let limits = FlowLimits {
        pending_max: PENDING as u32,
        ..FlowLimits::default()
    };
    let mut flow: Flow<[u64; 2], u64, u64> = Flow::new(limits);
    let before = resident();
    let mut last: Vec<TaskId> = Vec::new();
    for number in 0..PENDING {
        let mut task = FlowTask::new([number; 2]).tag(number);
        task.key = keyed.then(|| key(number));
        let admission = flow.submit(task, &last, &mut actions).expect("there is room");
        last.push(admission.task());
        if last.len() > 2 {
            last.remove(0);
        }
    }
    let each = (resident() - before) / PENDING;
    assert_eq!(u64::from(flow.load().pending), PENDING);
    assert!(flow.load().inputs as u64 > 2 * PENDING - 10);
    each
}

#[test]
fn pending_tasks_are_small_and_past_ones_cost_nothing() {
    for keyed in [false, true] {
        let each = pending(keyed);
        eprintln!("{each} bytes for a pending task with two inputs, keyed: {keyed}");
        assert!(
            each < PENDING_TASK_MAX,
            "{each} bytes for a pending task, keyed: {keyed}"
        );
        assert!(each > 100, "{each} bytes: the measurement is broken");
    }

    let mut flow: Flow<[u64; 2], u64, u64> = Flow::new(FlowLimits {
        memo_max: 1000,
        ..FlowLimits::default()
    });
    let mut actions = Actions::new();
    let worker = WorkerIndex(0);
    flow.step(FlowEvent::WorkerUp { worker, credits: 16 }, &mut actions);
    let (mut last, mut settled) = (None, 0);
    for number in 0..2_000_000 {
        let task = FlowTask::new([number; 2]).key(key(number));
        let inputs: Vec<_> = last.into_iter().collect();
        let next = flow.submit(task, &inputs, &mut actions).expect("there is room").task();
        if let Some(task) = last.replace(next) {
            flow.step(FlowEvent::Release { task }, &mut actions);
        }
        while let Some(action) = actions.pop() {
            if let FlowAction::Run { task, attempt, .. } = action {
                let outcome = RunOutcome::Done {
                    result: number,
                    bytes: 8,
                    place: ResultPlace::Worker,
                };
                flow.step(FlowEvent::Ended { task, attempt, outcome }, &mut actions);
            }
        }
        if number == 100_000 {
            settled = resident();
        }
    }
    let grown = resident().saturating_sub(settled);
    assert!(grown < 4 << 20, "two million tasks that went by left {grown} bytes");
    assert!(flow.load().known <= 1001, "{:?}", flow.load());
}
