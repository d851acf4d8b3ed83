//! Planned tasks: tasks in the dataflow kernel, and their inputs.

use super::Run;
use super::job::{GraphRun, InputPlace, ResultHome, TaskJob, Waiter};
use super::outcome::TaskOutcome;
use super::remote_results::RemoteResult;
use super::request::{Assembly, TaskPayload, too_large};
use super::state::TaskCell;
use super::target::{MemoChoice, Rerun, Target, TaskPolicy};
use crate::client::memory::{BufferPool, Extent};
use hotlease_client::{Error, Invoker};
use hotlease_flow::MemoKey;
use hotlease_wire::task::request;
use std::cell::OnceCell;
use std::sync::Arc;

/// A task in the kernel. A hundred thousand tasks may wait, so rare fields are behind pointers.
pub struct PlannedTask {
    pub cell: Arc<TaskCell>,
    pub target: Arc<Target>,
    /// Request of the task, without the results that it needs.
    pub payload: TaskPayload,
    pub policy: TaskPolicy,
    /// Results that existed when the task was submitted, each with its number.
    pub done: Box<[(u32, Arc<TaskOutcome>)]>,
    /// Number of results that the task needs, including those in `done`.
    pub inputs: u32,
    /// Memo key of the result, once the key is known.
    pub key: OnceCell<Box<MemoKey>>,
    /// Hash of the meaning of the arguments, if they are not plain and the result is memoised.
    pub meaning: Option<Box<[u8; 32]>>,
    /// The remote result that this task makes again.
    pub makes: Option<Arc<RemoteResult>>,
}

impl PlannedTask {
    /// Makes a task that was not submitted.
    pub fn new(cell: Arc<TaskCell>, target: Arc<Target>, payload: TaskPayload, policy: TaskPolicy) -> Box<Self> {
        Box::new(Self {
            cell,
            target,
            payload,
            policy,
            done: Box::default(),
            inputs: 0,
            key: OnceCell::new(),
            meaning: None,
            makes: None,
        })
    }

    /// Bytes that the task keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }

    /// Builds the request with the results that the task needs. `alone`: no other task needs any of these results.
    pub fn request(
        &self,
        results: &[Arc<TaskOutcome>],
        alone: bool,
        invoker: &Invoker,
        pool: &Arc<BufferPool>,
    ) -> Result<TaskPayload, Error> {
        let runs_once = self.policy.retries == 0;
        if results.is_empty() {
            return match &self.payload {
                TaskPayload::Own(bytes) => Ok(TaskPayload::Own(bytes.clone())),
                TaskPayload::Shared(extent) if runs_once => Ok(TaskPayload::Shared(extent.clone())),
                // A run may write to its arguments, which the next run needs unchanged.
                TaskPayload::Shared(extent) => Ok(TaskPayload::Own(extent.bytes().into())),
            };
        }
        let bytes = results.iter().filter_map(|result| result.sent_bytes()).collect();
        let whole = Assembly::with_results(self.payload.bytes(), &self.target, bytes).ok_or_else(too_large)?;
        if alone
            && runs_once
            && self.policy.rerun == Rerun::Forbidden
            && let Some(extent) = sole(results)
            && let Some(front) = whole.before_result(extent)
            && let Some(request) = extent.put_before(0, &front)
        {
            return Ok(TaskPayload::Shared(request.into()));
        }
        if whole.len() <= invoker.options().request_bytes as usize || pool.is_full() {
            return Ok(TaskPayload::Own(whole.to_vec().into()));
        }
        let mut memory = match pool.take(invoker, whole.len()) {
            Err(error) if error.lacks_descriptors() => return Ok(TaskPayload::Own(whole.to_vec().into())),
            taken => taken?,
        };
        whole.fill(&mut memory.room()[..whole.len()]);
        Ok(TaskPayload::Shared(memory.into_extent(whole.len()).into()))
    }

    /// Makes the job of a run, once its request is complete.
    pub fn job(&self, run: Run, payload: TaskPayload, inputs: InputPlace) -> TaskJob {
        let may_stay = self.makes.is_none() && self.policy.memo == MemoChoice::Not;
        let waiter = Waiter::Graph(GraphRun {
            cell: self.cell.clone(),
            run,
            inputs,
            result: if may_stay {
                ResultHome::Worker
            } else {
                ResultHome::Client
            },
        });
        let mut job = TaskJob::new(waiter, self.target.clone(), payload);
        (job.priority, job.rerun) = (self.policy.priority, self.policy.rerun);
        job
    }

    /// Memo key of the computation: function, arguments and inputs. Results from sandboxes have different keys, so that
    /// a program that reads results without a check finds no result from a sandbox in its checkpoint.
    pub fn key_of(&self, results: &[Arc<TaskOutcome>]) -> Option<MemoKey> {
        let key = self.computation(results)?;
        Some(match self.payload.is_guarded() {
            true => MemoKey(blake3::derive_key("hotlease python result from a sandbox 1", &key.0)),
            false => key,
        })
    }

    fn computation(&self, results: &[Arc<TaskOutcome>]) -> Option<MemoKey> {
        match &self.policy.memo {
            MemoChoice::Not => None,
            MemoChoice::Key(key) => Some(MemoKey(**key)),
            MemoChoice::Content => {
                let mut hasher = blake3::Hasher::new_derive_key("hotlease python task 2");
                hasher.update(self.target.content.get()?);
                let payload = self.payload.bytes();
                hasher.update(&payload[..1]);
                // The head is not part of the key. It contains flags, and the hash of the function's pickle, which
                // depends on the location of the function's code.
                let arguments = &payload[request::HEAD_BYTES..];
                let arguments = self.meaning.as_ref().map_or(arguments, |meaning| &meaning[..]);
                hasher.update(&(arguments.len() as u64).to_le_bytes());
                hasher.update(arguments);
                for part in results.iter().filter_map(|result| result.bytes()) {
                    hasher.update(&(part.len() as u64).to_le_bytes());
                    hasher.update(part);
                }
                Some(MemoKey(*hasher.finalize().as_bytes()))
            }
        }
    }

    /// Whether the task's memo key cannot be computed yet, because it covers the bytes of results that are not at the
    /// client.
    pub fn is_key_unknown_yet(&self, results: &[Arc<TaskOutcome>]) -> bool {
        self.key.get().is_none()
            && self.policy.memo == MemoChoice::Content
            && results.iter().any(|result| {
                result
                    .remote_result()
                    .is_some_and(|away| away.local_outcome().is_none())
            })
    }
}

/// Memory of the only result that a task needs, if no other party uses that memory. Then there are two references: one
/// in `results`, and one in the graph or in the task's `done`. A future that still exists would have a third.
fn sole(results: &[Arc<TaskOutcome>]) -> Option<&Extent> {
    match results {
        [result] if Arc::strong_count(result) == 2 => match &**result {
            TaskOutcome::Large(extent) => Some(extent),
            _ => None,
        },
        _ => None,
    }
}
