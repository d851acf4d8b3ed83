//! Level 1 of hotlease, the higher half: how manager, agents and clients on different hosts prove who they are, and
//! communicate.
//!
//! * [`Identity`] — who this process is: a folder with a certificate of the site's authority. [`Peer`] is the other
//!   end of a connection: its certificate states role and tenant, and no other source is used.
//! * `authority` — makes such folders (feature `authority`).
//! * [`TlsListener`] — TLS port of a daemon. Its connections are limited before and after the peer is known.
//! * [`SiteAccess`] — the manager that a client talks to, and the proof that it shows: a certificate, or a
//!   [`Credential`].
//! * [`job`] — the folder in which the programs of a batch job find the manager that serves the job.
//! * [`grpc`] — gRPC between verified peers.
//! * [`tunnel`] — sessions and worker connections, carried to another host.
//! * [`WorkerSocket`] — a local socket to a worker, whose code may send descriptors that take minutes to close.
//!
//! Only TLS 1.3 is spoken. Both sides show a certificate, unless the daemon was told to accept connections without a
//! certificate. Neither side resumes an earlier connection. Processes of one node and user should use Unix sockets;
//! from this crate they need only [`grpc::ServerConnection`].

#![forbid(unsafe_code)]

pub mod address;
#[cfg(feature = "authority")]
pub mod authority;
mod credential;
mod descriptor_limit;
mod dial;
mod error;
pub mod grpc;
pub mod identity;
pub mod job;
mod listener;
mod node;
pub mod peer;
mod server_connection;
mod site;
mod site_channel;
mod tcp_options;
mod trust;
pub mod tunnel;
mod worker_socket;

pub use address::Address;
pub use credential::Credential;
pub use descriptor_limit::raise_descriptor_limit;
pub use error::{IdentityError, NetError};
pub use identity::{ConnectionProtocol, Identity};
pub use listener::places::ConnectionPlace;
pub use listener::stranger::{Stranger, StrangerInfo};
pub use listener::{Limits, PeerConnection, TlsListener};
pub use node::node_id;
pub use peer::{CertificateInfo, CertificateRole, Peer};
pub use site::{MANAGER_VARIABLE, Proof, SiteAccess, SiteOptions};
pub use site_channel::SiteChannel;
pub use trust::Trust;
pub use worker_socket::WorkerSocket;
