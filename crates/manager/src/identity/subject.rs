//! Subject of a credential, before its tenant and role are looked up.

/// User, certificate holder or token subject that a credential proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// A user of the manager's node.
    Local {
        /// User id.
        uid: u32,
    },
    /// The holder of a client's certificate.
    Certified {
        /// Tenant in the certificate.
        tenant: String,
    },
    /// A user of a cluster that shares a MUNGE key.
    Munge {
        /// User id, which is the same on every host of the cluster.
        uid: u32,
    },
    /// The subject of an issuer's token.
    Claimed {
        /// The issuer, which has no `#` in its name.
        issuer: String,
        /// Whether the site has no other issuer, so that names of members may leave out the issuer.
        is_only_issuer: bool,
        /// The token's subject.
        subject: String,
        /// Tenant that the site's mapping derives from the token's claims; empty: none.
        tenant: String,
    },
}

/// Separator of an issuer and its subject in a member's name. OpenID Connect forbids it in names of issuers. So a
/// subject that contains the separator cannot be taken for a subject of another issuer.
pub(crate) const ISSUER_END: char = '#';

fn qualified(issuer: &str, subject: &str) -> String {
    format!("jwt:{issuer}{ISSUER_END}{subject}")
}

impl Subject {
    /// Name among a tenant's members, as operators write it.
    pub fn member(&self) -> String {
        match self {
            Self::Local { uid } | Self::Munge { uid } => format!("uid:{uid}"),
            Self::Certified { tenant } => format!("cert:{tenant}"),
            Self::Claimed { issuer, subject, .. } => self.bare().unwrap_or_else(|| qualified(issuer, subject)),
        }
    }

    /// Names by which tenants may list this subject. If several names are listed, the first of them decides the tenant.
    pub fn members(&self) -> Vec<String> {
        match self {
            Self::Claimed { issuer, subject, .. } => {
                let own = qualified(issuer, subject);
                std::iter::once(own).chain(self.bare()).collect()
            }
            _ => vec![self.member()],
        }
    }

    /// Name of a token's subject without the issuer. Returns `None` if the site has several issuers. Also returns
    /// `None` if the subject contains [`ISSUER_END`], because the text before it could be read as an issuer.
    fn bare(&self) -> Option<String> {
        match self {
            Self::Claimed {
                is_only_issuer: true,
                subject,
                ..
            } if !subject.contains(ISSUER_END) => Some(format!("jwt:{subject}")),
            _ => None,
        }
    }

    /// Name without the issuer, at a site with several issuers, where this name does not say which issuer is meant.
    /// Returns `None` if the name of this subject is never ambiguous.
    pub fn ambiguous(&self) -> Option<String> {
        match self {
            Self::Claimed {
                is_only_issuer: false,
                subject,
                ..
            } => Some(format!("jwt:{subject}")),
            _ => None,
        }
    }

    /// Tenant of the subject if no tenant lists it as a member.
    pub fn tenant(&self) -> String {
        match self {
            // If operators have added a tenant of this name, it is the tenant of this user.
            Self::Local { uid } | Self::Munge { uid } => format!("uid:{uid}"),
            Self::Certified { tenant } | Self::Claimed { tenant, .. } => tenant.clone(),
        }
    }

    /// Whether an open site admits the subject although it is not listed.
    pub fn may_be_unlisted(&self) -> bool {
        match self {
            Self::Local { .. } | Self::Certified { .. } => true,
            Self::Munge { .. } | Self::Claimed { .. } => false,
        }
    }
}
