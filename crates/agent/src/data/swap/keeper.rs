//! State of one worker: taken at the beginning of the worker's lease, saved at the end.

use super::SwapOptions;
use super::files::{LOOK_EVERY, StateClaim, StateLock, StateRequest, StateWriter, TakenState};
use super::transfer::{self, SaveError};
use crate::workers::worker::{ORDER_LIMIT, StartError, StartedWorker};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Time that a lease waits for a state that another lease holds, in addition to the limit for saving a state.
const HANDING_OVER: Duration = Duration::from_millis(1500);
/// Time in which the file system must find, lock and read a state, or make a state durable.
pub(super) const FILES_LIMIT: Duration = Duration::from_secs(8);

/// Stage of a state.
enum StateStage {
    /// No lock was taken yet.
    Unlocked,
    /// This lease has the lock and, until the worker has restored it, the saved state, if there is one. The fields are
    /// dropped in this order: an unrestored state is put back before another lease can look for it.
    Held(Option<TakenState>, StateLock),
    /// The state is in the worker only.
    Living(StateLock),
    /// Written; the worker serves no client any more.
    Written(StateLock, StateWriter),
    /// Ended.
    Ended,
}

/// The saved state of one worker.
pub(crate) struct WorkerStateKeeper {
    options: Arc<SwapOptions>,
    request: StateRequest,
    host: String,
    stage: tokio::sync::Mutex<StateStage>,
    history: Mutex<StateHistory>,
}

#[derive(Default)]
struct StateHistory {
    /// Messages for people.
    messages: Vec<String>,
    restoring: Option<Duration>,
    /// Whether saving has failed while the lease continued.
    is_refused: bool,
    /// Number of calls that had ended at the last look, and the time since which it has not changed.
    idle: Option<(u64, Instant)>,
}

impl WorkerStateKeeper {
    pub fn new(options: Arc<SwapOptions>, request: StateRequest, host: String) -> Self {
        Self {
            options,
            request,
            host,
            stage: tokio::sync::Mutex::new(StateStage::Unlocked),
            history: Mutex::default(),
        }
    }

    /// Locks the state for this lease and takes the saved state, if there is one, before the worker starts. The error
    /// says why the worker cannot start.
    pub async fn begin(&self) -> Result<(), StartError> {
        let lock = self.lock().await?;
        let finding = spawn_blocking(move || {
            let taken = lock.take_saved()?;
            Ok::<_, StartError>(StateStage::Held(taken, lock))
        });
        let found = self.in_time(FILES_LIMIT, finding).await;
        *self.stage.lock().await = found.map_err(StartError::for_now)??;
        Ok(())
    }

