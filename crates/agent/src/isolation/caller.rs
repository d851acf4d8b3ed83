//! Identity of the party that opens a session, and the tenant that the session counts for.
//!
//! In a sandbox of kind `process`, a tenant's code runs with all rights of the agent's own user. So an agent serves
//! only tenants that its operator has named, and users of its own host; of the latter, only the agent's own user and
//! root are admitted. [`crate::isolation::sandboxes`] decides which sandbox they get.

use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;

/// Prefix of names for users of this host; no certificate can name a tenant with it.
const LOCAL_PREFIX: &str = "uid:";

/// Origin of a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    /// A manager of this host and user.
    Local,
    /// A manager on another host.
    Remote,
}

/// Party that opens a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionPeer {
    /// A process on this host, of the agent's own user or root.
    Local {
        /// User of the process, as the kernel reports it.
        uid: u32,
    },
    /// The holder of a certificate, on another host.
    Certified {
        /// Tenant in the certificate.
        tenant: String,
    },
    /// A client on another host that has shown the token of a lease.
    Bearer {
        /// Tenant of the lease.
        tenant: String,
        /// The lease, and no other.
        lease: LeaseId,
    },
}

/// Tenants whose code may run on this node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tenants(pub Vec<String>);

impl Tenants {
    fn include(&self, tenant: &str) -> bool {
        self.0.iter().any(|served| served == tenant)
    }

    /// Refuses a lease to any tenant that is not served.
    pub fn admit(&self, tenant: &str, origin: RequestOrigin) -> Result<(), Rejection> {
        let local_user = origin == RequestOrigin::Local && tenant.starts_with(LOCAL_PREFIX);
        if local_user || self.include(tenant) {
            return Ok(());
        }
        let served = match self.0.as_slice() {
            [] => "only users of its own machine".to_owned(),
            tenants => tenants.join(", "),
        };
        Err(Rejection::TenantNotServed {
            tenant: tenant.to_owned(),
            served,
        })
    }

    /// Tenant of a session whose token belongs to `holder`. A caller with the agent's own user could do what any tenant
    /// here can: with the token of a served tenant, it counts as that tenant.
    pub fn of_session(&self, caller: SessionPeer, holder: &str) -> String {
        match caller {
            SessionPeer::Certified { tenant } | SessionPeer::Bearer { tenant, .. } => tenant,
            SessionPeer::Local { .. } if self.include(holder) => holder.to_owned(),
            SessionPeer::Local { uid } => format!("{LOCAL_PREFIX}{uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_tenants_and_local_users_are_served() {
        let tenants = Tenants(vec!["alice".into()]);
        for (tenant, origin, served) in [
            ("alice", RequestOrigin::Remote, true),
            ("alice", RequestOrigin::Local, true),
            ("bob", RequestOrigin::Remote, false),
            ("bob", RequestOrigin::Local, false),
            ("uid:0", RequestOrigin::Local, true),
            ("uid:0", RequestOrigin::Remote, false),
            ("", RequestOrigin::Local, false),
        ] {
            let admitted = tenants.admit(tenant, origin);
            assert_eq!(admitted.is_ok(), served, "{tenant:?} of {origin:?}: {admitted:?}");
        }
    }

    #[test]
    fn a_session_never_counts_as_a_tenant_that_is_not_served() {
        let tenants = Tenants(vec!["alice".into()]);
        let local = || SessionPeer::Local { uid: 7 };
        assert_eq!(tenants.of_session(local(), "alice"), "alice");
        assert_eq!(tenants.of_session(local(), "bob"), "uid:7");
        assert_eq!(tenants.of_session(local(), "uid:8"), "uid:7");
        let bob = SessionPeer::Certified { tenant: "bob".into() };
        assert_eq!(tenants.of_session(bob, "alice"), "bob", "its certificate says bob");
    }
}
