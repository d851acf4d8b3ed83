//! Thread of a slot: polls the slot's channels in turn, serves one request at a time, sleeps when no request arrives.
//!
//! The path from a request to its reply has no lock, no allocation and no system call; usage is counted after the reply
//! is published.

pub(crate) mod core;
pub(crate) mod idle;
mod landing;
pub(crate) mod mailbox;
mod sleep;
#[cfg(test)]
mod tests;

use crate::crash;
use crate::float_state::FloatState;
use crate::forks;
use crate::function::arguments::{self, Arguments, Regions, SlotChannel};
use crate::function::context::Context;
use crate::function::invoke;
use crate::function::library::{FunctionTable, LoadedFunction};
use crate::slot::core::Core;
use crate::slot::idle::IdlePolicy;
use crate::slot::landing::{KEPT_FOR, LandingBuffers};
use crate::slot::mailbox::{ConnectionId, Mailbox, SlotMessage};
use crate::watchdog::Watchdog;
use hotlease_fabric::channel::CheckedRequest;
use hotlease_fabric::clock::{TickClock, monotonic_ns, ticks};
use hotlease_fabric::ofi::Port;
use hotlease_fabric::transport::TransportRing;
use hotlease_fabric::usage::{FunctionCounter, InvocationFailure, SlotMeter, UsageBlock};
use hotlease_wire::frame::{InvocationId, InvocationStatus};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use hotlease_wire::limits::RING_DEPTH_MAX;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which a sleeping slot checks its channels even if no client rings. A client that tampers with the
/// doorbell of its own lease can delay only itself, by at most this interval.
const SLEEP: Duration = Duration::from_secs(1);
/// Limit of the time for which a leaving worker waits until its last replies arrive.
const LAST_REPLIES: Duration = Duration::from_millis(100);

/// State that all slots of a worker share.
pub struct WorkerShared {
    pub epoch: Epoch,
    /// Number of slots.
    pub slots: u16,
    pub tenant: String,
    pub clock: TickClock,
    pub usage: Arc<UsageBlock>,
    pub watchdog: Arc<Watchdog>,
}

/// Channel of one client to the slot.
struct SlotClient {
    connection: ConnectionId,
    channel: Box<SlotChannel>,
    regions: Regions,
    landing: LandingBuffers,
    closed: bool,
}

/// One slot; lives on its thread.
pub struct Slot<C> {
    core: C,
    index: u16,
    shared: Arc<WorkerShared>,
    mailbox: Arc<Mailbox>,
    functions: Arc<FunctionTable>,
    /// Row of the usage block that counts each function's runs, by function index; `None` before the first run.
    rows: Vec<Option<FunctionCounter>>,
    clients: Vec<SlotClient>,
    /// Ports of fabrics; only this slot drives them.
    ports: Vec<Arc<Port>>,
    context: Context,
    /// Floating-point state that every function begins with.
    floats: FloatState,
    idle: IdlePolicy,
    /// Index of the client that was served last: its wake-up may be due.
    last: usize,
    /// End of the last call, ticks: gaps between arrivals are measured from here.
    ended: u64,
    /// Start of the current polling, ticks: the end of the last call or sleep.
    hot_since: u64,
    /// Latest reading of the clock, ticks: at the end of the last call or of the last turn without a request. The next
    /// call is taken as started at this time, some ten nanoseconds before its request is found. So no reading of the
    /// clock delays the function.
    now: u64,
}

impl<C: Core> Slot<C> {
    /// Makes the slot of this index; `idle` decides how long it polls.
    pub fn new(core: C, index: u16, shared: Arc<WorkerShared>, mailbox: Arc<Mailbox>, idle: IdlePolicy) -> Self {
        let cancelled = shared.watchdog.slot(index).cancelled.clone();
        let context = Context::new(index, shared.slots, &shared.tenant, cancelled);
        Self {
            core,
            index,
            shared,
            mailbox,
            functions: Arc::default(),
            rows: Vec::new(),
            clients: Vec::new(),
            ports: Vec::new(),
            context,
            floats: FloatState::current(),
            idle,
            last: 0,
            ended: 0,
            hot_since: 0,
            now: 0,
        }
    }

