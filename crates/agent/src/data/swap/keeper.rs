//! The saved state of one worker, from its lease's beginning to its end.

use super::SwapOptions;
use super::files::{LOOK_EVERY, StateClaim, StateLock, StateRequest, StateWriter, TakenState};
use super::transfer::{self, SaveError};
use crate::workers::worker::{ORDER_LIMIT, StartError, StartedWorker};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Additional time that a lease waits for a state that another lease holds, beyond the limit for saving it.
const HANDING_OVER: Duration = Duration::from_millis(1500);
/// Time in which the file system must find, lock and read a state, or make one durable.
pub(super) const FILES_LIMIT: Duration = Duration::from_secs(8);

/// Stage of a state.
enum StateStage {
    /// Not looked for yet.
    NotLookedFor,
    /// Held by this lease; with the saved state, if any, until that is restored.
    /// Dropped in this order: an unrestored state is put back before another lease can look for it.
    Held(Option<TakenState>, StateLock),
    /// In the worker only.
    Living(StateLock),
    /// Written; the worker serves no client any more.
    Written(StateLock, StateWriter),
    /// Ended.
    Ended,
}

/// The saved state of one worker.
pub(crate) struct WorkerStateKeeper {
    options: Arc<SwapOptions>,
    wanted: StateRequest,
    host: String,
    progress: tokio::sync::Mutex<StateStage>,
    told: Mutex<StateHistory>,
}

#[derive(Default)]
struct StateHistory {
    /// Messages for people: the state's history.
    words: Vec<String>,
    restoring: Option<Duration>,
    /// Saving has failed while its lease went on.
    is_refused: bool,
    /// Number of calls that had ended at the last look, and the time since when that has not changed.
    idle: Option<(u64, Instant)>,
}

impl WorkerStateKeeper {
    pub fn new(options: Arc<SwapOptions>, wanted: StateRequest, host: String) -> Self {
        Self {
            options,
            wanted,
            host,
            progress: tokio::sync::Mutex::new(StateStage::NotLookedFor),
            told: Mutex::default(),
        }
    }

    /// Holds the state for this lease, and finds the saved one, before there is a worker. The error says why there can
    /// be none.
    pub async fn begin(&self) -> Result<(), StartError> {
        let hold = self.hold().await?;
        let finding = spawn_blocking(move || {
            let taken = hold.take_saved()?;
            Ok::<_, StartError>(StateStage::Held(taken, hold))
        });
        let found = self.in_time(FILES_LIMIT, finding).await;
        *self.progress.lock().await = found.map_err(StartError::for_now)??;
        Ok(())
    }

