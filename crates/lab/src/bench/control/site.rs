//! A private site: an authority, identities, and a manager in its own process.

use crate::bench::bench_platform::hotlease;
use crate::bench::process::ProcessUsage;
use anyhow::{Context, bail, ensure};
use hotlease_net::authority::{self, IdentityRequest};
use hotlease_net::{Address, CertificateRole, Identity, grpc};
use hotlease_wire::grpc::ListRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::Channel;

/// Agents that share a certificate; a manager accepts at most 1024 connections of one peer.
pub(super) const AGENTS_PER_IDENTITY: u32 = 1000;
/// Descriptors of a process besides those for agents.
const DESCRIPTORS: u64 = 1024;
/// Longest listing of agents.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const HOST: &str = "127.0.0.1";

/// A private site. Dropping it kills the manager, whose state is no longer needed.
pub(super) struct BenchSite {
    manager: Child,
    address: Address,
    /// Folders of the agents' identities.
    agents: Vec<PathBuf>,
    client: Arc<Identity>,
    _dir: TempDir,
}

/// Memory and processor time of the manager.
#[derive(Debug, Clone, Copy)]
pub(super) struct ManagerLoad {
    pub(super) rss_bytes: u64,
    /// Processor time since the manager's start.
    pub(super) cpu: Duration,
}

impl BenchSite {
    pub(super) fn start(disk: Option<&Path>, agents: u32) -> anyhow::Result<Self> {
        // The manager has one descriptor for each agent's connection, and raises its own limit only as far as the hard
        // limit.
        raise_descriptors(u64::from(agents) + DESCRIPTORS)?;
        let dir = match disk {
            Some(disk) => TempDir::with_prefix_in("hotlease-bench-", disk),
            None => TempDir::with_prefix("hotlease-bench-"),
        };
        let dir = dir.context("cannot make a directory")?;
        let at = |name: &str| dir.path().join(name);
        authority::init(&at("authority"))?;
        let issue = |role, name: &str| {
            let request = IdentityRequest {
                tenant: (role == CertificateRole::Client).then(|| name.to_owned()),
                // The first host names the identity.
                hosts: match role {
                    CertificateRole::Client => Vec::new(),
                    _ => vec![name.to_owned(), HOST.to_owned()],
                },
                ..IdentityRequest::new(role)
            };
            authority::issue(&at("authority"), &request, &at(name))?;
            anyhow::Ok(at(name))
        };
        issue(CertificateRole::Manager, "manager")?;
        let identities = agents.div_ceil(AGENTS_PER_IDENTITY);
        let identities = (0..identities).map(|number| issue(CertificateRole::Agent, &format!("agents{number}")));
        let identities = identities.collect::<Result<_, _>>()?;
        let client = Arc::new(Identity::load(&issue(CertificateRole::Client, "bench")?)?);
        let mut command = Command::new(hotlease()?);
        command
            .args(["--json", "manager", "--listen", "127.0.0.1:0", "--identity"])
            .arg(at("manager"))
            .env("HOTLEASE_RUNTIME_DIR", at("run"))
            .env("XDG_STATE_HOME", at("state"))
            .env("HOTLEASE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut manager = command.spawn().context("cannot start a manager")?;
        let mut ready = String::new();
        if let Some(stdout) = manager.stdout.take() {
            BufReader::new(stdout).read_line(&mut ready)?;
        }
        let serving: serde_json::Value = serde_json::from_str(&ready).context("the manager did not start")?;
        let Some(listen) = serving["listen"].as_str() else {
            bail!("the manager does not serve other hosts: {serving}");
        };
        let address = format!("https://{listen}").parse()?;
        Ok(Self {
            manager,
            address,
            agents: identities,
            client,
            _dir: dir,
        })
    }

    /// Address of the manager.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Identities of agents `first` to `first + agents`, one per thousand.
    pub(super) fn agents(&self, first: u32, agents: u32) -> &[PathBuf] {
        let at = |number: u32| number.div_ceil(AGENTS_PER_IDENTITY) as usize;
        &self.agents[at(first)..at(first + agents)]
    }

    /// Makes a new client connection to the manager.
    pub(super) fn client(&self) -> ManagerClient<Channel> {
        let channel = grpc::channel(self.address.clone(), Arc::clone(&self.client), CertificateRole::Manager);
        ManagerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(super) fn load(&self) -> anyhow::Result<ManagerLoad> {
        let pid = self.manager.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the manager is gone")?;
        let ticks = cpu_ticks(&stat).context("/proc/PID/stat is not as expected")?;
        let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
        Ok(ManagerLoad {
            rss_bytes: ProcessUsage::of_process(pid)?.rss_bytes,
            cpu: Duration::from_secs_f64(ticks as f64 / per_second as f64),
        })
    }

    /// Number of agents that the manager lists as serving, that is, as not suspected.
    pub(super) async fn serving(&self) -> anyhow::Result<u32> {
        let list = self.client().list_agents(ListRequest::default()).await?;
        let agents = list.into_inner().agents;
        Ok(agents.iter().filter(|agent| agent.state == "serving").count() as u32)
    }
}

impl Drop for BenchSite {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.manager.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.manager.wait();
    }
}

/// User and system time in the text of `/proc/PID/stat`, clock ticks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Raises the limit of descriptors of this process and its children, if needed.
///
/// # Errors Fails if the system does not allow that many descriptors.
pub(super) fn raise_descriptors(needed: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= needed {
        return Ok(());
    }
    // Root can raise the hard limit, too.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, needed, hard.max(needed));
    ensure!(
        raised.is_ok(),
        "{needed} descriptors are needed and {hard} allowed; run as root, or raise the limit (`ulimit -n`)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cpu_ticks;

    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
    }
}
