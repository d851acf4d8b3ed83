//! Settings of an agent.

use crate::batch::control_groups::CONTROL_GROUPS;
use crate::data::images::Environments;
use crate::data::swap::SwapOptions;
use crate::isolation::reach::DirectoryGrant;
use crate::workers::pool::POOL_MAX;
use hotlease_lease::agent::CoreChoice;
use hotlease_lease::{LeaseBounds, TTL_MAX, TTL_MIN};
use hotlease_net::{Address, Identity, Limits};
use hotlease_sandbox::{Container, Kind, Machine, Policy};
use hotlease_wire::limits::{PLACES_PER_CORE_DEFAULT, PLACES_PER_CORE_MAX};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// File name of the agent's gRPC socket in the runtime directory.
pub const AGENT_SOCKET: &str = "agent.sock";
/// File name of the socket for client sessions in the runtime directory.
pub const SESSION_SOCKET: &str = "session.sock";
/// File name of the socket by which a batch system reports begins and ends of jobs, in the runtime directory.
pub const NODE_SOCKET: &str = "node.sock";
/// File name of the lock of a running agent in the runtime directory.
pub const AGENT_LOCK: &str = "agent.lock";
/// File name of the agent's identity, in the state directory or else in the runtime directory.
pub const AGENT_ID: &str = "agent.id";

/// Resources that an operator lets the tenants of one agent share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedByTenants {
    /// Whether tenants share the agent's rights: they run in sandboxes of kind `process`.
    pub process: bool,
    /// Whether tenants share the kernel's quotas of one user: the agent is not root, so all sandboxes run as its user.
    pub user: bool,
}

/// Service of an agent for other hosts, beside its Unix sockets.
#[derive(Debug, Clone)]
pub struct AgentNetwork {
    /// Address of the agent's TLS port; port 0 for any free port.
    pub listen: SocketAddr,
    /// Address that other hosts get to connect to (default: `listen` or, if `listen` means all addresses, the first
    /// host of the certificate).
    pub advertise: Option<Address>,
    /// Certificate of the agent, of role agent.
    pub identity: Arc<Identity>,
    /// Managers to register with, instead of the manager on this host; if there are several, one of them serves
    /// (default: none).
    pub managers: Vec<Address>,
    /// Tenants whose code may run on this node (default: the tenant in the certificate, if there is one).
    pub tenants: Vec<String>,
    /// Resources that tenants may share here (default: none). The agent does not start if tenants would share more.
    pub shared: SharedByTenants,
    /// Limits of the port on strangers and peers.
    pub limits: Limits,
    /// Whether clients without a certificate may open sessions with the token of a lease (default: no).
    pub without_certificate: bool,
}

impl AgentNetwork {
    /// Settings with their defaults.
    pub fn new(listen: SocketAddr, identity: Arc<Identity>) -> Self {
        Self {
            listen,
            advertise: None,
            tenants: identity.peer().tenant.into_iter().collect(),
            shared: SharedByTenants::default(),
            identity,
            managers: Vec::new(),
            limits: Limits::default(),
            without_certificate: false,
        }
    }
}

