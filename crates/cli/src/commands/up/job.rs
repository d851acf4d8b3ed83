//! `hotlease up` in a batch job of Slurm: a manager on the first node of the step, and an agent on each.
//!
//! ```text
//! srun ──▶ task 0: makes the folder of the job, manager, agent ──writes──▶ jobs/CLUSTER-JOB/manager
//!      ──▶ task 1: waits for the manager's addresses, agent        ◀──read──┘        ▲
//!      ──▶ ...                                                                       │
//!          hotlease run, Executor() in the job ──────────────────────read────────────┘
//! ```
//!
//! [`task`] has Slurm's data about the task. In [`folder`] tasks and programs find each other. [`addresses`] finds
//! addresses at which nodes reach each other. [`step`] starts the step of `--nodes-of-this-job`.

mod addresses;
mod folder;
mod step;
mod task;

use super::signals::{ShutdownKind, Signals};
use super::{UpArgs, daemon_runtime};
use crate::commands::agent::OfferArgs;
use crate::commands::up::lock::UpLock;
use anyhow::{Context, bail};
use folder::FolderPart;
pub(super) use folder::step_of;
use hotlease_agent::{Agent, AgentConfig, AgentNetwork, allowed_cores};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::{Manager, ManagerNetwork};
use hotlease_net::job::{JobFolder, JobManager};
use hotlease_net::{Address, CertificateRole, Limits};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_wire::grpc::ListRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use serde::Serialize;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
pub(super) use step::start;
use task::JobTask;
use tokio::time::{interval, sleep};

/// Time after which nodes that do not serve yet are named.
const NODES_WITHIN: Duration = Duration::from_secs(30);
/// How long an agent stays without its manager.
const MANAGER_AWAY: Duration = Duration::from_secs(30);
/// Pause between two looks whether all nodes serve.
const LOOK: Duration = Duration::from_millis(20);
/// Pause between two looks whether the manager has ended.
const END_LOOK: Duration = Duration::from_secs(1);

/// The task of a job's step that is to serve; `None` outside of steps, or if a platform of this node is named.
pub(super) fn task() -> Option<JobTask> {
    let is_named = std::env::var_os("HOTLEASE_RUNTIME_DIR").is_some_and(|dir| !dir.is_empty());
    JobTask::of_environment().filter(|_| !is_named)
}

/// Description of a job's platform.
#[derive(Debug, Serialize)]
struct JobSummary {
    job: String,
    step: String,
    folder: PathBuf,
    managers: Vec<String>,
    nodes: usize,
    cores: usize,
}

impl JobSummary {
    fn text(&self) -> String {
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (nodes, cores) = (counted(self.nodes, "node"), counted(self.cores, "core"));
        [
            format!("hotlease serves job {}: {nodes}, {cores}", self.job),
            format!("  manager  {}", self.managers.join(",")),
            format!("  folder   {}", self.folder.display()),
            "  stop     hotlease down, or the end of the job".to_owned(),
        ]
        .join("\n")
    }
}

/// Serves until the step ends; calls `ready` in the first task when all nodes serve.
pub(super) fn serve(task: &JobTask, args: UpArgs, output: &mut Printer) -> anyhow::Result<()> {
    if task.local_rank != 0 {
        let what = format!(
            "this is task {} of node {}, and one task serves a node: `srun --overlap --ntasks-per-node=1 hotlease up`, or \
             `hotlease up --nodes-of-this-job`",
            task.local_rank, task.node
        );
        return Err(CommandError::Usage(what).into());
    }
    if args.end.idle_limit.is_some() {
        let what = "--idle-limit: the platform of a batch job ends with its step";
        return Err(CommandError::Usage(what.into()).into());
    }
    let Some(folder) = JobFolder::of_environment() else {
        bail!(
            "there is no place for the folder of the job; set HOTLEASE_JOBS_DIR to a folder on a file system that all nodes share"
        );
    };
    let runtime = daemon_runtime()?;
    let result = runtime.block_on(run(task, folder, args, output));
    // All important work is done, and a hanging thread must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn run(task: &JobTask, folder: JobFolder, args: UpArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let drain = args.end.drain_within;
    let served = tokio::select! {
        served = JobService::start(task, folder, args) => served?,
        // Dropping the unfinished start removes what it has made so far.
        _ = signals.next() => return Ok(()),
    };
    let told = tokio::select! {
        told = signals.next() => Ok(told),
        ended = served.until_end(task, output) => Err(ended),
    };
    let ended = match told {
        Ok(ShutdownKind::Drain) if drain.is_none() => Ok(()),
        Ok(told) => {
            signals.obey(told, &served.agent, drain.unwrap_or_default()).await;
            Ok(())
        }
        Err(ended) => ended,
    };
    // Slurm sends SIGKILL if this takes too long; other signals do not make it faster.
    served.stop().await;
    ended
}

