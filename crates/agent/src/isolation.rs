//! Isolation of tenants: whose code the node runs, in which kind of sandbox, and what the code may access from there.

pub(crate) mod caller;
pub(crate) mod reach;
pub(crate) mod sandboxes;
