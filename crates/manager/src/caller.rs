//! Who asks, and what that lets them ask.
//!
//! Over the Unix socket: our own user or root, named by the kernel, who may do anything. Over TLS: whoever a
//! certificate says, by role. What is not permitted here is refused.

use crate::listener::PeerInfo as LocalPeer;
use hotlease_net::grpc::PeerInfo as RemotePeer;
use hotlease_net::{Peer, Role};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{BillRequest, ListRequest};
use std::sync::Arc;
use tonic::Request;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// A process of this machine.
    Local(LocalPeer),
    /// The holder of a certificate.
    Remote(Arc<Peer>),
}

impl Caller {
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Refusal> {
        let extensions = request.extensions();
        if let Some(peer) = extensions.get::<RemotePeer>() {
            return Ok(Self::Remote(Arc::clone(&peer.0)));
        }
        let local = extensions.get::<LocalPeer>().copied();
        local.map(Self::Local).ok_or_else(|| Refusal::NotPermitted {
            what: "a connection without credentials".into(),
        })
    }

    /// Who pays for what is asked; agents and managers take no leases.
    pub(crate) fn tenant(&self) -> Result<String, Refusal> {
        match self {
            Self::Local(peer) => Ok(peer.tenant()),
            Self::Remote(peer) => match (&peer.role, &peer.tenant) {
                (Role::Client, Some(tenant)) => Ok(tenant.clone()),
                _ => Err(not_for(peer, "leases are for clients")),
            },
        }
    }

    /// What may be listed: from another host only what is the caller's own.
    pub(crate) fn listing(&self, request: ListRequest) -> Result<ListRequest, Refusal> {
        match self {
            Self::Local(_) => Ok(request),
            Self::Remote(_) => Ok(ListRequest {
                tenant: self.tenant()?,
            }),
        }
    }

    /// Whose bill may be seen: from another host only the caller's own.
    pub(crate) fn bill(&self, request: BillRequest) -> Result<BillRequest, Refusal> {
        match self {
            Self::Local(_) => Ok(request),
            Self::Remote(_) => Ok(BillRequest {
                tenant: self.tenant()?,
                ..request
            }),
        }
    }

    /// Whether it may ask what anybody of the site may know.
    pub(crate) fn client(&self) -> Result<(), Refusal> {
        self.tenant().map(|_| ())
    }

    /// The certificate of an agent; none for one of this machine.
    pub(crate) fn agent(&self) -> Result<Option<&Peer>, Refusal> {
        match self {
            Self::Local(_) => Ok(None),
            Self::Remote(peer) if peer.role == Role::Agent => Ok(Some(peer)),
            Self::Remote(peer) => Err(not_for(peer, "only agents register and report")),
        }
    }

    /// The user id of an operator.
    pub(crate) fn operator(&self) -> Result<u32, Refusal> {
        match self {
            Self::Local(peer) => Ok(peer.uid),
            Self::Remote(peer) => Err(not_for(peer, "operators use the socket on the manager's machine")),
        }
    }
}

fn not_for(peer: &Peer, rule: &str) -> Refusal {
    Refusal::NotPermitted {
        what: format!("{rule}, and this is the certificate of the {peer}"),
    }
}
