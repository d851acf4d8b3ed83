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
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Itself => "itself",
            Self::Direct => "direct",
            Self::Punched => "punched",
            Self::Relayed => "relayed",
        })
    }
}
