//! `hotlease explain`: prints how a lease started, step by step, and what its functions reach.

use clap::Args;
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::{Printer, printable};
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{Directory, LeaseInfo, LeaseStart, ListRequest};
use serde::Serialize;

/// Show how the time of a lease's start was spent, and why no worker was waiting for it
///
/// With several workers, each step shows the slowest worker. With `--json`, prints one object: lease, agent, tenant,
/// label, state, cores (of its slots, at present), shared (whether other leases may use them), sandbox, reaches
/// (resources outside the sandbox that its functions may use, in words), shows (what the sandbox shows of the host's
/// files, to read), hides (folders of a Python program's import path that the sandbox does not show), memory_bytes
/// (limit on the memory of each worker, 0: none), memory_by_kernel (whether the kernel enforces that limit; otherwise
/// the agent checks it at intervals), warm and cold (workers that were waiting, and workers that had to be started),
/// why (the reason for cold workers, or empty), phases (an object with the nanoseconds of each step that took place:
/// grant, image, sandbox, boot, interpreter, imports, restore, connect, first_call), and kept (what happened to its
/// state; empty if it has none).
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The lease: its id, or the beginning of its id if no other id begins in the same way [default: the last lease]
    #[arg(value_name = "LEASE")]
    lease: Option<String>,
    #[command(flatten)]
    site: SiteArgs,
}

/// Steps in order, each with its explanation.
const STEPS: [(&str, &str); 9] = [
    ("grant", "asking the agent, and giving its workers to the lease"),
    ("image", "its environment: fetched, mounted"),
    ("sandbox", "made, or a prepared one taken; the program started in it"),
    ("boot", "a kernel of its own"),
    (
        "interpreter",
        "until the program's first line; of a native worker, until it was ready",
    ),
    ("imports", "until it was ready; of a native worker, loading the library"),
    ("restore", "the state that an earlier lease had saved"),
    ("connect", "until its client had a connection to it"),
    ("first_call", "as the worker saw it"),
];

#[derive(Serialize)]
struct LeaseExplanation {
    lease: String,
    agent: String,
    tenant: String,
    label: String,
    state: String,
    cores: Vec<u32>,
    shared: bool,
    sandbox: String,
    reaches: Vec<String>,
    shows: Vec<String>,
    hides: Vec<String>,
    memory_bytes: u64,
    memory_by_kernel: bool,
    warm: u32,
    cold: u32,
    why: String,
    kept: String,
    phases: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct StepRow {
    name: &'static str,
    ns: u64,
    what: &'static str,
}

pub(crate) fn carry_out(args: ExplainArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    let list = platform.request(async |client| client.list_leases(ListRequest::default()).await)?;
    let (lease, start) = find_lease_start(args.lease.as_deref(), list.leases)?;
    let steps = steps(&start);
    let explained = LeaseExplanation {
        lease: lease.id,
        agent: lease.agent,
        tenant: lease.tenant,
        label: lease.label,
        state: lease.state,
        cores: lease.cores,
        shared: lease.shared,
        reaches: reaches(&start),
        shows: shows(&start),
        hides: start
            .reach
            .as_ref()
            .map(|reach| reach.hidden.clone())
            .unwrap_or_default(),
        sandbox: start.sandbox,
        memory_bytes: start.memory_bytes,
        memory_by_kernel: start.memory_by_kernel,
        warm: start.warm,
        cold: start.cold,
        why: start.why,
        kept: start.state,
        phases: steps
            .iter()
            .map(|step| (step.name.to_owned(), step.ns.into()))
            .collect(),
    };
    if output.is_json() {
        return output.object(&explained);
    }
    output.line(&printable(&explained.sentence()))?;
    if explained.shared {
        let cores = quantity::cores(&explained.cores);
        output.line(&format!(
            "its cores are shared, and its workers moved to idle ones: last on {cores}"
        ))?;
    }
    output.line(&printable(&format!(
        "functions reach beyond their sandbox: {}",
        match explained.reaches.is_empty() {
            true => "nothing".to_owned(),
            false => explained.reaches.join(", "),
        }
    )))?;
    if !explained.shows.is_empty() {
        output.line(&printable(&format!(
            "they see of the host, to read: {}",
            explained.shows.join(", ")
        )))?;
    }
    if !explained.hides.is_empty() {
        output.line(&printable(&format!(
            "folders of the import path that they do not see (home folders, folders that contain one, and folders that the site does not show): {}",
            explained.hides.join(", ")
        )))?;
    }
    if let Some(limit) = explained.watched_memory() {
        output.line(&limit)?;
    }
    if !explained.kept.is_empty() {
        output.line(&printable(&explained.kept))?;
    }
    let columns = "STEP, >TOOK, ";
    output.list(&steps, columns, "no step of it is known yet", |step| {
        vec![
            step.name.replace('_', " "),
            quantity::nanoseconds(step.ns),
            step.what.to_owned(),
        ]
    })
}

impl LeaseExplanation {
    /// Limit on the memory of each worker in words, if the kernel does not enforce it.
    fn watched_memory(&self) -> Option<String> {
        let bytes = quantity::bytes(self.memory_bytes);
        let is_watched = self.memory_bytes > 0 && !self.memory_by_kernel && (self.warm > 0 || self.cold > 0);
        is_watched.then(|| {
            format!(
                "the kernel does not enforce each worker's limit of {bytes} of memory: the agent checks it at intervals"
            )
        })
    }