/// Settings of an agent. [`AgentConfig::new`] sets the defaults; change them as needed.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Directory of the agent's sockets, owned by the agent's user alone. No default.
    pub runtime_dir: PathBuf,
    /// The manager's socket (default: `manager.sock` in the runtime directory); `None` if there is no manager.
    pub manager_socket: Option<PathBuf>,
    /// The program that workers run (default: found as [`hotlease_sandbox::Launcher::find`] says).
    pub worker_binary: Option<PathBuf>,
    /// Kind of sandbox for leases that name no kind, and the weakest kind for tenants other than the agent's own user
    /// (default: `process`).
    pub sandbox: Kind,
    /// Policy of the sandboxes: what they see and may use (default: the strictest policy).
    pub sandbox_policy: Policy,
    /// Directories that leases may ask for; leases of the agent's own user may ask for any directory (default: none).
    pub sandbox_grants: Vec<DirectoryGrant>,
    /// The file that says which object storage leases may ask for (default: none).
    pub storage: Option<PathBuf>,
    /// Environments that leases may name (default: none).
    pub environments: Environments,
    /// Storage for saved states of workers (default: none, and no lease has a state).
    pub swap: Option<SwapOptions>,
    /// Runtime and image of sandboxes of kind `container` (default: `crun`, with the host's system folders).
    pub sandbox_container: Container,
    /// Virtual machines of kind `microvm` (default: QEMU with the processor's help, the newest kernel in `/boot`, 1
    /// GiB).
    pub sandbox_machine: Machine,
    /// Cores that the agent offers (default: all cores that it may run on).
    pub cores: CoreChoice,
    /// Number of native workers to keep started and unassigned in the default kind of sandbox (`sandbox`), and their
    /// largest number in each other kind. Default: as many as leases are likely to need, judged by past leases; at
    /// first, one for each offered core in the default kind, or none if these workers are virtual machines.
    pub pool: Option<usize>,
    /// Largest number of interpreters that wait for the next leases of the same kind; never more than the offered
    /// cores. Default: 0, because these interpreters run a tenant's code without being billed. With `hotlease up`,
    /// where all tenants are the same user: 16.
    pub spares: usize,
    /// Total memory that leases may ask for, bytes (default: all memory of the host).
    pub memory_bytes: Option<u64>,
    /// Number of GPUs that the agent offers; they are numbered from 0 (default: 0; at most 1024).
    pub gpus: u32,
    /// Whether the agent offers `gpus` GPUs even if the host shows fewer (default: no).
    pub unseen_gpus: bool,
    /// Time to live of leases that ask for none (default: 5 s).
    pub ttl: Duration,
    /// Bounds of leases: their time to live, duration and idle time (default: none).
    pub bounds: LeaseBounds,
    /// Number of warm slots that the agent grants on one shared core; 0 if it shares no core (default: 4; at most 64).
    pub warm_slots_per_core: u32,
    /// Longest duration of an invocation on a shared core (default: 10 s; 1 ms to 1 h).
    pub shared_call_limit: Duration,
    /// Time for which a worker of a lease may be stopped by a signal before it is killed and replaced (default: 10 s;
    /// 100 ms to 24 h).
    pub stopped_limit: Duration,
    /// Largest number of cores that one tenant may hold by leases that clients ask the agent for directly. `None` if
    /// only managers may ask, because only managers have the quotas (default: `None`).
    pub direct: Option<u32>,
    /// Time after which the key of lease tokens is replaced (default: 24 h; at least 1 s).
    pub token_key_rotation: Duration,
    /// Largest number of GPUs that one tenant may hold by leases that clients ask the agent for directly (default: 0).
    pub direct_gpus: u32,
    /// Service for other hosts (default: none).
    pub network: Option<AgentNetwork>,
    /// Folder in which `hotlease-node` writes a file for each batch job that runs on the node (default: none). An agent
    /// that starts during the job finds the file.
    pub batch_jobs: Option<PathBuf>,
    /// The site's policy: which batch jobs have company (default: none, so leases use idle nodes only).
    pub batch_policy: Option<PathBuf>,
    /// Folder where the control groups of batch jobs are mounted (default: `/sys/fs/cgroup`).
    pub batch_groups: PathBuf,
    /// Name of the node in listings and messages (default: the host's name).
    pub node_name: Option<String>,
    /// Time at which the node is taken away, such as the end of a batch job. All leases end before this time, because
    /// the agent drains early enough (default: none).
    pub until: Option<SystemTime>,
    /// Directory of identity and usage journal, owned by the agent's user alone, on a local disk (default: none; then
    /// the identity is in the runtime directory, and usage in memory).
    pub state_dir: Option<PathBuf>,
}

