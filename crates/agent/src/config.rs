//! What an agent is told at its start.

use crate::agent::POOL_MAX;
use crate::reach::DirectoryGrant;
use crate::swap::SwapOptions;
use hotlease_image::Way;
use hotlease_lease::agent::{TTL_MAX, TTL_MIN};
use hotlease_net::{Address, Identity, Limits};
use hotlease_sandbox::{Container, Kind, Machine, Policy};
use hotlease_wire::limits::{PLACES_PER_CORE_DEFAULT, PLACES_PER_CORE_MAX};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Name of the agent's gRPC socket in the runtime directory.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Name of the socket in the runtime directory that takes client sessions.
pub const SESSION_SOCKET: &str = "session.sock";
/// Name of the file in the runtime directory that a running agent holds locked.
pub const AGENT_LOCK: &str = "agent.lock";
/// Name of the file in the state directory (else the runtime directory) that keeps the agent's identity.
pub const AGENT_ID: &str = "agent.id";

/// Where an agent serves other hosts, beside its Unix sockets.
#[derive(Debug, Clone)]
pub struct Network {
    /// Address of its TLS port; port 0 for any free one.
    pub listen: SocketAddr,
    /// What other hosts are told to connect to (default: `listen`, or where that is all addresses the first
    /// host of the certificate).
    pub advertise: Option<Address>,
    /// Who it is; of role agent.
    pub identity: Arc<Identity>,
    /// The managers to register with, instead of that of its own machine: of several, one serves (default: none).
    pub managers: Vec<Address>,
    /// Tenants whose code may run here (default: the one in the certificate, if there is one).
    pub tenants: Vec<String>,
    /// How much of the port strangers and peers may occupy.
    pub limits: Limits,
    /// Whether clients without a certificate may open sessions with the token of a lease (default: no).
    pub without_certificate: bool,
}

impl Network {
    /// The defaults.
    pub fn new(listen: SocketAddr, identity: Arc<Identity>) -> Self {
        Self {
            listen,
            advertise: None,
            tenants: identity.peer().tenant.into_iter().collect(),
            identity,
            managers: Vec::new(),
            limits: Limits::default(),
            without_certificate: false,
        }
    }
}

/// Where the environments are that leases may name, and how the node keeps them.
#[derive(Debug, Clone)]
pub struct Environments {
    /// Folders of images on a file system that all nodes see, asked in this order (default: none, and leases cannot name
    /// environments).
    pub stores: Vec<PathBuf>,
    /// Where the node keeps images: a folder that is ours alone, on a disk of its own. Needed with `stores`, and made where it
    /// is missing.
    pub cache: PathBuf,
    /// How much it keeps, bytes; what was not used for longest goes first (default: 32 GiB).
    pub cache_bytes: u64,
    /// How images are mounted that tenants other than the agent's own user name. With another way than `Fuse` the kernel of a root
    /// agent reads what a stranger has packed (default: `Fuse`).
    pub mount: Way,
}

impl Default for Environments {
    fn default() -> Self {
        Self {
            stores: Vec::new(),
            cache: PathBuf::new(),
            cache_bytes: 32 << 30,
            mount: Way::Fuse,
        }
    }
}

/// What an agent is told at its start. Change what [`AgentConfig::new`] sets as needed.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Where its sockets go: a directory that is ours alone. No default.
    pub runtime_dir: PathBuf,
    /// The manager's socket; without one the agent serves alone (default: `manager.sock` in the runtime
    /// directory).
    pub manager_socket: Option<PathBuf>,
    /// The program that workers run (default: found as [`hotlease_sandbox::Launcher::find`] says).
    pub worker_binary: Option<PathBuf>,
    /// The kind of sandbox for leases that name none, and the weakest for tenants other than the agent's own user (default:
    /// `process`).
    pub sandbox: Kind,
    /// What sandboxes see and may use (default: the strict one).
    pub sandbox_policy: Policy,
    /// Directories that leases may ask for, besides those of the agent's own user, who may ask for any (default: none).
    pub sandbox_grants: Vec<DirectoryGrant>,
    /// The file that says which object storage leases may ask for (default: none).
    pub storage: Option<PathBuf>,
    /// The environments that leases may name (default: none).
    pub environments: Environments,
    /// Where states of workers are saved and restored from (default: nowhere, and no lease has one).
    pub swap: Option<SwapOptions>,
    /// What makes those of kind `container`, and of what (default: `crun`, of the host's system folders).
    pub sandbox_container: Container,
    /// What those of kind `microvm` are made of (default: QEMU with the processor's help, the newest kernel in `/boot`, 1 GiB).
    pub sandbox_machine: Machine,
    /// Which cores it offers (default: all that it may run on).
    pub cores: CoreChoice,
    /// Native workers kept started and unassigned in sandboxes of the kind `sandbox`, and at most in each other kind (default: as many as
    /// leases are likely to need, by those that came; of the former at first as many as cores are offered, unless they are machines).
    pub pool: Option<usize>,
    /// Interpreters that wait for the next leases of the same kind, at most, and at most as many as cores are offered (default: 0,
    /// because they run a tenant's code that nobody is billed for; `hotlease up`, where all tenants are one: 16).
    pub spares: usize,
    /// Memory that leases may ask for in all, bytes (default: the machine's).
    pub memory_bytes: Option<u64>,
    /// GPUs that it offers: counted devices, numbered from 0 (default: 0; at most 1024).
    pub gpus: u32,
    /// Time to live of leases that ask for none (default: 5 s).
    pub ttl: Duration,
    /// Warm slots that it grants on one shared core; 0: it shares none (default: 4; at most 64).
    pub warm_slots_per_core: u32,
    /// No invocation on a shared core lasts longer (default: 10 s; 1 ms to 1 h).
    pub shared_call_limit: Duration,
    /// Whether clients may ask it for leases themselves, and then the cores that one tenant may hold so (default: only
    /// managers, because quotas are known to them alone).
    pub direct: Option<u32>,
    /// How often the key of lease tokens is replaced (default: 24 h; 1 s at least).
    pub token_key_rotation: Duration,
    /// GPUs that one tenant may hold so (default: 0).
    pub direct_gpus: u32,
    /// Where it serves other hosts (default: nowhere).
    pub network: Option<Network>,
    /// Where its name and its usage journal are kept: a directory that is ours alone, on a local disk (default:
    /// its name is kept in the runtime directory, and usage in memory).
    pub state_dir: Option<PathBuf>,
}

