//! One slot as the executor sees it: what was sent there, and how much may be.

use super::job::{Job, Payload, Whole, take};
use super::memory::{Memory, Pool};
use crate::format::Key;
use hotlease_client::{Awaited, BufferInvocation, Error, Function, Invocation, Invoker, Pipeline};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Work that may be under way on a slot: more hides what a refill costs, but waits behind whatever is first, and cannot
/// be cancelled.
const AHEAD: Duration = Duration::from_millis(1);
/// Of tasks shorter than this a second one waits on the slot, so that what is seen of their time is theirs, and not what it takes
/// to send the next one.
const FOLLOWED: Duration = Duration::from_millis(10);
/// Results that are fetched at a time: each has memory of its own, and that a descriptor.
const TAKING_MAX: usize = 32;
/// Functions that a worker is taken to know; it forgets some beyond this, and then says so.
const KNOWN_MAX: usize = 512;

/// How a task was sent.
pub enum Sent {
    /// Through the ring.
    Ring,
    /// In shared memory, which it needs until it has ended.
    Whole(Invocation, Arc<Memory>),
    /// Its result is being fetched.
    Taking(BufferInvocation, Memory),
}

impl Sent {
    /// It has ended, and no worker uses its memory.
    pub fn is_over(&self) {
        match self {
            Self::Ring => {}
            Self::Whole(_, memory) => memory.is_back(),
            Self::Taking(_, memory) => memory.is_back(),
        }
    }
}

/// A task under way.
pub struct Flight {
    pub job: Job,
    pub sent: Sent,
}

/// A task whose result did not fit, and the worker keeps.
pub struct Kept {
    pub job: Job,
    ticket: u64,
    /// Of the whole result.
    bytes: usize,
}

/// A slot.
pub struct Lane {
    /// `None` while its worker is being replaced.
    pub pipeline: Option<Pipeline>,
    /// The slot's function, for what does not go through the pipeline. Its deadlines are the slot's, as those of what does;
    /// and it runs nothing twice, as the executor counts the workers that die of a task.
    function: Function,
    pub flights: VecDeque<Flight>,
    /// Of these, results that are being fetched.
    taking: usize,
    /// Results that are kept by the worker until others have been fetched.
    kept: VecDeque<Kept>,
    /// Functions that were sent there.
    known: HashSet<Key>,
    /// Tasks that may be under way.
    window: usize,
    depth: usize,
    request_bytes: usize,
    /// Seconds that a task took lately.
    task_seconds: f64,
    /// Seconds from one result to the next, as seen last.
    last_seconds: f64,
    /// When the last result was seen, or the first task sent.
    since: Instant,
    /// No worker could be had.
    pub is_dead: bool,
}