    fn sentence(&self) -> String {
        let why = match (self.warm, self.cold) {
            (0, 0) => "no worker of it has served yet".to_owned(),
            (_, 0) if self.why.is_empty() => "warm: its workers had waited for it".to_owned(),
            (_, 0) => format!("warm: its workers had waited for it; {}", self.why),
            (0, _) => format!("cold: {}", self.why),
            (warm, cold) => format!("{cold} of {} workers cold: {}", warm.saturating_add(cold), self.why),
        };
        format!("lease {}, {}, in {}; {why}", self.lease, self.state, self.sandbox)
    }
}

/// Resources outside their sandbox that functions of a lease may use, in words.
fn reaches(start: &LeaseStart) -> Vec<String> {
    let reach = start.reach.clone().unwrap_or_default();
    let storage = reach.storage.into_iter();
    if start.sandbox == "process" {
        return std::iter::once("all that the agent's user does".into())
            .chain(storage)
            .collect();
    }
    let directory = |of: Directory| {
        let inside = match of.inside.as_str() {
            "" => String::new(),
            inside => format!(" as {inside}"),
        };
        let how = if of.writable { "to read and write" } else { "to read" };
        format!("{}{inside} {how}", of.path)
    };
    let network = reach.network.then(|| "the host's network".to_owned());
    reach
        .directories
        .into_iter()
        .map(directory)
        .chain(storage)
        .chain(network)
        .collect()
}

/// Host files that a sandbox shows, apart from directories that the lease declares.
fn shows(start: &LeaseStart) -> Vec<String> {
    let shown = start.reach.clone().unwrap_or_default().shown;
    match start.sandbox.as_str() {
        "process" => Vec::new(),
        // A container may have the system folders of an image in place of the host's.
        "container" => shown,
        _ => std::iter::once("the system's folders".to_owned())
            .chain(shown)
            .collect(),
    }
}

fn steps(start: &LeaseStart) -> Vec<StepRow> {
    let took = [
        start.grant_ns,
        start.image_ns,
        start.sandbox_ns,
        start.boot_ns,
        start.interpreter_ns,
        start.imports_ns,
        start.restore_ns,
        start.connect_ns,
        start.first_call_ns,
    ];
    let known = STEPS.iter().zip(took);
    let step =
        |((name, what), took): (&(&'static str, &'static str), Option<u64>)| Some(StepRow { name, ns: took?, what });
    known.filter_map(step).collect()
}

/// Finds the only lease whose id begins with this text, or without a text the last lease; also returns the record of
/// its start. Fails if several leases match, if none does, or if the record is gone.
fn find_lease_start(beginning: Option<&str>, leases: Vec<LeaseInfo>) -> anyhow::Result<(LeaseInfo, LeaseStart)> {
    let Some(beginning) = beginning else {
        let known = leases.into_iter().filter(|lease| lease.start.is_some());
        // Epochs rise with each grant of an agent. They do not order the leases of different agents.
        let last = known.max_by_key(|lease| lease.epoch);
        let Some((lease, start)) = last.and_then(with_start) else {
            anyhow::bail!(
                "there is no lease whose start could be explained; agents remember the last 1024 ended leases"
            );
        };
        return Ok((lease, start));
    };
    let mut meant: Vec<LeaseInfo> = leases
        .into_iter()
        .filter(|lease| lease.id.starts_with(beginning))
        .collect();
    match (meant.pop(), meant.len()) {
        (Some(lease), 0) => {
            let id = lease.id.clone();
            with_start(lease).ok_or_else(|| {
                anyhow::anyhow!(
                    "how lease {id} began is not known any more: its agent has forgotten it, was started again, or does not answer"
                )
            })
        }
        (Some(_), others) => Err(CommandError::Usage(format!(
            "{} leases begin with `{beginning}`; give more of the id",
            others + 1
        ))
        .into()),
        (None, _) => anyhow::bail!("no lease begins with `{beginning}`; see `hotlease leases --all`"),
    }
}

fn with_start(mut lease: LeaseInfo) -> Option<(LeaseInfo, LeaseStart)> {
    let start = lease.start.take()?;
    Some((lease, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str, epoch: u32, known: bool) -> LeaseInfo {
        LeaseInfo {
            id: id.into(),
            epoch,
            start: known.then(|| LeaseStart {
                grant_ns: Some(7),
                first_call_ns: Some(9),
                ..LeaseStart::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_last_lease_is_meant_unless_one_is_named() {
        let leases = || vec![lease("aa01", 7, true), lease("aa02", 5, true), lease("bb01", 9, false)];
        let meant = |beginning| find_lease_start(beginning, leases()).map(|(lease, _)| lease.id);
        assert_eq!(meant(None).unwrap(), "aa01");
        assert_eq!(meant(Some("aa02")).unwrap(), "aa02");
        assert!(meant(Some("aa")).unwrap_err().is::<CommandError>());
        assert!(
            meant(Some("bb"))
                .unwrap_err()
                .to_string()
                .contains("not known any more")
        );
        assert!(meant(Some("cc")).unwrap_err().to_string().contains("no lease begins"));
    }

    #[test]
    fn the_reach_of_functions_is_described_in_sentences() {
        let mut start = LeaseStart {
            sandbox: "namespace".into(),
            ..LeaseStart::default()
        };
        assert!(reaches(&start).is_empty());
        start.reach = Some(hotlease_wire::grpc::Reach {
            directories: vec![Directory {
                path: "/scratch/ann".into(),
                inside: "/data".into(),
                writable: true,
            }],
            network: true,
            storage: vec!["s3://data/ann:rw".into()],
            shown: vec!["/data/ann/project".into()],
            hidden: Vec::new(),
        });
        assert_eq!(shows(&start), ["the system's folders", "/data/ann/project"]);
        assert_eq!(
            reaches(&start),
            [
                "/scratch/ann as /data to read and write",
                "s3://data/ann:rw",
                "the host's network"
            ]
        );
        start.sandbox = "process".into();
        assert_eq!(reaches(&start), ["all that the agent's user does", "s3://data/ann:rw"]);
        assert!(shows(&start).is_empty());
    }

    #[test]
    fn steps_that_there_were_are_shown_in_their_order() {
        let start = lease("aa", 1, true).start.unwrap();
        let names: Vec<_> = steps(&start).iter().map(|step| (step.name, step.ns)).collect();
        assert_eq!(names, [("grant", 7), ("first_call", 9)]);
    }
}
