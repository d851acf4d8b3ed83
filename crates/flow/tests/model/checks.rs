//! Check of the kernel's actions against the reference.

use crate::driver::{PENDING_MAX, RandomDriver, WORKERS};
use crate::reference::{Phase, TestAction};
use hotlease_flow::{FlowAction, TaskId, TaskPhase as FlowPhase};
use std::collections::BTreeSet;

impl RandomDriver {
    /// Applies the kernel's actions to the reference; then kernel and reference must agree.
    pub fn check(&mut self, told: Vec<TestAction>) {
        self.reference.fail_dependents();
        let mut forwarded = BTreeSet::new();
        for action in told {
            self.hold_against(action, &mut forwarded);
        }
        assert!(forwarded.is_empty(), "forwarded for no task: {forwarded:?}");
        for worker in 0..WORKERS {
            let idle = self.reference.has_credit(worker);
            let ready = (0..self.reference.tasks.len()).find(|at| self.reference.is_ready(*at));
            assert!(!(idle && ready.is_some()), "a worker is idle while {ready:?} waits");
        }
        for (at, known) in self.reference.known().into_iter().enumerate() {
            self.compare(at, known);
        }
        assert_eq!(self.flow.load().pending as usize, self.reference.pending());
        if self.starved {
            assert!(
                self.flow.load().pending > PENDING_MAX - PENDING_MAX / 8 || self.flow.load().inputs > 100,
                "the submitter was not told of the room"
            );
        }
    }

    fn compare(&mut self, at: usize, known: bool) {
        let ready = self.reference.is_ready(at);
        let task = &mut self.reference.tasks[at];
        let phase = self.flow.phase(task.id);
        let expected = known.then_some(match task.phase {
            Phase::Queued if ready => FlowPhase::Ready,
            Phase::Queued => FlowPhase::Waiting,
            Phase::Running => FlowPhase::Running,
            Phase::Stopping => FlowPhase::Stopping,
            Phase::Promised => FlowPhase::Promised,
            Phase::Done => FlowPhase::Done,
            Phase::Failed => FlowPhase::Failed,
            Phase::Dependency => FlowPhase::DependencyFailed,
            Phase::Cancelled => FlowPhase::Cancelled,
            Phase::Lost => FlowPhase::Lost,
        });
        assert_eq!(phase, expected, "{task:?}");
        assert_eq!(task.ends_told, u32::from(!task.is_pending()), "ends told of {task:?}");
        if !known {
            assert!(task.forgotten || task.value.is_none(), "not handed back: {task:?}");
            task.forgotten = true;
            return;
        }
        let value = self.flow.result(task.id).or_else(|| self.flow.error(task.id));
        assert_eq!(value.copied(), task.value, "{task:?}");
        let chain = task.chain.clone();
        if !chain.is_empty() {
            let told: Vec<_> = self.flow.chain(self.reference.tasks[at].id).collect();
            let expected: Vec<_> = chain.iter().map(|at| self.reference.tasks[*at].id).collect();
            assert_eq!(told, expected, "the chain stays while its end is held");
        }
    }

