//! Calls whose thread waits for the result.

use crate::Error;
use crate::buffer::{Input, Output};
use crate::channel::{CallTarget, OutputSink, cache};
use crate::invocation::function::Function;
use crate::retry::CallAttempts;
use crate::retry::deadline::Deadline;
use std::io;
use std::time::Instant;

impl Function {
    /// Invokes the function and waits; returns the output's length. This is the hot path: no allocation, no lock,
    /// no system call if the slot is polling, as long as input and output fit ring entries.
    #[inline]
    pub fn invoke(&self, input: &[u8], output: &mut [u8]) -> Result<usize, Error> {
        if input.len() <= self.request_bytes
            && output.len() <= self.reply_bytes
            && let Some(last) = cache::take(self.invoker, self.slot)
        {
            let mut began = None;
            let result = if self.suits(&last.channel) {
                let target = CallTarget {
                    output_capacity: (output.len() as u32).max(self.target.message_room),
                    ..self.target
                };
                let sink = OutputSink::Ring(&mut *output);
                last.channel
                    .call(&target, &[input], sink, self.timeout, || None, &mut began)
            } else {
                Err(Error::NoCredit)
            };
            cache::put_back(last);
            return match result {
                Ok(length) => Ok(length),
                Err(error) => self.invoke_after(error, began, input, output),
            };
        }
        self.invoke_anywhere(Input::Bytes(input), Output::Bytes(output), self.attempts())
    }

    #[cold]
    fn invoke_after(
        &self,
        error: Error,
        began: Option<Instant>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Error> {
        let (mut again, mut deadline) = self.attempts();
        match error {
            Error::NoCredit => {}
            // Try another slot first.
            Error::NoCore => cache::forget(self.invoker),
            error => {
                again.count_failure(error)?;
                deadline.begin(began.unwrap_or_else(Instant::now));
            }
        }
        self.invoke_anywhere(Input::Bytes(input), Output::Bytes(output), (again, deadline))
    }

    /// Invokes the function and waits; returns its output.
    pub fn call(&self, input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut output = zeroed(self.output_bytes)?;
        let length = self.invoke(input, &mut output)?;
        output.truncate(length);
        Ok(output)
    }

    /// Invokes the function with its input, output or both in registered buffers, without copying them; waits, and
    /// returns the output's length in bytes.
    ///
    /// ```no_run
    /// # use hotlease_client::*;
    /// # fn f(invoker: &Invoker) -> Result<(), Error> {
    /// let (mut input, mut output) = (invoker.buffer::<f32>(1000)?, invoker.buffer::<f32>(1000)?);
    /// input.fill(2.0);
    /// invoker.function("square")?.invoke_buffer(&input, &mut output)?;
    /// // A part, and bytes on one side:
    /// invoker.function("sum")?.invoke_buffer(input.slice(..10), &mut [0; 4][..])?;
    /// // Several parts, which the function sees as one:
    /// let ends = [input.slice(..10), input.slice(990..)];
    /// invoker.function("square")?.invoke_buffer(&ends[..], output.slice_mut(..20))?;
    /// # Ok(()) }
    /// ```
    pub fn invoke_buffer<'a, 'b>(
        &self,
        input: impl Into<Input<'a>>,
        output: impl Into<Output<'b>>,
    ) -> Result<usize, Error> {
        self.invoke_anywhere(input.into(), output.into(), self.attempts())
    }

    /// Invokes the function again after a failed attempt, which `again` has counted; returns its output.
    pub(super) fn call_again(&self, input: &[u8], mut again: CallAttempts) -> Result<Vec<u8>, Error> {
        let mut output = zeroed(self.output_bytes).map_err(|error| again.take_final_error(error))?;
        let left = (again, Deadline::new(self.timeout));
        let length = self.invoke_anywhere(Input::Bytes(input), Output::Bytes(&mut output), left)?;
        output.truncate(length);
        Ok(output)
    }
}

/// Memory for an output. The caller may have requested any size, so a failed allocation is an ordinary error.
fn zeroed(bytes: usize) -> Result<Vec<u8>, Error> {
    // Only tests whether the memory is available. Filling this reservation would touch each of its pages; zeroed memory
    // from the allocator is touched only when it is used.
    if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        return Err(Error::local("get the memory for an output of `output_bytes`")(source));
    }
    Ok(vec![0; bytes])
}
