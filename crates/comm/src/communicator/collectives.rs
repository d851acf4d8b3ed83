//! What all members do together.

use super::{Communicator, WORLD};
use crate::error::Error;
use crate::memory::Memory;
use crate::operator::Reduction;
use crate::protocol::Start;
use crate::request::Request;
use crate::schedule::Schedule;
use hotlease_fabric::lent::{Lent, LentMut, lend, lend_mut};
use std::sync::Arc;

impl Communicator {
    /// Runs this member's part of a collective: all members have to, in the same order. `element` is the size of an element, of which
    /// `reduction` is ([`Operator::of`](crate::Operator::of)), where the schedule reduces; in place, `input` is empty.
    ///
    /// # Errors
    /// [`Error::Schedule`], [`Error::Mismatch`], [`Error::Broken`], [`Error::OperatorPanicked`]: no collective of this
    /// communicator succeeds after them. [`Error::MemberLost`] and [`Error::MemberLeft`] of any member.
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

    /// Begins it, on lent memory, which is to stay until the request has ended.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`]; the others are the request's.
    pub fn start_lent(
        &self,
        schedule: Arc<Schedule>,
        element: usize,
        input: &Lent,
        output: &LentMut,
        reduction: Option<Reduction>,
    ) -> Result<Request, Error> {
        let start = Start {
            schedule,
            element,
            input: Memory::Lent(input.clone()),
            output: Memory::LentMut(output.clone()),
            reduction,
        };
        let key = self.engine.collective(WORLD, start)?;
        Ok(Request::new(&self.engine, key, false))
    }
}
