//! Calls of functions: at once, later, with a callback, over all slots. All of them are tried again where that is
//! allowed. (The calls of a [`crate::Pipeline`] are not.)

pub(crate) mod batch;
mod blocking;
mod callback;
pub(crate) mod future;
mod submission;
