//! Collectives: runs schedules, round by round. A round begins all its transfers together, and does its local work when
//! they have ended.
//!
//! Messages of a collective carry its number, so ranks may be several collectives apart. Local work may take long, and
//! may call a user's operator: it becomes a [`LocalWork`], which the driving thread does without the lock.
//!
//! In checked mode each collective begins with an exchange of cards ([`crate::card`]), which has a schedule of its own.

mod direct;
mod failures;

pub(crate) use direct::StartedCollective;

use super::contexts::is_before;
use super::jobs::Job;
use super::{MessageStatus, Owner, Protocol, RequestState};
use crate::arena::Key;
use crate::card::first_difference;
use crate::error::{Activity, Error};
use crate::matching::Pattern;
use crate::memory::{Piece, TransferMemory};
use hotlease_collectives::{Area, AreaSpan, Areas, Rank, Reduction, Schedule, Step};
use hotlease_wire::comm::frame::{MessageAddress, MessageClass};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Schedule of a collective, and the caller's memory that it works on.
#[derive(Clone)]
pub(crate) struct CollectiveWork {
    pub(crate) schedule: Arc<Schedule>,
    /// Size of an element, bytes.
    pub(crate) element: usize,
    pub(crate) input: TransferMemory,
    pub(crate) output: TransferMemory,
    /// Reduction, in a collective that reduces.
    pub(crate) reduction: Option<Reduction>,
}

/// Collective that begins.
pub(crate) enum CollectiveStart {
    /// By a schedule that this library has built for this memory, so that it need not be checked.
    Built {
        work: CollectiveWork,
        /// Exchange of cards before the collective, in checked mode.
        exchange: Option<CollectiveWork>,
    },
    /// By the caller's own schedule.
    Given(CollectiveWork),
}

/// Work of a collective, with its scratch memory.
#[derive(Clone)]
struct Work {
    collective: CollectiveWork,
    scratch: TransferMemory,
}

impl Work {
    fn piece(&self, span: AreaSpan) -> Piece {
        let element = self.collective.element;
        let area = match span.area {
            Area::Input => &self.collective.input,
            Area::Output => &self.collective.output,
            Area::Scratch => &self.scratch,
        };
        area.piece(span.offset * element..(span.offset + span.count) * element)
    }
}

/// Collective that is under way.
pub(super) struct RunningCollective {
    pub(super) context: u64,
    pub(super) number: u32,
    pub(super) members: Arc<[Rank]>,
    request: Key,
    work: Work,
    /// Work that follows, if the current work is an exchange of cards.
    after_exchange: Option<Work>,
    round: usize,
    /// Number of transfers of this round that have not ended.
    pub(super) outstanding: usize,
    /// Whether the driving thread does the local work of this round.
    is_at_work: bool,
    error: Option<Error>,
    /// If messages go through a store: number of messages so far to (`true`) and from (`false`) each member.
    pub(super) counts: HashMap<(bool, Rank), u32>,
}

impl RunningCollective {
    fn new(started: StartedCollective, request: Key, work: Work, after_exchange: Option<Work>) -> Self {
        Self {
            context: started.context,
            number: started.number,
            members: started.members,
            request,
            work,
            after_exchange,
            round: 0,
            outstanding: 0,
            is_at_work: false,
            error: None,
            counts: HashMap::new(),
        }
    }

    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    pub(super) fn context(&self) -> u64 {
        self.context
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn piece(&self, span: AreaSpan) -> Piece {
        self.work.piece(span)
    }

    /// Whether the collective is still exchanging cards.
    pub(super) fn is_checking(&self) -> bool {
        self.after_exchange.is_some()
    }
}

/// Maximum number of scratch memories that are kept for the next collective, or for the next message that no receive
/// waits for. Each has [`SPARE_BYTES_MAX`] bytes at most.
const SPARE_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Local work of one round.
pub(crate) struct LocalWork {
    collective: Key,
    work: Work,
    round: usize,
}

impl LocalWork {
    /// Does the work. Returns its collective and, if an operator panicked, the message of the panic.
    pub(super) fn run(self) -> (Key, Result<(), String>) {
        let Work { collective, scratch } = &self.work;
        let [input, output, scratch] = [&collective.input, &collective.output, scratch].map(TransferMemory::whole);
        let steps = &collective.schedule.rounds[self.round].local;
        let run = |input: &[u8], output: &mut [u8], scratch: &mut [u8]| {
            let mut areas = Areas {
                input,
                output,
                scratch,
                element: collective.element,
            };
            let steps = steps.iter();
            steps.for_each(|step| areas.local(step, collective.reduction.as_ref()));
        };
        let work = || input.read(|input| output.write(|output| scratch.write(|scratch| run(input, output, scratch))));
        let result = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Some(Some(Some(())))) => Ok(()),
            Ok(_) => Err("the memory was taken back".into()),
            Err(panic) => Err(panic_message(panic.as_ref())),
        };
        (self.collective, result)
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "something that is no text".into())
}