    /// Waits until no other lease holds the state, without a thread: all leases of a tenant may wait for one state.
    async fn hold(&self) -> Result<StateLock, StartError> {
        let (directory, wanted) = (&self.options.directory, &self.wanted);
        let holder = format!("lease {} on {}", wanted.lease, self.host);
        let (begun, within) = (Instant::now(), self.options.limit + HANDING_OVER);
        loop {
            let (directory, wanted, holder) = (directory.clone(), wanted.clone(), holder.clone());
            let trying = spawn_blocking(move || StateLock::try_take(&directory, wanted, &holder));
            let tried = self.in_time(FILES_LIMIT, trying).await.and_then(|tried| tried);
            match tried.map_err(StartError::for_now)? {
                StateClaim::Held(hold) => return Ok(hold),
                StateClaim::InUse(why) if begun.elapsed() >= within => return Err(StartError::for_now(why)),
                StateClaim::InUse(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Has the worker restore the saved state, before it serves any client.
    pub async fn restore(&self, worker: &StartedWorker) -> Result<(), StartError> {
        let mut progress = self.progress.lock().await;
        let (hold, taken) = match std::mem::replace(&mut *progress, StateStage::Ended) {
            StateStage::Held(taken, hold) => (hold, taken),
            other => {
                *progress = other;
                return Ok(());
            }
        };
        let Some(taken) = taken else {
            transfer::restore(worker, None, ORDER_LIMIT).await?;
            self.say(format!(
                "state `{}`: nothing was saved under that name",
                self.wanted.name
            ));
            *progress = StateStage::Living(hold);
            return Ok(());
        };
        let begun = Instant::now();
        let path = taken.path().display().to_string();
        let limit = self.options.limit.max(ORDER_LIMIT);
        let restored = match taken.file() {
            Ok(file) => transfer::restore(worker, Some((file, taken.head.size_bytes)), limit).await,
            Err(error) => Err(StartError::for_now(error)),
        };
        let name = &self.wanted.name;
        if let Err(why) = restored {
            // Put back at its end, unless another worker restores it.
            *progress = StateStage::Held(Some(taken), hold);
            self.say(format!("state `{name}`: not restored from {path}: {why}"));
            return Err(StartError {
                why: format!(
                    "the state `{name}` was not restored from {path}, and no function ran: {why}. The file is as it was: correct the program and try again, or remove it (`hotlease state rm`)"
                ),
                ..why
            });
        }
        *progress = StateStage::Living(hold);
        self.told().restoring = Some(begun.elapsed());
        let head = taken.head.clone();
        self.say(format!(
            "state `{name}`: restored {} bytes of {} from {path}",
            head.size_bytes, head.host
        ));
        // Only now: if an earlier step fails, the state is found again.
        let removed = spawn_blocking(move || taken.mark_restored());
        if let Err(why) = self.in_time(FILES_LIMIT, removed).await {
            tracing::error!(state = name, why, "a state that was restored is not removed yet");
        }
        Ok(())
    }

    /// Has the worker write its state, if that is still possible; then the worker serves no client any more, and must
    /// be ended. A written state is not written again. It takes at most `limit`, and the operator's limit.
    pub async fn save(&self, worker: &StartedWorker, limit: Duration) -> Result<(), SaveError> {
        let mut progress = self.progress.lock().await;
        let hold = match std::mem::replace(&mut *progress, StateStage::Ended) {
            StateStage::Living(hold) => hold,
            other => {
                let is_written = matches!(other, StateStage::Written(..));
                *progress = other;
                return match is_written {
                    true => Ok(()),
                    false => Err(SaveError::Lost("it is not in the worker".into())),
                };
            }
        };
        let options = Arc::clone(&self.options);
        let opening = spawn_blocking(move || {
            let part = hold.part(&options);
            (hold, part)
        });
        // Without the file system's answer there is neither a hold nor a file to write to.
        let opened = self.in_time(FILES_LIMIT.min(limit), opening).await;
        let (hold, part) = opened.map_err(|why| self.lose(why))?;
        let saved = match part {
            Ok(part) => transfer::save(worker, part, self.options.limit.min(limit)).await,
            Err(why) => Err(SaveError::Refused(why)),
        };
        match saved {
            Ok(part) => *progress = StateStage::Written(hold, part),
            Err(SaveError::Refused(why)) => {
                *progress = StateStage::Living(hold);
                let said = std::mem::replace(&mut self.told().is_refused, true);
                if !said {
                    self.say(format!("state `{}`: could not be saved: {why}", self.wanted.name));
                    tracing::warn!(state = self.wanted.name, tenant = self.wanted.tenant, lease = %self.wanted.lease, why, "a state could not be saved");
                }
                return Err(SaveError::Refused(why));
            }
            Err(SaveError::Lost(why)) => return Err(self.lose(why)),
        }
        Ok(())
    }

    /// Ends the state's use after the worker is gone: a written state is made durable, and other leases may have it.
    /// `why` the worker ended is reported if no state was written.
    pub async fn end(&self, why: String) {
        let progress = std::mem::replace(&mut *self.progress.lock().await, StateStage::Ended);
        let name = &self.wanted.name;
        let host = self.host.clone();
        let finishing = match progress {
            StateStage::Written(hold, part) => spawn_blocking(move || {
                let finished = part.finish(&host);
                drop(hold);
                finished
            }),
            StateStage::Living(_) => {
                self.lose(why);
                return self.release(progress).await;
            }
            other => return self.release(other).await,
        };
        let finished = self.in_time(FILES_LIMIT, finishing).await;
        match finished.and_then(|finished| finished) {
            Ok((path, bytes)) => {
                self.say(format!("state `{name}`: saved {bytes} bytes to {}", path.display()));
                tracing::info!(state = name, tenant = self.wanted.tenant, lease = %self.wanted.lease, bytes, path = %path.display(), "state saved");
            }
            Err(why) => drop(self.lose(why)),
        }
    }

    /// Renames and removes files off the runtime's threads.
    async fn release(&self, progress: StateStage) {
        let released = spawn_blocking(move || drop(progress));
        let _ = self.in_time(FILES_LIMIT, released).await;
    }

    /// Whether to ask the worker to save its state while its lease goes on: not if that has failed, or is under way.
    pub fn may_save(&self) -> bool {
        let is_living = self.progress.try_lock();
        is_living.is_ok_and(|progress| matches!(*progress, StateStage::Living(_))) && !self.told().is_refused
    }

    /// Time for which its worker has run no function, as far as the looks show. `calls`: number of calls that have
    /// ended.
    pub fn idle_for(&self, calls: u64, is_running: bool) -> Duration {
        let (now, mut told) = (Instant::now(), self.told());
        match told.idle {
            Some((then, since)) if then == calls && !is_running => now - since,
            _ => {
                told.idle = Some((calls, now));
                Duration::ZERO
            }
        }
    }

    /// History of the state, for people.
    pub fn history(&self) -> String {
        self.told().words.join("; ")
    }

    /// Time that the worker took to restore it.
    pub fn restoring(&self) -> Option<Duration> {
        self.told().restoring
    }

    fn told(&self) -> std::sync::MutexGuard<'_, StateHistory> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, words: String) {
        self.told().words.push(words);
    }

    fn lose(&self, why: String) -> SaveError {
        let StateRequest {
            name, tenant, lease, ..
        } = &self.wanted;
        tracing::error!(state = name, tenant, %lease, why, "the state of a worker is lost");
        self.say(format!("state `{name}`: lost: {why}"));
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
