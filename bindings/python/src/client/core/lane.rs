//! Lane: the executor's state of one slot, with the tasks that were sent to the slot and their limits.

use crate::client::core::output::ReplyOwner;
use crate::client::memory::{BufferPool, Extent, PoolBuffer};
use crate::client::tasks::job::TaskJob;
use crate::client::tasks::remote_results::RemoteResult;
use crate::client::tasks::request::{Assembly, TaskPayload, fetch_request, set_flag, too_large, with_flag};
use crate::client::tasks::target::Rerun;
use crate::native;
use hotlease_client::{
    AwaitedCall, BufferInvocation, Error, Function, Input, Invocation, Invoker, LeaseOptions, Pipeline,
};
use hotlease_flow::pace::SlotPace;
use hotlease_wire::task::left_results::LEFT_BYTES_MIN;
use hotlease_wire::task::{FunctionKey, request};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Largest number of results under way that have memory of their own; each holds a descriptor.
const PLACES_MAX: usize = 32;
/// Largest number of functions that a worker is assumed to remember. A worker that was sent more functions may have
/// forgotten some; it reports that when a task needs such a function.
const KNOWN_MAX: usize = 512;

/// Path by which a task was sent.
pub enum SendPath {
    /// Sent through the ring.
    Ring,
    /// Sent in shared memory, which the task needs until it has ended.
    Shared(Invocation, Extent),
    /// Sent with memory for the result; the request is in shared memory if it is large.
    Placed(BufferInvocation, Option<Extent>, PoolBuffer),
}

impl SendPath {
    /// Returns the memory of the request, and the memory for the result.
    pub fn into_parts(self) -> (Option<Extent>, Option<PoolBuffer>) {
        match self {
            Self::Ring => (None, None),
            Self::Shared(_, extent) => (Some(extent), None),
            Self::Placed(_, extent, place) => (extent, Some(place)),
        }
    }
}

/// A request under way.
pub enum Flight {
    /// A task, and its estimated work in nanoseconds.
    Task(TaskJob, SendPath, u32),
    /// A request that fetches a kept result into this memory.
    Fetch(Recipient, BufferInvocation, PoolBuffer),
    /// A request that releases results which stayed with the worker; sent through the ring.
    Release,
}

/// Party that needs a result which a worker keeps.
pub enum Recipient {
    /// The task that made the result; the result did not fit into the memory for its reply.
    Task(TaskJob),
    /// The client, which does not have this result yet.
    Client(Arc<RemoteResult>),
}

impl Recipient {
    /// Whether the result belongs to an initializer.
    pub fn prepares(&self) -> bool {
        matches!(self, Self::Task(job) if job.prepares())
    }

    /// Function that the reply belongs to, and times of its task.
    pub fn owner(&self) -> ReplyOwner<'_> {
        match self {
            Self::Task(job) => (&job.target, job.waiter.times()),
            Self::Client(away) => (&away.target, None),
        }
    }
}

/// A result that the worker keeps, and that the client has not asked for yet.
struct KeptResult {
    to: Recipient,
    ticket: u64,
    /// Bytes of the whole result.
    bytes: usize,
}

/// Location of an arrived result.
pub enum ArrivedResult {
    /// This many bytes at the start of the scratch memory.
    Bytes(usize),
    Owned(Vec<u8>),
    /// This many bytes of the memory that the flight owns.
    InPlace(usize),
}

impl Flight {
    /// Whether the reply arrives through the ring.
    #[inline]
    pub fn is_in_ring(&self) -> bool {
        matches!(self, Self::Task(_, SendPath::Ring, _) | Self::Release)
    }

    /// Takes the result, if it has arrived outside of the ring.
    pub fn try_take(&mut self) -> Option<Result<ArrivedResult, Error>> {
        match self {
            Self::Task(_, SendPath::Ring, _) | Self::Release => None,
            Self::Task(_, SendPath::Shared(invocation, _), _) => {
                invocation.try_take().map(|taken| taken.map(ArrivedResult::Owned))
            }
            Self::Task(_, SendPath::Placed(invocation, ..), _) | Self::Fetch(_, invocation, _) => {
                invocation.try_take().map(|taken| taken.map(ArrivedResult::InPlace))
            }
        }
    }

    /// Whether the flight runs an initializer.
    #[inline]
    pub fn prepares(&self) -> bool {
        match self {
            Self::Task(job, ..) => job.prepares(),
            Self::Fetch(to, ..) => to.prepares(),
            Self::Release => false,
        }
    }

