//! A driver that reports random events, and checks the kernel's answers against the reference.

use crate::reference::{Phase, Reference, Task};
use hotlease_flow::{
    Admission, Flow, FlowAction, FlowEvent, FlowLimits, FlowTask as Submitted, MemoKey, Reaction, ResultPlace,
    RunOutcome, SubmitError, TaskId, WorkerIndex,
};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeSet;

pub const PENDING_MAX: u32 = 24;
pub const WORKERS: u32 = 4;

pub struct RandomDriver {
    pub flow: Flow<u64, u64, u64>,
    pub reference: Reference,
    random: StdRng,
    token: u64,
    pub starved: bool,
}

impl RandomDriver {
    pub fn new(random: StdRng) -> Self {
        let limits = FlowLimits {
            pending_max: PENDING_MAX,
            tasks_max: 1000,
            inputs_max: 120,
            memo_max: 3,
            memo_bytes_max: u64::MAX,
            deaths_max: 2,
        };
        let reference = Reference {
            workers: vec![None; WORKERS as usize],
            memo_max: 3,
            deaths_max: 2,
            ..Reference::default()
        };
        Self {
            flow: Flow::new(limits),
            reference,
            random,
            token: 0,
            starved: false,
        }
    }

    fn below(&mut self, below: usize) -> usize {
        self.random.random_range(0..below)
    }

    fn any_task(&mut self) -> Option<usize> {
        let count = self.reference.tasks.len();
        (count > 0).then(|| self.below(count))
    }

    fn running(&mut self) -> Option<usize> {
        let runs = |task: &Task| matches!(task.phase, Phase::Running | Phase::Stopping | Phase::Promised);
        let all: Vec<_> = (0..self.reference.tasks.len())
            .filter(|at| runs(&self.reference.tasks[*at]))
            .collect();
        (!all.is_empty()).then(|| all[self.below(all.len())])
    }

    /// Makes one random event.
    pub fn event(&mut self) {
        match self.below(100) {
            0..35 => self.submit(),
            35..38 => self.promise(),
            38..65 => {
                if let Some(at) = self.running() {
                    self.end(at, false);
                }
            }
            65..67 => self.stale_report(),
            67..72 => self.worker_up(),
            72..74 => {
                let worker = self.below(WORKERS as usize) as u32;
                self.worker_down(worker);
            }
            74..79 => self.cancel(),
            79..92 => self.claim(),
            92..96 => self.bring(),
            96..98 => self.copy_lost(),
            _ => self.late_key(),
        }
    }

    /// Lets every task end, and releases every claim.
    pub fn wind_up(&mut self) {
        self.step(
            FlowEvent::WorkerUp {
                worker: WorkerIndex(0),
                credits: 2,
            },
            |reference| {
                reference.workers[0] = Some(2);
                Reaction::Applied
            },
        );
        while let Some(at) = self.running() {
            self.end(at, true);
        }
        assert_eq!(self.reference.pending(), 0, "tasks are left that never end");
        for at in 0..self.reference.tasks.len() {
            while self.reference.tasks[at].holders > 0 {
                self.release(at);
            }
            let task = &self.reference.tasks[at];
            assert_eq!(task.ends_told, 1, "{} ends once", task.id);
            assert_eq!(
                task.payloads_back,
                u32::from(!task.is_promise),
                "payload of {}",
                task.id
            );
        }
        let load = self.flow.load();
        assert_eq!(load.known, load.remembered, "nothing is kept without a reference");
        assert_eq!((load.inputs, load.pending, load.ready, load.running), (0, 0, 0, 0));
    }

    fn submit(&mut self) {
        let held: Vec<_> = (0..self.reference.tasks.len())
            .filter(|at| self.reference.tasks[*at].holders > 0)
            .collect();
        let mut inputs = Vec::new();
        if !held.is_empty() {
            for _ in 0..self.below(5) {
                // Prefers late tasks, which makes deep graphs.
                let back = self.below(held.len()).min(self.below(held.len()));
                inputs.push(held[held.len() - 1 - back]);
            }
        }
        let key = (self.below(4) == 0).then(|| self.below(8) as u8);
        self.token += 1;
        let payload = self.token;
        let mut task = Submitted::new(payload).tag(payload).priority(self.below(3) as i32);
        task.retries = self.below(3) as u16;
        task.idempotent = self.below(2) == 0;
        task.key = key.map(|key| MemoKey([key; 32]));
        let (priority, retries, idempotent) = (task.priority, task.retries, task.idempotent);
        let ids: Vec<TaskId> = inputs.iter().map(|at| self.reference.tasks[*at].id).collect();
        let mut told = Vec::new();
        let known = key.and_then(|key| self.reference.recall(key));
        match self.flow.submit(task, &ids, &mut told) {
            Ok(Admission::Joined { task, payload: back }) => {
                assert_eq!(back, payload);
                let at = known.expect("no result has this key");
                assert_eq!(self.reference.tasks[at].id, task);
                self.reference.tasks[at].holders += 1;
            }
            Ok(Admission::Accepted(id)) => {
                assert_eq!(known, None, "the same computation twice");
                assert!(self.reference.pending() < PENDING_MAX as usize, "beyond the bound");
                self.reference.tasks.push(Task {
                    id,
                    inputs,
                    priority,
                    retries,
                    idempotent,
                    key,
                    ..blank(id)
                });
            }
            Err(SubmitError::Full {
                payload: back,
                wait_for,
                ..
            }) => {
                assert_eq!(back, payload);
                assert!(wait_for > 0, "full, and nothing to wait for");
                let load = self.flow.load();
                let full = load.pending == PENDING_MAX || load.inputs as usize + ids.len() > 120 || load.known == 1000;
                assert!(full, "refused with room: {load:?}");
                self.starved = true;
            }
            Err(other) => panic!("{other}"),
        }
        self.check(told);
    }

