//! Invocations of functions: at once, later, in a row, over all slots.

pub(crate) mod batch;
mod callback;
pub(crate) mod function;
mod future;
mod in_flight;
pub(crate) mod pipeline;
mod request;
mod submission;

pub use future::{BufferInvocation, Invocation};