    /// Estimated work of the flight in nanoseconds.
    #[inline]
    pub fn work_ns(&self) -> u64 {
        match self {
            Self::Task(_, _, work_ns) => u64::from(*work_ns),
            Self::Fetch(..) | Self::Release => 0,
        }
    }

    /// Marks the memory as returned: the request has ended, and no worker uses the memory.
    #[inline]
    pub fn return_memory(&self) {
        match self {
            Self::Task(_, SendPath::Ring, _) | Self::Release => {}
            Self::Task(_, SendPath::Shared(_, extent), _) => extent.memory().set_returned(),
            Self::Task(_, SendPath::Placed(_, extent, place), _) => {
                extent.iter().for_each(|extent| extent.memory().set_returned());
                place.set_returned();
            }
            Self::Fetch(_, _, place) => place.set_returned(),
        }
    }
}

/// Executor's state of a slot.
pub struct Lane {
    /// `None` while the slot's worker is being replaced.
    pub pipeline: Option<Pipeline>,
    /// Function of the slot, for tasks that do not go through the pipeline; the slot's deadlines apply to both kinds of
    /// tasks. The function does not resubmit a task that the worker did not run. Such a task returns to the executor,
    /// which counts the workers that die of a task, and runs the initializer first on the next worker.
    function: Function,
    pub flights: VecDeque<Flight>,
    /// Sum of the work of the flights, nanoseconds.
    pub work_ns: u64,
    /// Number of flights that have memory for their results.
    pub(super) places: usize,
    /// Results that the worker keeps until they can be fetched.
    kept: VecDeque<KeptResult>,
    /// Functions that the worker was sent.
    known: HashSet<FunctionKey>,
    request_bytes: usize,
    reply_bytes: usize,
    depth: usize,
    /// Pace at which the slot's results arrive.
    pub beat: SlotPace,
    /// Whether the slot's worker uses this process's memory in place; `false` over a fabric.
    pub shares_memory: bool,
    /// Number of workers that the slot had before the current worker.
    pub worker: u64,
    /// Whether the slot's worker died and no other worker was available.
    pub is_dead: bool,
}

impl Lane {
    /// Lane of an idle slot.
    pub fn new(function: Function, options: &LeaseOptions) -> Result<Self, Error> {
        let pipeline = function.pipeline()?;
        Ok(Self {
            shares_memory: pipeline.shares_memory(),
            pipeline: Some(pipeline),
            function: function.timed_by_slot().without_resubmission(),
            flights: VecDeque::new(),
            work_ns: 0,
            places: 0,
            kept: VecDeque::new(),
            known: HashSet::new(),
            request_bytes: options.request_bytes as usize,
            reply_bytes: options.reply_bytes as usize,
            beat: SlotPace::new(options.depth as usize, Instant::now()),
            depth: options.depth as usize,
            worker: 0,
            is_dead: false,
        })
    }

    /// Whether the slot may be sent another task.
    pub fn has_room(&self, now: impl FnOnce() -> Instant) -> bool {
        let under_way = self.flights.len() + self.kept.len();
        self.places < PLACES_MAX && self.is_usable() && self.beat.can_send(under_way, self.work_ns, now)
    }

    /// Whether the slot has a live worker.
    pub fn is_usable(&self) -> bool {
        let pipeline = self.pipeline.as_ref();
        pipeline.is_some_and(|pipeline| !pipeline.is_closed())
    }

