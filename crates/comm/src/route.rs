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
    /// Through a NAT, which lets packets pass that answer what the member behind it has sent.
    Punched,
    /// Through the rendezvous, encrypted, because no other route worked. It is as fast as the rendezvous's network,
    /// which all relayed members share.
    Relayed,
    /// Through a store. All members of such a communicator have this route.
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
