//! Functions, and single attempts to invoke them. No attempt is repeated here: [`crate::retry`] does that.

pub(crate) mod function;
pub(crate) mod pipeline;
pub(crate) mod request;
pub(crate) mod submitted_call;
