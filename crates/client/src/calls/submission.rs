//! Submissions of invocations, whose results are returned later: by futures or callbacks.

use crate::Error;
use crate::buffer::{BufferSliceMut, Input};
use crate::calls::callback::call_when_done;
use crate::calls::future::{BufferInvocation, Invocation};
use crate::invocation::function::Function;
use crate::invocation::request::{OutputPlace, ring_bytes};
use crate::retry::in_flight::InFlight;

impl Function {
    /// Starts an invocation and returns its future. Waits only while the slots have as many invocations in flight as
    /// they accept.
    pub fn submit(&self, input: &[u8]) -> Result<Invocation, Error> {
        let wanted = OutputPlace::Bytes(self.output_bytes);
        self.start(&Input::Bytes(input), wanted, true, true)
            .map(Invocation::new)
    }

    /// Starts an invocation as [`Function::submit`] does, but does not wait.
    ///
    /// # Errors
    /// [`Error::NoCredit`] if `submit` would wait.
    pub fn try_submit(&self, input: &[u8]) -> Result<Invocation, Error> {
        let wanted = OutputPlace::Bytes(self.output_bytes);
        self.start(&Input::Bytes(input), wanted, false, true)
            .map(Invocation::new)
    }

    /// Starts an invocation like [`Function::submit`], for callers that keep the input and can submit it again.
    pub(super) fn submit_once(&self, input: &[u8], wait: bool) -> Result<Invocation, Error> {
        let wanted = OutputPlace::Bytes(self.output_bytes);
        self.start(&Input::Bytes(input), wanted, wait, false)
            .map(Invocation::new)
    }

    /// Starts an invocation whose output is written in place; the input may be a part of a buffer, too. Until the
    /// future has resolved, the worker uses these parts, and the program must not use them. (Their memory is freed only
    /// when the worker has finished with it, even if the buffers are dropped earlier.)
    pub fn submit_buffer<'a>(
        &self,
        input: impl Into<Input<'a>>,
        output: BufferSliceMut<'_>,
    ) -> Result<BufferInvocation, Error> {
        let wanted = OutputPlace::Buffer(output.as_slice());
        self.start(&input.into(), wanted, true, true).map(BufferInvocation::new)
    }

    /// Starts an invocation that reads its input in place; its output is returned as bytes. The input must not be
    /// changed until the future has resolved.
    pub fn submit_from_buffer<'a>(&self, input: impl Into<Input<'a>>) -> Result<Invocation, Error> {
        let wanted = OutputPlace::Bytes(self.output_bytes);
        self.start(&input.into(), wanted, true, true).map(Invocation::new)
    }

    /// Starts an invocation. When it has resolved, `then` is called with the result on the library's completion thread.
    /// `then` should be brief: other callbacks and futures of this invoker wait meanwhile. If `then` panics, the panic
    /// is logged and has no other effect.
    ///
    /// # Errors
    /// If the invocation could not be started; `then` is not called in this case.
    pub fn submit_then(
        &self,
        input: &[u8],
        then: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let wanted = OutputPlace::Bytes(self.output_bytes);
        let in_flight = self.start(&Input::Bytes(input), wanted, true, true)?;
        call_when_done(in_flight, Box::new(then))
    }

    /// Starts an invocation. If `keep` is true, keeps what is needed to submit the invocation again.
    fn start(&self, input: &Input<'_>, wanted: OutputPlace<'_>, wait: bool, keep: bool) -> Result<InFlight, Error> {
        let request = self.request(input, wanted)?;
        InFlight::start(self, request, ring_bytes(input), wait, keep)
    }
}
