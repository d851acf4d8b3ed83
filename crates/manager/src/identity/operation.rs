//! Operations of a manager, and who may perform each of them.

use super::{Caller, CallerProof, Role};
use std::fmt;

/// An operation that a caller may ask for, through any interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerOperation {
    /// Get a lease.
    Acquire,
    /// End a lease: a lease of the caller or, for an operator, any lease.
    Release,
    /// Announce a lease that the caller holds and that an agent granted directly.
    Vouch,
    /// Offer slots of the caller's lease to other ranks of the caller's job, and withdraw an offer.
    OfferSlots,
    /// Find the slots that other ranks of the caller's job offer.
    FindOffers,
    /// List agents.
    ListAgents,
    /// List leases.
    ListLeases,
    /// List clients that wait for a lease.
    ListWaiting,
    /// List worker processes.
    ListWorkers,
    /// List function libraries.
    ListFunctions,
    /// Read the manager's state.
    GetInfo,
    /// Stop the manager.
    Shutdown,
    /// See usage, and its price.
    Bill,
    /// Compare the ledger with journals.
    Verify,
    /// Offer a node's cores, as its agent.
    Register,
    /// Report usage, as an agent.
    Report,
    /// List nodes, and the wishes for them.
    ListNodes,
    /// Give a node to the site, or let a drained node serve again.
    AddNode,
    /// Take a node back by a deadline.
    DrainNode,
    /// Take a node back at once.
    RemoveNode,
    /// List tenants, quotas and members.
    ListTenants,
    /// Add, change and remove tenants.
    ChangeTenants,
    /// List keys (never their secrets).
    ListKeys,
    /// Add, revoke and rotate keys.
    ChangeKeys,
    /// Read metrics.
    ReadMetrics,
    /// Ask whether the manager lives and serves.
    ReadHealth,
    /// Authenticate: prove the caller's identity.
    Authenticate,
}

/// Group of callers that may perform an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerGroup {
    /// Any peer that reaches the manager; the answer says nothing about the site.
    AllPeers,
    /// Users and operators.
    Members,
    /// Users, operators and batch hooks.
    MembersAndHooks,
    /// Operators and batch hooks.
    OperatorsAndHooks,
    /// Operators.
    Operators,
    /// Agents with a certificate, and the manager's own user on its node.
    Agents,
}

impl fmt::Display for CallerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllPeers => "all peers",
            Self::Members => "users and operators",
            Self::MembersAndHooks => "users, operators and batch hooks",
            Self::OperatorsAndHooks => "operators and batch hooks",
            Self::Operators => "operators",
            Self::Agents => "agents",
        })
    }
}

impl fmt::Display for ManagerOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "getting a lease",
            Self::Release => "ending a lease",
            Self::Vouch => "vouching for a lease",
            Self::OfferSlots => "offering slots",
            Self::FindOffers => "finding offers of slots",
            Self::ListAgents => "listing agents",
            Self::ListLeases => "listing leases",
            Self::ListWaiting => "listing clients that wait",
            Self::ListWorkers => "listing workers",
            Self::ListFunctions => "listing functions",
            Self::GetInfo => "reading the state of the manager",
            Self::Shutdown => "stopping the manager",
            Self::Bill => "seeing bills",
            Self::Verify => "verifying the ledger",
            Self::Register => "registering",
            Self::Report => "reporting usage",
            Self::ListNodes => "listing nodes",
            Self::AddNode => "adding a node",
            Self::DrainNode => "draining a node",
            Self::RemoveNode => "removing a node",
            Self::ListTenants => "listing tenants",
            Self::ChangeTenants => "changing tenants",
            Self::ListKeys => "listing keys",
            Self::ChangeKeys => "changing keys",
            Self::ReadMetrics => "reading metrics",
            Self::ReadHealth => "reading health",
            Self::Authenticate => "authenticating",
        })
    }
}

impl ManagerOperation {
    /// Callers that may perform each operation. No wildcard: a new operation must be added here.
    pub fn allowed_callers(self) -> CallerGroup {
        match self {
            Self::Acquire
            | Self::Release
            | Self::Vouch
            | Self::OfferSlots
            | Self::FindOffers
            | Self::ListLeases
            | Self::ListWaiting
            | Self::ListWorkers
            | Self::ListFunctions
            | Self::Bill => CallerGroup::Members,
            Self::ListAgents | Self::GetInfo => CallerGroup::MembersAndHooks,
            Self::ListNodes | Self::AddNode | Self::DrainNode | Self::RemoveNode => CallerGroup::OperatorsAndHooks,
            Self::Shutdown
            | Self::Verify
            | Self::ListTenants
            | Self::ChangeTenants
            | Self::ListKeys
            | Self::ChangeKeys
            | Self::ReadMetrics => CallerGroup::Operators,
            Self::ReadHealth | Self::Authenticate => CallerGroup::AllPeers,
            Self::Register | Self::Report => CallerGroup::Agents,
        }
    }

    /// Whether this caller may perform the operation.
    pub fn permits(self, caller: &Caller) -> bool {
        match (self.allowed_callers(), caller.role) {
            (CallerGroup::AllPeers, _)
            | (CallerGroup::Members, Role::User | Role::Operator)
            | (CallerGroup::MembersAndHooks, Role::User | Role::Operator | Role::Hook)
            | (CallerGroup::OperatorsAndHooks, Role::Operator | Role::Hook)
            | (CallerGroup::Operators, Role::Operator)
            | (CallerGroup::Agents, Role::Agent) => true,
            // For `hotlease up`, and for an agent of the manager's own node and user.
            (CallerGroup::Agents, Role::Operator) => caller.proof == CallerProof::PeerCredentials,
            (
                CallerGroup::Members
                | CallerGroup::MembersAndHooks
                | CallerGroup::OperatorsAndHooks
                | CallerGroup::Operators
                | CallerGroup::Agents,
                _,
            ) => false,
        }
    }

