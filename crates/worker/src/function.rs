//! Functions: their libraries, their arguments, and the calls of them.

pub(crate) mod arguments;
pub(crate) mod context;
pub(crate) mod invoke;
pub(crate) mod library;
pub(crate) mod outcome;
pub(crate) mod remote_worker;
pub(crate) mod seat;
pub(crate) mod state_hooks;
pub(crate) mod state_pieces;
pub(crate) mod unique_symbols;