    /// Serves for ever.
    pub fn run(mut self) -> ! {
        crash::set_slot(self.index);
        self.now = ticks();
        (self.ended, self.hot_since) = (self.now, self.now);
        loop {
            if self.mailbox.has_mail() {
                self.read_mail();
                self.settle(self.last);
                // Closed clients are dropped only here, where no request of theirs is being served.
                self.clients.retain(|client| !client.closed);
                self.now = ticks();
            }
            for port in &self.ports {
                port.progress();
            }
            if self.serve_each_client() {
                continue;
            }
            let now = ticks();
            self.note_turn(now.wrapping_sub(self.now), now);
            self.now = now;
            if now.wrapping_sub(self.hot_since) >= self.idle.polling_time(now) {
                self.sleep();
            }
        }
    }

    /// Notes the end of a turn, and counts it if another thread had the core in that time.
    #[inline]
    fn note_turn(&mut self, took: u64, now: u64) {
        if self.idle.note_turn(took, now) {
            let pause = self.idle.pause_left(now);
            self.meter().count_preemption(now.wrapping_add(pause));
        }
    }

    /// Sleeps until there is a request or mail, or the slot may poll again.
    #[cold]
    #[inline(never)]
    fn sleep(&mut self) {
        let polled = self.now.wrapping_sub(self.hot_since);
        if C::POLLS {
            self.meter().add_ns(self.shared.clock.ns(polled), 0);
        }
        let pause = self.idle.sleep_limit(polled, self.now);
        let limit = pause.map_or(SLEEP, |pause| Duration::from_nanos(self.shared.clock.ns(pause)));
        while !self.sleep_a_while(limit) && pause.is_none() {
            let (now, idle) = (ticks(), self.shared.clock.ticks(KEPT_FOR.as_nanos() as u64));
            self.clients
                .iter_mut()
                .for_each(|client| client.landing.trim(now, idle));
        }
        self.idle.note_sleep();
        self.now = ticks();
        self.hot_since = self.now;
    }

    /// Sleeps for at most `limit`; returns whether there is a request or mail.
    fn sleep_a_while(&self, limit: Duration) -> bool {
        let ready = || self.mailbox.has_mail() || self.clients.iter().any(|client| client.channel.has_request());
        if self.ports.is_empty() {
            let woken = self.mailbox.doorbell.sleep_unless(ready, Some(limit));
            self.mailbox.doorbell.disarm();
            return woken;
        }
        // Clients of this node ring the doorbell, a futex, which cannot be waited for together with descriptors.
        let neighbours = self.clients.iter().any(|client| client.channel.far().port().is_none());
        sleep::on_ports(&self.ports, &self.mailbox.wake, neighbours, limit, ready)
    }

