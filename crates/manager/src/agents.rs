//! Agents of the manager: their registration and reports, listings made from their answers, operators' orders for their
//! nodes, and the trees in which agents pass on environments.

pub(crate) mod images;
pub(crate) mod listing;
pub(crate) mod membership;
pub(crate) mod news;
pub(crate) mod nodes;
