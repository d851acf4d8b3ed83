//! Identity of the party that opens a session, and the tenant to which the session belongs.
//!
//! In a sandbox of kind `process`, a tenant's code runs with all rights of the agent's own user. So an agent serves
//! only tenants that its operator has named, and users of its own host. Of these users it admits only the agent's own
//! user and root. [`crate::isolation::sandboxes`] decides which sandbox each of them gets. An agent of kind `process`
//! that serves several tenants does not start unless its operator accepts that each tenant has the agent's rights.

use crate::config::SharedByTenants;
use hotlease_sandbox::Kind;
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
        /// The only lease that the session may use.
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

    /// Returns the reason why an agent must not serve these tenants in sandboxes of kind `kind`; `None` if it may.
    /// `by_root`: whether the agent is root. `accepted`: resources that its operator lets several tenants share.
    pub fn separation_fault(&self, kind: Kind, by_root: bool, accepted: SharedByTenants) -> Option<String> {
        if self.0.windows(2).all(|pair| pair[0] == pair[1]) {
            return None;
        }
        let why = match kind {
            Kind::Process if accepted.process => return None,
            Kind::Process => {
                "in sandboxes of kind `process`, in which the code of each can read the agent's key and the memory of the \
                 others; use `--sandbox namespace`, or run an agent with a user of its own for each tenant, or, if all \
                 of them trust each other, use `--process-for-all-tenants`"
            }
            _ if by_root || accepted.user => return None,
            _ => {
                "by an agent that is not root, whose sandboxes all have its user: the kernel counts descriptors in flight, \
                 pipes, timers and watches by user, so each tenant can use up those of the others; run the agent as root \
                 (it then gives each sandbox a user of its own), or run an agent with a user of its own for each tenant, or \
                 accept the sharing with `--one-user-for-all-tenants`"
            }
        };
        Some(format!("several tenants ({}) {why}", self.0.join(", ")))
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

    /// Tenant of a session whose token belongs to `holder`. A local caller with the token of a served tenant gets that
    /// tenant: the caller is the agent's own user or root, so it could do everything here that the tenant can do.
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
    fn several_tenants_have_the_agents_rights_only_by_its_operators_word() {
        use Kind::{Container, MicroVm, Namespace, Process};
        let two: &[&str] = &["alice", "bob"];
        for (tenants, kind, process, is_served) in [
            (&[][..], Process, false, true),
            (&["alice"], Process, false, true),
            (&["alice", "alice"], Process, false, true),
            (two, Process, false, false),
            (&["alice", "alice", "bob"], Process, false, false),
            (two, Process, true, true),
            (two, Namespace, false, true),
            (two, Container, false, true),
            (two, MicroVm, false, true),
        ] {
            let accepted = SharedByTenants { process, user: false };
            let fault = fault_of(tenants, kind, true, accepted);
            assert_eq!(fault.is_none(), is_served, "{tenants:?} in {kind}: {fault:?}");
            says(
                fault,
                &["alice", "bob", "--sandbox namespace", "--process-for-all-tenants"],
            );
        }
    }

    #[test]
    fn several_tenants_share_the_kernels_quotas_of_a_user_only_by_the_operators_word() {
        let two: &[&str] = &["alice", "bob"];
        for kind in [Kind::Namespace, Kind::Container, Kind::MicroVm] {
            for (tenants, by_root, user, is_served) in [
                (&[][..], false, false, true),
                (&["alice"], false, false, true),
                (two, false, false, false),
                (two, false, true, true),
                (two, true, false, true),
            ] {
                let accepted = SharedByTenants { process: false, user };
                let fault = fault_of(tenants, kind, by_root, accepted);
                assert_eq!(fault.is_none(), is_served, "{tenants:?} in {kind}: {fault:?}");
                says(fault, &["alice", "bob", "as root", "--one-user-for-all-tenants"]);
            }
        }
    }

    fn fault_of(tenants: &[&str], kind: Kind, by_root: bool, accepted: SharedByTenants) -> Option<String> {
        let served = Tenants(tenants.iter().map(|&tenant| tenant.to_owned()).collect());
        served.separation_fault(kind, by_root, accepted)
    }

    fn says(fault: Option<String>, words: &[&str]) {
        let Some(fault) = fault else { return };
        for word in words {
            assert!(fault.contains(word), "{word}: {fault}");
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
