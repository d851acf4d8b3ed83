//! Callbacks of submitted invocations.

use crate::Error;
use crate::channel::completions::CompletionAction;
use crate::retry::in_flight::{CallProgress, InFlight};

pub(crate) type Callback = Box<dyn FnOnce(Result<Vec<u8>, Error>) + Send>;

/// Calls `then` on the completion thread once the invocation has resolved.
pub(crate) fn call_when_done(mut in_flight: InFlight, then: Callback) -> Result<(), Error> {
    let completions = in_flight.function().inner.completions.clone();
    let parked = in_flight.parked_until();
    let (channel, seq, deadline) = in_flight.begin_watch();
    let action = CompletionAction::Call(Box::new(move || {
        let mut output = Vec::new();
        match in_flight.step(&mut output) {
            CallProgress::Done(result) => {
                drop(in_flight);
                then(result.map(|_| output));
            }
            // The invocation was submitted again.
            CallProgress::Waiting => {
                if let Err(error) = call_when_done(in_flight, then) {
                    tracing::error!(%error, "a callback is lost: its thread cannot be started");
                }
            }
        }
    }));
    match parked {
        Some(at) => completions.run_at(at, action),
        None => completions.watch(&channel, seq, deadline, action),
    }
}
