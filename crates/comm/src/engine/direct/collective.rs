//! Direct collectives: the calling thread runs the schedule of a small collective itself, message by message. If the
//! thread would have to sleep, or a message cannot be sent at once, the protocol does the rest.

use super::{DirectState, DirectTransfer};
use crate::engine::{Engine, EngineState};
use crate::error::{Activity, Error};
use crate::link::{Body, CopyBody, Link, Sink};
use crate::matching::Pattern;
use crate::memory::{Piece, TransferMemory};
use crate::protocol::{CollectiveWork, KeptNow, Protocol, StartedCollective};
use hotlease_collectives::{AreaSpan, Areas, Rank, Reduction, Round, Schedule, Step};
use hotlease_fabric::loan::{lend, lend_mut};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageAddress, MessageClass};
use std::sync::Arc;

/// Longest message of a small collective, bytes. Any direct link moves a message of this length in one piece.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Largest number of transfers in a round, and largest number of rounds.
const TRANSFERS_MAX: usize = u64::BITS as usize;
const ROUNDS_MAX: usize = 64;

/// Collective whose messages and local steps are all small, so that a thread may do them under the engine's lock.
pub(crate) struct SmallCollective<'a> {
    schedule: &'a Arc<Schedule>,
    element: usize,
    reduction: Option<&'a Reduction>,
}

impl<'a> SmallCollective<'a> {
    /// Describes a collective by a schedule of this library. Returns `None` if the collective is not small, or if it
    /// reduces with an operator of a user, which may take long and may panic.
    pub(crate) fn new(schedule: &'a Arc<Schedule>, element: usize, reduction: Option<&'a Reduction>) -> Option<Self> {
        let is_small = |span: AreaSpan| span.count * element <= MESSAGE_BYTES_MAX;
        let is_small_step = |step: &Step| match *step {
            Step::Send { from, .. } => is_small(from),
            Step::Receive { into, .. } | Step::Copy { into, .. } | Step::Reduce { into, .. } => is_small(into),
            Step::Publish { .. } | Step::Fetch { .. } => false,
        };
        let is_small_round = |round: &Round| {
            round.transfers.len() <= TRANSFERS_MAX
                && round.local.len() <= TRANSFERS_MAX
                && round.transfers.iter().chain(&round.local).all(is_small_step)
        };
        let is_small = schedule.rounds.len() <= ROUNDS_MAX
            && is_small(AreaSpan::first(hotlease_collectives::Area::Scratch, schedule.scratch))
            && schedule.rounds.iter().all(is_small_round)
            && reduction.is_none_or(Reduction::is_predefined);
        is_small.then_some(Self {
            schedule,
            element,
            reduction,
        })
    }
}

/// Transfers of one round.
struct DirectRound<'a, 'b> {
    started: &'a StartedCollective,
    transfers: &'a [Step],
    areas: &'a mut Areas<'b>,
    /// A bit for each transfer that is done.
    done: u64,
}

impl DirectRound<'_, '_> {
    fn is_over(&self) -> bool {
        self.done.count_ones() as usize == self.transfers.len()
    }

    fn is_done(&self, place: usize) -> bool {
        self.done & 1 << place != 0
    }

    /// Sends the messages of the round; returns `false` if one of them cannot be sent at once.
    fn send(&mut self, protocol: &mut Protocol, link: &mut dyn Link) -> bool {
        for (place, step) in self.transfers.iter().enumerate() {
            let Step::Send { to, from } = *step else { continue };
            let (to, address) = (self.started.members[to as usize], self.address());
            let bytes = self.areas.read(from);
            let length = bytes.len() as u64;
            if !matches!(protocol.admit(to, &address, length), Ok(true)) {
                return false;
            }
            link.send(to, &MemberFrame::Eager { to: address, length }, Body::Borrowed(bytes));
            self.done |= 1 << place;
        }
        true
    }

    fn address(&self) -> MessageAddress {
        MessageAddress {
            class: MessageClass::Collective,
            context: self.started.context,
            tag: self.started.number,
        }
    }

    /// Place and memory of the next message that the round receives from a member.
    fn next_from(&self, rank: Rank) -> Option<(usize, AreaSpan)> {
        self.receives()
            .find_map(|(place, from, into)| (from == rank).then_some((place, into)))
    }

    /// Receives that are not done: place, sender and memory.
    fn receives(&self) -> impl Iterator<Item = (usize, Rank, AreaSpan)> {
        let steps = self.transfers.iter().enumerate();
        steps.filter_map(|(place, step)| match *step {
            Step::Receive { from, into } if !self.is_done(place) => {
                Some((place, self.started.members[from as usize], into))
            }
            _ => None,
        })
    }

    /// Number of bytes of a span.
    fn bytes(&self, span: AreaSpan) -> u64 {
        (span.count * self.areas.element) as u64
    }
}

/// Sink for the protocol, and for the messages of a direct collective.
struct RoundSink<'a, 'b, 'c> {
    protocol: &'a mut Protocol,
    round: &'a mut DirectRound<'b, 'c>,
    /// Whether a message of the round has arrived in part.
    is_held: bool,
}

impl RoundSink<'_, '_, '_> {
    /// Whether a frame begins a message of this collective.
    fn is_of_collective(&self, frame: &MemberFrame) -> bool {
        matches!(frame, MemberFrame::Eager { to, .. } if *to == self.round.address())
    }
}

