//! Calls of functions: blocking, with a future, with a callback, and on many inputs over all slots. All of them are
//! repeated after a failure where that is allowed. (Calls of a [`crate::Pipeline`] are not repeated.)

pub(crate) mod batch;
mod blocking;
mod callback;
pub(crate) mod future;
mod submission;
