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
        /// The token's subject.
        subject: String,
        /// Tenant that the site's mapping derives from the token's claims; empty: none.
        tenant: String,
    },
}

impl Subject {
    /// Name among a tenant's members, as operators write it.
    pub fn member(&self) -> String {
        match self {
            Self::Local { uid } | Self::Munge { uid } => format!("uid:{uid}"),
            Self::Certified { tenant } => format!("cert:{tenant}"),
            Self::Claimed { subject, .. } => format!("jwt:{subject}"),
        }
    }

    /// Tenant of the subject if it is listed as a member of none.
    pub fn tenant(&self) -> String {
        match self {
            // A tenant may be named like a user, and then is that user's tenant.
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
