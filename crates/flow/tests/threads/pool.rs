//! A driver: closures on threads, with the kernel behind a mutex. Each thread is a worker.

use hotlease_flow::{
    Flow, FlowAction, FlowEvent, FlowLimits, FlowLoad, FlowTask, Reaction, ResultPlace, RunOutcome, SubmitError,
    TaskId, WorkerIndex,
};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Code of a task: a function of its inputs.
pub type Job = Arc<dyn Fn(&[u64]) -> Result<u64, String> + Send + Sync>;

/// End of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Done(u64),
    Failed(String),
    /// An input failed; the chain has the tasks from this task to the task where the failure began.
    Dependency(Vec<TaskId>),
    Cancelled,
}

struct State {
    flow: Flow<Job, u64, String>,
    actions: Vec<FlowAction<Job, u64, String>>,
    queues: Vec<VecDeque<(TaskId, u32)>>,
    /// End of each task, by its tag.
    ends: Vec<Option<End>>,
    rooms: u64,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Signals that a queue has a task, or the pool is closed.
    work: Condvar,
    /// Signals that a task has ended, or there is room.
    news: Condvar,
}

pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under the lock")
    }

    /// Carries out the kernel's actions.
    fn carry_out(&self, state: &mut State) {
        let (mut runs, mut news) = (false, false);
        for action in std::mem::take(&mut state.actions) {
            let (task, end) = match action {
                FlowAction::Run { task, attempt, worker } => {
                    state.queues[worker.0 as usize].push_back((task, attempt));
                    runs = true;
                    continue;
                }
                FlowAction::Room { .. } => {
                    state.rooms += 1;
                    news = true;
                    continue;
                }
                FlowAction::Done { task, .. } => (task, state.flow.result(task).copied().map(End::Done)),
                FlowAction::Cancelled { task, .. } => (task, Some(End::Cancelled)),
                FlowAction::Failed { task, root, .. } if task == root => {
                    (task, state.flow.error(task).cloned().map(End::Failed))
                }
                FlowAction::Failed { task, .. } => (task, Some(End::Dependency(state.flow.chain(task).collect()))),
                _ => continue,
            };
            if let (Some(tag), Some(end)) = (state.flow.tag(task), end) {
                let known = &mut state.ends[tag as usize];
                assert_eq!(*known, None, "{task} ended twice");
                *known = Some(end);
            }
            news = true;
        }
        if runs {
            self.work.notify_all();
        }
        if news {
            self.news.notify_all();
        }
    }

    fn serve(&self, worker: usize) {
        let mut state = self.lock();
        loop {
            if let Some((task, attempt)) = state.queues[worker].pop_front() {
                let job = Arc::clone(state.flow.payload(task).expect("it runs"));
                let inputs: Vec<u64> = state.flow.inputs(task).map(|input| *input.result).collect();
                drop(state);
                let outcome = match catch_unwind(AssertUnwindSafe(|| job(&inputs))) {
                    Ok(Ok(result)) => RunOutcome::Done {
                        result,
                        bytes: 8,
                        place: ResultPlace::Here,
                    },
                    Ok(Err(error)) => RunOutcome::Failed(error),
                    Err(_) => RunOutcome::Fatal("it panicked".into()),
                };
                state = self.lock();
                let event = FlowEvent::Ended { task, attempt, outcome };
                self.step(&mut state, event);
            } else if state.closed {
                return;
            } else {
                state = self.work.wait(state).expect("no thread panics under the lock");
            }
        }
    }

    fn step(&self, state: &mut State, event: FlowEvent<u64, String>) -> Reaction {
        let State { flow, actions, .. } = state;
        let heard = flow.step(event, actions);
        self.carry_out(state);
        heard
    }
}

impl Pool {
    pub fn new(threads: u32, limits: FlowLimits) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                flow: Flow::new(limits),
                actions: Vec::new(),
                queues: vec![VecDeque::new(); threads as usize],
                ends: Vec::new(),
                rooms: 0,
                closed: false,
            }),
            work: Condvar::new(),
            news: Condvar::new(),
        });
        let serve = |worker: u32| {
            let shared = Arc::clone(&shared);
            let up = FlowEvent::WorkerUp {
                worker: WorkerIndex(worker),
                credits: 2,
            };
            shared.step(&mut shared.lock(), up);
            std::thread::spawn(move || shared.serve(worker as usize))
        };
        let threads = (0..threads).map(serve).collect();
        Self { shared, threads }
    }

    /// Submits a task, and waits while there is no room.
    pub fn submit(&self, task: impl Fn(Job) -> FlowTask<Job>, job: Job, inputs: &[TaskId]) -> TaskId {
        let mut state = self.shared.lock();
        let tag = state.ends.len() as u64;
        state.ends.push(None);
        let mut job = job;
        loop {
            let State { flow, actions, .. } = &mut *state;
            match flow.submit(task(job).tag(tag), inputs, actions) {
                Ok(admission) => {
                    self.shared.carry_out(&mut state);
                    return admission.task();
                }
                Err(SubmitError::Full { payload, .. }) => {
                    job = payload;
                    let rooms = state.rooms;
                    while state.rooms == rooms {
                        state = self.shared.news.wait(state).expect("no thread panics under the lock");
                    }
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    pub fn release(&self, task: TaskId) {
        let state = &mut self.shared.lock();
        assert_eq!(self.shared.step(state, FlowEvent::Release { task }), Reaction::Applied);
    }

    pub fn cancel(&self, task: TaskId) -> Reaction {
        self.shared.step(&mut self.shared.lock(), FlowEvent::Cancel { task })
    }

    /// Waits for the end of a task that is held.
    pub fn wait(&self, task: TaskId) -> End {
        let mut state = self.shared.lock();
        let tag = state.flow.tag(task).expect("it is held") as usize;
        loop {
            if let Some(end) = &state.ends[tag] {
                return end.clone();
            }
            state = self.shared.news.wait(state).expect("no thread panics under the lock");
        }
    }

    /// Load of the kernel once it has no tasks any more, or after ten seconds.
    pub fn load_at_rest(&self) -> FlowLoad {
        let state = self.shared.lock();
        let busy = |state: &mut State| state.flow.load().known > 0;
        let waited = self
            .shared
            .news
            .wait_timeout_while(state, Duration::from_secs(10), busy);
        let (state, _) = waited.expect("no thread panics under the lock");
        state.flow.load()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("no thread panics");
        }
    }
}