impl AgentConfig {
    /// Why it cannot be carried out, on any machine.
    pub(crate) fn fault(&self) -> Option<String> {
        let call_limits = Duration::from_millis(1)..=Duration::from_secs(3600);
        if self.ttl < TTL_MIN || self.ttl > TTL_MAX {
            Some(format!(
                "a default time to live of {:?} is out of bounds",
                self.ttl
            ))
        } else if self.pool.is_some_and(|pool| pool > POOL_MAX) {
            Some(format!("a warm pool has at most {POOL_MAX} workers"))
        } else if self.spares > POOL_MAX {
            Some(format!("at most {POOL_MAX} interpreters wait"))
        } else if self.warm_slots_per_core > PLACES_PER_CORE_MAX {
            Some(format!(
                "a shared core has at most {PLACES_PER_CORE_MAX} warm slots"
            ))
        } else if self.token_key_rotation < Duration::from_secs(1) {
            Some("the key of lease tokens is replaced once in a second at most".into())
        } else if !call_limits.contains(&self.shared_call_limit) {
            Some(format!(
                "a limit of {:?} for invocations on shared cores is not between 1 ms and 1 h",
                self.shared_call_limit
            ))
        } else {
            None
        }
    }

    /// The defaults.
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
            ttl: Duration::from_secs(5),
            warm_slots_per_core: PLACES_PER_CORE_DEFAULT,
            shared_call_limit: Duration::from_secs(10),
            direct: None,
            token_key_rotation: Duration::from_secs(24 * 3600),
            direct_gpus: 0,
            network: None,
            state_dir: None,
        }
    }
}

/// Which of the cores that the agent may run on it offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// All.
    #[default]
    All,
    /// This many: the last ones, because most systems put their own work on the first.
    Count(usize),
    /// These.
    List(Vec<u32>),
    /// None, until its manager says otherwise: standby.
    Nothing,
}

/// A text that is no [`CoreChoice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no cores: write `all`, `none`, a count like `2`, or a list like `0,2-5`")]
pub struct BadCoreChoice {
    text: String,
}

/// More than any machine has; a bound for lists like `0-4294967295`.
const CORES_MAX: usize = 8192;

impl FromStr for CoreChoice {
    type Err = BadCoreChoice;

    /// `all`, `none`, a count (`2`), or a list of numbers and ranges (`0,2-5`; with a comma at its end for a list
    /// of one: `3,`).
    fn from_str(text: &str) -> Result<Self, BadCoreChoice> {
        let bad = || BadCoreChoice {
            text: text.to_owned(),
        };
        if text == "all" {
            return Ok(Self::All);
        }
        if text == "none" {
            return Ok(Self::Nothing);
        }
        if let Ok(count) = text.parse::<usize>() {
            return match count {
                0 => Err(bad()),
                count => Ok(Self::Count(count)),
            };
        }
        let mut cores = Vec::new();
        for part in text.trim_end_matches(',').split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| bad())?;
            let last: u32 = last.trim().parse().map_err(|_| bad())?;
            if last < first || cores.len() + (last - first) as usize >= CORES_MAX {
                return Err(bad());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self::List(cores))
    }
}

impl fmt::Display for CoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Nothing => f.write_str("none"),
            Self::Count(count) => count.fmt(f),
            Self::List(cores) => {
                for (position, core) in cores.iter().enumerate() {
                    let comma = if position > 0 && cores.len() > 1 { "," } else { "" };
                    write!(f, "{comma}{core}")?;
                }
                if cores.len() == 1 {
                    f.write_str(",")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_choices_are_read_and_written_alike() {
        for (text, choice) in [
            ("all", CoreChoice::All),
            ("none", CoreChoice::Nothing),
            ("2", CoreChoice::Count(2)),
            ("3,", CoreChoice::List(vec![3])),
            ("0,2-4", CoreChoice::List(vec![0, 2, 3, 4])),
            ("5,1,5", CoreChoice::List(vec![1, 5])),
        ] {
            assert_eq!(text.parse(), Ok(choice.clone()), "{text}");
            assert_eq!(
                choice.to_string().parse(),
                Ok(choice.clone()),
                "{choice} from {text}"
            );
        }
        for bad in [
            "",
            "0",
            "-1",
            "a",
            "1,,2",
            "5-2",
            "0-4294967295",
            "1-",
            ",",
            "1;2",
        ] {
            assert!(bad.parse::<CoreChoice>().is_err(), "{bad:?} was taken");
        }
    }
}
