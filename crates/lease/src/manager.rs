//! The manager's view of the cluster: soft state that heals by re-registration.

mod registry;

pub use registry::{
    AGENTS_MAX, AgentRecord, AgentState, Capacity, FORGOTTEN_AFTER, GONE_AFTER, Registry, RegistryFull,
    SUSPECTED_AFTER,
};
