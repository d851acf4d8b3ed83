//! Commands, one per file: arguments, and `carry_out`.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod agents;
pub(crate) mod alloc;
pub(crate) mod bill;
pub(crate) mod comm;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod explain;
pub(crate) mod functions;
pub(crate) mod identity;
pub(crate) mod leases;
pub(crate) mod manager;
pub(crate) mod node;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod version;