impl Lane {
    /// Of a slot that is idle.
    pub fn new(function: Function, depth: usize, request_bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            pipeline: Some(function.pipeline()?),
            function: function.ended_by_its_slot().idempotent(false),
            flights: VecDeque::new(),
            taking: 0,
            kept: VecDeque::new(),
            known: HashSet::new(),
            window: 1,
            depth,
            request_bytes,
            task_seconds: 0.0,
            last_seconds: 0.0,
            since: Instant::now(),
            is_dead: false,
        })
    }

    /// Whether it may be sent another task.
    pub fn has_room(&self) -> bool {
        self.flights.len() + self.kept.len() < self.window && self.is_usable()
    }

    /// Whether it has a worker that lives.
    pub fn is_usable(&self) -> bool {
        let pipeline = self.pipeline.as_ref();
        pipeline.is_some_and(|pipeline| !pipeline.is_closed())
    }

    /// Sends a task; gives it back where that is not possible now, with the reason if it never will be.
    pub fn send(
        &mut self,
        mut job: Job,
        invoker: &Invoker,
        pool: &Arc<Pool>,
    ) -> Result<(), (Job, Option<Box<Error>>)> {
        let Some(pipeline) = &mut self.pipeline else {
            return Err((job, None));
        };
        let is_known = self.known.contains(&job.target.key);
        let whole = match is_known {
            true => None,
            false => match Whole::with_function(job.payload.bytes(), &job.target) {
                None => return Err((job, Some(Box::new(too_large())))),
                whole => whole,
            },
        };
        let size = whole.as_ref().map_or(job.size(), Whole::len);
        let sent = if matches!(job.payload, Payload::Own(_)) && size <= self.request_bytes {
            let whole = whole.map(|whole| whole.to_vec());
            match pipeline.push(whole.as_deref().unwrap_or(job.payload.bytes())) {
                Ok(()) => {
                    // It wakes a slot for some of the pushes only, and nobody looks after this one soon.
                    pipeline.flush();
                    Sent::Ring
                }
                Err(Error::NoCredit) => return Err((job, None)),
                // Its worker died since: collecting finds out.
                Err(_) if pipeline.is_closed() => return Err((job, None)),
                Err(error) => return Err((job, Some(Box::new(error)))),
            }
        } else {
            let memory = match (&whole, &job.payload) {
                // The worker may write to what it gets, and another one may need it as it was.
                (None, Payload::Shared(memory)) if !job.idempotent => memory.clone(),
                // One at a time goes on where others' results have all the memory.
                _ if pool.is_full() && !self.flights.is_empty() => return Err((job, None)),
                _ => match pool.take(invoker, size) {
                    Ok(mut memory) => {
                        match &whole {
                            Some(whole) => whole.fill(memory.bytes_mut()),
                            None => memory.bytes_mut().copy_from_slice(job.payload.bytes()),
                        }
                        Arc::new(memory)
                    }
                    Err(error) => return Err((job, Some(Box::new(error)))),
                },
            };
            if !job.idempotent {
                // Sent again only where nobody has written to it; it may as well hold the function.
                job.payload = Payload::Shared(memory.clone());
            }
            match self.function.submit_from_buffer(memory.buffer.slice(..size)) {
                Ok(invocation) => {
                    memory.lend();
                    Sent::Whole(invocation, memory)
                }
                Err(error) => return Err((job, Some(Box::new(error)))),
            }
        };
        if !is_known {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(job.target.key);
        }
        if self.flights.is_empty() {
            self.since = Instant::now();
        }
        job.sent = true;
        self.flights.push_back(Flight { job, sent });
        Ok(())
    }

    /// There is a result that did not fit; [`Lane::fetch_kept`] asks for it.
    pub fn keep(&mut self, job: Job, ticket: u64, bytes: usize) {
        self.kept.push_back(Kept { job, ticket, bytes });
    }

    /// Asks for results that did not fit, as many as may be fetched now. Gives back the first one that cannot be.
    pub fn fetch_kept(&mut self, invoker: &Invoker, pool: &Arc<Pool>) -> Result<(), Box<(Job, Error)>> {
        // Nothing is asked of another worker than the one that keeps it: numbers mean something only there.
        while self.taking < TAKING_MAX && self.is_usable() && (self.taking == 0 || !pool.is_full()) {
            let Some(Kept { job, ticket, bytes }) = self.kept.pop_front() else {
                return Ok(());
            };
            let request = take(ticket);
            let sent = pool.take(invoker, bytes).and_then(|mut memory| {
                let place = memory.buffer.slice_mut(..bytes);
                let invocation = self.function.submit_buffer(&request[..], place)?;
                memory.lend();
                Ok(Sent::Taking(invocation, memory))
            });
            match sent {
                Ok(sent) => {
                    self.taking += 1;
                    self.flights.push_back(Flight { job, sent });
                }
                Err(error) => return Err(Box::new((job, error))),
            }
        }
        Ok(())
    }

    /// The worker that keeps results is gone: whose they were.
    pub fn forget_kept(&mut self) -> impl Iterator<Item = Job> + use<> {
        std::mem::take(&mut self.kept).into_iter().map(|kept| kept.job)
    }

    /// A result was fetched, or is lost.
    pub fn taken(&mut self) {
        self.taking -= 1;
    }

    /// What to look at to see whether something has ended.
    pub fn oldest(&self) -> Option<Awaited> {
        match &self.flights.front()?.sent {
            Sent::Ring => self.pipeline.as_ref()?.oldest(),
            Sent::Whole(invocation, _) => Some(invocation.awaited()),
            Sent::Taking(invocation, _) => Some(invocation.awaited()),
        }
    }

    /// So many results have come: learns from it how many tasks may be under way.
    pub fn learn(&mut self, results: usize) {
        if results == 0 {
            return;
        }
        let now = Instant::now();
        let each = (now - self.since).as_secs_f64() / results as f64;
        self.since = now;
        // One long turn may be a pause of the machine; after the second the tasks are long. Short ones have to be the rule.
        let lasting = each.min(std::mem::replace(&mut self.last_seconds, each));
        self.task_seconds = if lasting > self.task_seconds {
            lasting
        } else {
            (3.0 * self.task_seconds + lasting) / 4.0
        };
        let least = if self.task_seconds < FOLLOWED.as_secs_f64() {
            2
        } else {
            1
        };
        let fitting = (AHEAD.as_secs_f64() / self.task_seconds.max(1e-9)) as usize;
        self.window = fitting.min(2 * self.window).max(least).min(self.depth);
    }

    /// It has another worker.
    pub fn begin_anew(&mut self, pipeline: Pipeline) {
        self.pipeline = Some(pipeline);
        self.known.clear();
        self.window = 1;
        self.task_seconds = 0.0;
        self.last_seconds = 0.0;
    }

    /// Its worker does not know a function that it was sent.
    pub fn forget(&mut self, key: &Key) {
        self.known.remove(key);
    }
}

pub fn too_large() -> Error {
    Error::InputTooLarge {
        size: u64::MAX,
        limit: u64::from(u32::MAX),
    }
}
