//! Interface of a SQL database to the store, and the thread that writes to it.
//!
//! ```text
//! callers ──jobs──▶ writer: begin │ job │ job │ job │ commit ──answers──▶ callers
//!                                  savepoints
//! ```
//!
//! There is one writer, so no two transactions ever conflict. It puts all waiting jobs, up to [`BATCH_MAX`], into one
//! transaction. While a commit waits for the disk, the next batch gathers, so a thousand grants a second need far fewer
//! commits. Each job has a savepoint of its own, and is answered only when the commit is durable.

pub(crate) mod changes;
pub(crate) mod functions;
pub(crate) mod orders;
pub(crate) mod people;
pub(crate) mod queries;
pub(crate) mod schema;
mod values;
pub(crate) mod wishes;

use crate::StoreError;
use std::marker::PhantomData;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Limit of jobs in one transaction.
const BATCH_MAX: usize = 256;
/// Limit of waiting jobs; further callers block until there is space.
const WAITING_MAX: usize = 2 * LATER_MAX;
/// Limit of changes under way whose callers do not wait (methods whose names end in `_later`). A call of such a method
/// does not block if fewer of these changes are under way, and if at most `LATER_MAX` threads wait for other changes.
pub const LATER_MAX: usize = 512;

/// Value that a statement binds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// A number.
    Int(i64),
    /// Text.
    Text(&'a str),
    /// Null.
    Null,
}

/// Value that a query returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    /// A number.
    Int(i64),
    /// Text.
    Text(String),
    /// Null.
    Null,
}

/// Cells of a row, in the order of the query's columns.
pub(crate) type Cells = Vec<Cell>;

/// A database connection. Statements have `$1`, `$2` ... for values, whose first mentions must be in this order.
pub(crate) trait Sql {
    /// Begins a transaction. Fails if this connection is not allowed to write any more; a transaction may then be open
    /// after the error.
    fn begin(&mut self) -> Result<(), StoreError> {
        self.run("BEGIN", &[])
    }

    /// Runs a statement.
    fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Result<(), StoreError>;

    /// Runs a query and calls `each` with each row, until `each` fails.
    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;

    /// Interval at which this database needs beats of its leader; `None` if it needs none.
    fn beat_every(&self) -> Option<Duration> {
        None
    }

    /// Writes a beat, within the open transaction.
    fn beat(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Raises the count of commits, within the open transaction, so that a loss of this commit can be noticed.
    fn seal(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Notes that the sealed transaction is durable.
    fn note_durable(&mut self) {}

    /// Gives up the lead, after the last write.
    fn leave(&mut self) {}

    /// Error that lost the transaction: some errors roll back the whole transaction. `None` if the transaction is open.
    fn lost(&mut self) -> Option<StoreError>;
}

/// Moment in the writer's cycle; fault tests end the process there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMoment {
    /// All changes are written, but none is durable.
    BeforeCommit,
    /// All changes are durable, but no caller has an answer.
    AfterCommit,
    /// All callers have their answers.
    AfterAnswers,
}

/// Called at each [`WriterMoment`].
pub type WriterHook = Arc<dyn Fn(WriterMoment) + Send + Sync>;

type JobAnswer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Job of the writer. It does its work, and returns whether the work failed, and the function that answers the caller
/// once the result of the commit is known.
type Job = Box<dyn FnOnce(&mut dyn Sql) -> (bool, JobAnswer) + Send>;

/// Thread that writes to the database, and the queue of its jobs.
pub(crate) struct DatabaseWriter {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Reason why the writer ended.
    ended: Arc<Mutex<String>>,
}

impl DatabaseWriter {
    pub(crate) fn start(sql: impl Sql + Send + 'static, hook: Option<WriterHook>) -> Result<Self, StoreError> {
        let (jobs, waiting) = mpsc::sync_channel(WAITING_MAX);
        let ended = Arc::new(Mutex::new("its writer ended".to_owned()));
        let note = Arc::clone(&ended);
        let body = move || {
            if let Err(error) = write(sql, &waiting, hook.as_deref()) {
                tracing::error!(%error, "the ledger accepts no further writes");
                *note.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
            }
        };
        let thread = thread::Builder::new().name("hotlease-ledger".into()).spawn(body);
        let thread = thread.map_err(|error| StoreError::Closed {
            why: format!("no thread can be started: {error}"),
        })?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            ended,
        })
    }

    /// Passes `work` to the writer, which does it alone or with other jobs in one transaction, and waits until the
    /// result is durable.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Sql) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, answer) = mpsc::sync_channel(1);
        // The send fails if the caller waits no longer.
        self.submit(work, move |done| drop(sender.send(done)));
        answer.recv().unwrap_or_else(|_| Err(self.closed()))
    }

    /// Passes `work` to the writer, which does it alone or with other jobs in one transaction. The writer's thread
    /// calls `told` when the result is durable.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Sql) -> Result<T, StoreError> + Send + 'static,
        told: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        let told = DoneGuard {
            told: Some(told),
            ended: Arc::clone(&self.ended),
            of: PhantomData,
        };
        let job: Job = Box::new(move |sql| {
            let done = work(sql);
            let failed = done.is_err();
            let answer: JobAnswer = Box::new(move |committed| {
                told.tell(match (done, committed) {
                    (Ok(value), Ok(())) => Ok(value),
                    // Another manager leads. This is the error to report, also for a job that was not tried.
                    (_, Err(error @ StoreError::OtherLeader { .. })) => Err(error),
                    (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                });
            });
            (failed, answer)
        });
        if let Some(jobs) = &self.jobs {
            // A job that the queue does not accept is dropped, which calls `told`.
            drop(jobs.send(job));
        }
    }

    /// Error that ended the writer, if it has ended.
    pub(crate) fn ended(&self) -> Option<StoreError> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        ended.then(|| self.closed())
    }

    fn closed(&self) -> StoreError {
        closed(&self.ended)
    }
}

