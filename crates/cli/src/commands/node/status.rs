//! `hotlease node status`: the batch jobs that the agent of this node has recorded.

use anyhow::{Context, bail};
use clap::Args;
use hotlease_agent::NODE_SOCKET;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_fabric::socket::Socket;
use hotlease_terminal::output::{Printer, printable};
use hotlease_terminal::quantity;
use hotlease_wire::batch::{JobOnNode, JobShare, NodeAnswer, NodeJobs, NodeRequest};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time that the agent has to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Show the batch jobs of this node, what each may use, and the policy in use
///
/// Asks the agent of this node; only root and the agent's user may ask. With `--json`, prints one object: policy (file,
/// since_ms: when it was read, fault: why the present file is not used; null: idle nodes only), jobs (job, user,
/// account, partition, whole: it has the whole node, cores, gpus, memory_bytes, why), left_out (number of further
/// jobs).
#[derive(Debug, Args)]
pub(super) struct StatusArgs {}

#[derive(Serialize)]
struct NodeSummary {
    policy: Option<PolicySummary>,
    jobs: Vec<ShareRow>,
    left_out: u32,
}

#[derive(Serialize)]
struct PolicySummary {
    file: String,
    since_ms: u64,
    fault: Option<String>,
}

#[derive(Serialize)]
struct ShareRow {
    job: u64,
    user: String,
    account: String,
    partition: String,
    whole: bool,
    cores: Vec<u32>,
    gpus: Vec<u32>,
    memory_bytes: u64,
    why: String,
}

impl ShareRow {
    fn of(shown: JobOnNode) -> Self {
        let JobOnNode { job, why } = shown;
        let (whole, cores, gpus, memory_bytes) = match job.share {
            JobShare::Node => (true, Vec::new(), Vec::new(), 0),
            JobShare::Part {
                cores,
                gpus,
                memory_bytes,
            } => (
                false,
                cores.into_iter().collect(),
                gpus.into_iter().collect(),
                memory_bytes,
            ),
        };
        Self {
            job: job.id.0,
            user: job.user,
            account: job.account,
            partition: job.partition,
            whole,
            cores,
            gpus,
            memory_bytes,
            why,
        }
    }

    fn cells(&self) -> Vec<String> {
        let of_part = |text: String| if self.whole { "all".into() } else { text };
        vec![
            self.job.to_string(),
            self.user.clone(),
            self.partition.clone(),
            of_part(quantity::cores(&self.cores)),
            of_part(quantity::bytes(self.memory_bytes)),
            of_part(quantity::cores(&self.gpus)),
            self.why.clone(),
        ]
    }
}

pub(super) fn carry_out(_: StatusArgs, output: &mut Printer) -> anyhow::Result<()> {
    let NodeJobs { policy, jobs, left_out } = ask()?;
    let summary = NodeSummary {
        policy: policy.map(|policy| PolicySummary {
            file: policy.file,
            since_ms: policy.since_ms,
            fault: policy.fault,
        }),
        jobs: jobs.into_iter().map(ShareRow::of).collect(),
        left_out,
    };
    if output.is_json() {
        return output.object(&summary);
    }
    match &summary.policy {
        None => output.line("No policy: leases use idle nodes only.")?,
        Some(policy) => {
            output.line(&format!(
                "Policy: {}, read {} ago.",
                printable(&policy.file),
                ago(policy.since_ms)
            ))?;
            if let Some(why) = &policy.fault {
                let why: Vec<String> = why.lines().map(printable).collect();
                output.line("The file as it is now is not used; what was read before stays in use:")?;
                output.line(&why.join("\n"))?;
            }
        }
    }
    let columns = ">JOB, USER, PARTITION, CORES, MEMORY, GPUS, WHY";
    output.list(&summary.jobs, columns, "No batch job is on this node.", ShareRow::cells)?;
    match left_out {
        0 => Ok(()),
        more => output.line(&format!("Further jobs: {more}.")),
    }
}

fn ago(since_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = (now.as_millis() as u64).saturating_sub(since_ms);
    quantity::nanoseconds(ms.saturating_mul(1_000_000))
}

fn ask() -> anyhow::Result<NodeJobs> {
    let path = RuntimeDir::resolve()?.path().join(NODE_SOCKET);
    let socket = Socket::connect(&path).with_context(|| {
        format!(
            "no agent answers at {}; set HOTLEASE_RUNTIME_DIR to its directory",
            path.display()
        )
    })?;
    socket.set_receive_timeout(Some(LIMIT))?;
    socket.send(&NodeRequest::Show, &[])?;
    match socket.receive::<NodeAnswer>()? {
        Some((NodeAnswer::Shown(jobs), _)) => Ok(jobs),
        Some((answer, _)) => bail!("the agent's answer is {answer:?}"),
        None => bail!("the agent closed the connection: only root and its own user may ask"),
    }
}
