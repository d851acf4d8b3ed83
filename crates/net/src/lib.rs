//! Level 1 of hotlease, the higher half: how manager, agents and clients on different hosts prove who they are, and
//! communicate.
//!
//! * [`Identity`] — who this process is: a folder with a certificate of the site's authority. [`Peer`] is the other
//!   end of a connection: its certificate holds role and tenant, and nothing else is consulted.
//! * `authority` — makes such folders (feature `authority`).
//! * [`Listener`] — TLS port of a daemon. Its connections are limited before and after the peer is known.
//! * [`Site`] — the manager that a client talks to, and what it shows there: a certificate, or a [`Credential`].
//! * [`grpc`] — gRPC between verified peers.
//! * [`tunnel`] — sessions and worker connections, carried to another host.
//!
//! Only TLS 1.3 is spoken. Both sides show a certificate, unless the daemon was told to accept connections without
//! one. Neither side resumes an earlier connection. Processes of one node and user should use Unix sockets; of this
//! crate they need [`grpc::Served`] alone.

#![forbid(unsafe_code)]

pub mod address;
#[cfg(feature = "authority")]
pub mod authority;
mod channel;
mod credential;
mod descriptors;
mod dial;
mod error;
pub mod grpc;
pub mod identity;
mod listener;
mod node;
pub mod peer;
mod served;
mod site;
mod stranger;
mod trust;
mod tuning;
pub mod tunnel;

pub use address::Address;
pub use channel::SiteChannel;
pub use credential::Credential;
pub use descriptors::raise_descriptor_limit;
pub use error::{IdentityError, NetError};
pub use identity::{Identity, Protocol};
pub use listener::{Admitted, Limits, Listener, Place};
pub use node::node_id;
pub use peer::{Described, Peer, Role};
pub use site::{MANAGER_VARIABLE, Proof, Site, Wanted};
pub use stranger::{Stranger, StrangerInfo};
pub use trust::Trust;
