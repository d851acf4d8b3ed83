//! Collection of results: what each reply means, which tasks are sent again, and how a dead worker is replaced.

use crate::client::core::lane::{ArrivedResult, Flight, Recipient, SendPath};
use crate::client::core::output::ReplyOwner;
use crate::client::core::replies::{in_request, initializer_error, lacks_something, refusal, word};
use crate::client::core::{Closed, CoreState, ExecutorCore};
use crate::client::growth::WorkerSearch;
use crate::client::memory::{Extent, PoolBuffer};
use crate::client::tasks::job::{TaskJob, is_loss};
use crate::client::tasks::outcome::{TaskOutcome, is_result, named};
use crate::client::tasks::target::Target;
use crate::locks::locked;
use hotlease_client::{Error, Pipeline, RunCertainty};
use hotlease_wire::task::reply;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Limit of the results that one call collects from each slot, after which other threads get the lock.
const BATCH: usize = 64;
/// Results below this size are copied out of the memory into which they were fetched.
const COPIED_BELOW: usize = 128 << 10;
/// Limit of the consecutive workers that end before they start the initializer.
const UNPREPARED_MAX: u8 = 8;

/// Function of the tasks that have ended together. If their functions differ, the time of each is unknown.
enum EndedFunction {
    None,
    One(Arc<Target>),
    Several,
}

impl EndedFunction {
    #[inline]
    fn add(&mut self, flight: &Flight) {
        let Flight::Task(job, ..) = flight else { return };
        match self {
            Self::None => *self = Self::One(job.target.clone()),
            Self::One(target) if !Arc::ptr_eq(target, &job.target) => *self = Self::Several,
            Self::One(_) | Self::Several => {}
        }
    }
}