    /// Operation of a gRPC route. A route that is not named here is refused to every caller.
    pub fn of_grpc(path: &str) -> Option<Self> {
        Some(match path.strip_prefix("/hotlease.v1.")? {
            "Manager/Acquire" => Self::Acquire,
            "Manager/Release" => Self::Release,
            "Manager/Vouch" => Self::Vouch,
            "Manager/PutOffer" | "Manager/WithdrawOffer" => Self::OfferSlots,
            "Manager/FindOffers" => Self::FindOffers,
            "Manager/ListAgents" => Self::ListAgents,
            "Manager/ListLeases" => Self::ListLeases,
            "Manager/ListWaiting" => Self::ListWaiting,
            "Manager/ListWorkers" => Self::ListWorkers,
            "Manager/ListFunctions" => Self::ListFunctions,
            "Manager/GetInfo" => Self::GetInfo,
            "Manager/Shutdown" => Self::Shutdown,
            "Manager/Bill" => Self::Bill,
            "Manager/Verify" => Self::Verify,
            "Manager/ListNodes" => Self::ListNodes,
            // The kind of order does not matter: the same callers may give all of them.
            "Manager/OrderNode" => Self::DrainNode,
            "Manager/Register" => Self::Register,
            "Manager/Heartbeat" | "Manager/ReportPast" | "Manager/FindImage" => Self::Report,
            "Manager/ListTenants" => Self::ListTenants,
            "Manager/PutTenant" | "Manager/RemoveTenant" => Self::ChangeTenants,
            "Manager/ListKeys" => Self::ListKeys,
            "Manager/AddKey" | "Manager/RevokeKey" | "Manager/RotateKey" => Self::ChangeKeys,
            "Identity/GetChallenge" | "Identity/Authenticate" => Self::Authenticate,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_net::{CertificateRole, Peer};
    use hotlease_wire::grpc::DESCRIPTORS;
    use prost::Message;
    use std::sync::Arc;

    /// `/package.Service/Method` of each route of a service in the protocol.
    fn routes(service: &str) -> Vec<String> {
        let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).expect("made by the build");
        let mut routes = Vec::new();
        for file in &files.file {
            for found in file.service.iter().filter(|found| found.name() == service) {
                let methods = found.method.iter().map(|method| method.name());
                routes.extend(methods.map(|method| format!("/{}.{}/{method}", file.package(), found.name())));
            }
        }
        assert!(!routes.is_empty(), "the protocol has no service {service}");
        routes
    }

    fn caller(role: Role, proof: CallerProof) -> Caller {
        Caller {
            name: "a peer".into(),
            tenant: Some("alice".into()),
            role,
            proof,
        }
    }

    fn certificate(role: CertificateRole) -> CallerProof {
        CallerProof::Certificate(Arc::new(Peer {
            role,
            name: "alice".into(),
            tenant: None,
            hosts: Vec::new(),
            fingerprint: [0; 32],
        }))
    }

    #[test]
    fn every_route_of_the_protocol_names_what_it_asks_for() {
        for route in [routes("Manager"), routes("Identity")].concat() {
            assert!(
                ManagerOperation::of_grpc(&route).is_some(),
                "{route} names no operation: say in identity/operation.rs which one it is, and who may"
            );
        }
    }

    #[test]
    fn unknown_paths_are_refused() {
        for path in [
            "",
            "/",
            "/hotlease.v1.Manager/Anything",
            "/hotlease.v1.Agent/Grant",
            "/hotlease.v1.Manager/Acquire/",
            "/HOTLEASE.V1.MANAGER/ACQUIRE",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ] {
            assert_eq!(ManagerOperation::of_grpc(path), None, "{path}");
        }
    }

    #[test]
    fn users_and_hooks_get_no_further_than_their_part() {
        let user = caller(Role::User, certificate(CertificateRole::Client));
        let hook = caller(Role::Hook, certificate(CertificateRole::Client));
        let agent = caller(Role::Agent, certificate(CertificateRole::Agent));
        let manager = caller(Role::Manager, certificate(CertificateRole::Manager));
        let here = caller(Role::Operator, CallerProof::PeerCredentials);
        let remote = caller(Role::Operator, certificate(CertificateRole::Client));
        let of_user = [
            "Acquire",
            "Release",
            "Vouch",
            "PutOffer",
            "FindOffers",
            "WithdrawOffer",
            "ListAgents",
            "ListLeases",
            "ListWaiting",
            "ListWorkers",
            "ListFunctions",
            "GetInfo",
            "Bill",
        ];
        let of_agent = ["Register", "Heartbeat", "ReportPast", "FindImage"];
        let of_hook = ["ListAgents", "GetInfo", "ListNodes", "OrderNode"];
        for route in routes("Manager") {
            let operation = ManagerOperation::of_grpc(&route).expect("named");
            let method = route.rsplit('/').next().expect("a method");
            let is = |list: &[&str]| list.contains(&method);
            assert_eq!(operation.permits(&user), is(&of_user), "a user and {method}");
            assert_eq!(operation.permits(&agent), is(&of_agent), "an agent and {method}");
            assert_eq!(
                operation.permits(&remote),
                !is(&of_agent),
                "an operator elsewhere and {method}"
            );
            assert!(operation.permits(&here), "an operator of this host and {method}");
            assert!(!operation.permits(&manager), "a manager and {method}");
            assert!(!operation.permits(&hook) || is(&of_hook), "a batch hook and {method}");
        }
    }
}