/// Parts that a task runs. They end in the order of the fields.
struct JobService {
    agent: Agent,
    manager: Option<Manager>,
    part: FolderPart,
    dir: ServiceDir,
}

/// Runtime directory of a task; removed when dropped.
struct ServiceDir {
    dir: RuntimeDir,
    _lock: UpLock,
}

impl ServiceDir {
    fn take(task: &JobTask, folder: &JobFolder) -> anyhow::Result<Self> {
        let dir = RuntimeDir::at(&task.runtime_dir(folder))?;
        let lock = UpLock::take(&dir)?;
        Ok(Self { dir, _lock: lock })
    }
}

impl Drop for ServiceDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(self.dir.path()) {
            tracing::warn!(%error, path = %self.dir.path().display(), "could not remove the runtime directory");
        }
    }
}

impl JobService {
    async fn start(task: &JobTask, folder: JobFolder, args: UpArgs) -> anyhow::Result<Self> {
        match task.rank {
            0 => Self::first(task, folder, args).await,
            _ => Self::other(task, folder, args).await,
        }
    }

    /// Starts the manager and this node's agent, and announces the manager to the job.
    async fn first(task: &JobTask, folder: JobFolder, args: UpArgs) -> anyhow::Result<Self> {
        // A choice of cores that cannot be served is refused before the folder is made.
        task.cores(args.offer.cores(), &allowed_cores())?;
        let (addresses, part) = tokio::join!(addresses::own(&task.node), FolderPart::create(folder, task));
        let part = part?;
        let dir = ServiceDir::take(task, part.folder())?;
        let hosts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let listen = addresses::listen(&addresses);
        let mut config = args.ledger.manager_of_job(&dir.dir)?;
        config.network = Some(ManagerNetwork {
            listen,
            identity: part.identity(CertificateRole::Manager, hosts.clone())?,
            limits: Limits::default(),
            without_certificate: false,
        });
        let manager = Manager::start(config).await?;
        let port = manager.address().context("the manager has no port")?.port();
        let managers: Vec<Address> = hosts.iter().map(|host| Address::new(host, port)).collect();
        let identity = part.identity(CertificateRole::Agent, hosts)?;
        let mut network = AgentNetwork::new(listen, identity);
        network.managers.clone_from(&managers);
        let agent = Agent::start(agent_config(task, args.offer, &dir.dir, network)?).await?;
        let shown: Vec<String> = managers.iter().map(Address::to_string).collect();
        part.announce(&JobManager {
            addresses: shown.join(","),
            step: task.step_id.clone(),
        })?;
        tracing::info!(node = %task.node, managers = shown.join(","), "the job's manager serves");
        Ok(Self {
            agent,
            manager: Some(manager),
            part,
            dir,
        })
    }

    /// Starts this node's agent as soon as the manager serves.
    async fn other(task: &JobTask, folder: JobFolder, args: UpArgs) -> anyhow::Result<Self> {
        task.cores(args.offer.cores(), &allowed_cores())?;
        let (part, manager) = FolderPart::join(folder, task, args.first_within).await?;
        let dir = ServiceDir::take(task, part.folder())?;
        let managers = part.folder().site_of(&manager)?.managers;
        let Some((reached, own)) = addresses::reach(&managers).await else {
            bail!(
                "node {} does not reach the job's manager: none of {} takes a connection; see whether a firewall is between the \
                 nodes of the job",
                task.node,
                manager.addresses
            );
        };
        let identity = part.identity(CertificateRole::Agent, vec![own.to_string()])?;
        let mut network = AgentNetwork::new(addresses::listen(&[own]), identity);
        network.managers = vec![reached];
        let agent = Agent::start(agent_config(task, args.offer, &dir.dir, network)?).await?;
        Ok(Self {
            agent,
            manager: None,
            part,
            dir,
        })
    }