    fn promise(&mut self) {
        if let Ok(id) = self.flow.promise(0) {
            self.reference.tasks.push(Task {
                phase: Phase::Promised,
                is_promise: true,
                ..blank(id)
            });
        } else {
            self.starved = true;
        }
        self.check(Vec::new());
    }

    /// Ends a run in a random way, or with a result if `well`.
    fn end(&mut self, at: usize, well: bool) {
        let task = &self.reference.tasks[at];
        let (id, attempt, is_promise) = (task.id, task.attempt, task.is_promise);
        self.token += 1;
        let value = self.token;
        let kind = if well { 0 } else { self.below(10) };
        let bytes = self.below(1000) as u64;
        let outcome = match kind {
            0..5 => RunOutcome::Done {
                result: value,
                bytes,
                place: if kind < 3 {
                    ResultPlace::Worker
                } else {
                    ResultPlace::Here
                },
            },
            5 => RunOutcome::Failed(value),
            6 => RunOutcome::Fatal(value),
            7 => RunOutcome::Died(value),
            8 => RunOutcome::NotRun,
            _ => RunOutcome::Stopped,
        };
        self.step(
            FlowEvent::Ended {
                task: id,
                attempt,
                outcome,
            },
            |reference| {
                let deaths_max = reference.deaths_max;
                let task = &mut reference.tasks[at];
                let again = !is_promise
                    && match kind {
                        5 => task.phase != Phase::Stopping && task.retries > 0,
                        7 => {
                            task.deaths += 1;
                            task.idempotent && task.deaths < deaths_max
                        }
                        kind => kind == 8,
                    };
                match kind {
                    0..5 => reference.done(at, value, bytes, kind < 3),
                    8 if is_promise => return Reaction::Stale,
                    8 | 9 => reference.not_done(at, None, again),
                    _ => {
                        if kind == 5 && again {
                            task.retries -= 1;
                        }
                        reference.not_done(at, Some(value), again);
                    }
                }
                Reaction::Applied
            },
        );
    }

    fn stale_report(&mut self) {
        let Some(at) = self.any_task() else { return };
        let task = &self.reference.tasks[at];
        let runs = matches!(task.phase, Phase::Running | Phase::Stopping | Phase::Promised);
        let (task, attempt) = (task.id, task.attempt + u32::from(runs));
        self.token += 1;
        let outcome = RunOutcome::Done {
            result: self.token,
            bytes: 1,
            place: ResultPlace::Worker,
        };
        let mut told = Vec::new();
        let heard = self.flow.step(FlowEvent::Ended { task, attempt, outcome }, &mut told);
        assert_eq!(heard, Reaction::Stale, "a report of an earlier run was believed");
        let value = Ok(self.token);
        assert_eq!(
            told.remove(0),
            FlowAction::Dropped { task, value },
            "its result is handed back"
        );
        self.check(told);
    }

    fn worker_up(&mut self) {
        let (worker, credits) = (self.below(WORKERS as usize) as u32, self.below(4) as u32);
        self.step(
            FlowEvent::WorkerUp {
                worker: WorkerIndex(worker),
                credits,
            },
            |reference| {
                reference.workers[worker as usize] = Some(credits);
                Reaction::Applied
            },
        );
    }

    fn worker_down(&mut self, worker: u32) {
        self.step(
            FlowEvent::WorkerDown {
                worker: WorkerIndex(worker),
            },
            |reference| {
                if reference.workers[worker as usize].take().is_none() {
                    return Reaction::Stale;
                }
                (0..reference.tasks.len()).for_each(|at| reference.leave(at, worker));
                Reaction::Applied
            },
        );
        // Then reports the ends of the worker's runs, as a driver must. The number is used again only afterwards.
        let on_it = |task: &Task| matches!(task.phase, Phase::Running | Phase::Stopping) && task.worker == worker;
        while let Some(at) = self.reference.tasks.iter().position(on_it) {
            self.end(at, false);
        }
    }

