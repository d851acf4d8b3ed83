//! The manager's side: which agents there are, whom to ask for cores, which leases go on, and what may be
//! acknowledged when.
//!
//! * [`Registry`] — who is registered, who is silent.
//! * [`NodeWish`] — what an operator wants of a node, until it is so.
//! * [`Cluster`] — the manager itself, around a registry: requests in, questions to agents, writes and answers out.

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