    fn meter(&self) -> SlotMeter<'_> {
        self.shared.usage.meter(self.index)
    }

    /// Serves at most one request of each client; returns whether there was one.
    #[inline]
    fn serve_each_client(&mut self) -> bool {
        let mut served = false;
        for position in 0..self.clients.len() {
            let request = self.clients[position].channel.take();
            // Sends wake-ups that are due, before the next function, which may take long. The check for the next
            // request comes first: while its cache line is fetched, the last reply is on its way to the client.
            self.settle(self.last);
            self.settle(position);
            if let Some(request) = request {
                self.serve(position, &request);
                self.last = position;
                served = true;
                // Reads mail before it serves the next client: a message may end the process.
                if position + 1 < self.clients.len() && self.mailbox.has_mail() {
                    break;
                }
            }
        }
        served
    }

    /// Wakes the client at this position if it sleeps and a reply was published for it.
    #[inline]
    fn settle(&mut self, position: usize) {
        if let Some(client) = self.clients.get_mut(position) {
            client.channel.settle();
        }
    }

    #[inline]
    fn serve(&mut self, position: usize, request: &CheckedRequest) {
        let started = self.now;
        if !self.core.claim() {
            return self.reject_busy(position, request);
        }
        let ran = self.run_function(position, request);
        if let Err(status) = ran {
            self.clients[position].channel.reply(request, status, 0, 0);
            self.meter().cancel();
            self.note_failure(request, status, 0);
        }
        // Done after the reply, so that the client does not wait for it. The core is free before the client can see the
        // reply and call another slot of this core.
        self.floats.restore();
        self.core.give_up();
        let ended = ticks();
        let clock = &self.shared.clock;
        let hot_ns = if C::POLLS {
            clock.ns(started.wrapping_sub(self.hot_since))
        } else {
            0
        };
        let compute_ns = clock.ns(ended.wrapping_sub(started));
        self.meter().add_ns(hot_ns, compute_ns);
        if ran.is_ok() {
            self.count(request.header.function, compute_ns);
        }
        self.idle.note_gap(started.wrapping_sub(self.ended));
        self.note_turn(ended.wrapping_sub(started), ended);
        (self.ended, self.hot_since, self.now) = (ended, ended, ended);
    }

    /// Counts a run for the usage by function.
    #[inline]
    fn count(&mut self, function: FunctionIndex, compute_ns: u64) {
        match self.rows.get(usize::from(function.0)) {
            Some(Some(row)) => self.shared.usage.count_run(self.index, *row, compute_ns),
            _ => self.count_first(function, compute_ns),
        }
    }

    /// Counts the first run of a function in this slot.
    #[cold]
    #[inline(never)]
    fn count_first(&mut self, function: FunctionIndex, compute_ns: u64) {
        let row = self.shared.usage.row_for(self.index, function.0);
        if let Some(known) = self.rows.get_mut(usize::from(function.0)) {
            *known = Some(row);
        }
        self.shared.usage.count_run(self.index, row, compute_ns);
    }

    /// Rejects a request because another slot has the core: at once, so that the client can try another slot.
    #[cold]
    #[inline(never)]
    fn reject_busy(&mut self, position: usize, request: &CheckedRequest) {
        self.clients[position]
            .channel
            .reply(request, InvocationStatus::Busy, 0, 0);
        self.meter().count_refused_call();
        self.now = ticks();
        (self.ended, self.hot_since) = (self.now, self.now);
    }

    /// Looks up the function and its arguments.
    #[inline]
    fn look_up(
        &self,
        position: usize,
        request: &CheckedRequest,
    ) -> Result<(LoadedFunction, Arguments), InvocationStatus> {
        let function = self
            .functions
            .get(request.header.function.0)
            .ok_or(InvocationStatus::UnknownFunction)?;
        let client = &self.clients[position];
        Ok((function, arguments::locate(&client.channel, request, &client.regions)?))
    }

    #[cold]
    #[inline(never)]
    fn read_mail(&mut self) {
        for message in self.mailbox.take() {
            match message {
                SlotMessage::Channel(connection, channel, regions) => {
                    self.clients.push(SlotClient {
                        connection,
                        channel,
                        regions,
                        landing: LandingBuffers::default(),
                        closed: false,
                    });
                }
                SlotMessage::Disconnected(connection) => {
                    self.clients_of(connection).for_each(|client| client.closed = true)
                }
                SlotMessage::Region(connection, region, memory) => {
                    for client in self.clients_of(connection) {
                        client.regions.insert(region, memory.clone());
                    }
                }
                SlotMessage::Forget(connection, region) => {
                    for client in self.clients_of(connection) {
                        client.regions.remove(&region);
                    }
                }
                SlotMessage::Functions(functions) => {
                    self.rows.resize(functions.len(), None);
                    self.functions = functions;
                }
                SlotMessage::Seat(seat) => self.context.set_seat(&seat),
                SlotMessage::Port(port) => {
                    // The new port replaces a failed port.
                    self.ports.retain(|old| old.provider() != port.provider());
                    self.ports.push(port);
                }
                SlotMessage::Job(job) => {
                    let serves_on = job(&mut self.context);
                    self.floats.restore();
                    if !serves_on {
                        // No later request has begun. The agent ends this process, and then reports the end to the
                        // clients.
                        loop {
                            std::thread::park();
                        }
                    }
                }
                SlotMessage::Leave(status) => {
                    self.reject_waiting();
                    self.await_delivery();
                    crash::exit_now(status)
                }
            }
        }
    }

    /// Rejects the requests that wait, before the process ends. Later requests get no reply: the agent reports the last
    /// invocation that began, so the clients know that the later ones did not run.
    fn reject_waiting(&mut self) {
        for client in &mut self.clients {
            // Bounded, because a client that does not have the report of the end yet may repeat rejected requests.
            for _ in 0..RING_DEPTH_MAX {
                let Some(request) = client.channel.take() else {
                    break;
                };
                client.channel.reply(&request, InvocationStatus::Draining, 0, 0);
            }
            client.channel.settle();
        }
    }

    /// Waits until clients over fabrics have received their replies: a reply that has not arrived may be lost with this
    /// process.
    fn await_delivery(&self) {
        let until = Instant::now() + LAST_REPLIES;
        for client in &self.clients {
            if let TransportRing::Ofi(ring) = client.channel.far() {
                let left = until.saturating_duration_since(Instant::now());
                // The probe's answer arrives after the replies. Without an answer the client is gone, or too slow.
                let _ = ring.port().probe(ring.peer(), left);
            }
        }
    }

    fn clients_of(&mut self, connection: ConnectionId) -> impl Iterator<Item = &mut SlotClient> {
        self.clients
            .iter_mut()
            .filter(move |client| client.connection == connection)
    }

    /// Runs the function and replies; returns `Err` if it did not run.
    #[inline]
    fn run_function(&mut self, position: usize, request: &CheckedRequest) -> Result<(), InvocationStatus> {
        let started = self.now;
        let header = &request.header;
        let timeout_us = self.core.limit_us(header.timeout_us);
        if !self.shared.epoch.admits(header.epoch) {
            return Err(InvocationStatus::StaleEpoch);
        }
        // Mail is read before every look-up. Reading it only after a failed look-up would not be enough. A new region
        // or function is always in the mailbox before a client may name it, but a look-up can succeed with old data:
        // the table of regions may still contain an earlier registration, whose key is no longer valid. Nor does a
        // look-up fail while a new gang's seat is still unread: requests do not name their gang, so the function would
        // run in the previous gang.
        if self.mailbox.has_mail() {
            self.read_mail();
        }
        let (function, arguments) = match self.look_up(position, request) {
            Err(InvocationStatus::UnknownFunction) if self.mailbox.has_mail() => {
                self.read_mail();
                self.look_up(position, request)?
            }
            found => found?,
        };
        let mut arguments = arguments;
        if arguments.has_remote() {
            let SlotClient { channel, landing, .. } = &mut self.clients[position];
            landing.fetch(channel, &mut arguments, timeout_us, started)?;
        }
        let usage = self.shared.usage.meter(self.index);
        let (deadline_ticks, deadline_ns) = match timeout_us {
            0 => (0, 0),
            timeout_us => {
                let timeout_ns = u64::from(timeout_us) * 1000;
                (
                    started.saturating_add(self.shared.clock.ticks(timeout_ns)).max(1),
                    monotonic_ns() + timeout_ns,
                )
            }
        };
        usage.set_output(arguments.guard, arguments.output.bytes);
        let which = (header.function.0, InvocationId::new(header.seq, header.reply_entry));
        usage.start(which, started, deadline_ticks, timeout_us);
        if deadline_ticks != 0 {
            self.shared.watchdog.watch(self.index, deadline_ticks);
        }
        let outcome = invoke::call(function, &arguments, &mut self.context, deadline_ns);
        if forks::is_child() {
            // The function has forked. Only the parent replies: a reply of the child would answer the same request
            // again.
            crash::exit_now(0);
        }
        let too_late = deadline_ticks != 0 && self.shared.watchdog.unwatch(self.index);
        let mut outcome = outcome?;
        if too_late {
            outcome.status = InvocationStatus::DeadlineExceeded;
            // A limit other than the client's own must be reported to the client.
            outcome.code = if timeout_us == header.timeout_us {
                0
            } else {
                (timeout_us / 1000) as i32
            };
        }
        let SlotClient { channel, landing, .. } = &mut self.clients[position];
        let gives_output = matches!(outcome.status, InvocationStatus::Ok | InvocationStatus::FunctionError);
        if let Some(remote) = &arguments.remote
            && !remote.output.is_empty()
            && gives_output
            && outcome.bytes > 0
            && let Err(status) = landing.store(channel, &remote.output, outcome.bytes, timeout_us)
        {
            outcome.status = status;
        }
        if arguments.output_in_ring && gives_output {
            channel.reply_with_output(request, outcome.status, outcome.code, outcome.bytes as usize);
        } else {
            channel.reply(request, outcome.status, outcome.code, outcome.bytes);
        }
        usage.stop();
        if outcome.status != InvocationStatus::Ok {
            self.note_failure(request, outcome.status, outcome.code);
        }
        Ok(())
    }

    /// Records a failure for the node's log, and gives up the slot's seat in its gang. Called after the reply is
    /// published: giving up the seat makes the other members fail, and the client must see this failure before the
    /// failures that it causes.
    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, request: &CheckedRequest, status: InvocationStatus, code: i32) {
        let header = &request.header;
        let failure = InvocationFailure {
            invocation: InvocationId::new(header.seq, header.reply_entry),
            function: header.function.0,
            status: Some(status),
            code,
        };
        self.shared.usage.record_failure(self.index, failure);
        self.context.leave_gang();
    }
}