    fn hold_against(&mut self, action: TestAction, forwarded: &mut BTreeSet<(TaskId, u32)>) {
        let reference = &mut self.reference;
        match action {
            FlowAction::Run { task, attempt, worker } => {
                let at = reference.find(task);
                assert!(reference.is_ready(at), "ran too early: {:?}", reference.tasks[at]);
                let rank = |at: usize| (reference.tasks[at].priority, std::cmp::Reverse(at));
                let sooner = (0..at.max(reference.tasks.len()))
                    .find(|other| reference.is_ready(*other) && rank(*other) > rank(at));
                assert_eq!(sooner, None, "another one was to run before {at}");
                assert!(reference.has_credit(worker.0), "more than its credits");
                let held = |worker: u32| -> u64 {
                    let has = |input: &&usize| {
                        let task = &reference.tasks[**input];
                        task.places.contains(&worker) && !forwarded.contains(&(task.id, worker))
                    };
                    let bytes = |input: &usize| reference.tasks[*input].bytes.max(1);
                    reference.tasks[at].inputs.iter().filter(has).map(bytes).sum()
                };
                let best = (0..WORKERS)
                    .filter(|other| reference.has_credit(*other))
                    .map(held)
                    .max();
                assert_eq!(Some(held(worker.0)), best, "not where most of its inputs are");
                for input in reference.tasks[at].inputs.clone() {
                    let input = &reference.tasks[input];
                    assert!(
                        input.local || input.places.contains(&worker.0),
                        "{} is missing",
                        input.id
                    );
                    forwarded.remove(&(input.id, worker.0));
                }
                let given: Vec<_> = self
                    .flow
                    .inputs(task)
                    .map(|input| (input.task, *input.result))
                    .collect();
                let inputs = reference.tasks[at].inputs.iter().map(|input| &reference.tasks[*input]);
                let needed: Vec<_> = inputs.map(|input| (input.id, input.value.unwrap())).collect();
                assert_eq!(given, needed, "inputs in the order in which they were named");
                for (input, at) in self.flow.inputs(task).zip(&reference.tasks[at].inputs) {
                    let pending = reference.tasks.iter().filter(|task| task.is_pending());
                    let uses = pending.flat_map(|task| &task.inputs).filter(|used| *used == at);
                    let needed = &reference.tasks[*at];
                    let has_no_other = needed.holders == 0 && uses.count() == 1;
                    let is_remembered = reference.memo.iter().any(|(_, known)| known == at);
                    assert!(
                        !input.alone || has_no_other && !is_remembered,
                        "others need {}",
                        input.task
                    );
                }
                assert_eq!(self.flow.payload(task), self.flow.tag(task).as_ref());
                let known = &mut reference.tasks[at];
                assert!(attempt > known.attempt, "a run was told twice");
                (known.phase, known.attempt, known.worker) = (Phase::Running, attempt, worker.0);
            }
            FlowAction::Forward { task, from, to, bytes } => {
                let at = reference.find(task);
                let known = &mut reference.tasks[at];
                assert!(known.places.contains(&from.0) && known.bytes == bytes);
                assert!(known.places.insert(to.0), "{task} is there already");
                forwarded.insert((task, to.0));
            }
            FlowAction::Stop { task, attempt, .. } => {
                let known = &reference.tasks[reference.find(task)];
                assert_eq!((known.phase, known.attempt), (Phase::Stopping, attempt));
            }
            FlowAction::Done { task, payload } => self.ended(task, payload, Phase::Done),
            FlowAction::Cancelled { task, payload } => self.ended(task, payload, Phase::Cancelled),
            FlowAction::Failed { task, payload, root } if task == root => self.ended(task, payload, Phase::Failed),
            FlowAction::Failed { task, payload, root } => {
                self.ended(task, payload, Phase::Dependency);
                self.failed_by(task, root);
            }
            FlowAction::Lost { task, .. } => {
                assert_eq!(reference.tasks[reference.find(task)].phase, Phase::Lost);
            }
            FlowAction::Dropped { task, value } => {
                let at = reference.find(task);
                let known = &mut reference.tasks[at];
                if known.value == Some(value.unwrap_or_else(|error| error)) {
                    known.value = None;
                    known.forgotten = true;
                    assert!(!self.reference.known()[at], "dropped while a task needs it: {at}");
                }
            }
            FlowAction::Forget { task, worker } => {
                let at = reference.find(task);
                assert!(
                    reference.tasks[at].places.remove(&worker.0),
                    "{task} is not on {worker:?}"
                );
            }
            FlowAction::Room { free } => {
                assert!(self.starved, "the submitter had not asked for room");
                assert_eq!(free as usize, PENDING_MAX as usize - reference.pending());
                self.starved = false;
            }
            FlowAction::Retried { .. } | FlowAction::Fetch { .. } => {}
        }
    }

    fn ended(&mut self, task: TaskId, payload: Option<u64>, as_: Phase) {
        let at = self.reference.find(task);
        let known = &mut self.reference.tasks[at];
        // A task whose result is lost at once is reported as done before that.
        let lost_since = as_ == Phase::Done && known.phase == Phase::Lost;
        assert!(known.phase == as_ || lost_since, "told {as_:?}: {known:?}");
        known.ends_told += 1;
        known.payloads_back += u32::from(payload.is_some());
    }

    fn failed_by(&mut self, task: TaskId, root: TaskId) {
        let chain: Vec<_> = self.flow.chain(task).map(|id| self.reference.find(id)).collect();
        let at = self.reference.find(task);
        // The task is already forgotten if it has no holder.
        let chain = if chain.is_empty() { vec![at] } else { chain };
        for link in chain.windows(2) {
            assert!(
                self.reference.tasks[link[0]].inputs.contains(&link[1]),
                "no such dependency"
            );
            assert_eq!(self.reference.tasks[link[0]].phase, Phase::Dependency);
        }
        if chain.len() > 1 {
            let last = chain[chain.len() - 1];
            assert_eq!(self.reference.tasks[last].id, root, "the chain ends at the root");
            assert!(self.reference.tasks[last].is_bad() && self.reference.tasks[last].phase != Phase::Dependency);
        }
        self.reference.tasks[at].chain = chain;
    }
}