    /// Locks the state as soon as no other lease holds it. The wait occupies no thread, because all leases of a tenant
    /// may wait for the same state.
    async fn lock(&self) -> Result<StateLock, StartError> {
        let (directory, request) = (&self.options.directory, &self.request);
        let holder = format!("lease {} on {}", request.lease, self.host);
        let (begun, within) = (Instant::now(), self.options.limit + HANDING_OVER);
        loop {
            let (directory, request, holder) = (directory.clone(), request.clone(), holder.clone());
            let trying = spawn_blocking(move || StateLock::try_take(&directory, request, &holder));
            let tried = self.in_time(FILES_LIMIT, trying).await.and_then(|tried| tried);
            match tried.map_err(StartError::for_now)? {
                StateClaim::Held(lock) => return Ok(lock),
                StateClaim::InUse(why) if begun.elapsed() >= within => return Err(StartError::for_now(why)),
                StateClaim::InUse(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Makes the worker restore the saved state, before it serves any client.
    pub async fn restore(&self, worker: &StartedWorker) -> Result<(), StartError> {
        let mut stage = self.stage.lock().await;
        let (lock, taken) = match std::mem::replace(&mut *stage, StateStage::Ended) {
            StateStage::Held(taken, lock) => (lock, taken),
            other => {
                *stage = other;
                return Ok(());
            }
        };
        let Some(taken) = taken else {
            transfer::restore(worker, None, ORDER_LIMIT).await?;
            self.note(format!(
                "state `{}`: nothing was saved under that name",
                self.request.name
            ));
            *stage = StateStage::Living(lock);
            return Ok(());
        };
        let begun = Instant::now();
        let path = taken.path().display().to_string();
        let limit = self.options.limit.max(ORDER_LIMIT);
        let restored = match taken.file() {
            Ok(file) => transfer::restore(worker, Some((file, taken.head.size_bytes)), limit).await,
            Err(error) => Err(StartError::for_now(error)),
        };
        let name = &self.request.name;
        if let Err(why) = restored {
            // The state is put back when its use ends, unless another worker restores it.
            *stage = StateStage::Held(Some(taken), lock);
            self.note(format!("state `{name}`: not restored from {path}: {why}"));
            return Err(StartError {
                why: format!(
                    "the state `{name}` was not restored from {path}, and no function ran: {why}. The file is as it was: correct the program and try again, or remove it (`hotlease state rm`)"
                ),
                ..why
            });
        }
        *stage = StateStage::Living(lock);
        self.history().restoring = Some(begun.elapsed());
        let head = taken.head.clone();
        self.note(format!(
            "state `{name}`: restored {} bytes of {} from {path}",
            head.size_bytes, head.host
        ));
        // The file is removed only now. If an earlier step fails, the state is found again.
        let removed = spawn_blocking(move || taken.mark_restored());
        if let Err(why) = self.in_time(FILES_LIMIT, removed).await {
            tracing::error!(state = name, why, "a state that was restored is not removed yet");
        }
        Ok(())
    }

    /// Makes the worker write its state. Afterwards the worker serves no client, and must be ended. A state that was
    /// written already is not written again. Takes at most `limit` or the operator's limit, whichever is shorter.
    pub async fn save(&self, worker: &StartedWorker, limit: Duration) -> Result<(), SaveError> {
        let mut stage = self.stage.lock().await;
        let lock = match std::mem::replace(&mut *stage, StateStage::Ended) {
            StateStage::Living(lock) => lock,
            other => {
                let is_written = matches!(other, StateStage::Written(..));
                *stage = other;
                return match is_written {
                    true => Ok(()),
                    false => Err(SaveError::Lost("it is not in the worker".into())),
                };
            }
        };
        let options = Arc::clone(&self.options);
        let opening = spawn_blocking(move || {
            let part = lock.part(&options);
            (lock, part)
        });
        // If the file system does not answer in time, there is neither a lock nor a file to write to.
        let opened = self.in_time(FILES_LIMIT.min(limit), opening).await;
        let (lock, part) = opened.map_err(|why| self.lose(why))?;
        let saved = match part {
            Ok(part) => transfer::save(worker, part, self.options.limit.min(limit)).await,
            Err(why) => Err(SaveError::Refused(why)),
        };
        match saved {
            Ok(part) => *stage = StateStage::Written(lock, part),
            Err(SaveError::Refused(why)) => {
                *stage = StateStage::Living(lock);
                let is_reported = std::mem::replace(&mut self.history().is_refused, true);
                if !is_reported {
                    self.note(format!("state `{}`: could not be saved: {why}", self.request.name));
                    tracing::warn!(state = self.request.name, tenant = self.request.tenant, lease = %self.request.lease, why, "a state could not be saved");
                }
                return Err(SaveError::Refused(why));
            }
            Err(SaveError::Lost(why)) => return Err(self.lose(why)),
        }
        Ok(())
    }

    /// Gives the state up after the worker is gone: makes a written state durable, and lets other leases lock it.
    /// `why`: reason of the worker's end, reported if no state was written.
    pub async fn end(&self, why: String) {
        let stage = std::mem::replace(&mut *self.stage.lock().await, StateStage::Ended);
        let name = &self.request.name;
        let host = self.host.clone();
        let finishing = match stage {
            StateStage::Written(lock, part) => spawn_blocking(move || {
                let finished = part.finish(&host);
                drop(lock);
                finished
            }),
            StateStage::Living(_) => {
                self.lose(why);
                return self.release(stage).await;
            }
            other => return self.release(other).await,
        };
        let finished = self.in_time(FILES_LIMIT, finishing).await;
        match finished.and_then(|finished| finished) {
            Ok((path, bytes)) => {
                self.note(format!("state `{name}`: saved {bytes} bytes to {}", path.display()));
                tracing::info!(state = name, tenant = self.request.tenant, lease = %self.request.lease, bytes, path = %path.display(), "state saved");
            }
            Err(why) => drop(self.lose(why)),
        }
    }

    /// Drops the stage on a thread that may block, because the drop renames and removes files.
    async fn release(&self, stage: StateStage) {
        let released = spawn_blocking(move || drop(stage));
        let _ = self.in_time(FILES_LIMIT, released).await;
    }

    /// Whether the worker can be asked to save its state while its lease continues: not during a save, and not after a
    /// failed save.
    pub fn may_save(&self) -> bool {
        let stage = self.stage.try_lock();
        stage.is_ok_and(|stage| matches!(*stage, StateStage::Living(_))) && !self.history().is_refused
    }

    /// Time for which the worker has run no function, as far as calls of this method have seen. `calls`: number of
    /// calls that have ended.
    pub fn idle_for(&self, calls: u64, is_running: bool) -> Duration {
        let (now, mut history) = (Instant::now(), self.history());
        match history.idle {
            Some((then, since)) if then == calls && !is_running => now - since,
            _ => {
                history.idle = Some((calls, now));
                Duration::ZERO
            }
        }
    }

    /// History of the state, for people.
    pub fn history_text(&self) -> String {
        self.history().messages.join("; ")
    }

    /// Time that the worker took to restore the state.
    pub fn restoring(&self) -> Option<Duration> {
        self.history().restoring
    }

    fn history(&self) -> std::sync::MutexGuard<'_, StateHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, message: String) {
        self.history().messages.push(message);
    }

    fn lose(&self, why: String) -> SaveError {
        let StateRequest {
            name, tenant, lease, ..
        } = &self.request;
        tracing::error!(state = name, tenant, %lease, why, "the state of a worker is lost");
        self.note(format!("state `{name}`: lost: {why}"));
        SaveError::Lost(why)
    }

    async fn in_time<R>(&self, limit: Duration, doing: tokio::task::JoinHandle<R>) -> Result<R, String> {
        match timeout(limit, doing).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!(
                "the swap directory {} did not answer within {:.0} s",
                self.options.directory.display(),
                limit.as_secs_f64()
            )),
        }
    }
}
