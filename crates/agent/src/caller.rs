//! Who opens a session, and for whom that counts.
//!
//! In a sandbox of kind `process` code of a tenant runs with all rights of the agent's own user. An agent therefore
//! serves only tenants that its operator has named, besides users of its own machine, of whom only its own user and
//! root get in. What sandbox they get is for [`crate::sandboxes`].

use hotlease_wire::Refusal;
use hotlease_wire::ids::LeaseId;

/// What names of users of this machine begin with; no certificate can name a tenant so.
const LOCAL_PREFIX: &str = "uid:";

/// Where a request for a lease came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A manager of this machine and user.
    Local,
    /// A manager on another host.
    Remote,
}

/// Who opens a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A process of this machine, of our own user or root.
    Local {
        /// Its user, as the kernel says.
        uid: u32,
    },
    /// The holder of a certificate, on another host.
    Certified {
        /// As its certificate says.
        tenant: String,
    },
    /// Somebody on another host who has shown the token of a lease.
    Bearer {
        /// Of the lease.
        tenant: String,
        /// The lease, and no other.
        lease: LeaseId,
    },
}

/// The tenants whose code may run here.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tenants(pub Vec<String>);

impl Tenants {
    fn include(&self, tenant: &str) -> bool {
        self.0.iter().any(|served| served == tenant)
    }

    /// Refuses a lease for anybody else.
    pub fn admit(&self, tenant: &str, origin: Origin) -> Result<(), Refusal> {
        let local_user = origin == Origin::Local && tenant.starts_with(LOCAL_PREFIX);
        if local_user || self.include(tenant) {
            return Ok(());
        }
        let served = match self.0.as_slice() {
            [] => "only users of its own machine".to_owned(),
            tenants => tenants.join(", "),
        };
        Err(Refusal::TenantNotServed {
            tenant: tenant.to_owned(),
            served,
        })
    }

    /// For whom a session is, whose token is `holder`'s. Who is our own user already could do what any tenant
    /// here can: with a token of a tenant that is served, it counts as that tenant.
    pub fn of_session(&self, caller: Caller, holder: &str) -> String {
        match caller {
            Caller::Certified { tenant } | Caller::Bearer { tenant, .. } => tenant,
            Caller::Local { .. } if self.include(holder) => holder.to_owned(),
            Caller::Local { uid } => format!("{LOCAL_PREFIX}{uid}"),
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
            ("alice", Origin::Remote, true),
            ("alice", Origin::Local, true),
            ("bob", Origin::Remote, false),
            ("bob", Origin::Local, false),
            ("uid:0", Origin::Local, true),
            ("uid:0", Origin::Remote, false),
            ("", Origin::Local, false),
        ] {
            let admitted = tenants.admit(tenant, origin);
            assert_eq!(admitted.is_ok(), served, "{tenant:?} of {origin:?}: {admitted:?}");
        }
    }

    #[test]
    fn a_session_never_counts_as_a_tenant_that_is_not_served() {
        let tenants = Tenants(vec!["alice".into()]);
        let local = || Caller::Local { uid: 7 };
        assert_eq!(tenants.of_session(local(), "alice"), "alice");
        assert_eq!(tenants.of_session(local(), "bob"), "uid:7");
        assert_eq!(tenants.of_session(local(), "uid:8"), "uid:7");
        let bob = Caller::Certified { tenant: "bob".into() };
        assert_eq!(
            tenants.of_session(bob, "alice"),
            "bob",
            "its certificate says bob"
        );
    }
}
