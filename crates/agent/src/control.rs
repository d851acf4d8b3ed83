//! Control of the agent: its start and stop, its sockets and sessions, its manager, and its periodic tasks.

pub(crate) mod agent;
pub(crate) mod batch;
pub(crate) mod cores;
pub(crate) mod grpc_server;
pub(crate) mod listener;
pub(crate) mod listing;
pub(crate) mod lock;
pub(crate) mod membership;
pub(crate) mod network;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod session_places;
pub(crate) mod stops;
pub(crate) mod turns;
pub(crate) mod watchdog;
