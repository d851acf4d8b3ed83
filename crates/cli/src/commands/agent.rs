//! `hotlease agent`: an agent in a process of its own.

mod bounds;
mod environments;
mod lifetime;
mod swapping;

use crate::commands::agent::bounds::BoundArgs;
use crate::commands::up::signals::Signals;
use crate::config_file::ConfigArgs;
use crate::service;
use crate::state::DaemonStateArgs;
use clap::Args;
use environments::EnvironmentArgs;
use hotlease_agent::{Agent, AgentConfig, AgentNetwork, CoreChoice, DirectoryGrant, SharedByTenants};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_net::{Address, CertificateRole, Identity};
use hotlease_sandbox::{Kind, Mount};
use hotlease_terminal::arguments::{ContainerArgs, MachineArgs, absolute, machine_arguments};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use hotlease_wire::limits::{GPUS_PER_AGENT_MAX, PLACES_PER_CORE_DEFAULT, PLACES_PER_CORE_MAX};
use lifetime::LifetimeArgs;
use serde::Serialize;
use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use swapping::SwapArgs;

/// Run only an agent, in the foreground
///
/// SIGTERM drains: the agent grants no new leases, present leases may go on until they end, for at most --drain-within,
/// and then the agent stops. SIGUSR1 removes: all leases end at once, their last usage is recorded, and the agent stops
/// with status 0. With --until or --idle-limit it stops by itself, with status 0, too. SIGINT, SIGHUP or a second
/// SIGTERM stop it without waiting. The agent registers with the manager of its runtime directory as soon as that
/// manager runs, or with a manager on another host. Functions run as the agent's own user, so it serves only tenants
/// that it is told to serve. With `--json`, prints an object when it serves: pid, runtime_dir and endpoint (or null).
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    offer: OfferArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    state: DaemonStateArgs,
    /// How long leases may go on after SIGTERM. Batch systems send SIGKILL 30 s after SIGTERM: 20 s leave time to end
    /// workers, sync the journal and report the last usage, even on a slow disk
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = quantity::parse_notice)]
    drain_within: Duration,
    /// Folder in which `hotlease-node` keeps a file for each batch job that runs on this node, such as
    /// /run/hotlease-jobs: the agent never offers resources of these jobs, not even right after its start
    #[arg(long, value_name = "DIR")]
    batch_jobs: Option<PathBuf>,
    /// The site's policy: which of these jobs have company, that is, leases on resources that the job leaves free (see
    /// `hotlease node policy check`). The agent reads the file again when it changes [default: idle nodes only]
    #[arg(long, value_name = "FILE", requires = "batch_jobs")]
    batch_policy: Option<PathBuf>,
    /// Folder where the control groups that limit these jobs are mounted
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    batch_groups: PathBuf,
    #[command(flatten)]
    lifetime: LifetimeArgs,
    /// Limit on the memory of all leases together, such as 64G [default: all that this node or its control group has]
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    memory: Option<usize>,
    /// How often the key of lease tokens is replaced, such as 24h; `hotlease admin key rotate` replaces it at once
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = quantity::parse_notice)]
    token_key_rotation: Duration,
}

/// Arguments for serving other hosts.
#[derive(Debug, Clone, Args)]
struct NetworkArgs {
    /// Serve other hosts at this address, such as 0.0.0.0:7071 or [::]:7071
    #[arg(long, value_name = "ADDR:PORT", requires = "identity")]
    listen: Option<SocketAddr>,
    /// Identity of the agent: a folder of `hotlease identity issue --role agent`
    #[arg(long, value_name = "DIR", requires = "listen")]
    identity: Option<PathBuf>,
    /// Register with the manager at https://HOST:PORT instead of this host's; of several, with the serving manager
    #[arg(long = "manager", value_name = "URL", value_delimiter = ',', requires = "listen")]
    managers: Vec<Address>,
    /// Address that other hosts connect to [default: the address of --listen; if that is a wildcard, the first host
    /// of its identity]
    #[arg(long, value_name = "URL", requires = "listen")]
    advertise: Option<Address>,
    /// Tenant whose functions may run here; may be given more than once [default: the tenant of its identity]
    #[arg(long = "tenant", value_name = "NAME", requires = "listen")]
    tenants: Vec<String>,
    /// Serve several tenants in sandboxes of kind `process`, where each tenant's code has all rights of the agent: only
    /// for tenants who trust each other
    #[arg(long, requires = "listen")]
    process_for_all_tenants: bool,
    /// Serve several tenants although the agent is not root, so that all sandboxes have its user: each tenant can use
    /// up what the kernel counts by user, such as descriptors in flight, pipes and timers
    #[arg(long, requires = "listen")]
    one_user_for_all_tenants: bool,
    /// Let clients without a certificate open sessions with the token of a lease that their manager got for them
    #[arg(long, requires = "listen")]
    without_certificate: bool,
}