impl Protocol {
    /// Begins the next collective of a communicator. It gets a number even if it fails here, because the other members
    /// also number it.
    pub(crate) fn collective(&mut self, context: u64, start: CollectiveStart) -> Result<Key, Error> {
        let of_context = self.context(context);
        let number = of_context.number;
        of_context.number = number.wrapping_add(1);
        let broken = of_context.broken;
        let members: Arc<[Rank]> = of_context.members.clone().unwrap_or_default();
        let during = Activity::Collective { number };
        let request = self.request(during)?;
        let error = match broken {
            Some((rank, first)) if !is_before(number, first) => Some(Error::CollectiveFailed { during, rank }),
            _ => self.check_start(&start, &members, during),
        };
        let error = error.or_else(|| self.failure_of_members(&members, during));
        let is_to_run = error.is_none();
        let mut with_scratch = |collective: CollectiveWork| {
            let bytes = collective.schedule.scratch.saturating_mul(collective.element);
            let scratch = self.scratch(if is_to_run { bytes } else { 0 });
            Work { collective, scratch }
        };
        let (work, after_exchange) = match start {
            CollectiveStart::Given(work) | CollectiveStart::Built { work, exchange: None } => {
                (with_scratch(work), None)
            }
            CollectiveStart::Built {
                work,
                exchange: Some(exchange),
            } => (with_scratch(exchange), Some(with_scratch(work))),
        };
        let started = StartedCollective {
            context,
            number,
            members,
        };
        let running = RunningCollective::new(started, request, work, after_exchange);
        let key = self.collectives.insert(running);
        match error {
            Some(error) => self.fail_collective(key, error),
            None => self.begin_round(key),
        }
        Ok(request)
    }

    /// Error of a collective of these members, if one of them is lost or this member cannot take part.
    fn failure_of_members(&self, members: &[Rank], during: Activity) -> Option<Error> {
        let mut lost = members.iter().filter(|rank| self.peers[**rank as usize].lost.is_some());
        self.departure(lost.next().copied().unwrap_or(self.me), during)
    }

    /// Memory with any content, of at least this size.
    pub(super) fn scratch(&mut self, bytes: usize) -> TransferMemory {
        let place = self.spare.iter().position(|memory| memory.len() >= bytes);
        match place {
            Some(place) if bytes > 0 => self.spare.swap_remove(place),
            _ => TransferMemory::zeroed(bytes),
        }
    }

    /// Keeps memory for the next use, unless it is still in use or too large.
    pub(super) fn keep_scratch(&mut self, memory: TransferMemory) {
        if memory.len() == 0 || memory.len() > SPARE_BYTES_MAX || !memory.is_free() {
            return;
        }
        if self.spare.len() >= SPARE_MAX {
            self.spare.remove(0);
        }
        self.spare.push(memory);
    }

    /// Checks a collective before anything is sent; returns an error if the collective is invalid.
    fn check_start(&self, start: &CollectiveStart, members: &[Rank], during: Activity) -> Option<Error> {
        let CollectiveStart::Given(work) = start else {
            return None;
        };
        let wrong = |why: String| Some(Error::Schedule { during, why });
        let element = work.element.max(1);
        let (input, output) = (work.input.len(), work.output.len());
        if !input.is_multiple_of(element) || !output.is_multiple_of(element) {
            return wrong(format!(
                "input and output, of {input} and {output} bytes, are not whole elements of {element} bytes"
            ));
        }
        let Some(rank) = members.iter().position(|rank| *rank == self.me) else {
            return wrong("this member is not of its communicator".into());
        };
        let rounds = &work.schedule.rounds;
        let is_mediated = |step: &Step| matches!(step, Step::Publish { .. } | Step::Fetch { .. });
        if !self.is_stored() && rounds.iter().any(|round| round.transfers.iter().any(is_mediated)) {
            return wrong("it publishes objects, which these links cannot do: they are direct".into());
        }
        let reduces = |step: &Step| matches!(step, Step::Reduce { .. });
        if work.reduction.is_none() && rounds.iter().any(|round| round.local.iter().any(reduces)) {
            return wrong("it reduces, and no reduction was given".into());
        }
        let (rank, ranks) = (rank as Rank, members.len() as Rank);
        let checked = work.schedule.check(rank, ranks, input / element, output / element);
        checked.err().and_then(wrong)
    }

    fn begin_round(&mut self, key: Key) {
        self.begin_transfers(key, 0);
    }