impl ExecutorCore {
    /// Collects the results that have arrived, up to a limit, and sends the tasks that wait. Returns the number of
    /// results. The caller holds `collecting`.
    pub fn collect(self: &Arc<Self>, scratch: &mut [u8]) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut results = 0;
        for at in 0..state.lanes.len() {
            results += self.drain(state, at, scratch);
        }
        if !state.queue.is_empty() {
            self.refill(state);
        }
        self.take_back(state);
        self.release_left(state);
        drop(guard);
        if results > 0 && self.has_to_finish.load(Ordering::Acquire) {
            self.keeper.attend();
        }
        if results > 0 && self.followers.load(Ordering::Acquire) > 0 {
            self.tell_followers();
        }
        results
    }

    /// Wakes the threads that wait while another thread collects results.
    pub fn tell_followers(&self) {
        // Takes the lock, so that no thread is between checking and sleeping.
        drop(self.progress.0.lock());
        self.progress.1.notify_all();
    }

    /// Collects the results of one slot, and learns how long its tasks took.
    fn drain(self: &Arc<Self>, state: &mut CoreState, at: usize, scratch: &mut [u8]) -> usize {
        let mut whose = EndedFunction::None;
        let taken = self.draw(state, at, scratch, &mut whose);
        if taken > 0
            && let Some(took) = state.lanes[at].beat.end_tasks(taken, Instant::now())
            && let EndedFunction::One(target) = whose
        {
            target.estimates.pace.learn(took);
        }
        taken
    }

    fn draw(
        self: &Arc<Self>,
        state: &mut CoreState,
        at: usize,
        scratch: &mut [u8],
        whose: &mut EndedFunction,
    ) -> usize {
        let mut taken = 0;
        while taken < BATCH {
            let lane = &mut state.lanes[at];
            let Some(pipeline) = &mut lane.pipeline else {
                return taken;
            };
            let is_closed = pipeline.is_closed();
            let Some(flight) = lane.flights.front_mut() else {
                if is_closed {
                    self.replace_worker(state, at, scratch);
                }
                return taken;
            };
            let result = if flight.is_in_ring() {
                match pipeline.try_pop(scratch).transpose() {
                    None => return taken,
                    Some(popped) => popped.map(ArrivedResult::Bytes),
                }
            } else if is_closed {
                // Flights outside the ring may have to wait for another worker: they are left to the thread that
                // replaces the worker.
                self.replace_worker(state, at, scratch);
                return taken;
            } else {
                match flight.try_take() {
                    None => return taken,
                    Some(result) => result,
                }
            };
            let Some(flight) = lane.flights.pop_front() else {
                return taken;
            };
            taken += 1;
            lane.work_ns -= flight.work_ns();
            whose.add(&flight);
            self.land(state, at, flight, result, scratch);
        }
        taken
    }

    /// Acts on the result of one flight.
    fn land(
        &self,
        state: &mut CoreState,
        at: usize,
        flight: Flight,
        result: Result<ArrivedResult, Error>,
        scratch: &[u8],
    ) {
        let did_not_run = matches!(&result, Err(error) if error.ran() == RunCertainty::No);
        if result.is_ok() || did_not_run {
            flight.return_memory();
        }
        if did_not_run || flight.prepares() || !matches!(flight, Flight::Task(..)) {
            // The pace ignores initializers: after a quick initializer, the first task may still be long, and no other
            // task should wait behind it.
            state.lanes[at].beat.skip_reply();
        }
        match flight {
            Flight::Task(job, path, _) => self.land_task(state, at, job, path, result, scratch),
            Flight::Fetch(to, _, place) => self.land_fetched(state, at, to, place, result),
            Flight::Release => state.pending -= 1,
        }
    }

    #[inline]
    fn land_task(
        &self,
        state: &mut CoreState,
        at: usize,
        job: TaskJob,
        path: SendPath,
        result: Result<ArrivedResult, Error>,
        scratch: &[u8],
    ) {
        let may_teach = !matches!(path, SendPath::Ring);
        if matches!(path, SendPath::Placed(..)) {
            self.free_place(state, at);
        }
        let (extent, place) = path.into_parts();
        let whose = (&job.target, job.waiter.times());
        let reply = match result {
            Err(error) => return self.retry_or_fail(state, job, error),
            Ok(ArrivedResult::InPlace(length)) => match place {
                Some(place) => self.placed_outcome(whose, at, place, length),
                None => return,
            },
            Ok(ArrivedResult::Owned(bytes)) => self.bytes_outcome(whose, at, bytes.into_boxed_slice()),
            Ok(ArrivedResult::Bytes(length)) => self.bytes_outcome(whose, at, Box::from(&scratch[..length])),
        };
        let bytes = reply.bytes().unwrap_or_default();
        let kind = bytes.first().copied();
        let in_request = match (kind, extent) {
            // A worker that has only a copy of the request was not asked to leave its result in the request.
            (Some(reply::IN_REQUEST), Some(extent)) if state.lanes[at].shares_memory => in_request(&extent, bytes),
            _ => None,
        };
        if kind.is_some_and(lacks_something) && !job.prepares() {
            // The task did not run, so the time until this reply is not the time of a task.
            state.lanes[at].beat.skip_reply();
        }
        match kind {
            Some(reply::UNKNOWN_FUNCTION) => {
                state.lanes[at].forget(&job.target.key);
                state.queue.push_front(job);
            }
            Some(reply::KEPT) => self.fetch(state, at, job, bytes),
            _ if job.prepares() => self.end_preparation(state, bytes),
            Some(reply::LEFT) => self.keep_remote(state, at, job, bytes),
            Some(reply::NOT_HAD) => self.restart_with_inputs(state, job),
            Some(reply::IN_REQUEST) => match in_request {
                Some(extent) => {
                    let outcome = self.extent_outcome(extent);
                    self.resolve(state, job, outcome);
                }
                None => self.lose_result(state, job, "its reply names memory that its request does not have"),
            },
            kind => {
                if may_teach && is_result(kind) {
                    job.target.estimates.size.learn(bytes.len());
                }
                self.resolve(state, job, reply);
            }
        }
    }

    /// Acts on a result that its worker had kept.
    fn land_fetched(
        &self,
        state: &mut CoreState,
        at: usize,
        to: Recipient,
        place: PoolBuffer,
        result: Result<ArrivedResult, Error>,
    ) {
        self.free_place(state, at);
        let length = match result {
            Ok(ArrivedResult::InPlace(length) | ArrivedResult::Bytes(length)) => length,
            Ok(ArrivedResult::Owned(bytes)) => bytes.len(),
            // Only the request to fetch the result did not run; the function of the task did.
            Err(error) if error.ran() == RunCertainty::No && !to.prepares() => {
                return self.lose_kept(state, to, &format!("its result was not fetched: {error}"));
            }
            Err(error) => {
                return match to {
                    Recipient::Task(job) => self.retry_or_fail(state, job, error),
                    Recipient::Client(_) => self.fail_fetch(state, to, error),
                };
            }
        };
        let reply = self.placed_outcome(to.owner(), at, place, length);
        let bytes = reply.bytes().unwrap_or_default();
        match (bytes.first().copied(), to) {
            (Some(reply::KEPT), Recipient::Task(job)) if job.prepares() => {
                self.fetch(state, at, job, bytes);
            }
            (_, Recipient::Task(job)) if job.prepares() => self.end_preparation(state, bytes),
            (Some(reply::LEFT), Recipient::Task(job)) => self.keep_remote(state, at, job, bytes),
            (Some(reply::NOT_HAD), Recipient::Task(job)) => self.restart_with_inputs(state, job),
            (_, to) => match (refusal(bytes), to) {
                (Some(why), to) => self.lose_kept(state, to, &why),
                (None, Recipient::Task(job)) => self.resolve(state, job, reply),
                (None, Recipient::Client(away)) => self.end_fetch(state, &away, Ok(reply)),
            },
        }
    }

    /// Handles the end of an initializer, by its reply.
    fn end_preparation(&self, state: &mut CoreState, bytes: &[u8]) {
        state.pending -= 1;
        state.unprepared = 0;
        if let Some(why) = initializer_error(bytes) {
            self.close(state, Closed::Unprepared(why));
        }
    }

    /// Counts the end of a request that had memory for its result, and asks for kept results.
    fn free_place(&self, state: &mut CoreState, at: usize) {
        state.lanes[at].free_place();
        self.fetch_kept(state, at);
    }

    /// Outcome of a reply that was written to memory of its own.
    fn placed_outcome(&self, whose: ReplyOwner<'_>, at: usize, mut place: PoolBuffer, length: usize) -> TaskOutcome {
        let room = place.room();
        let length = length.min(room.len());
        let length = self.strip_output(whose, at, &mut room[..length]);
        self.extent_outcome(place.into_extent(length))
    }

    /// Outcome of a reply that arrived as bytes.
    fn bytes_outcome(&self, whose: ReplyOwner<'_>, at: usize, mut bytes: Box<[u8]>) -> TaskOutcome {
        let length = self.strip_output(whose, at, &mut bytes);
        TaskOutcome::Reply(if length < bytes.len() {
            bytes[..length].into()
        } else {
            bytes
        })
    }

    /// Keeps a large result in its memory, and copies any other result. Each result in memory holds a descriptor, so
    /// copying limits how many descriptors unread results hold.
    fn extent_outcome(&self, extent: Extent) -> TaskOutcome {
        let length = extent.bytes().len();
        let is_wasted = extent.memory().is_far_too_large_for(length);
        match length < COPIED_BELOW || is_wasted || self.pool.is_full_for(length) {
            true => TaskOutcome::Reply(extent.bytes().into()),
            false => TaskOutcome::Large(extent.into()),
        }
    }

    fn fetch(&self, state: &mut CoreState, at: usize, job: TaskJob, bytes: &[u8]) {
        let (Some(ticket), Some(size)) = (word(bytes, 0), word(bytes, 8)) else {
            // The decoder of the reply reports the error.
            return self.resolve(state, job, TaskOutcome::Reply(bytes.into()));
        };
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        job.target.estimates.size.learn(length);
        let lane = &mut state.lanes[at];
        if lane.is_usable() {
            lane.keep(Recipient::Task(job), ticket, length);
            self.fetch_kept(state, at);
        } else {
            self.lose_result(state, job, "its worker died before the result was fetched");
        }
    }

    pub fn fetch_kept(&self, state: &mut CoreState, at: usize) {
        while let Err(failed) = state.lanes[at].fetch_kept(&self.invoker, &self.pool) {
            let (to, error) = *failed;
            self.fail_fetch(state, to, error);
        }
    }

    /// Handles a kept result that cannot be fetched because of an error of the client library.
    fn fail_fetch(&self, state: &mut CoreState, to: Recipient, error: Error) {
        match to {
            Recipient::Task(job) => self.fail(state, job, error),
            Recipient::Client(away) => self.end_fetch(state, &away, Err(error.to_string())),
        }
    }

    /// Handles a kept result that its worker does not have any more.
    fn lose_kept(&self, state: &mut CoreState, to: Recipient, why: &str) {
        match to {
            Recipient::Task(job) => self.lose_result(state, job, why),
            Recipient::Client(away) => self.end_fetch(state, &away, Err(why.into())),
        }
    }

    /// Handles a task that ended with an error of the client library: it is sent again, or fails.
    fn retry_or_fail(&self, state: &mut CoreState, mut job: TaskJob, error: Error) {
        let error = named(self.note_end(error), &job.target);
        if job.prepares() {
            state.pending -= 1;
            state.unprepared = state.unprepared.saturating_add(1);
            // If the worker was lost before it ran the initializer, the next worker is prepared, a limited number of
            // times. After any other error, the executor closes.
            if !(is_loss(&error) && state.unprepared <= UNPREPARED_MAX && error.ran() == RunCertainty::No) {
                let why = format!("the worker did not survive it: {error}");
                self.close(state, Closed::Unprepared(why));
            }
        } else if job.count_error(&error) && state.can_resend() {
            state.queue.push_front(job);
        } else {
            self.fail(state, job, error);
        }
    }

    /// Handles a task that ran, but whose result is lost. The task is sent again if it may run twice.
    pub fn lose_result(&self, state: &mut CoreState, mut job: TaskJob, why: &str) {
        if job.count_lost_result() && state.can_resend() {
            state.queue.push_front(job);
        } else {
            self.resolve(state, job, TaskOutcome::Lost(why.into()));
        }
    }

    /// Starts a thread that gets another worker for a slot and then puts the slot back into use.
    fn replace_worker(self: &Arc<Self>, state: &mut CoreState, at: usize, scratch: &mut [u8]) {
        if matches!(state.closed, Some(Closed::ShutDown)) && state.pending == 0 {
            state.lanes[at].is_dead = true;
        }
        let lane = &mut state.lanes[at];
        if lane.is_dead {
            return;
        }
        let Some(mut pipeline) = lane.pipeline.take() else {
            return;
        };
        let mut flights = Vec::new();
        lane.work_ns = 0;
        for flight in std::mem::take(&mut lane.flights) {
            if !flight.is_in_ring() {
                flights.push(flight);
                continue;
            }
            // The pipeline accepts another worker only after all results in its ring are taken.
            let popped = pipeline
                .try_pop(scratch)
                .and_then(|popped| popped.ok_or_else(unanswered));
            let result = popped.map(ArrivedResult::Bytes);
            self.land(state, at, flight, result, scratch);
        }
        for to in state.lanes[at].forget_kept() {
            self.lose_kept(state, to, "its worker died before the result was fetched");
        }
        // Pipeline and flights are shared with the thread, not moved: they stay here if the thread does not start.
        let taken = Arc::new(Mutex::new(Some((pipeline, flights))));
        let (core, given) = (self.clone(), taken.clone());
        let replace = move || {
            let given = locked(&given).take();
            if let Some((pipeline, flights)) = given {
                core.replaced(at, pipeline, flights);
            }
        };
        let spawned = std::thread::Builder::new()
            .name("hotlease-repair".into())
            .spawn(replace);
        if let Err(error) = spawned {
            state.lanes[at].is_dead = true;
            let what = format!("there is no thread to replace a worker: {error}");
            let error = Error::Options { what };
            let left = locked(&taken).take();
            for flight in left.into_iter().flat_map(|(_, flights)| flights) {
                match flight {
                    Flight::Task(job, ..) => self.fail(state, job, error.clone()),
                    Flight::Fetch(to, ..) => self.fail_fetch(state, to, error.clone()),
                    Flight::Release => state.pending -= 1,
                }
            }
            if state.lanes.iter().all(|lane| lane.is_dead) {
                self.close(state, Closed::Lost(error));
            }
        }
    }

    fn replaced(self: &Arc<Self>, at: usize, mut pipeline: Pipeline, flights: Vec<Flight>) {
        // Done before another worker is available, so that threads that wait for ended tasks are told now. The other
        // tasks are sent again when the new worker has been sent its initializer.
        let mut guard = self.state();
        for mut flight in flights {
            let result = flight.try_take().unwrap_or_else(|| Err(unanswered()));
            self.land(&mut guard, at, flight, result, &[]);
        }
        // No task runs any more. Another worker would only run the initializer, and might die of it, too.
        let is_broken = matches!(guard.closed, Some(Closed::Unprepared(_) | Closed::Lost(_)));
        guard.lanes[at].is_dead |= is_broken;
        drop(guard);
        self.tell_followers();
        if is_broken {
            return self.keeper.wake(&self.invoker);
        }
        let repaired = self.repair(&mut pipeline);
        let mut guard = self.state();
        let state = &mut *guard;
        match repaired {
            Ok(true) => {
                state.lanes[at].restart(pipeline);
                self.end_waiting(state);
                self.prepare(state, at);
            }
            // The pipeline has no worker now. The next task starts another search.
            Ok(false) => state.lanes[at].pipeline = Some(pipeline),
            Err(error) => {
                state.lanes[at].is_dead = true;
                if state.lanes.iter().all(|lane| lane.is_dead) {
                    self.close(state, Closed::Lost(error));
                }
            }
        }
        self.refill(state);
        drop(guard);
        self.version.fetch_add(1, Ordering::Release);
        self.tell_followers();
        self.keeper.wake(&self.invoker);
    }

    /// Gets another worker for a slot. Tries again while tasks wait and workers may still become available. Returns
    /// `false` if there is no worker and no task waits.
    fn repair(&self, pipeline: &mut Pipeline) -> Result<bool, Error> {
        let mut search = WorkerSearch::new(self);
        loop {
            let begun = Instant::now();
            let Err(error) = pipeline.repair() else {
                return Ok(true);
            };
            if !search.goes_on(self, begun, &error) {
                return Err(error);
            }
            if self.state().pending == 0 {
                return Ok(false);
            }
            search.pause(self, begun);
        }
    }
}

/// Error of a task that has no result, on a slot that is closed.
fn unanswered() -> Error {
    Error::OutcomeUnknown {
        why: "its worker is gone, and the slot does not know of it".into(),
    }
}
