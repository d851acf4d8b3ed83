//! Functions, and single attempts to invoke them: none of these is repeated here. [`crate::retry`] stands above.

pub(crate) mod function;
pub(crate) mod pipeline;
pub(crate) mod request;
pub(crate) mod submitted_call;
