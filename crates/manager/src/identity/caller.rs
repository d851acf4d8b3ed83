//! The one who asks.

use super::Operation;
use hotlease_net::Peer;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{BillRequest, ListRequest};
use std::fmt;
use std::sync::Arc;

/// What somebody is to the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Leases cores, and sees what is its tenant's.
    User,
    /// Runs the site: may do what a user may, sees everything, changes tenants, keys and nodes.
    Operator,
    /// The batch system's scripts: give nodes, take them back, and nothing else.
    Hook,
    /// A node's daemon: registers and reports.
    Agent,
    /// Another manager.
    Manager,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Hook => "batch hook",
            Self::Agent => "agent",
            Self::Manager => "manager",
        })
    }
}

/// How it is known who somebody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// The kernel says it of a process of this machine.
    PeerCredentials,
    /// A certificate of the site's authority.
    Certificate(Arc<Peer>),
    /// MUNGE, across a cluster.
    Munge,
    /// A JSON web token of an issuer that the site trusts.
    Token,
    /// A key that an operator made.
    Key,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerCredentials => f.write_str("peer credentials"),
            Self::Certificate(peer) => write!(f, "the certificate of the {peer}"),
            Self::Munge => f.write_str("MUNGE"),
            Self::Token => f.write_str("a token"),
            Self::Key => f.write_str("a key"),
        }
    }
}

/// What names of callers with a key begin with; its id follows.
pub(super) const KEY_NAME: &str = "key ";

/// Somebody who was authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// For logs: `uid:1000`, a certificate's holder, the subject of a token, a key's id.
    pub name: String,
    /// Who pays; agents and managers pay for nothing.
    pub tenant: Option<String>,
    /// What it may do.
    pub role: Role,
    /// How that is known.
    pub how: How,
}

impl Caller {
    /// Whether it may do this at all; what of it, the methods below say.
    pub fn check(&self, operation: Operation) -> Result<(), Refusal> {
        if operation.permits(self) {
            return Ok(());
        }
        Err(Refusal::NotPermitted {
            what: format!(
                "{operation} is for {}, and this is the {} {} (known by {})",
                operation.who(),
                self.role,
                self.name,
                self.how
            ),
        })
    }

    /// The id of the key that opened its session, if one did.
    pub(super) fn key(&self) -> Option<&str> {
        match self.how {
            How::Key => self.name.strip_prefix(KEY_NAME),
            _ => None,
        }
    }

    /// Who pays for what is asked.
    pub fn tenant(&self) -> Result<&str, Refusal> {
        self.tenant.as_deref().ok_or_else(|| Refusal::NotPermitted {
            what: format!(
                "leases are for tenants, and this is the {} {}",
                self.role, self.name
            ),
        })
    }

    /// Whether it sees and ends what is other tenants'.
    pub fn is_operator(&self) -> bool {
        self.role == Role::Operator
    }

    /// Whose things it is shown who asked for a tenant's; an empty name stands for all.
    pub fn sees(&self, asked: String) -> Result<String, Refusal> {
        match self.role {
            Role::Operator => Ok(asked),
            Role::User | Role::Hook | Role::Agent | Role::Manager => Ok(self.tenant()?.to_owned()),
        }
    }

    /// What may be listed: its own, unless it is an operator.
    pub fn listing(&self, request: ListRequest) -> Result<ListRequest, Refusal> {
        Ok(ListRequest {
            tenant: self.sees(request.tenant)?,
        })
    }

    /// Whose bill may be seen: its own, unless it is an operator.
    pub fn bill(&self, request: BillRequest) -> Result<BillRequest, Refusal> {
        Ok(BillRequest {
            tenant: self.sees(request.tenant)?,
            ..request
        })
    }

    /// The certificate that an agent registers with; none for one of this machine.
    pub fn agent(&self) -> Option<&Peer> {
        match &self.how {
            How::Certificate(peer) => Some(peer),
            How::PeerCredentials | How::Munge | How::Token | How::Key => None,
        }
    }
}
