//! Jobs: tasks that are ready to run, with their requests and the state that is needed to send them again.

use super::Run;
use super::outcome::{Failed, TaskOutcome};
use super::request::TaskPayload;
use super::state::TaskCell;
use super::target::{Rerun, Target};
use super::task_times::TaskTimes;
use crate::client::memory::HEADROOM;
use hotlease_client::{EndReason, Error, RunCertainty};
use std::sync::Arc;

/// A task is not sent again after this many workers have died of it.
const DEATHS_MAX: u8 = 2;
/// Limit of the workers that end before they start a task. The client library has a similar limit for other
/// invocations.
const MOVES_MAX: u8 = 64;

/// A task in the queue or on a slot. Jobs are copied from the queue to slots, so a job has only 64 bytes.
pub struct TaskJob {
    pub waiter: Waiter,
    pub target: Arc<Target>,
    pub payload: TaskPayload,
    /// Priority; jobs with higher priorities are sent first.
    pub priority: i32,
    pub rerun: Rerun,
    /// Whether the task was marked at `CoreState::waiting_since`, because it waited and there was no worker.
    pub is_late: bool,
    /// Number of workers that died of the task.
    deaths: u8,
    /// Number of workers that ended before they started the task.
    moves: u8,
}

const _: () = assert!(size_of::<TaskJob>() <= 64);

/// Party that waits for the end of a job.
pub enum Waiter {
    /// The future of the task.
    Future(Arc<TaskCell>),
    /// The graph.
    Graph(GraphRun),
    /// The worker that the job prepares: its tasks wait.
    Worker,
}

/// A run of a task of the graph.
pub struct GraphRun {
    pub cell: Arc<TaskCell>,
    pub run: Run,
    pub inputs: InputPlace,
    pub result: ResultHome,
}

/// Location of the results that a run needs.
#[derive(Clone, Copy)]
pub enum InputPlace {
    /// All are in the request of the run.
    Request,
    /// Some are with workers; the worker of the run fetches these results from there.
    Workers {
        /// The slot whose worker has the largest of these results, if that worker still serves the slot.
        nearest: Option<u32>,
    },
}

/// Place of a large result for which no future waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ResultHome {
    /// The result may stay with its worker.
    Worker,
    /// The client needs the result.
    Client,
}

impl TaskJob {
    /// Makes a job that was not sent.
    pub fn new(waiter: Waiter, target: Arc<Target>, payload: TaskPayload) -> Self {
        Self {
            waiter,
            rerun: target.rerun,
            target,
            payload,
            priority: 0,
            is_late: false,
            deaths: 0,
            moves: 0,
        }
    }

    /// Bytes that the job keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }

    /// Whether the job prepares a worker.
    #[inline]
    pub fn prepares(&self) -> bool {
        matches!(self.waiter, Waiter::Worker)
    }

    /// Whether the whole request may have to be copied to be sent.
    pub fn is_copied(&self) -> bool {
        let is_shared = matches!(self.payload, TaskPayload::Shared(_));
        self.rerun == Rerun::Allowed || !is_shared || self.target.blob.len() > HEADROOM / 2
    }

    /// Counts a run that ended with an error of the client library. Returns whether the task may be sent again.
    pub fn count_error(&mut self, error: &Error) -> bool {
        let was_lost = is_loss(error);
        let may_run_again = match error.ran() {
            RunCertainty::No => {
                self.moves += u8::from(was_lost);
                self.moves <= MOVES_MAX
            }
            _ => {
                self.deaths += u8::from(was_lost);
                self.may_follow_deaths()
            }
        };
        let released = matches!(
            error,
            Error::LeaseEnded {
                reason: EndReason::Released,
                ..
            }
        );
        (was_lost || error.retryable()) && may_run_again && !released
    }

    /// Counts a run whose result was lost. Returns whether the task may be sent again.
    pub fn count_lost_result(&mut self) -> bool {
        self.deaths += 1;
        self.may_follow_deaths()
    }

    fn may_follow_deaths(&self) -> bool {
        self.rerun == Rerun::Allowed && self.deaths < DEATHS_MAX
    }

    /// Outcome of the task if it ends with this error.
    pub fn failed(&self, error: Error) -> TaskOutcome {
        let deaths = self.deaths;
        TaskOutcome::Failed(Box::new(Failed { error, deaths }))
    }
}

impl Waiter {
    /// State of the task; `None` for a job that prepares a worker.
    #[inline]
    pub fn cell(&self) -> Option<&Arc<TaskCell>> {
        match self {
            Self::Future(cell) | Self::Graph(GraphRun { cell, .. }) => Some(cell),
            Self::Worker => None,
        }
    }

    /// Times of the task, if they are recorded.
    #[inline]
    pub fn times(&self) -> Option<&Arc<TaskTimes>> {
        self.cell()?.times.as_ref()
    }

    /// Marks the task as about to be sent. Returns `false` if the task was cancelled.
    #[inline]
    pub fn start(&self) -> bool {
        self.cell().is_none_or(|cell| cell.start())
    }

    /// The run of a task of the graph; `None` for other jobs.
    #[inline]
    pub fn run(&self) -> Option<Run> {
        match self {
            Self::Graph(graph) => Some(graph.run),
            Self::Future(_) | Self::Worker => None,
        }
    }

    /// The slot whose worker has the largest remote result that the task needs.
    #[inline]
    pub fn nearest(&self) -> Option<usize> {
        match self {
            Self::Graph(GraphRun {
                inputs: InputPlace::Workers { nearest },
                ..
            }) => nearest.map(|slot| slot as usize),
            _ => None,
        }
    }

    /// Whether the result of the job may stay with its worker.
    #[inline]
    pub fn lets_result_stay(&self) -> bool {
        !matches!(self, Self::Graph(graph) if graph.result == ResultHome::Client)
    }
}

/// Whether an error means that the worker of a run is gone.
pub fn is_loss(error: &Error) -> bool {
    matches!(
        error,
        Error::WorkerDied { .. } | Error::LeaseEnded { .. } | Error::OutcomeUnknown { .. }
    )
}