impl NetworkArgs {
    fn config(self) -> anyhow::Result<Option<AgentNetwork>> {
        let (Some(listen), Some(identity)) = (self.listen, &self.identity) else {
            return Ok(None);
        };
        let mut network = AgentNetwork::new(listen, Arc::new(Identity::load_as(identity, CertificateRole::Agent)?));
        network.managers = self.managers;
        network.advertise = self.advertise;
        network.without_certificate = self.without_certificate;
        network.shared = SharedByTenants {
            process: self.process_for_all_tenants,
            user: self.one_user_for_all_tenants,
        };
        if !self.tenants.is_empty() {
            network.tenants = self.tenants;
        }
        Ok(Some(network))
    }
}

/// Largest number of Python interpreters that wait on a user's own platform; each takes some 15 MB.
const OWN_SPARES: usize = 16;

/// Arguments of an agent's offer, shared by `agent` and `up`.
#[derive(Debug, Clone, Args)]
pub(crate) struct OfferArgs {
    /// Cores to lease out: `all`, `none` (standby, until `hotlease admin node add`), a count like `2`, or a list like
    /// `0,2-5` (`3,` is a list of one core)
    #[arg(long, default_value_t)]
    cores: CoreChoice,
    /// Native workers to keep started and unassigned, so that a lease begins at once: N in sandboxes of the default
    /// kind, and at most N in each other kind [default: as many as leases are likely to need; at first one per core
    /// in sandboxes of the default kind]
    #[arg(long, value_name = "N")]
    pool: Option<usize>,
    /// Largest number of Python interpreters that wait for a program's next lease; they run code of tenants, which is
    /// not billed [default: 16 with `hotlease up`, else 0]
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// GPUs to lease out: counted devices, numbered from 0
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=i64::from(GPUS_PER_AGENT_MAX)))]
    gpus: u32,
    /// Lease out this many GPUs even if this node shows fewer, to lease other devices that are counted in the same way
    #[arg(long, requires = "gpus")]
    unseen_gpus: bool,
    /// Also grant leases to clients that ask the agent directly, at most CORES cores to one tenant [default: only
    /// through the manager, which enforces quotas]
    #[arg(long, value_name = "CORES")]
    direct: Option<u32>,
    /// Largest number of GPUs that one tenant may hold in leases that it requested from the agent directly
    #[arg(long, value_name = "N", default_value_t = 0, requires = "direct")]
    direct_gpus: u32,
    /// Program of the workers [default: next to this program]
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(flatten)]
    environments: EnvironmentArgs,
    #[command(flatten)]
    swap: SwapArgs,
    #[command(flatten)]
    bounds: BoundArgs,
    /// Warm slots to grant on one core to leases that share cores; 0: no core is shared
    #[arg(long, value_name = "N", default_value_t = PLACES_PER_CORE_DEFAULT,
          value_parser = clap::value_parser!(u32).range(..=i64::from(PLACES_PER_CORE_MAX)))]
    warm_slots_per_core: u32,
    /// Longest invocation on a shared core, such as 500ms or 10s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_time)]
    shared_call_limit: Duration,
    /// How long a worker may be stopped by a signal (SIGSTOP) before it is killed and replaced, up to 24h. A worker
    /// that a debugger is attached to is left alone
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_time)]
    stopped_limit: Duration,
}

/// Arguments of the isolation of functions.
#[derive(Debug, Clone, Args)]
struct SandboxArgs {
    /// Kind of sandbox for leases that name no kind: `process`, `namespace`, `container` or `microvm`. Only the agent's
    /// own user may request a weaker kind
    #[arg(long, value_name = "KIND", default_value_t = Kind::Process)]
    sandbox: Kind,
    /// File or folder that sandboxes see, read-only, besides the system's own; may be given more than once
    #[arg(long = "sandbox-show", value_name = "PATH")]
    shown: Vec<PathBuf>,
    /// Directory that leases may request for reading, or with `:rw` at its end also for writing; `{tenant}` in it
    /// stands for the name of the requesting tenant; may be given more than once
    #[arg(long = "sandbox-grant", value_name = "PATH")]
    granted: Vec<DirectoryGrant>,
    /// File that states the object storage that leases may request, and where the site's keys for this storage are;
    /// must be readable by the agent's user only
    #[arg(long = "sandbox-storage", value_name = "FILE")]
    storage: Option<PathBuf>,
    /// Let leases request the host's network; otherwise sandboxes have no network, and serve only clients on this host
    #[arg(long)]
    sandbox_network: bool,
    /// Memory of each sandbox, its /tmp included, such as 2G [default: as its lease requests]
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    sandbox_memory: Option<usize>,
    /// Largest number of processes and threads of each sandbox
    #[arg(long, value_name = "N", default_value_t = 512)]
    sandbox_processes: u32,
    /// Sandboxes to prepare ahead, so that a lease begins at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    sandbox_prepared: u32,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

impl SandboxArgs {
    fn apply_to(self, config: &mut AgentConfig) {
        config.sandbox = self.sandbox;
        let policy = &mut config.sandbox_policy;
        policy.mounts = self.shown.into_iter().map(Mount::read_only).collect();
        policy.network = self.sandbox_network;
        config.sandbox_grants = self.granted;
        config.storage = self.storage;
        policy.memory_bytes = self.sandbox_memory.unwrap_or(0) as u64;
        policy.processes = self.sandbox_processes;
        policy.prepared = self.sandbox_prepared;
        config.sandbox_container = self.container.container();
        config.sandbox_machine = self.machine.machine();
    }

