//! Collectives on bytes, with a schedule that this library chooses or that the caller has made.

use super::Communicator;
use super::checked::{self, CallSite};
use super::schedule_cache::Key;
use crate::card::CARD_BYTES;
use crate::engine::SmallCollective;
use crate::error::Error;
use crate::memory::TransferMemory;
use crate::protocol::{CollectiveStart, CollectiveWork};
use crate::request::Request;
use hotlease_collectives::{
    Collective, CollectiveCall, Datatype, Explanation, LinkKind, Question, Reduction, Schedule,
};
use hotlease_fabric::loan::{LentBytes, LentBytesMut, lend, lend_mut};
use std::panic::Location;
use std::sync::{Arc, PoisonError};

/// Schedule of a collective, and its reduction if it reduces.
type Plan = (Arc<Schedule>, Option<Reduction>);

/// Collective of a communicator, as this member calls it. The typed calls and the calls of other languages all use it.
///
/// All members must call the same collectives in the same order. Buffers must be at least as long as
/// [`lengths`](Self::lengths) says; they need not be aligned, and must not overlap. The input is never written.
#[derive(Debug, Clone, Copy)]
pub struct MemberCollective<'a> {
    communicator: &'a Communicator,
    call: CollectiveCall<'a>,
    site: CallSite<'a>,
}

impl<'a> MemberCollective<'a> {
    /// Sets whether the caller's part is already in the output (`MPI_IN_PLACE`): see [`CollectiveCall::in_place`].
    pub const fn in_place(mut self, in_place: bool) -> Self {
        self.call.in_place = in_place;
        self
    }

    /// Sets the place of the call in the program, which errors of checked mode name (default: the place in Rust).
    pub fn at(self, place: &'a str) -> Self {
        self.called_at(CallSite::other(place))
    }

    pub(super) fn called_at(self, site: CallSite<'a>) -> Self {
        Self { site, ..self }
    }

    /// Minimum numbers of bytes of input and output.
    ///
    /// # Errors
    /// [`Error::Arguments`] if the call contradicts itself.
    pub fn lengths(&self) -> Result<[usize; 2], Error> {
        self.call.check()?;
        let bytes = |elements: usize| elements.saturating_mul(self.call.datatype.size());
        Ok([bytes(self.call.input()), bytes(self.call.output())])
    }

    /// Does this member's part of the collective and waits for its end.
    ///
    /// # Errors
    /// [`Error::Arguments`] and [`Error::Operator`]: nothing was sent, and the other members still wait for this
    /// member's call. [`Error::Mismatch`], [`Error::OperatorPanicked`], [`Error::CollectiveFailed`]: no later collective of this
    /// communicator succeeds. [`Error::MemberLost`] and [`Error::MemberLeft`] of any member. In checked mode
    /// [`Error::CallMismatch`].
    pub fn run(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let plan = self.plan(input.len(), output.len())?;
        if let Some(result) = self.run_now(&plan, input, output) {
            return result;
        }
        lend(input, |input| {
            lend_mut(output, |output| {
                let (input, output) = (
                    TransferMemory::Lent(input.clone()),
                    TransferMemory::LentMut(output.clone()),
                );
                self.begin_planned(plan, input, output)?.wait().map(drop)
            })
        })
    }

    /// Begins the collective on lent memory, which must stay lent until the request has ended.
    ///
    /// # Errors
    /// [`Error::Arguments`], [`Error::Operator`], [`Error::TooManyRequests`]; the request reports all others.
    pub fn begin(&self, input: &LentBytes, output: &LentBytesMut) -> Result<Request, Error> {
        self.begin_on(
            TransferMemory::Lent(input.clone()),
            TransferMemory::LentMut(output.clone()),
        )
    }

    pub(super) fn begin_on(&self, input: TransferMemory, output: TransferMemory) -> Result<Request, Error> {
        self.begin_planned(self.plan(input.len(), output.len())?, input, output)
    }

    fn begin_planned(
        &self,
        (schedule, reduction): Plan,
        input: TransferMemory,
        output: TransferMemory,
    ) -> Result<Request, Error> {
        self.communicator.begin_schedule(CollectiveStart::Built {
            work: CollectiveWork {
                schedule,
                element: self.call.datatype.size(),
                input,
                output,
                reduction,
            },
            exchange: self.communicator.exchange(self)?,
        })
    }

    /// Runs a small collective without lending its memory ([`Engine::run_now`](crate::engine::Engine::run_now)).
    /// Returns `None` if the collective is not small, or must begin in the usual way.
    fn run_now(&self, plan: &Plan, input: &[u8], output: &mut [u8]) -> Option<Result<(), Error>> {
        let Communicator { group, member, .. } = self.communicator;
        if member.is_checked {
            return None;
        }
        let work = SmallCollective::new(&plan.0, self.call.datatype.size(), plan.1.as_ref())?;
        let result = group.engine.run_now(group.context, &work, input, output)?;
        Some(result.map_err(|error| group.error(error)))
    }

    /// Checks the lengths of the memory; returns the schedule, and the reduction if the collective reduces.
    fn plan(&self, input: usize, output: usize) -> Result<Plan, Error> {
        let call = &self.call;
        let operator = call.collective.operator();
        let reduction = operator.map(|operator| operator.of(call.datatype)).transpose()?;
        let [read, written] = self.lengths()?;
        self.check_room("input", input, read)?;
        self.check_room("output", output, written)?;
        Ok((self.communicator.schedule(call)?, reduction))
    }

