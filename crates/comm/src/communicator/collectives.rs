//! Collectives on bytes, by the arguments of the caller or by a schedule.

use super::Communicator;
use super::arguments::CollectiveArguments;
use super::checked::{self, CallSite};
use super::schedule_cache::Key;
use crate::error::Error;
use crate::memory::TransferMemory;
use crate::protocol::{Check, CollectiveStart};
use crate::request::Request;
use hotlease_collectives::{CollectiveCall, Explanation, LinkKind, Operation, Question, Reduction, Schedule};
use hotlease_fabric::loan::{LentBytes, LentBytesMut, lend, lend_mut};
use std::panic::Location;
use std::sync::{Arc, PoisonError};

impl Communicator {
    /// Does this member's part of a collective and waits for its end. All members must call the same collectives in
    /// the same order. Buffers must be at least as long as [`CollectiveCall::input`] and [`CollectiveCall::output`] say, in elements of
    /// the datatype; they need not be aligned, and must not overlap. The input is never written.
    ///
    /// The typed calls and the calls of other languages all use this method.
    ///
    /// # Errors
    /// [`Error::Arguments`] and [`Error::Operator`]: nothing was sent, and the other members still wait for this
    /// member's call. [`Error::Mismatch`], [`Error::OperatorPanicked`], [`Error::CollectiveFailed`]: no later collective of this
    /// communicator succeeds. [`Error::MemberLost`] and [`Error::MemberLeft`] of any member. In checked mode
    /// [`Error::CallMismatch`].
    #[track_caller]
    pub fn collective(&self, ask: &CollectiveArguments<'_>, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.collective_at(ask, CallSite::of(ask, Location::caller()), input, output)
    }

    /// Begins a collective on lent memory, which must stay until the request has ended.
    ///
    /// # Errors
    /// [`Error::Arguments`], [`Error::Operator`], [`Error::TooManyRequests`]; the request reports all others.
    #[track_caller]
    pub fn begin_collective(
        &self,
        ask: &CollectiveArguments<'_>,
        input: &LentBytes,
        output: &LentBytesMut,
    ) -> Result<Request, Error> {
        let (input, output) = (
            TransferMemory::Lent(input.clone()),
            TransferMemory::LentMut(output.clone()),
        );
        self.begin(ask, CallSite::of(ask, Location::caller()), input, output)
    }

    pub(super) fn collective_at(
        &self,
        ask: &CollectiveArguments<'_>,
        site: CallSite<'_>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Error> {
        lend(input, |input| {
            lend_mut(output, |output| {
                let (input, output) = (
                    TransferMemory::Lent(input.clone()),
                    TransferMemory::LentMut(output.clone()),
                );
                self.begin(ask, site, input, output)?.wait().map(drop)
            })
        })
    }

    /// The call that this member makes with these arguments.
    pub(super) fn call<'a>(&'a self, ask: &CollectiveArguments<'a>) -> CollectiveCall<'a> {
        CollectiveCall {
            collective: ask.collective,
            rank: self.rank(),
            ranks: self.size(),
            in_place: ask.in_place,
            commutes: ask.operator.is_none_or(|operator| operator.commutes()),
            nodes: Some(&self.nodes),
        }
    }

    pub(super) fn begin(
        &self,
        ask: &CollectiveArguments<'_>,
        site: CallSite<'_>,
        input: TransferMemory,
        output: TransferMemory,
    ) -> Result<Request, Error> {
        let operation = ask.collective.operation();
        let reduction = match ask.operator {
            _ if !operation.is_reduction() => None,
            Some(operator) => Some(operator.of(ask.datatype)?),
            None => {
                let why = "it reduces, and is given no operator".into();
                return Err(self.contradiction(operation, why));
            }
        };
        let call = self.call(ask);
        call.check()?;
        let element = ask.datatype.size();
        self.check_room(operation, "input", (input.len(), call.input()), element)?;
        self.check_room(operation, "output", (output.len(), call.output()), element)?;
        let start = CollectiveStart {
            schedule: self.schedule(&call, element)?,
            element,
            input,
            output,
            reduction,
            is_built: true,
            check: self.check(ask, &site)?,
        };
        self.begin_schedule(start)
    }

    /// The exchange of cards that goes first in checked mode.
    fn check(&self, ask: &CollectiveArguments<'_>, site: &CallSite<'_>) -> Result<Option<Check>, Error> {
        if !self.member.is_checked {
            return Ok(None);
        }
        let call = checked::exchange_call(self.rank(), self.size());
        let schedule = self.schedule(&call, 1)?;
        let card = checked::card(ask, site);
        Ok(Some(Check { schedule, card }))
    }

    fn check_room(
        &self,
        operation: Operation,
        what: &str,
        (bytes, elements): (usize, usize),
        element: usize,
    ) -> Result<(), Error> {
        let needed = elements.saturating_mul(element);
        if bytes >= needed {
            return Ok(());
        }
        let why = format!("the {what} has {bytes} bytes, of {needed} for {elements} elements");
        Err(self.contradiction(operation, why))
    }

    /// Explains which algorithm a collective would use. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::Arguments`].
    pub fn explain(&self, ask: &CollectiveArguments<'_>) -> Result<Explanation, Error> {
        let call = self.call(ask);
        call.check()?;
        let question = self.question(&call, ask.datatype.size());
        Ok(self.member.table.explain(&question))
    }

    fn question<'a>(&self, call: &'a CollectiveCall<'a>, element: usize) -> Question<'a> {
        Question {
            call,
            bytes: call.size().saturating_mul(element),
            element,
            link: match self.member.link {
                LinkKind::Ofi | LinkKind::Tcp if self.node_count == 1 => LinkKind::Shm,
                link => link,
            },
            nodes: self.node_count,
            is_crowded: self.member.is_crowded,
        }
    }

    /// Schedule of a call, by the algorithm that the table chooses.
    fn schedule(&self, call: &CollectiveCall<'_>, element: usize) -> Result<Arc<Schedule>, Error> {
        let schedules = || self.schedules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(call, element);
        if let Some(schedule) = key.and_then(|key| schedules().get(&key)) {
            return Ok(schedule);
        }
        let recipe = self.member.table.choose(&self.question(call, element)).recipe;
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

    /// Runs this member's part of a collective by the caller's own schedule. All members must do so, in the same
    /// order. `element` is the size of an element. A schedule that reduces needs a `reduction` for elements of that
    /// size ([`Operator::of`](crate::Operator::of)). In place, `input` is empty. [`collective`](Self::collective)
    /// chooses and builds the schedule instead.
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
                self.start_lent(schedule, element, input, output, reduction)?
                    .wait()
                    .map(drop)
            })
        })
    }

    /// Begins a collective by the caller's own schedule on lent memory, which must stay until the request has ended.
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
        self.begin_schedule(CollectiveStart {
            schedule,
            element,
            input: TransferMemory::Lent(input.clone()),
            output: TransferMemory::LentMut(output.clone()),
            reduction,
            is_built: false,
            check: None,
        })
    }
}
