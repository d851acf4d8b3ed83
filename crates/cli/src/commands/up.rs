//! `hotlease up`: manager and agent in one process.

mod detach;
pub(crate) mod down;
mod job;
pub(crate) mod lock;
pub(crate) mod signals;

use crate::commands::agent::OfferArgs;
use crate::state::LedgerArgs;
use clap::Args;
use hotlease_agent::Agent;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::{AgentProfile, Manager};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use lock::UpLock;
use serde::{Deserialize, Serialize};
use signals::{ShutdownKind, Signals};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Start the platform on this host, or on the nodes of a batch job
///
/// On this host: manager and agent in one process. In a job of Slurm: `srun hotlease up`, one task on each node, starts
/// a manager on the first node and an agent on each, which only the job's user can use; programs of the job find it
/// without an argument. Needs no root and no configuration. Stops on Ctrl-C, SIGTERM (after a while if --drain-within
/// is given), SIGUSR1 or `hotlease down`: leases end, and no process and no socket remains. With `--json`, prints an
/// object when it serves: pid, version, runtime_dir, agent, cores, pool (number of waiting workers so far), log (or
/// null); in a job: job, step, folder, managers, nodes, cores.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Go to the background once it serves
    #[arg(long, short)]
    detach: bool,
    /// In a batch script or the shell of an allocation: start the platform on all nodes of the job, by a step of `srun`
    /// that shares the job's cores with its other steps
    #[arg(long)]
    nodes_of_this_job: bool,
    /// In a job: how long the other nodes wait for the first node
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = quantity::parse_time)]
    first_within: Duration,
    #[command(flatten)]
    offer: OfferArgs,
    #[command(flatten)]
    ledger: LedgerArgs,
    #[command(flatten)]
    end: EndArgs,
    /// Marks the background process of `--detach`
    #[arg(long, hide = true, conflicts_with = "detach")]
    background: bool,
}

/// Arguments that decide when the platform ends.
#[derive(Debug, Clone, Copy, Args)]
struct EndArgs {
    /// How long leases may go on after SIGTERM, as for `hotlease agent` [default: they end at once, because they
    /// are your own]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_notice)]
    drain_within: Option<Duration>,
    /// Stop once there was no lease for this long [default: run until it is told to stop]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    idle_limit: Option<Duration>,
}

impl EndArgs {
    /// The arguments for the background process.
    fn to_args(self) -> Vec<String> {
        let named = [("--drain-within", self.drain_within), ("--idle-limit", self.idle_limit)];
        let given = named.into_iter().filter_map(|(name, time)| Some((name, time?)));
        given
            .flat_map(|(name, time)| [name.to_owned(), format!("{}us", time.as_micros())])
            .collect()
    }
}

/// Longest time for the agent to register after both daemons have started.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);
/// Threads of the daemons. They do nothing for invocations, so a few suffice for any number of cores.
const DAEMON_THREADS: usize = 2;

/// Description of the running platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PlatformSummary {
    pid: u32,
    version: String,
    runtime_dir: PathBuf,
    agent: String,
    cores: Vec<u32>,
    pool: u32,
    log: Option<PathBuf>,
}

impl PlatformSummary {
    fn text(&self) -> String {
        let offers = match self.cores.len() {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        };
        let mut lines = vec![
            format!("hotlease {} is up (pid {})", self.version, self.pid),
            format!("  offers   {offers} ({})", quantity::cores(&self.cores)),
            format!("  sockets  {}", self.runtime_dir.display()),
        ];
        match &self.log {
            Some(log) => {
                lines.push(format!("  log      {}", log.display()));
                lines.push("  stop     hotlease down".into());
            }
            None => lines.push("  stop     Ctrl-C, or hotlease down".into()),
        }
        lines.push("  try      hotlease run LIB.so FUNCTION < input > output".into());
        let machine = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        if self.cores.len() >= machine && machine > 1 {
            let most = machine - 1;
            lines.push(format!(
                "  hint     all cores are offered; a client that polls wants one of its own: `--cores {most}`"
            ));
        }
        lines.join("\n")
    }
}

