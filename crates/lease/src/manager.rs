//! The manager's side: which agents are registered, which of them to ask for cores, which leases are still active, and
//! when each change may be acknowledged.
//!
//! - [`Registry`] — the registered agents, also those that are silent.
//! - [`NodeWish`] — an operator's order for a node, kept until the node has carried it out.
//! - [`Cluster`] — the manager itself, around a registry. It takes requests, and returns questions to agents, writes
//!   and answers.

mod cluster;
mod event;
mod quota;
mod registry;
mod wish;

pub use cluster::{Cluster, ORDER_KNOWN_MS, ORDERS_KNOWN_MAX, PARTS_MAX, REQUESTS_MAX};
pub use event::{
    AgentReport, AskId, ClusterAction, ClusterAnswer, ClusterEvent, CommitId, EndRequest, GrantedLease, LeaseNote,
    LeaseReport, OrderRecord, OrderRequest, OrderToken, RequestId, StateWrite,
};
pub use quota::{Allowance, Amount, Quota};
pub use registry::{
    AGENTS_MAX, AgentOffer, AgentProfile, AgentState, Capacity, Demand, FORGOTTEN_AFTER, GONE_AFTER, Need,
    REPORTS_PER_SECOND_MAX, RegistrationError, Registry, SUSPECTED_AFTER,
};
pub use wish::{EARLIER_MAX, NodeOrder, NodeWish, OfferWish, WISHES_MAX, WishedState};
