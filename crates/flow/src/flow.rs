//! The kernel's state, and the questions that a driver can ask it.

mod placement;
mod step;
mod submission;
mod task_end;

use crate::edges::Edges;
use crate::event::{FlowLimits, ResultPlace};
use crate::id::{NIL, TaskId, WorkerIndex};
use crate::memo::Memo;
use crate::nodes::{TaskNodes, TaskState};
use crate::ready::ReadyQueue;
use crate::workers::Workers;
use smallvec::SmallVec;
use std::collections::HashMap;

/// The dataflow kernel. See the [crate](crate) for how to use it.
///
/// `P` is the payload to run, `R` a result or its stand-in, `E` an error. The kernel does not copy, compare or drop
/// values of these types: each value is returned by a [`FlowAction`](crate::FlowAction), once. The kernel owns no
/// thread and no lock.
/// It is `Send` if the three types are `Send`. To share it between threads, put it behind a mutex.
///
/// # Costs
///
/// A task costs constant time for each of its inputs, plus `O(log n)` if tasks become ready in another order than that
/// of their submission. The end of a worker costs one look at every known task. A task takes 96 bytes of memory, if
/// payload, result and error have 16 bytes. To this add 20 bytes for each input, 24 bytes while the task is ready, and
/// some 130 bytes if it has a key. Memory is reused for later tasks, so the largest number of tasks at a time
/// determines its size.
#[derive(Debug)]
pub struct Flow<P, R, E> {
    limits: FlowLimits,
    nodes: TaskNodes<P, R, E>,
    edges: Edges,
    ready: ReadyQueue,
    workers: Workers,
    memo: Memo,
    /// Further workers that have the result of a task, for the few results that are on several workers.
    copies: HashMap<u32, SmallVec<[u32; 4]>>,
    sequence: u64,
    pending: u32,
    running: u32,
    /// Largest number of inputs of the submissions that were refused for lack of room since room was last reported;
    /// `None`: no submission was refused.
    starved: Option<u32>,
    /// Tasks that may not be needed any more; they are checked before a step ends.
    loose: Vec<u32>,
    /// Failed tasks whose consumers must fail too, each with the task where the failure began.
    failing: Vec<(u32, u32)>,
    /// Scratch memory of placement: bytes of a task's inputs by worker, and (`weighed`) the workers whose entry is not
    /// zero.
    weights: Vec<u64>,
    weighed: Vec<u32>,
}

/// Phase of a task's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskPhase {
    /// The task waits for inputs.
    Waiting,
    /// The task waits for a worker.
    Ready,
    /// The task runs.
    Running,
    /// The task runs, and is to be stopped.
    Stopping,
    /// The driver will end the task.
    Promised,
    /// The task has a result.
    Done,
    /// The task failed.
    Failed,
    /// A task on which this task depends failed, was cancelled or was lost.
    DependencyFailed,
    /// The task was cancelled.
    Cancelled,
    /// The task had a result, which was lost with a worker.
    Lost,
}

/// Numbers of tasks, inputs and remembered computations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowLoad {
    /// Tasks that have not ended.
    pub pending: u32,
    /// Pending tasks that wait for a worker.
    pub ready: u32,
    /// Pending tasks that are on a worker.
    pub running: u32,
    /// Known tasks, including ended tasks.
    pub known: u32,
    /// Inputs of tasks.
    pub inputs: u32,
    /// Remembered computations.
    pub remembered: u32,
    /// Bytes of the results of remembered computations.
    pub remembered_bytes: u64,
}

/// One input of a task.
#[derive(Debug)]
pub struct TaskInput<'a, R> {
    /// Task that made the result.
    pub task: TaskId,
    /// The result or its stand-in.
    pub result: &'a R,
    /// Size of the result, bytes.
    pub bytes: u64,
    /// Whether this input has the only claim on the result: no other task, no holder and no memo has a claim.
    pub alone: bool,
    /// Whether the driver has the value. If so, it sends the value with the task, unless [`Flow::is_on`] says that the
    /// worker has it.
    pub place: ResultPlace,
}

impl<P, R, E> Flow<P, R, E> {
    /// Makes a kernel without tasks and workers.
    pub fn new(limits: FlowLimits) -> Self {
        // The largest number of 32 bits means "none" in tables.
        let limits = FlowLimits {
            tasks_max: limits.tasks_max.min(NIL - 1),
            inputs_max: limits.inputs_max.min(NIL - 1),
            ..limits
        };
        Self {
            limits,
            nodes: TaskNodes::new(),
            edges: Edges::new(),
            ready: ReadyQueue::new(),
            workers: Workers::default(),
            memo: Memo::new(),
            copies: HashMap::new(),
            sequence: 0,
            pending: 0,
            running: 0,
            starved: None,
            loose: Vec::new(),
            failing: Vec::new(),
            weights: Vec::new(),
            weighed: Vec::new(),
        }
    }

