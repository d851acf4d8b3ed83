//! The manager's side: which agents are registered, which of them to ask for cores, which leases go on, and when
//! each change may be acknowledged.
//!
//! - [`Registry`] — the registered agents, and those that are silent.
//! - [`NodeWish`] — an operator's order for a node, kept until the node has carried it out.
//! - [`Cluster`] — the manager itself, around a registry: requests in, questions to agents, writes and answers out.

mod cluster;
mod event;
mod quota;
mod registry;
mod wish;

pub use cluster::{Cluster, PARTS_MAX, REQUESTS_MAX, Spread, Wanted};
pub use event::{
    Action, Answer, AskId, CommitId, Event, Granted, LeaseNote, LeaseReport, Release, Report, RequestId,
    Write,
};
pub use quota::{Allowance, Amount, Quota};
pub use registry::{
    AGENTS_MAX, AgentRecord, AgentState, Capacity, Demand, FORGOTTEN_AFTER, GONE_AFTER, Need, NotRegistered,
    Offering, REPORTS_PER_SECOND_MAX, Registry, SUSPECTED_AFTER,
};
pub use wish::{NodeOrder, NodeWish, OfferWish, WISHES_MAX};