    fn cancel(&mut self) {
        let Some(at) = self.any_task() else { return };
        let task = self.reference.tasks[at].id;
        let known = !self.reference.tasks[at].forgotten;
        self.step(FlowEvent::Cancel { task }, |reference| match known {
            true => reference.cancel(at),
            false => Reaction::Stale,
        });
    }

    fn claim(&mut self) {
        let Some(at) = self.any_task() else { return };
        if self.below(4) > 0 {
            return self.release(at);
        }
        let task = self.reference.tasks[at].id;
        let known = !self.reference.tasks[at].forgotten;
        self.step(FlowEvent::Hold { task }, |reference| {
            if !known {
                return Reaction::Stale;
            }
            reference.tasks[at].holders += 1;
            Reaction::Applied
        });
    }

    fn release(&mut self, at: usize) {
        let task = self.reference.tasks[at].id;
        self.step(FlowEvent::Release { task }, |reference| {
            let holders = &mut reference.tasks[at].holders;
            if *holders == 0 {
                return Reaction::Stale;
            }
            *holders -= 1;
            Reaction::Applied
        });
    }

    /// Wants a value, and fetches it.
    fn bring(&mut self) {
        let Some(at) = self.any_task() else { return };
        let task = self.reference.tasks[at].id;
        let known = !self.reference.tasks[at].forgotten;
        let mut told = Vec::new();
        let heard = self.flow.step(FlowEvent::Want { task }, &mut told);
        assert_eq!(heard == Reaction::Applied, known);
        let remote = self.reference.tasks[at].phase == Phase::Done && !self.reference.tasks[at].local;
        let fetches = told
            .iter()
            .filter(|action| matches!(action, FlowAction::Fetch { .. }))
            .count();
        assert_eq!(fetches, usize::from(remote && known));
        self.check(told);
        if !known {
            return;
        }
        self.token += 1;
        let value = self.token;
        let before = self.reference.tasks[at].value;
        let mut told = Vec::new();
        let heard = self.flow.step(FlowEvent::Fetched { task, result: value }, &mut told);
        assert_eq!(
            heard == Reaction::Applied,
            remote,
            "a value was taken that no task waited for"
        );
        let back = if remote { before } else { Some(value) };
        assert_eq!(
            told.remove(0),
            FlowAction::Dropped {
                task,
                value: Ok(back.unwrap())
            }
        );
        if remote {
            (self.reference.tasks[at].local, self.reference.tasks[at].value) = (true, Some(value));
        }
        self.check(told);
    }

    fn copy_lost(&mut self) {
        let Some(at) = self.any_task() else { return };
        let worker = self.below(WORKERS as usize) as u32;
        let task = self.reference.tasks[at].id;
        let known = !self.reference.tasks[at].forgotten;
        self.step(
            FlowEvent::CopyLost {
                task,
                worker: WorkerIndex(worker),
            },
            |reference| {
                if !known || reference.tasks[at].phase != Phase::Done || !reference.tasks[at].places.contains(&worker) {
                    return Reaction::Stale;
                }
                reference.leave(at, worker);
                Reaction::Applied
            },
        );
    }

    fn late_key(&mut self) {
        let Some(at) = self.any_task() else { return };
        let key = self.below(8) as u8;
        let task = self.reference.tasks[at].id;
        let forgotten = self.reference.tasks[at].forgotten;
        // A lookup of a key is a use of the key, but the kernel does not look up the key if the task is not known.
        let taken = !forgotten && self.reference.recall(key).is_some();
        let remembered = self.reference.memo.iter().any(|(_, known)| *known == at);
        let may = !forgotten && self.reference.tasks[at].phase == Phase::Done && !taken && !remembered;
        let mut told = Vec::new();
        assert_eq!(self.flow.memoise(task, MemoKey([key; 32]), &mut told), may);
        if may {
            self.reference.remember(key, at);
        }
        self.check(told);
    }

    /// Passes the event to kernel and reference; then both must agree.
    fn step(&mut self, event: FlowEvent<u64, u64>, expected: impl FnOnce(&mut Reference) -> Reaction) {
        let mut told = Vec::new();
        let shown = format!("{event:?}");
        let heard = self.flow.step(event, &mut told);
        assert_eq!(heard, expected(&mut self.reference), "{shown}");
        self.check(told);
    }
}

fn blank(id: TaskId) -> Task {
    Task {
        id,
        inputs: Vec::new(),
        priority: 0,
        retries: 0,
        idempotent: false,
        key: None,
        phase: Phase::Queued,
        holders: 1,
        attempt: 0,
        deaths: 0,
        worker: u32::MAX,
        places: BTreeSet::new(),
        local: false,
        bytes: 0,
        chain: Vec::new(),
        is_promise: false,
        ends_told: 0,
        payloads_back: 0,
        value: None,
        forgotten: false,
    }
}
