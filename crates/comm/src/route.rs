//! Route to another member.

use std::fmt;

/// Route of messages to a member, as found when the communicator was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// This member itself.
    Itself,
    /// To the member's own address.
    Direct,
    /// Through a NAT, which lets pass answers to what its member has sent.
    Punched,
    /// Through the rendezvous, encrypted: nothing else worked. As fast as the rendezvous's network, which all relayed
    /// members share.
    Relayed,
    /// Through a store, as for all members of this communicator.
    Stored,
    /// Over libfabric.
    Fabric {
        /// Provider of libfabric.
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