    fn check_room(&self, what: &str, bytes: usize, needed: usize) -> Result<(), Error> {
        if bytes >= needed {
            return Ok(());
        }
        let elements = needed / self.call.datatype.size();
        let why = format!("the {what} has {bytes} bytes, and {elements} elements need {needed}");
        Err(self.communicator.contradiction(self.call.collective.operation(), why))
    }

    /// Explains which algorithm the collective would use. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::Arguments`] if the call contradicts itself.
    pub fn explain(&self) -> Result<Explanation, Error> {
        self.call.check()?;
        let question = self.communicator.question(&self.call);
        Ok(self.communicator.member.table.explain(&question))
    }
}

impl Communicator {
    /// Makes a collective of this communicator; [`MemberCollective::run`] runs it. The collective is not in place,
    /// unless [`MemberCollective::in_place`] changes that.
    ///
    /// ```no_run
    /// # fn example(all: &hotlease_comm::Communicator) -> Result<(), hotlease_comm::Error> {
    /// use hotlease_comm::{Collective, Datatype, Operator};
    /// let sum = Collective::Allreduce { count: 1, operator: &Operator::Sum };
    /// let mut total = [0; 4];
    /// all.collective(sum, Datatype::U32).run(&1u32.to_ne_bytes(), &mut total)?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn collective<'a>(&'a self, collective: Collective<'a>, datatype: Datatype) -> MemberCollective<'a> {
        MemberCollective {
            communicator: self,
            call: CollectiveCall {
                nodes: Some(&self.nodes),
                ..CollectiveCall::new(collective, datatype, self.rank(), self.size())
            },
            site: CallSite::rust(Location::caller()),
        }
    }

    /// Returns the exchange of cards that precedes the collective in checked mode; otherwise `None`.
    fn exchange(&self, of: &MemberCollective<'_>) -> Result<Option<CollectiveWork>, Error> {
        if !self.member.is_checked {
            return Ok(None);
        }
        Ok(Some(CollectiveWork {
            schedule: self.schedule(&checked::exchange_call(self.rank(), self.size()))?,
            element: 1,
            input: TransferMemory::of(checked::card(&of.call, &of.site).to_vec()),
            output: TransferMemory::zeroed(CARD_BYTES * self.size() as usize),
            reduction: None,
        }))
    }

    fn question<'a>(&self, call: &'a CollectiveCall<'a>) -> Question<'a> {
        Question {
            call,
            link: match self.member.link {
                LinkKind::Ofi | LinkKind::Tcp if self.node_count == 1 => LinkKind::Shm,
                link => link,
            },
            nodes: self.node_count,
            is_crowded: self.member.is_crowded,
        }
    }

    /// Schedule of a call, by the algorithm that the table chooses.
    fn schedule(&self, call: &CollectiveCall<'_>) -> Result<Arc<Schedule>, Error> {
        let schedules = || self.schedules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(call);
        if let Some(schedule) = key.and_then(|key| schedules().get(&key)) {
            return Ok(schedule);
        }
        let recipe = self.member.table.choose(&self.question(call));
        let schedule = Arc::new(recipe.build(call)?);
        if let Some(key) = key {
            schedules().keep(key, &schedule);
        }
        Ok(schedule)
    }

    fn begin_schedule(&self, start: CollectiveStart) -> Result<Request, Error> {
        let key = self.group.engine.collective(self.group.context, start)?;
        Ok(Request::new(&self.group, key, false))
    }

    /// Runs this member's part of a collective by the caller's own schedule. All members must call it for the same
    /// collectives, in the same order. `element` is the size of an element. A schedule that reduces needs a `reduction`
    /// for elements of that size ([`Operator::of`](crate::Operator::of)). In place, `input` is empty. To have the
    /// schedule chosen and built, call [`collective`](Self::collective) instead.
    ///
    /// # Errors
    /// [`Error::Schedule`], [`Error::Mismatch`], [`Error::CollectiveFailed`], [`Error::OperatorPanicked`]: no later collective
    /// of this communicator succeeds. [`Error::MemberLost`] and [`Error::MemberLeft`] of any member.
    pub fn run(
        &self,
        schedule: Arc<Schedule>,
        element: usize,
        input: &[u8],
        output: &mut [u8],
        reduction: Option<Reduction>,
    ) -> Result<(), Error> {
        lend(input, |input| {
            lend_mut(output, |output| {
                let request = self.start_lent(schedule, element, input, output, reduction)?;
                request.wait().map(drop)
            })
        })
    }

    /// Begins a collective by the caller's own schedule on lent memory, which must stay lent until the request has
    /// ended.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`]; the request reports all others.
    pub fn start_lent(
        &self,
        schedule: Arc<Schedule>,
        element: usize,
        input: &LentBytes,
        output: &LentBytesMut,
        reduction: Option<Reduction>,
    ) -> Result<Request, Error> {
        self.begin_schedule(CollectiveStart::Given(CollectiveWork {
            schedule,
            element,
            input: TransferMemory::Lent(input.clone()),
            output: TransferMemory::LentMut(output.clone()),
            reduction,
        }))
    }
}
