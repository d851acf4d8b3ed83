//! Calls whose thread waits: further attempts, each on a slot that is chosen anew.

use crate::Error;
use crate::buffer::{Input, Output};
use crate::channel::cache;
use crate::invocation::function::Function;
use crate::invocation::request::{OutputPlace, micros, ring_bytes};
use crate::retry::CallAttempts;
use crate::retry::deadline::Deadline;
use crate::retry::redirect::{self, LazyRedirects};
use std::time::Instant;

impl Function {
    /// Attempts of a new invocation.
    pub(crate) fn new_attempts(&self) -> CallAttempts {
        CallAttempts::new(self.idempotent, self.inner.plan.options.retries)
    }

    /// Attempts and deadline of a new call.
    pub(crate) fn attempts(&self) -> (CallAttempts, Deadline) {
        (self.new_attempts(), Deadline::new(self.timeout))
    }

    /// Invokes the function on any slot, or on the only slot that the caller accepts, as often as these attempts and
    /// this deadline allow; returns the output's length.
    pub(crate) fn invoke_anywhere(
        &self,
        input: Input<'_>,
        output: Output<'_>,
        (mut again, mut deadline): (CallAttempts, Deadline),
    ) -> Result<usize, Error> {
        let wanted = match &output {
            Output::Bytes(output) => OutputPlace::Bytes(output.len()),
            Output::Buffer(slice) => OutputPlace::Buffer(slice.as_slice()),
            Output::Parts(parts) => OutputPlace::Parts(parts),
        };
        let request = self.request(&input, wanted);
        let mut request = request.map_err(|error| again.take_final_error(error))?;
        let bytes = ring_bytes(&input);
        let mut into: &mut [u8] = match output {
            Output::Bytes(output) => output,
            Output::Buffer(_) | Output::Parts(_) => &mut [],
        };
        let mut refused = LazyRedirects::default();
        let mut refused_by = None;
        let mut since = None;
        loop {
            let left = deadline.time_left().map_err(|error| again.take_final_error(error))?;
            let picked = match refused_by.take().filter(|_| self.slot.is_none()) {
                Some(slot) => self.inner.pick_beside(slot, left),
                None => self.inner.pick(self.slot, left),
            };
            let (slot, channel) = picked.map_err(|error| again.take_final_error(error))?;
            let left = if deadline.has_begun() {
                let left = deadline.time_left().map_err(|error| again.take_final_error(error))?;
                request.target.timeout_us = micros(left);
                left
            } else {
                left
            };
            let mut began = None;
            match self.attempt(&channel, &mut request, bytes, into, (left, &mut began)) {
                Ok(length) => {
                    cache::remember(self.invoker, slot, &channel);
                    if let Some(piece) = &request.uses.staged_output {
                        into[..length].copy_from_slice(&piece[..length]);
                    }
                    return Ok(length);
                }
                Err(Error::NoCredit) => {
                    let waited = self.inner.wait_for_credit(self.slot, left);
                    waited.map_err(|error| again.take_final_error(error))?;
                }
                Err(Error::NoCore) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    let paused = refused.by_a_slot(self.slot, &self.inner.plan.options);
                    let paused = paused.and_then(|time| redirect::pause(time, since, self.timeout));
                    paused.map_err(|error| again.take_final_error(error))?;
                    refused_by = Some(slot);
                }
                Err(error) => {
                    deadline.begin(began.unwrap_or_else(Instant::now));
                    match request.prepare_retry(&channel, error, &self.inner.staging) {
                        Ok(error) => again.count_failure(error)?,
                        Err(error) => return Err(again.take_final_error(error)),
                    }
                }
            }
            into = &mut *into;
        }
    }
}