    /// Returns when the platform is to end, for another reason than a signal.
    async fn until_end(&self, task: &JobTask, output: &mut Printer) -> anyhow::Result<()> {
        let Some(manager) = &self.manager else {
            return tokio::select! {
                () = self.retracted() => Ok(()),
                () = self.agent.without_manager(MANAGER_AWAY) => {
                    bail!("node {} has not reached the job's manager for {} s", task.node, MANAGER_AWAY.as_secs())
                }
                () = self.agent.wait_until_stopped() => bail!("the agent stopped by itself; its log says why"),
            };
        };
        let ready = async {
            self.all_nodes(task, output).await?;
            std::future::pending().await
        };
        tokio::select! {
            failed = ready => failed,
            () = manager.shutdown_requested() => Ok(()),
            () = manager.wait_until_stopped() => bail!("the manager stopped by itself; its log says why"),
            () = self.agent.wait_until_stopped() => bail!("the agent stopped by itself; its log says why"),
        }
    }

    /// Returns once the task of the manager ends.
    async fn retracted(&self) {
        let mut looks = interval(END_LOOK);
        loop {
            looks.tick().await;
            if self.part.is_retracted() {
                return;
            }
        }
    }

    /// Waits until the agents of all nodes serve, and reports that; names nodes that are late.
    async fn all_nodes(&self, task: &JobTask, output: &mut Printer) -> anyhow::Result<()> {
        let site = self.part.folder().site()?.context("the folder of the job is gone")?;
        let mut client = ManagerClient::new(site.channel());
        let (begin, mut is_late) = (Instant::now(), false);
        loop {
            let listed = client.list_agents(ListRequest::default()).await;
            let agents = listed.map(|list| list.into_inner().agents).unwrap_or_default();
            if agents.len() >= task.nodes {
                let summary = JobSummary {
                    job: task.job.clone(),
                    step: task.step.clone(),
                    folder: self.part.folder().path().to_owned(),
                    managers: site.managers.iter().map(Address::to_string).collect(),
                    nodes: agents.len(),
                    cores: agents.iter().map(|agent| agent.cores.len()).sum(),
                };
                // The reader may be gone, which is no reason to stop.
                let shown = output.answer(&summary, || summary.text()).and_then(|()| output.flush());
                if let Err(error) = shown {
                    tracing::debug!(%error, "the summary was not read");
                }
                return Ok(());
            }
            if !is_late && begin.elapsed() >= NODES_WITHIN {
                is_late = true;
                let here: Vec<_> = agents.iter().map(|agent| agent.host.as_str()).collect();
                tracing::warn!(
                    nodes = task.nodes, serving = here.join(","), folder = %self.part.folder().path().display(),
                    "not all nodes of the step serve: their tasks say why; all nodes must see the folder of the job"
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Ends everything, and leaves nothing behind.
    async fn stop(self) {
        if self.manager.is_some() {
            self.part.retract();
        }
        // The agent stops first: it ends its leases and reports their last usage to the manager.
        self.agent.shutdown().await;
        if let Some(manager) = &self.manager {
            manager.shutdown().await;
        }
        // The directory is removed before the folder: a new `up` of the job on this node finds neither.
        drop(self.dir);
        drop(self.part);
    }
}

/// Configuration of a node's agent: it offers what the job has there, to the job's user.
fn agent_config(
    task: &JobTask,
    offer: OfferArgs,
    dir: &RuntimeDir,
    network: AgentNetwork,
) -> anyhow::Result<AgentConfig> {
    let mut config = offer.config_of_own(dir)?;
    config.cores = task.cores(&config.cores, &allowed_cores())?;
    config.memory_bytes = task.memory_bytes;
    config.node_name = Some(task.node.clone());
    config.network = Some(network);
    Ok(config)
}