fn closed(ended: &Mutex<String>) -> StoreError {
    let why = ended.lock().unwrap_or_else(PoisonError::into_inner);
    StoreError::Closed { why: why.clone() }
}

/// Callback that is called in any case. If the guard is dropped first, the callback gets the error that the writer has
/// ended.
struct DoneGuard<T, F: FnOnce(Result<T, StoreError>)> {
    told: Option<F>,
    ended: Arc<Mutex<String>>,
    of: PhantomData<fn(T)>,
}

impl<T, F: FnOnce(Result<T, StoreError>)> DoneGuard<T, F> {
    fn tell(mut self, done: Result<T, StoreError>) {
        if let Some(told) = self.told.take() {
            told(done);
        }
    }
}

impl<T, F: FnOnce(Result<T, StoreError>)> Drop for DoneGuard<T, F> {
    fn drop(&mut self) {
        if let Some(told) = self.told.take() {
            told(Err(closed(&self.ended)));
        }
    }
}

impl Drop for DatabaseWriter {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A callback on the writer's own thread may drop the store's last reference: the writer must not wait for
        // itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn write(
    mut sql: impl Sql,
    waiting: &Receiver<Job>,
    hook: Option<&(dyn Fn(WriterMoment) + Send + Sync)>,
) -> Result<(), StoreError> {
    let at = |moment| {
        if let Some(hook) = hook {
            hook(moment);
        }
    };
    let beat_every = sql.beat_every();
    let mut beaten = Instant::now();
    loop {
        let until_beat = beat_every.map(|every| every.saturating_sub(beaten.elapsed()));
        let first = match until_beat {
            Some(left) => waiting.recv_timeout(left),
            None => waiting.recv().map_err(RecvTimeoutError::from),
        };
        let mut batch = match first {
            Ok(first) => vec![first],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
        if beat_every.is_some_and(|every| beaten.elapsed() >= every) {
            beaten = Instant::now();
            batch.push(Box::new(|sql| (sql.beat().is_err(), Box::new(|_| ()))));
        }
        let (answers, committed) = commit(&mut sql, batch, &at);
        let outcome = match &committed {
            Err(error @ (StoreError::Disk { .. } | StoreError::OtherLeader { .. })) => {
                Err(StoreError::Closed { why: error.to_string() })
            }
            _ => Ok(()),
        };
        for answer in answers {
            answer(copy(&committed));
        }
        at(WriterMoment::AfterAnswers);
        // It is unknown whether a failed write has reached the disk, and a second attempt that succeeds would not show
        // that. So the writer ends.
        outcome?;
    }
    sql.leave();
    Ok(())
}

/// Commits one transaction with all jobs that succeed. Only the changes of a failed job are rolled back, unless the
/// database lost the whole transaction.
fn commit(sql: &mut dyn Sql, batch: Vec<Job>, at: &dyn Fn(WriterMoment)) -> (Vec<JobAnswer>, Result<(), StoreError>) {
    let mut answers = Vec::with_capacity(batch.len());
    let mut outcome = sql.begin();
    for job in batch {
        if outcome.is_err() {
            // The job is not done, but answered with the error of the transaction.
            answers.push(job(&mut LostTransaction).1);
            continue;
        }
        outcome = sql.run("SAVEPOINT job", &[]);
        if outcome.is_err() {
            answers.push(job(&mut LostTransaction).1);
            continue;
        }
        let (failed, answer) = job(sql);
        answers.push(answer);
        if let Some(error) = sql.lost() {
            outcome = Err(error);
            continue;
        }
        if failed {
            outcome = sql.run("ROLLBACK TO SAVEPOINT job", &[]);
        }
        if outcome.is_ok() {
            outcome = sql.run("RELEASE SAVEPOINT job", &[]);
        }
    }
    if outcome.is_ok() {
        outcome = sql.seal();
    }
    if outcome.is_ok() {
        at(WriterMoment::BeforeCommit);
        outcome = sql.run("COMMIT", &[]);
        if outcome.is_ok() {
            sql.note_durable();
        }
        at(WriterMoment::AfterCommit);
    }
    if outcome.is_err()
        && sql.lost().is_none()
        && let Err(error) = sql.run("ROLLBACK", &[])
    {
        outcome = Err(StoreError::Disk {
            what: "roll back",
            why: error.to_string(),
        });
    }
    (answers, outcome)
}

fn copy(outcome: &Result<(), StoreError>) -> Result<(), StoreError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(StoreError::NoSpace { why }) => Err(StoreError::NoSpace { why: why.clone() }),
        Err(StoreError::OtherLeader { ours, leader }) => Err(StoreError::OtherLeader {
            ours: *ours,
            leader: *leader,
        }),
        Err(StoreError::Disk { what, why }) => Err(StoreError::Disk { what, why: why.clone() }),
        Err(error) => Err(StoreError::Disk {
            what: "commit",
            why: error.to_string(),
        }),
    }
}

/// Connection for jobs whose transaction is already lost. Every statement fails, so the job can only return an error.
struct LostTransaction;

impl LostTransaction {
    fn error() -> StoreError {
        StoreError::NoSpace {
            why: "the transaction that this was part of failed; ask again".into(),
        }
    }
}

impl Sql for LostTransaction {
    fn run(&mut self, _: &str, _: &[Value<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }

    fn query(
        &mut self,
        _: &str,
        _: &[Value<'_>],
        _: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        Err(Self::error())
    }

    fn lost(&mut self) -> Option<StoreError> {
        Some(Self::error())
    }
}
