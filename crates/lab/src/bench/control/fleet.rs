//! All simulated agents, in several processes, because 10,000 agents need more descriptors than one process can have.

use super::simulated_agents::ProcessAgents;
use super::site::{AGENTS_PER_IDENTITY, BenchSite};
use anyhow::Context;
use clap::Args;
use hotlease_net::Address;
use serde::{Deserialize, Serialize};
use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Each agent needs three descriptors, and a common hard limit is 20,000.
const AGENTS_PER_PROCESS: u32 = 5 * AGENTS_PER_IDENTITY;
/// Number of cores of an agent beyond the cores of the held leases, for leases that are granted and released.
const SPARE_CORES: u32 = 16;

/// Arguments of one process of simulated agents.
#[derive(Debug, Args)]
pub(in crate::bench) struct SimulatedAgentsArgs {
    /// Address of their manager
    #[arg(long)]
    pub(super) manager: Address,
    /// Identity folders, one per thousand agents
    #[arg(long = "identity")]
    pub(super) identities: Vec<PathBuf>,
    /// Number of agents
    #[arg(long)]
    pub(super) agents: u32,
    /// Cores of each agent
    #[arg(long)]
    pub(super) cores: u32,
}

/// Answer of a process, a line of JSON. A process prints one when all agents are registered, and one for each line of
/// input.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct FleetCounts {
    /// Reports that the manager has accepted so far.
    heard: u64,
    /// Leases that its agents hold.
    leases: usize,
}

/// Runs one process of simulated agents (a hidden command). It ends when its input ends.
pub(in crate::bench) fn run_simulated_agents(args: &SimulatedAgentsArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let members = runtime.block_on(ProcessAgents::start(args))?;
    let mut asked = std::io::stdin().lock().lines();
    loop {
        let seen = FleetCounts {
            heard: members.accepted_reports(),
            leases: members.leases(),
        };
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", serde_json::to_string(&seen)?)?;
        output.flush()?;
        if asked.next().transpose()?.is_none() {
            return Ok(());
        }
    }
}

/// Processes of all simulated agents.
pub(super) struct Fleet(Vec<AgentsProcess>);

impl Fleet {
    /// Starts the agents. Returns when all of them are registered.
    pub(super) fn start(site: &BenchSite, agents: u32, leases: u32) -> anyhow::Result<Self> {
        let cores = leases.div_ceil(agents) + SPARE_CORES;
        let firsts = (0..agents).step_by(AGENTS_PER_PROCESS as usize);
        let processes = firsts.map(|first| {
            let agents = AGENTS_PER_PROCESS.min(agents - first);
            AgentsProcess::start(site, first, agents, cores)
        });
        Ok(Self(processes.collect::<anyhow::Result<_>>()?))
    }

    fn counts(&mut self) -> anyhow::Result<FleetCounts> {
        let mut all = FleetCounts::default();
        for process in &mut self.0 {
            let seen = process.ask()?;
            all.heard += seen.heard;
            all.leases += seen.leases;
        }
        Ok(all)
    }

    /// Reports that the manager has accepted so far.
    pub(super) fn accepted_reports(&mut self) -> anyhow::Result<u64> {
        Ok(self.counts()?.heard)
    }

    /// Leases that all agents hold.
    pub(super) fn leases(&mut self) -> anyhow::Result<usize> {
        Ok(self.counts()?.leases)
    }
}

struct AgentsProcess {
    child: Child,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl AgentsProcess {
    fn start(site: &BenchSite, first: u32, agents: u32, cores: u32) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe().context("cannot find this program")?);
        command
            .args(["bench", "simulated-agents", "--manager", &site.address().to_string()])
            .args(["--agents", &agents.to_string(), "--cores", &cores.to_string()]);
        for identity in site.agents(first, agents) {
            command.arg("--identity").arg(identity);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start simulated agents")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut process = Self {
            input: input.context("simulated agents have no input")?,
            answers: BufReader::new(output.context("simulated agents have no output")?).lines(),
            child,
        };
        process.answer().context("agents cannot register")?;
        Ok(process)
    }

    fn answer(&mut self) -> anyhow::Result<FleetCounts> {
        let line = self.answers.next().context("simulated agents ended")??;
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self) -> anyhow::Result<FleetCounts> {
        writeln!(self.input)?;
        self.answer()
    }
}

impl Drop for AgentsProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