    /// Adds arguments for another process of this program, like [`OfferArgs::to_args`].
    fn add_args(&self, args: &mut Vec<OsString>) {
        let mut add = |name: &str, value: OsString| args.extend([name.into(), value]);
        add("--sandbox", self.sandbox.to_string().into());
        for path in &self.shown {
            add("--sandbox-show", absolute(path).into());
        }
        for grant in &self.granted {
            add("--sandbox-grant", grant.to_string().into());
        }
        if let Some(file) = &self.storage {
            add("--sandbox-storage", absolute(file).into());
        }
        if let Some(bytes) = self.sandbox_memory {
            add("--sandbox-memory", bytes.to_string().into());
        }
        add("--sandbox-processes", self.sandbox_processes.to_string().into());
        add("--sandbox-prepared", self.sandbox_prepared.to_string().into());
        args.extend(self.container.to_args());
        args.extend(machine_arguments(&self.machine.machine()));
        if self.sandbox_network {
            args.push("--sandbox-network".into());
        }
    }
}

impl OfferArgs {
    /// Choice of the cores.
    pub(crate) fn cores(&self) -> &CoreChoice {
        &self.cores
    }

    /// Configuration of the agent.
    pub(crate) fn config(self, dir: &RuntimeDir) -> anyhow::Result<AgentConfig> {
        let mut config = AgentConfig::new(dir.path());
        config.environments = self.environments.config()?;
        config.swap = self.swap.options();
        config.cores = self.cores;
        config.pool = self.pool;
        config.spares = self.spares.unwrap_or(config.spares);
        config.direct = self.direct;
        config.direct_gpus = self.direct_gpus;
        config.gpus = self.gpus;
        config.unseen_gpus = self.unseen_gpus;
        config.worker_binary = self.worker;
        self.sandbox.apply_to(&mut config);
        config.bounds = self.bounds.bounds();
        config.warm_slots_per_core = self.warm_slots_per_core;
        config.shared_call_limit = self.shared_call_limit;
        config.stopped_limit = self.stopped_limit;
        Ok(config)
    }

    /// Configuration of an agent on a user's own platform; it also offers the environments that the user has
    /// packed.
    pub(crate) fn config_of_own(mut self, dir: &RuntimeDir) -> anyhow::Result<AgentConfig> {
        self.environments.add_own();
        self.spares.get_or_insert(OWN_SPARES);
        self.config(dir)
    }

    /// Arguments for another process of this program, which may start in another directory.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["--cores".into(), self.cores.to_string().into()];
        if let Some(pool) = self.pool {
            args.extend(["--pool".into(), pool.to_string().into()]);
        }
        if let Some(spares) = self.spares {
            args.extend(["--spares".into(), spares.to_string().into()]);
        }
        if let Some(direct) = self.direct {
            args.extend(["--direct".into(), direct.to_string().into()]);
            args.extend(["--direct-gpus".into(), self.direct_gpus.to_string().into()]);
        }
        args.extend(["--gpus".into(), self.gpus.to_string().into()]);
        if self.unseen_gpus {
            args.push("--unseen-gpus".into());
        }
        if let Some(worker) = &self.worker {
            args.extend(["--worker".into(), absolute(worker).into()]);
        }
        self.sandbox.add_args(&mut args);
        self.bounds.add_to(&mut args);
        let places = self.warm_slots_per_core.to_string();
        args.extend(["--warm-slots-per-core".into(), places.into()]);
        for (name, limit) in [
            ("--shared-call-limit", self.shared_call_limit),
            ("--stopped-limit", self.stopped_limit),
        ] {
            args.extend([name.into(), format!("{}ms", limit.as_millis()).into()]);
        }
        self.environments.add_to(&mut args);
        self.swap.add_to(&mut args);
        args
    }
}