impl Sink for RoundSink<'_, '_, '_> {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        self.protocol.frame(from, frame)
    }

    fn hold(&mut self, from: Rank, frame: &MemberFrame) -> bool {
        let is_awaited = self.is_of_collective(frame) && self.round.next_from(from).is_some();
        self.is_held |= is_awaited;
        is_awaited
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        self.protocol.body(from, bytes);
    }

    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: CopyBody<'_>) -> Result<(), Loss> {
        if self.is_of_collective(&frame)
            && let MemberFrame::Eager { to, length } = frame
            && let Some((place, into)) = self.round.next_from(from)
            && length == self.round.bytes(into)
        {
            let pattern = Pattern::of(from, to.tag);
            if self.protocol.take_direct(from, &to, length, pattern, length)? {
                copy(self.round.areas.write(into))?;
                self.round.done |= 1 << place;
                return Ok(());
            }
        }
        // A message of a later round, or of another length, is kept.
        self.protocol.whole(from, frame, copy)
    }

    fn is_satisfied(&self) -> bool {
        self.round.is_over()
    }
}

impl DirectTransfer for DirectRound<'_, '_> {
    fn check(&mut self, state: &mut EngineState) -> DirectState {
        let protocol = &mut state.protocol;
        // Not possible while a thread sleeps on the link, or local work is pending.
        if state.is_asleep || protocol.has_job() || protocol.is_broken(self.started) {
            return DirectState::LeftToProtocol;
        }
        let (context, tag) = (self.started.context, self.started.number);
        for place in 0..self.transfers.len() {
            let Step::Receive { from, into } = self.transfers[place] else {
                continue;
            };
            if self.is_done(place) {
                continue;
            }
            let pattern = Pattern::of(self.started.members[from as usize], tag);
            let length = self.bytes(into);
            let copy = |bytes: &[u8]| self.areas.write(into).copy_from_slice(bytes);
            match protocol.take_kept_now(MessageClass::Collective, context, pattern, length..=length, copy) {
                KeptNow::Taken(_) => self.done |= 1 << place,
                KeptNow::Unsuitable => return DirectState::LeftToProtocol,
                KeptNow::Absent => {
                    let during = Activity::Collective { number: tag };
                    if protocol.receive_error(context, pattern, during).is_some() {
                        return DirectState::LeftToProtocol;
                    }
                }
            }
        }
        match self.is_over() {
            true => DirectState::Complete,
            false => DirectState::Waiting,
        }
    }

    fn poll(&mut self, state: &mut EngineState) -> (bool, DirectState) {
        let EngineState { protocol, link, .. } = state;
        let mut sink = RoundSink {
            protocol,
            round: self,
            is_held: false,
        };
        let any = link.poll(&mut sink);
        let state = match sink.is_held {
            _ if sink.round.is_over() => DirectState::Complete,
            true => DirectState::LeftToProtocol,
            false => DirectState::Waiting,
        };
        (any, state)
    }
}

impl Engine {
    /// Runs a small collective, and waits for its end. Returns `None`, and changes nothing, if the collective cannot
    /// begin in this way.
    pub(crate) fn run_now(
        &self,
        context: u64,
        work: &SmallCollective<'_>,
        input: &[u8],
        output: &mut [u8],
    ) -> Option<Result<(), Error>> {
        if self.patience.is_none() {
            return None;
        }
        let mut state = self.lock();
        if state.is_asleep || state.protocol.has_job() {
            return None;
        }
        let started = state.protocol.start_directly(context)?;
        let mut scratch = std::mem::take(&mut state.scratch);
        scratch.resize(work.schedule.scratch * work.element, 0);
        let mut areas = Areas {
            input,
            output: &mut *output,
            scratch: &mut scratch,
            element: work.element,
        };
        let mut left = None;
        for (number, round) in work.schedule.rounds.iter().enumerate() {
            let mut direct = DirectRound {
                started: &started,
                transfers: &round.transfers,
                areas: &mut areas,
                done: 0,
            };
            let EngineState { protocol, link, .. } = &mut *state;
            let mut result = DirectState::LeftToProtocol;
            if direct.send(protocol, &mut **link) {
                state.flush();
                self.wake_waiting(&mut state);
                (state, result) = match direct.is_over() {
                    true => (state, DirectState::Complete),
                    false => self.poll_directly(state, &mut direct),
                };
            }
            if result != DirectState::Complete {
                left = Some((number, direct.done));
                break;
            }
            let steps = round.local.iter();
            steps.for_each(|step| areas.local(step, work.reduction));
        }
        let Some((round, done)) = left else {
            state.scratch = scratch;
            state.protocol.end_directly(&started);
            self.end_direct(state);
            return Some(Ok(()));
        };
        Some(lend(input, |input| {
            lend_mut(output, |output| {
                let rest = CollectiveWork {
                    schedule: Arc::clone(work.schedule),
                    element: work.element,
                    input: TransferMemory::Lent(input.clone()),
                    output: TransferMemory::LentMut(output.clone()),
                    reduction: work.reduction.cloned(),
                };
                let key = state
                    .protocol
                    .hand_over(started, rest, TransferMemory::of(scratch), round, done);
                state.flush();
                self.wake_waiting(&mut state);
                self.end_direct(state);
                self.wait(key, false).map(drop)
            })
        }))
    }
}
