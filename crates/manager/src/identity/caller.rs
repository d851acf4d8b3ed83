//! Caller of a request, after authentication.

use super::ManagerOperation;
use hotlease_net::Peer;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{BillRequest, ListRequest};
use std::fmt;
use std::sync::Arc;

/// Role of a caller in the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Leases cores, and sees what belongs to its tenant.
    User,
    /// Runs the site: may do all that a user may, sees everything, changes tenants, keys and nodes.
    Operator,
    /// Script of the batch system: offers nodes, takes them back, and nothing else.
    Hook,
    /// Daemon of a node: registers and reports.
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

/// Proof of a caller's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerProof {
    /// The kernel, for a process of this node.
    PeerCredentials,
    /// A certificate of the site's authority.
    Certificate(Arc<Peer>),
    /// MUNGE, within a cluster.
    Munge,
    /// A JSON web token of an issuer that the site trusts.
    Token,
    /// A key that an operator made.
    Key,
}

impl fmt::Display for CallerProof {
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

/// Prefix of the names of callers with a key; the key's id follows.
pub(super) const KEY_NAME: &str = "key ";

/// Authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name for logs: `uid:1000`, a certificate's holder, the subject of a token, or `key ` and a key's id.
    pub name: String,
    /// Tenant that pays; agents and managers have none.
    pub tenant: Option<String>,
    /// Role, which decides what the caller may do.
    pub role: Role,
    /// Proof of the identity.
    pub proof: CallerProof,
}

impl Caller {
    /// Tenant that pays, or the name of a caller without one: the party whose requests and connections are counted
    /// together.
    pub(crate) fn payer(&self) -> &str {
        self.tenant.as_ref().unwrap_or(&self.name)
    }

    /// Checks whether the caller may perform this operation at all. The methods below limit the operation to a tenant.
    pub fn check(&self, operation: ManagerOperation) -> Result<(), Rejection> {
        if operation.permits(self) {
            return Ok(());
        }
        Err(Rejection::NotPermitted {
            what: format!(
                "{operation} is for {}, and this is the {} {} (known by {})",
                operation.allowed_callers(),
                self.role,
                self.name,
                self.proof
            ),
        })
    }

    /// Id of the key that authenticated the caller or opened its session, if one did.
    pub(super) fn key(&self) -> Option<&str> {
        match self.proof {
            CallerProof::Key => self.name.strip_prefix(KEY_NAME),
            _ => None,
        }
    }

    /// Tenant that pays for the request.
    pub fn tenant(&self) -> Result<&str, Rejection> {
        self.tenant.as_deref().ok_or_else(|| Rejection::NotPermitted {
            what: format!("leases are for tenants, and this is the {} {}", self.role, self.name),
        })
    }

    /// Whether the caller sees and ends leases of other tenants.
    pub fn is_operator(&self) -> bool {
        self.role == Role::Operator
    }

    /// Tenant whose records the caller sees if it requests those of `asked`. An empty name stands for all tenants.
    pub fn visible_tenant(&self, asked: String) -> Result<String, Rejection> {
        match self.role {
            Role::Operator => Ok(asked),
            Role::User | Role::Hook | Role::Agent | Role::Manager => Ok(self.tenant()?.to_owned()),
        }
    }

    /// Limits a listing to the caller's tenant, unless the caller is an operator.
    pub fn listing(&self, request: ListRequest) -> Result<ListRequest, Rejection> {
        Ok(ListRequest {
            tenant: self.visible_tenant(request.tenant)?,
        })
    }

    /// Limits a bill to the caller's tenant, unless the caller is an operator.
    pub fn bill(&self, request: BillRequest) -> Result<BillRequest, Rejection> {
        Ok(BillRequest {
            tenant: self.visible_tenant(request.tenant)?,
            ..request
        })
    }

    /// Certificate that an agent registers with; `None` for an agent of this node.
    pub fn agent(&self) -> Option<&Peer> {
        match &self.proof {
            CallerProof::Certificate(peer) => Some(peer),
            CallerProof::PeerCredentials | CallerProof::Munge | CallerProof::Token | CallerProof::Key => None,
        }
    }
}
