//! On which way another member is reached.

use std::fmt;

/// How messages get to a member, as it turned out when the communicator was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// It is this member.
    Itself,
    /// At its own address.
    Direct,
    /// Through a NAT, which lets pass what its member has asked for.
    Punched,
    /// Through the rendezvous, encrypted: nothing else worked. As fast as its network is, shared with all whom it relays.
    Relayed,
    /// Through a store, as all members of this communicator.
    Stored,
    /// Over libfabric.
    Fabric {
        /// By this provider of it.
        provider: &'static str,
    },
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fabric { provider } => return write!(f, "ofi:{provider}"),
            Self::Itself => "itself",
            Self::Direct => "direct",
            Self::Punched => "punched",
            Self::Relayed => "relayed",
            Self::Stored => "stored",
        })
    }
}
