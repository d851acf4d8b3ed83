//! Makes a caller of what a connection and a request say.

use super::{Caller, How, Role};
use hotlease_net::{Peer, Role as CertificateRole};
use hotlease_wire::Refusal;
use std::sync::Arc;
use std::time::SystemTime;

/// Who is at the other end of a connection, before it has sent anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionIdentity {
    /// A process of this machine.
    Local {
        /// Its user, as the kernel says.
        uid: u32,
    },
    /// The holder of a certificate of the site, over TLS.
    Certified(Arc<Peer>),
}

/// See the module.
pub struct Authenticator {
    /// The manager's user.
    own_uid: u32,
}

impl Authenticator {
    pub(crate) fn new() -> Self {
        Self {
            own_uid: nix::unistd::geteuid().as_raw(),
        }
    }

    /// Who asks. A header that says who must be right: a wrong one is never overlooked because the connection
    /// would do.
    pub async fn authenticate(
        &self,
        connection: &ConnectionIdentity,
        authorization: Option<&str>,
        _now: SystemTime,
    ) -> Result<Caller, Refusal> {
        match authorization {
            None => self.of_connection(connection),
            Some(_) => Err(Refusal::NotPermitted {
                what: "this manager takes no credentials of the kind in the authorization header".into(),
            }),
        }
    }

    fn of_connection(&self, connection: &ConnectionIdentity) -> Result<Caller, Refusal> {
        match connection {
            ConnectionIdentity::Local { uid } => {
                let name = format!("uid:{uid}");
                let role = match *uid == self.own_uid || *uid == 0 {
                    true => Role::Operator,
                    false => Role::User,
                };
                Ok(Caller {
                    tenant: Some(name.clone()),
                    name,
                    role,
                    how: How::PeerCredentials,
                })
            }
            ConnectionIdentity::Certified(peer) => Ok(Caller {
                name: peer.name.clone(),
                tenant: match peer.role {
                    CertificateRole::Client => peer.tenant.clone(),
                    CertificateRole::Agent | CertificateRole::Manager => None,
                },
                role: match peer.role {
                    CertificateRole::Client => Role::User,
                    CertificateRole::Agent => Role::Agent,
                    CertificateRole::Manager => Role::Manager,
                },
                how: How::Certificate(Arc::clone(peer)),
            }),
        }
    }
}