    /// Phase of a task's life; `None` if the task is not known any more.
    pub fn phase(&self, task: TaskId) -> Option<TaskPhase> {
        let index = self.nodes.find(task)?;
        match self.nodes.at(index).state {
            TaskState::Vacant => None,
            TaskState::Waiting(_) => Some(TaskPhase::Waiting),
            TaskState::Ready(_) => Some(TaskPhase::Ready),
            TaskState::Running(_) => Some(TaskPhase::Running),
            TaskState::Stopping(_) => Some(TaskPhase::Stopping),
            TaskState::Promised => Some(TaskPhase::Promised),
            TaskState::Done(_) => Some(TaskPhase::Done),
            TaskState::Failed(_) => Some(TaskPhase::Failed),
            TaskState::Chained(_) => Some(TaskPhase::DependencyFailed),
            TaskState::Cancelled => Some(TaskPhase::Cancelled),
            TaskState::Lost => Some(TaskPhase::Lost),
        }
    }

    /// The payload of a task that has not ended.
    pub fn payload(&self, task: TaskId) -> Option<&P> {
        match &self.nodes.at(self.nodes.find(task)?).state {
            TaskState::Waiting(payload)
            | TaskState::Ready(payload)
            | TaskState::Running(payload)
            | TaskState::Stopping(payload) => Some(payload),
            _ => None,
        }
    }

    /// The result of a task that is done.
    pub fn result(&self, task: TaskId) -> Option<&R> {
        match &self.nodes.at(self.nodes.find(task)?).state {
            TaskState::Done(result) => Some(result),
            _ => None,
        }
    }

    /// The error of a task that failed itself.
    pub fn error(&self, task: TaskId) -> Option<&E> {
        match &self.nodes.at(self.nodes.find(task)?).state {
            TaskState::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The driver's own number of a task.
    pub fn tag(&self, task: TaskId) -> Option<u64> {
        Some(self.nodes.at(self.nodes.find(task)?).tag)
    }

    /// The results that a task needs, in the order in which the task named them. All inputs of a running task are
    /// returned, except those that were lost since it began.
    pub fn inputs(&self, task: TaskId) -> impl Iterator<Item = TaskInput<'_, R>> {
        let first = self
            .nodes
            .find(task)
            .map_or(NIL, |index| self.nodes.at(index).first_input);
        let mut edge = first;
        std::iter::from_fn(move || {
            while edge != NIL {
                let here = self.edges.get(edge);
                edge = here.next_input;
                let node = self.nodes.at(here.producer);
                if let TaskState::Done(result) = &node.state {
                    return Some(TaskInput {
                        task: self.nodes.id(here.producer),
                        result,
                        bytes: node.bytes,
                        alone: node.holders == 0 && node.consumers.first == node.consumers.last,
                        place: if node.flags.local {
                            ResultPlace::Here
                        } else {
                            ResultPlace::Worker
                        },
                    });
                }
            }
            None
        })
    }

    /// Tasks that explain a task's failure: the task itself, its input that failed, that input's failed input, and so
    /// on to the task where the failure began. Returns only the task itself if it did not fail by an input, and nothing
    /// if it is not known.
    pub fn chain(&self, task: TaskId) -> impl Iterator<Item = TaskId> {
        let mut next = self.nodes.find(task);
        std::iter::from_fn(move || {
            let index = next?;
            let node = self.nodes.at(index);
            let chained = matches!(node.state, TaskState::Chained(_));
            next = chained.then(|| self.edges.get(node.first_input).producer);
            Some(self.nodes.id(index))
        })
    }

    /// Whether another task needs the result of this task.
    pub fn is_needed(&self, task: TaskId) -> bool {
        let found = self.nodes.find(task);
        found.is_some_and(|index| !self.nodes.at(index).consumers.is_empty())
    }

    /// Whether a worker has the result of a task, or the result is being sent to the worker.
    pub fn is_on(&self, task: TaskId, worker: WorkerIndex) -> bool {
        let found = self.nodes.find(task);
        found.is_some_and(|index| self.stands_on(index, worker.0))
    }

    /// The tasks that have not ended, including promises. Costs one look at every known task.
    pub fn pending(&self) -> impl Iterator<Item = TaskId> {
        let indices = 0..self.nodes.places();
        indices
            .filter(|index| self.nodes.at(*index).is_pending())
            .map(|index| self.nodes.id(index))
    }

    /// Number of tasks on a worker now.
    pub fn in_flight(&self, worker: WorkerIndex) -> u32 {
        self.workers.in_flight(worker)
    }

    /// Present numbers of tasks, inputs and remembered computations.
    pub fn load(&self) -> FlowLoad {
        FlowLoad {
            pending: self.pending,
            ready: self.ready.len() as u32,
            running: self.running,
            known: self.nodes.len(),
            inputs: self.edges.len(),
            remembered: self.memo.len() as u32,
            remembered_bytes: self.memo.bytes(),
        }
    }

    /// The kernel's limits.
    pub fn limits(&self) -> FlowLimits {
        self.limits
    }
}