pub(crate) fn carry_out(args: UpArgs, output: &mut Printer) -> anyhow::Result<()> {
    if args.nodes_of_this_job {
        return job::start(&args, output);
    }
    // With `--detach`, this task of a step starts a platform for its node alone, as the Python package does.
    if !args.detach
        && !args.background
        && let Some(task) = job::task()
    {
        return job::serve(&task, args, output);
    }
    let dir = RuntimeDir::resolve()?;
    if args.detach {
        let summary = detach::start(&dir, &args.offer, &args.ledger, args.end)?;
        return output.answer(&summary, || summary.text());
    }
    if args.background {
        return detach::in_background(&dir, |lock, ready| {
            run(lock, &dir, args.offer, &args.ledger, args.end, ready)
        });
    }
    let ready = |summary: PlatformSummary| {
        // The reader may be gone (`hotlease up | head -1`), which is no reason to stop.
        let shown = output.answer(&summary, || summary.text()).and_then(|()| output.flush());
        if let Err(error) = shown {
            tracing::debug!(%error, "the summary was not read");
        }
    };
    let lock = UpLock::take(&dir)?;
    run(lock, &dir, args.offer, &args.ledger, args.end, ready)
}

/// Runs both daemons until their last socket is closed; calls `ready` when leases can be granted.
fn run(
    _held: UpLock,
    dir: &RuntimeDir,
    offer: OfferArgs,
    ledger: &LedgerArgs,
    end: EndArgs,
    ready: impl FnOnce(PlatformSummary),
) -> anyhow::Result<()> {
    let runtime = daemon_runtime()?;
    let result = runtime.block_on(serve(dir, offer, ledger, end, ready));
    // All important work is done, and a hanging thread must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn daemon_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DAEMON_THREADS)
        .thread_name("hotlease-up")
        .enable_all()
        .build()
}

async fn serve(
    dir: &RuntimeDir,
    offer: OfferArgs,
    ledger: &LedgerArgs,
    end: EndArgs,
    ready: impl FnOnce(PlatformSummary),
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let manager = Manager::start(ledger.manager(dir)?).await?;
    let mut config = offer.config_of_own(dir)?;
    config.state_dir = ledger.durable.agent_directory(dir);
    let agent = Agent::start(config).await?;
    let told = tokio::select! {
        served = until_told(dir, &manager, &agent, ready) => Err(served),
        told = signals.next() => Ok(told),
        () = until_idle(&agent, end.idle_limit) => Err(Ok(())),
    };
    let served = match told {
        Ok(told) => {
            let told = match (told, end.drain_within) {
                (ShutdownKind::Drain, None) => ShutdownKind::Stop,
                _ => told,
            };
            let within = end.drain_within.unwrap_or_default();
            signals.obey(told, &agent, within).await;
            Ok(())
        }
        Err(served) => served,
    };
    // The agent stops first: it ends its leases and reports their last usage to the manager.
    let stop = async {
        agent.shutdown().await;
        manager.shutdown().await;
        served
    };
    tokio::select! {
        served = stop => served,
        () = signals.wait_for_stop() => anyhow::bail!("interrupted while stopping; workers end by themselves"),
    }
}

async fn until_told(
    dir: &RuntimeDir,
    manager: &Manager,
    agent: &Agent,
    ready: impl FnOnce(PlatformSummary),
) -> anyhow::Result<()> {
    let registered = tokio::time::timeout(REGISTER_WITHIN, manager.an_agent());
    match registered.await {
        Ok(record) => ready(summary(dir, record)),
        Err(_) => anyhow::bail!(
            "the agent did not register within {} s; HOTLEASE_LOG=debug shows why",
            REGISTER_WITHIN.as_secs()
        ),
    }
    tokio::select! {
        () = manager.shutdown_requested() => Ok(()),
        () = manager.wait_until_stopped() => anyhow::bail!("the manager stopped by itself; its log says why"),
        () = agent.wait_until_stopped() => anyhow::bail!("the agent stopped by itself; its log says why"),
    }
}

/// Returns once no lease was held for `limit`. Never returns without a limit.
async fn until_idle(agent: &Agent, limit: Option<Duration>) {
    match limit {
        Some(limit) => {
            agent.idle(limit).await;
            tracing::info!(?limit, "stopping: there was no lease for this long");
        }
        None => std::future::pending().await,
    }
}

fn summary(dir: &RuntimeDir, agent: AgentProfile) -> PlatformSummary {
    PlatformSummary {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        runtime_dir: dir.path().into(),
        agent: agent.id.to_string(),
        cores: agent.cores,
        pool: agent.pool,
        log: None,
    }
}
