//! `hotlease node policy check`: effect of a policy on jobs.

use super::queue;
use clap::Args;
use hotlease_agent::{SitePolicy, WeekMinute};
use hotlease_terminal::output::{Printer, printable};
use hotlease_wire::batch::{BatchJob, JobSharing};
use hotlease_wire::ids::JobId;
use serde::Serialize;
use std::path::PathBuf;

/// Explain what a policy does to the jobs that run now, or to a job that options describe
///
/// The jobs are those that `squeue` lists. Without Slurm, or with one of the options of a job, the policy is tried on
/// the job that the options describe. A policy that cannot be used is an error that says what is wrong, and where. With
/// `--json`, prints an object for each job: job (its number; 0: described by options), user, account, partition, nodes,
/// company (true or false), rule (number of the rule by which it has company, or null), why.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The policy, as `hotlease agent --batch-policy` takes it
    file: PathBuf,
    #[command(flatten)]
    job: JobArgs,
    /// Time of the week in place of the present time, such as "fri 18:00"
    #[arg(long, value_name = "DAY HH:MM")]
    at: Option<WeekMinute>,
}

/// Description of a job.
#[derive(Debug, Args)]
struct JobArgs {
    /// Partition of the job
    #[arg(long, value_name = "NAME", help_heading = "A job")]
    partition: Option<String>,
    /// Account of the job
    #[arg(long, value_name = "NAME", help_heading = "A job")]
    account: Option<String>,
    /// User of the job
    #[arg(long, value_name = "NAME", help_heading = "A job")]
    user: Option<String>,
    /// Constraint of the job, as `sbatch` takes it
    #[arg(long, value_name = "FEATURES", help_heading = "A job")]
    constraint: Option<String>,
    /// Comment of the job
    #[arg(long, value_name = "TEXT", help_heading = "A job")]
    comment: Option<String>,
    /// Number of nodes of the job [default: 1]
    #[arg(long, value_name = "N", help_heading = "A job")]
    nodes: Option<u32>,
    /// The job was submitted with --oversubscribe
    #[arg(long, conflicts_with = "exclusive", help_heading = "A job")]
    oversubscribe: bool,
    /// The job was submitted with --exclusive
    #[arg(long, help_heading = "A job")]
    exclusive: bool,
}

impl JobArgs {
    /// The job; `None` if no option describes a job.
    fn job(self) -> Option<BatchJob> {
        let names = [
            &self.partition,
            &self.account,
            &self.user,
            &self.constraint,
            &self.comment,
        ];
        let is_described =
            names.iter().any(|name| name.is_some()) || self.nodes.is_some() || self.oversubscribe || self.exclusive;
        is_described.then(|| BatchJob {
            partition: self.partition.unwrap_or_default(),
            account: self.account.unwrap_or_default(),
            user: self.user.unwrap_or_default(),
            constraint: self.constraint.unwrap_or_default(),
            comment: self.comment.unwrap_or_default(),
            nodes: self.nodes.unwrap_or(1),
            sharing: match (self.oversubscribe, self.exclusive) {
                (true, _) => JobSharing::Requested,
                (_, true) => JobSharing::Exclusive,
                _ => JobSharing::Possible,
            },
            ..BatchJob::unknown(JobId(0))
        })
    }
}

#[derive(Serialize)]
struct JobRow {
    job: u64,
    user: String,
    account: String,
    partition: String,
    nodes: u32,
    company: bool,
    rule: Option<usize>,
    why: String,
}

impl JobRow {
    fn of(job: &BatchJob, policy: &SitePolicy, at: WeekMinute) -> Self {
        let company = policy.company(job, at);
        Self {
            job: job.id.0,
            user: job.user.clone(),
            account: job.account.clone(),
            partition: job.partition.clone(),
            nodes: job.nodes,
            company: company.is_ok(),
            rule: company.as_ref().ok().copied(),
            why: match company {
                Ok(rule) => format!("rule {rule}"),
                Err(reasons) => reasons.join("; "),
            },
        }
    }
}

pub(super) fn carry_out(args: CheckArgs, output: &mut Printer) -> anyhow::Result<()> {
    let policy = SitePolicy::load(&args.file)?;
    let at = args.at.unwrap_or_else(WeekMinute::now);
    if !output.is_json() {
        for line in policy.describe() {
            output.line(&printable(&line))?;
        }
    }
    let described = args.job.job().map(|job| queue::JobList {
        jobs: vec![job],
        unread: 0,
    });
    let list = match described {
        Some(list) => Some(list),
        None => queue::running_jobs()?,
    };
    let Some(list) = list else {
        return match output.is_json() {
            true => Ok(()),
            false => {
                output.line("There is no squeue here: describe a job by options (--partition, --nodes and others).")
            }
        };
    };
    let rows: Vec<JobRow> = list.jobs.iter().map(|job| JobRow::of(job, &policy, at)).collect();
    if !output.is_json() {
        output.line("")?;
    }
    let columns = ">JOB, USER, ACCOUNT, PARTITION, >NODES, COMPANY, WHY";
    output.list(&rows, columns, "No job runs now.", |row| {
        let company = if row.company { "yes" } else { "no" };
        vec![
            row.job.to_string(),
            row.user.clone(),
            row.account.clone(),
            row.partition.clone(),
            row.nodes.to_string(),
            company.into(),
            row.why.clone(),
        ]
    })?;
    if output.is_json() {
        return Ok(());
    }
    if list.unread > 0 {
        output.line(&format!("Lines of squeue that are no job: {}.", list.unread))?;
    }
    if rows.len() > 1 {
        let company = || rows.iter().filter(|row| row.company);
        let nodes = |rows: &mut dyn Iterator<Item = &JobRow>| rows.map(|row| u64::from(row.nodes)).sum::<u64>();
        output.line(&format!(
            "With company at {at}: {} of {} jobs, on {} of {} nodes (a node counts once for each of its jobs).",
            company().count(),
            rows.len(),
            nodes(&mut company()),
            nodes(&mut rows.iter()),
        ))?;
    }
    Ok(())
}
