//! Level 1 of hotlease, the higher half: how manager, agents and clients on different hosts know each other,
//! and talk.
//!
//! * [`Identity`] — who this process is: a folder with a certificate of the site's authority. [`Peer`] is
//!   who somebody else is: role and tenant stand in the certificate, and nothing else is asked.
//! * `authority` — making such folders (feature `authority`).
//! * [`Listener`] — the TLS port of a daemon: bounded before and after it is known who connects.
//! * [`Site`] — which manager a client talks to, and what it shows there: a certificate, or a [`Credential`].
//! * [`grpc`] — gRPC between verified peers.
//! * [`tunnel`] — the sessions and worker connections of one host, carried to another.
//!
//! Only TLS 1.3 is spoken, both sides show a certificate unless the daemon was told to let in others, and neither resumes an earlier connection. Between
//! processes of one machine and user Unix sockets are better; of this crate they use [`grpc::Served`] alone.

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
