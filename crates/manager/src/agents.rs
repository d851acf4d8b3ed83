//! Agents as the manager knows them: how they register and report, the listings that are made of their answers, the
//! orders of operators for their nodes, and the trees in which they hand on environments.

pub(crate) mod images;
pub(crate) mod listing;
pub(crate) mod membership;
pub(crate) mod news;
pub(crate) mod nodes;
