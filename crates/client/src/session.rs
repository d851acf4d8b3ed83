//! The session with the agent and the connections to workers: all paths from the client to its lease.

mod agent_session;
pub(crate) mod connection;
pub(crate) mod death;
mod expectations;
mod long_requests;
pub(crate) mod region;
pub(crate) mod registrations;
mod request_socket;
mod room_notice;
pub(crate) mod transport;

pub(crate) use agent_session::{Session, SessionEnd, SessionState};
pub(crate) use expectations::Expectations;
pub(crate) use room_notice::RoomNotice;