    /// Sends a task. If the task cannot be sent now, returns it; if it can never be sent, also returns the reason.
    pub fn send(
        &mut self,
        mut job: TaskJob,
        invoker: &Invoker,
        pool: &Arc<BufferPool>,
    ) -> Result<(), (TaskJob, Option<Box<Error>>)> {
        if self.pipeline.is_none() {
            return Err((job, None));
        }
        let is_known = self.known.contains(&job.target.key);
        let whole = match is_known {
            true => None,
            false => match Assembly::with_function(job.payload.bytes(), &job.target) {
                None => return Err((job, Some(Box::new(too_large())))),
                whole => whole,
            },
        };
        let size = whole.as_ref().map_or(job.size(), Assembly::len);
        let declared = native::reply_bytes(job.payload.bytes());
        let mut expected = declared.unwrap_or_else(|| job.target.estimates.size.of(job.size()));
        if expected > self.reply_bytes && !self.shares_memory && declared.is_none() {
            // Over a fabric, memory for a result costs something even if nothing is written to it, so none is reserved
            // for a result of unknown size.
            expected = job.target.estimates.size.of(0);
        }
        // Whether the program needs the result is known only when the task has ended. Until then, a result that may be
        // large stays with its worker; it is fetched if the program needs it.
        let stays = !self.shares_memory
            && job.waiter.lets_result_stay()
            && (expected <= self.reply_bytes || expected >= LEFT_BYTES_MIN);
        let place = match expected > self.reply_bytes && !stays {
            // While results of other tasks hold all memory, the slot gets one task at a time.
            true if self.places > 0 && pool.is_full_for(expected) => return Err((job, None)),
            // If there is no memory, the worker keeps a result that does not fit into the ring.
            true => pool.take(invoker, expected).ok(),
            false => None,
        };
        let (extent, mut own) = if matches!(job.payload, TaskPayload::Own(_)) && size <= self.request_bytes {
            (None, whole.map(|whole| whole.to_vec()))
        } else {
            match self.lay_out(&job, whole, invoker, pool) {
                Ok(extent) => (Some(extent), None),
                Err(why) => return Err((job, why)),
            }
        };
        if let Some(extent) = &extent
            && job.rerun == Rerun::Forbidden
        {
            // A task that is not idempotent is sent again only if no worker has written to its request. So this request
            // in shared memory is kept to be sent again, even if it contains the function.
            job.payload = TaskPayload::Shared(extent.clone().into());
        }
        let bytes = match &mut own {
            Some(own) => {
                set_flag(own, request::STAYS, stays);
                &**own
            }
            None => {
                if let TaskPayload::Own(bytes) = &mut job.payload {
                    set_flag(bytes, request::STAYS, stays);
                }
                job.payload.bytes()
            }
        };
        let sent = match self.submit(bytes, extent, place, stays) {
            Ok(sent) => sent,
            Err(why) => return Err((job, why)),
        };
        if !is_known {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(job.target.key);
        }
        let work_ns = job.target.estimates.pace.work_ns();
        self.add_flight(Flight::Task(job, sent, work_ns));
        Ok(())
    }

    /// Lays out the request of a task in shared memory, with the function if there is a `whole`.
    fn lay_out(
        &self,
        job: &TaskJob,
        whole: Option<Assembly<'_>>,
        invoker: &Invoker,
        pool: &Arc<BufferPool>,
    ) -> Result<Extent, Option<Box<Error>>> {
        // Other requests are copied: the worker may write to its request, and another worker may need the request
        // unchanged.
        if let (TaskPayload::Shared(extent), Rerun::Forbidden) = (&job.payload, job.rerun) {
            let front = match &whole {
                None => return Ok((**extent).clone()),
                Some(whole) => whole.front(extent),
            };
            if let Some((from, front)) = front {
                // `whole` borrows the bytes that are overwritten.
                drop(whole);
                return extent.put_before(from, &front).ok_or(None);
            }
        }
        // While results of other tasks hold all memory, the slot gets one task at a time.
        if pool.is_full() && !self.flights.is_empty() {
            return Err(None);
        }
        let size = whole.as_ref().map_or(job.size(), Assembly::len);
        let mut memory = pool.take(invoker, size).map_err(|error| Some(Box::new(error)))?;
        let room = &mut memory.room()[..size];
        match &whole {
            Some(whole) => whole.fill(room),
            None => room.copy_from_slice(job.payload.bytes()),
        }
        Ok(memory.into_extent(size))
    }

    /// Sends a request, which is in `extent` if there is one, else in `bytes`. `place`: memory for the result.
    fn submit(
        &mut self,
        bytes: &[u8],
        extent: Option<Extent>,
        place: Option<PoolBuffer>,
        stays: bool,
    ) -> Result<SendPath, Option<Box<Error>>> {
        // The worker may leave its result in the memory of the request: nothing needs that memory after the task,
        // unless it is an array of the program.
        let yields = |extent: &Extent| self.shares_memory && !extent.memory().is_given();
        let extent = extent.map(|extent| {
            let extent = with_flag(&extent, request::YIELDED, yields(&extent));
            with_flag(&extent, request::STAYS, stays)
        });
        if let Some(place) = place {
            let input = extent
                .as_ref()
                .map_or(Input::Bytes(bytes), |extent| extent.slice().into());
            if let Ok(invocation) = self.function.submit_buffer(input, place.place()) {
                extent.iter().for_each(|extent| extent.memory().lend());
                place.lend();
                self.places += 1;
                return Ok(SendPath::Placed(invocation, extent, place));
            }
            // `submit_buffer` may fail only because no more memory can be registered: the task is sent without memory
            // for the result.
        }
        if let Some(extent) = extent {
            let invocation = match self.function.submit_from_buffer(extent.slice()) {
                Ok(invocation) => invocation,
                // The worker has died; the collection of results handles that.
                Err(_) if !self.is_usable() => return Err(None),
                Err(error) => return Err(Some(Box::new(error))),
            };
            extent.memory().lend();
            return Ok(SendPath::Shared(invocation, extent));
        }
        let Some(pipeline) = &mut self.pipeline else {
            return Err(None);
        };
        // If the worker is gone, `push_open` does not replace it: a separate thread gets the new worker, without the
        // executor's lock, and the new worker has to be prepared first.
        match pipeline.push_open(bytes) {
            Ok(()) => {
                // A push does not always wake the slot, and it may take long until another push does.
                pipeline.flush();
                Ok(SendPath::Ring)
            }
            Err(Error::NoCredit) => Err(None),
            // The worker has died; the collection of results handles that.
            Err(_) if pipeline.is_closed() => Err(None),
            Err(error) => Err(Some(Box::new(error))),
        }
    }