    /// Begins the transfers of a round, except the transfers with a bit in `done`; only the first 64 have such a bit.
    fn begin_transfers(&mut self, key: Key, done: u64) {
        let Some(running) = self.collectives.get_mut(key) else {
            return;
        };
        let schedule = Arc::clone(&running.work.collective.schedule);
        let Some(round) = schedule.rounds.get(running.round) else {
            return self.end(key);
        };
        // Counts the loop below as one more transfer, so that no transfer ends the round before all have begun.
        running.outstanding = 1;
        let is_left =
            |place: usize| u32::try_from(place).is_ok_and(|place| done.checked_shr(place).unwrap_or(0) & 1 == 0);
        let transfers = round.transfers.iter().enumerate().filter(|(place, _)| is_left(*place));
        let is_receive = |step: &&Step| matches!(step, Step::Receive { .. } | Step::Fetch { .. });
        let transfers = transfers.map(|(_, step)| step);
        for step in transfers
            .clone()
            .filter(is_receive)
            .chain(transfers.filter(|step| !is_receive(step)))
        {
            let Some(running) = self.collectives.get_mut(key) else {
                return;
            };
            if running.error.is_some() {
                break;
            }
            running.outstanding += 1;
            if self.stored.is_some() {
                self.begin_stored(key, step);
                continue;
            }
            let (context, number) = (running.context, running.number);
            let (owner, class) = (Owner::Collective(key), MessageClass::Collective);
            match *step {
                Step::Receive { from, into } => {
                    let into = running.work.piece(into);
                    let source = running.members[from as usize];
                    self.receive(class, context, Pattern::of(source, number), into, owner);
                }
                Step::Send { to, from } => {
                    let body = running.work.piece(from);
                    let to = running.members[to as usize];
                    let address = MessageAddress {
                        class,
                        context,
                        tag: number,
                    };
                    self.send(to, address, body, owner);
                }
                // `check_start` has refused steps that these links cannot do.
                _ => running.outstanding -= 1,
            }
        }
        self.count_transfer(key);
    }

    /// Notes the end of a transfer of a collective.
    pub(super) fn end_transfer(&mut self, key: Key, result: Result<MessageStatus, Error>) {
        if let Err(error) = result {
            self.fail_collective(key, error);
        }
        self.count_transfer(key);
    }

    fn count_transfer(&mut self, key: Key) {
        if let Some(running) = self.collectives.get_mut(key) {
            running.outstanding -= 1;
            if running.outstanding == 0 {
                self.ready.push_back(key);
            }
        }
    }

    /// Continues the collectives whose transfers are done.
    pub(crate) fn settle(&mut self) {
        self.request_awaited();
        while let Some(key) = self.ready.pop_front() {
            let Some(running) = self.collectives.get_mut(key) else {
                continue;
            };
            if running.is_at_work {
                continue;
            }
            let round = running.round;
            let rounds = &running.work.collective.schedule.rounds;
            let has_work = rounds.get(round).is_some_and(|round| !round.local.is_empty());
            if running.error.is_some() {
                self.end(key);
            } else if has_work {
                running.is_at_work = true;
                self.news += 1;
                self.jobs.push_back(Job::Local(LocalWork {
                    collective: key,
                    work: running.work.clone(),
                    round,
                }));
            } else {
                self.next_round(key);
            }
        }
        self.go_on_leaving();
    }

    /// Continues a collective whose local work is done.
    pub(super) fn end_local_work(&mut self, (key, result): (Key, Result<(), String>)) {
        let Some(running) = self.collectives.get_mut(key) else {
            return;
        };
        running.is_at_work = false;
        let number = running.number;
        let during = Activity::Collective { number };
        let has_failed = running.error.is_some();
        match result {
            _ if has_failed => self.end(key),
            Ok(()) => self.next_round(key),
            // The failure queues the collective in `ready`.
            Err(message) => self.fail_collective(key, Error::OperatorPanicked { during, message }),
        }
    }

    fn next_round(&mut self, key: Key) {
        let Some(running) = self.collectives.get_mut(key) else {
            return;
        };
        running.round += 1;
        self.begin_round(key);
    }

    fn end(&mut self, key: Key) {
        if let Some(running) = self.collectives.get_mut(key)
            && running.error.is_none()
            && let Some(work) = running.after_exchange.take()
        {
            let Work {
                collective: exchange,
                scratch,
            } = std::mem::replace(&mut running.work, work);
            running.error = exchange.output.whole().read(first_difference).flatten();
            running.round = 0;
            let differs = running.error.is_some();
            self.keep_scratch(scratch);
            if !differs {
                return self.begin_round(key);
            }
        }
        if let Some(running) = self.collectives.remove(key) {
            self.done_with(running.context, running.number);
            self.is_leaving_due = true;
            let status = MessageStatus {
                source: self.me,
                tag: running.number,
                bytes: 0,
            };
            let result = running.error.map_or(Ok(status), Err);
            self.keep_scratch(running.work.scratch);
            self.complete(Owner::Request(running.request), result);
        }
    }

    /// Description of a collective for errors.
    pub(super) fn during_collective(&self, key: Key) -> Activity {
        let number = self.collectives.get(key).map_or(0, |running| running.number);
        Activity::Collective { number }
    }

    /// Description of a request for errors.
    pub(super) fn during(&self, key: Key) -> Activity {
        match self.requests.get(key) {
            Some(RequestState::Pending(during)) => *during,
            _ => Activity::Collective { number: 0 },
        }
    }
}