impl AgentConfig {
    /// Reason why no host could carry out the settings; `None` if there is no such reason.
    pub(crate) fn fault(&self) -> Option<String> {
        let stopped_limits = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
        let call_limits = Duration::from_millis(1)..=Duration::from_secs(3600);
        if self.ttl < TTL_MIN || self.ttl > TTL_MAX {
            Some(format!("a default time to live of {:?} is out of bounds", self.ttl))
        } else if self.pool.is_some_and(|pool| pool > POOL_MAX) {
            Some(format!("a warm pool has at most {POOL_MAX} workers"))
        } else if self.spares > POOL_MAX {
            Some(format!("at most {POOL_MAX} interpreters wait"))
        } else if self.warm_slots_per_core > PLACES_PER_CORE_MAX {
            Some(format!("a shared core has at most {PLACES_PER_CORE_MAX} warm slots"))
        } else if self.token_key_rotation < Duration::from_secs(1) {
            Some("the key of lease tokens is replaced once in a second at most".into())
        } else if !call_limits.contains(&self.shared_call_limit) {
            Some(format!(
                "a limit of {:?} for invocations on shared cores is not between 1 ms and 1 h",
                self.shared_call_limit
            ))
        } else if !stopped_limits.contains(&self.stopped_limit) {
            Some(format!(
                "a limit of {:?} for workers that are stopped is not between 100 ms and 24 h",
                self.stopped_limit
            ))
        } else {
            self.bounds.fault()
        }
    }

    /// Policy of the sandboxes, which also hides the platform's own sockets and files: to code of the agent's own user
    /// they would be open.
    pub(crate) fn policy_of_sandboxes(&self) -> Policy {
        let others = [self.state_dir.as_deref(), self.manager_socket.as_deref()];
        let others = others
            .into_iter()
            .flatten()
            .filter(|path| !path.starts_with(&self.runtime_dir));
        let own = std::iter::once(self.runtime_dir.as_path()).chain(others);
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut policy = self.sandbox_policy.clone();
        policy.hidden.extend(own.map(|path| absolute(path).into_os_string()));
        policy
    }

    /// Settings with their defaults.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        let runtime_dir = runtime_dir.into();
        Self {
            manager_socket: Some(runtime_dir.join("manager.sock")),
            runtime_dir,
            worker_binary: None,
            sandbox: Kind::Process,
            sandbox_policy: Policy::default(),
            sandbox_grants: Vec::new(),
            storage: None,
            environments: Environments::default(),
            swap: None,
            sandbox_container: Container::default(),
            sandbox_machine: Machine::default(),
            cores: CoreChoice::All,
            pool: None,
            spares: 0,
            memory_bytes: None,
            gpus: 0,
            unseen_gpus: false,
            ttl: Duration::from_secs(5),
            bounds: LeaseBounds::default(),
            warm_slots_per_core: PLACES_PER_CORE_DEFAULT,
            shared_call_limit: Duration::from_secs(10),
            stopped_limit: Duration::from_secs(10),
            direct: None,
            token_key_rotation: Duration::from_secs(24 * 3600),
            direct_gpus: 0,
            network: None,
            batch_jobs: None,
            batch_policy: None,
            batch_groups: CONTROL_GROUPS.into(),
            node_name: None,
            until: None,
            state_dir: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_do_not_show_the_platform_itself() {
        let mut config = AgentConfig::new("/run/ours");
        assert_eq!(
            config.policy_of_sandboxes().hidden,
            ["/run/ours"],
            "the socket is in it"
        );
        config.state_dir = Some("/var/lib/ours".into());
        config.manager_socket = Some("/run/manager/manager.sock".into());
        let hidden = ["/run/ours", "/var/lib/ours", "/run/manager/manager.sock"];
        assert_eq!(config.policy_of_sandboxes().hidden, hidden);
    }
}