    /// Sends a request to release results. Returns whether that was possible.
    pub fn release(&mut self, request: &[u8]) -> bool {
        let Some(pipeline) = &mut self.pipeline else {
            return false;
        };
        if pipeline.push_open(request).is_err() {
            return false;
        }
        pipeline.flush();
        self.add_flight(Flight::Release);
        true
    }

    /// Adds a request that was sent.
    #[inline]
    fn add_flight(&mut self, flight: Flight) {
        if self.flights.is_empty() {
            self.beat.begins(Instant::now());
        }
        self.work_ns += flight.work_ns();
        self.flights.push_back(flight);
    }

    /// Registers a result that its worker keeps; [`Lane::fetch_kept`] asks for it.
    pub fn keep(&mut self, to: Recipient, ticket: u64, bytes: usize) {
        self.kept.push_back(KeptResult { to, ticket, bytes });
    }

    /// Asks for as many kept results as may be fetched now. Returns the first result that cannot be fetched, with the
    /// error.
    pub fn fetch_kept(&mut self, invoker: &Invoker, pool: &Arc<BufferPool>) -> Result<(), Box<(Recipient, Error)>> {
        // Tickets are valid only at the worker that keeps the results, so that worker must be alive.
        while self.places < PLACES_MAX && self.is_usable() && (self.places == 0 || !pool.is_full()) {
            let Some(KeptResult { to, ticket, bytes }) = self.kept.pop_front() else {
                return Ok(());
            };
            let request = fetch_request(ticket);
            let sent = pool.take(invoker, bytes).and_then(|place| {
                let invocation = self.function.submit_buffer(&request[..], place.place())?;
                place.lend();
                Ok((invocation, place))
            });
            match sent {
                Ok((invocation, place)) => {
                    self.places += 1;
                    self.flights.push_back(Flight::Fetch(to, invocation, place));
                }
                // The worker has died; the collection of results handles that.
                Err(_) if !self.is_usable() => self.kept.push_front(KeptResult { to, ticket, bytes }),
                // The result is fetched once another place is free.
                Err(error) if error.lacks_descriptors() && self.places > 0 => {
                    self.kept.push_front(KeptResult { to, ticket, bytes });
                    return Ok(());
                }
                Err(error) => return Err(Box::new((to, error))),
            }
        }
        Ok(())
    }

    /// Forgets the kept results of a dead worker; returns the parties that need them.
    pub fn forget_kept(&mut self) -> impl Iterator<Item = Recipient> + use<> {
        std::mem::take(&mut self.kept).into_iter().map(|kept| kept.to)
    }

    /// Counts the end of a task that had memory for its result.
    pub fn free_place(&mut self) {
        self.places -= 1;
    }

    /// Returns the call of the oldest flight, to wait for its end.
    pub fn oldest(&self) -> Option<AwaitedCall> {
        match self.flights.front()? {
            Flight::Task(_, SendPath::Ring, _) | Flight::Release => self.pipeline.as_ref()?.oldest(),
            Flight::Task(_, SendPath::Shared(invocation, _), _) => Some(invocation.awaited()),
            Flight::Task(_, SendPath::Placed(invocation, ..), _) | Flight::Fetch(_, invocation, _) => {
                Some(invocation.awaited())
            }
        }
    }

    /// Continues with another worker.
    pub fn restart(&mut self, pipeline: Pipeline) {
        self.shares_memory = pipeline.shares_memory();
        self.pipeline = Some(pipeline);
        self.worker += 1;
        self.known.clear();
        self.beat = SlotPace::new(self.depth, Instant::now());
    }

    /// Marks a function as unknown to the worker.
    pub fn forget(&mut self, key: &FunctionKey) {
        self.known.remove(key);
    }
}
