//! Whom a credential speaks of, before anybody looks up what that one is to the site.

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// A user of the manager's machine.
    Local {
        /// Its user id.
        uid: u32,
    },
    /// The holder of a client's certificate.
    Certified {
        /// The tenant in it.
        tenant: String,
    },
    /// A user of a cluster that shares a MUNGE key.
    Munge {
        /// Its user id there, which is the same on every host.
        uid: u32,
    },
    /// Of whom an issuer of tokens speaks.
    Claimed {
        /// The token's subject.
        subject: String,
        /// The tenant that the site's mapping makes of its claims; empty: none.
        tenant: String,
    },
}

impl Subject {
    /// As operators name it among a tenant's members.
    pub fn member(&self) -> String {
        match self {
            Self::Local { uid } | Self::Munge { uid } => format!("uid:{uid}"),
            Self::Certified { tenant } => format!("cert:{tenant}"),
            Self::Claimed { subject, .. } => format!("jwt:{subject}"),
        }
    }

    /// The tenant that it is where nobody has listed it.
    pub fn tenant(&self) -> String {
        match self {
            // A tenant may be called like a user, and then is that user's.
            Self::Local { uid } | Self::Munge { uid } => format!("uid:{uid}"),
            Self::Certified { tenant } | Self::Claimed { tenant, .. } => tenant.clone(),
        }
    }

    /// Whether an open site takes it without anybody having named it.
    pub fn may_be_unlisted(&self) -> bool {
        match self {
            Self::Local { .. } | Self::Certified { .. } => true,
            Self::Munge { .. } | Self::Claimed { .. } => false,
        }
    }
}