#[derive(Serialize)]
struct AgentSummary {
    pid: u32,
    runtime_dir: PathBuf,
    endpoint: Option<String>,
}

pub(crate) fn carry_out(args: AgentArgs, output: &mut Printer) -> anyhow::Result<()> {
    let dir = RuntimeDir::resolve()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let mut config = args.offer.config(&dir)?;
        config.network = args.network.config()?;
        config.state_dir = args.state.agent_directory(&dir);
        config.token_key_rotation = args.token_key_rotation;
        (config.batch_jobs, config.batch_policy) = (args.batch_jobs, args.batch_policy);
        config.memory_bytes = args.memory.map(|bytes| bytes as u64);
        config.batch_groups = args.batch_groups;
        config.until = args.lifetime.until();
        let agent = Agent::start(config).await?;
        let serving = AgentSummary {
            pid: std::process::id(),
            runtime_dir: dir.path().into(),
            endpoint: agent.endpoint().map(ToString::to_string),
        };
        output.answer(&serving, || {
            let elsewhere = serving.endpoint.as_ref().map(|endpoint| format!(" and at {endpoint}"));
            format!(
                "the agent serves in {}{} (pid {})",
                serving.runtime_dir.display(),
                elsewhere.unwrap_or_default(),
                serving.pid
            )
        })?;
        output.flush()?;
        let told = tokio::select! {
            told = signals.next() => Some(told),
            () = args.lifetime.end(&agent) => None,
            never = tell_ready(&agent) => match never {},
            () = agent.wait_until_stopped() => anyhow::bail!("the agent stopped by itself; its log says why"),
        };
        if let Some(told) = told {
            signals.obey(told, &agent, args.drain_within).await;
        }
        tokio::select! {
            () = agent.shutdown() => Ok(()),
            () = signals.wait_for_stop() => anyhow::bail!("interrupted while stopping"),
        }
    })
}

/// After this time an agent counts as ready even if its manager is away; it registers later.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Tells systemd that the agent is ready: as soon as the agent is registered, so that an operator's next command finds
/// it, or after [`READY_WITHIN`] if the manager is away. Does not return.
async fn tell_ready(agent: &Agent) -> Infallible {
    let _ = tokio::time::timeout(READY_WITHIN, agent.registered()).await;
    service::ready();
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        offer: OfferArgs,
    }

    #[test]
    fn an_offer_survives_the_way_into_another_process() {
        let line = [
            "x",
            "--cores",
            "0,2-3",
            "--pool",
            "0",
            "--spares",
            "3",
            "--worker",
            "/opt/hotlease-worker",
            "--lease-ttl",
            "2s",
            "--lease-duration",
            "12h",
            "--lease-idle",
            "90s",
            "--warm-slots-per-core",
            "7",
            "--shared-call-limit",
            "250ms",
            "--stopped-limit",
            "3s",
            "--gpus",
            "4",
            "--unseen-gpus",
            "--direct",
            "2",
            "--direct-gpus",
            "1",
            "--sandbox",
            "container",
            "--sandbox-show",
            "/opt/a",
            "--sandbox-show",
            "/opt/b",
            "--sandbox-grant",
            "/scratch/{tenant}:rw",
            "--sandbox-grant",
            "/data",
            "--sandbox-storage",
            "/etc/hotlease/storage.toml",
            "--sandbox-network",
            "--sandbox-memory",
            "2G",
            "--sandbox-processes",
            "64",
            "--sandbox-prepared",
            "0",
            "--environments",
            "/lustre/a",
            "--environments",
            "/lustre/b",
            "--environment-cache",
            "/local/images",
            "--environment-cache-bytes",
            "1G",
            "--environment-mount",
            "any",
            "--swap-directory",
            "/lustre/swap",
            "--swap-after",
            "10min",
            "--swap-limit",
            "500ms",
            "--swap-state-bytes",
            "2G",
            "--swap-tenant-bytes",
            "64G",
            "--swap-keep",
            "30d",
            "--sandbox-container",
            "ch-run",
            "--sandbox-image",
            "/opt/image",
            "--sandbox-kernel",
            "/opt/vmlinuz-6.1.0",
            "--sandbox-machine-memory",
            "2G",
            "--sandbox-emulated",
        ];
        let offer = Line::parse_from(line).offer;
        let program = [OsString::from("x")];
        let again = Line::parse_from(program.iter().cloned().chain(offer.to_args())).offer;
        assert_eq!(format!("{again:?}"), format!("{offer:?}"));
        let default = Line::parse_from(["x"]).offer;
        let again = Line::parse_from(program.into_iter().chain(default.to_args())).offer;
        assert_eq!(format!("{again:?}"), format!("{default:?}"));
    }
}
