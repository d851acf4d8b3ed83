//! `hotlease bill verify`: a check of the ledger.

use crate::state::StateArgs;
use anyhow::Context;
use clap::Args;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_journal::{JOURNAL_FILE, LeaseKey, LeaseTotal, TotalsTable, read};
use hotlease_terminal::output::{Printer, printable};
use hotlease_terminal::platform::Platform;
use hotlease_wire::grpc::{FunctionUsage, JournalTotal, VerifyReply, VerifyRequest};
use hotlease_wire::ids::AgentId;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Largest number of totals in one request.
const BATCH: usize = 1024;
/// Function rows after which no further total is added to a request; the last total may exceed the number.
const FUNCTIONS_BATCH: usize = 8192;

/// Check the ledger against its own rules, and against the agents' journals
///
/// Looks up every total that is still in an agent's journal: acknowledged usage must be in the ledger, and no tenant
/// may be billed for more than was measured. Journals of agents on other hosts can be copied to this host and named
/// with `--journal`. Exits with 1 if anything is wrong. With `--json`, prints one object: rows, journal {files,
/// agreeing, waiting, capped, damaged_bytes}, disputed, problems.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// A journal, or its folder; may be given more than once [default: the journal of this host's agent, if
    /// there is one]
    #[arg(long = "journal", value_name = "PATH")]
    journals: Vec<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

#[derive(Debug, Default, Serialize)]
struct JournalSummary {
    files: usize,
    agreeing: u64,
    waiting: u64,
    capped: u64,
    damaged_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
struct VerifySummary {
    rows: u64,
    journal: JournalSummary,
    disputed: Vec<DisputedRow>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DisputedRow {
    lease: String,
    agent: String,
    boot: String,
    tenant: String,
    allocated_ns: u64,
    invocations: u64,
}

/// Message of one total. `whole`: the journal is undamaged, so its usage by functions is complete and is included.
fn total(
    agent: AgentId,
    (boot, lease): &LeaseKey,
    entry: &LeaseTotal,
    (acknowledged, whole): (bool, bool),
) -> JournalTotal {
    let functions = entry.functions.iter().filter(|_| whole);
    let functions = functions.map(|(id, used)| FunctionUsage {
        library: id.library.0.to_vec(),
        name: id.name.to_string(),
        compute_ns: used.compute_ns,
        invocations: used.invocations,
    });
    JournalTotal {
        agent: agent.to_string(),
        boot: boot.to_string(),
        lease: lease.to_string(),
        usage: Some(entry.usage.into()),
        ended: entry.ended,
        acknowledged,
        functions: functions.collect(),
    }
}

/// All totals of a journal, and its damaged bytes. A record that the agent is writing at this moment may be
/// incomplete.
fn totals(path: &Path) -> anyhow::Result<(Vec<JournalTotal>, u64)> {
    let bytes = read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (table, recovery) = TotalsTable::recover(&bytes);
    let Some(agent) = recovery.agent else {
        return Ok((Vec::new(), recovery.damaged_bytes));
    };
    // Each total of a lease includes all earlier totals, but the usage of each function is recorded only once, so
    // damage may hide some of it.
    let whole = recovery.damaged_bytes == 0;
    let acknowledged = table
        .acknowledged()
        .map(|(key, entry)| total(agent, key, entry, (true, whole)));
    let waiting = table
        .waiting()
        .map(|(key, entry)| total(agent, key, entry, (false, whole)));
    Ok((acknowledged.chain(waiting).collect(), recovery.damaged_bytes))
}

/// Divides totals into batches that fit into one request each.
fn batches(mut told: &[JournalTotal]) -> impl Iterator<Item = &[JournalTotal]> {
    std::iter::from_fn(move || {
        let mut functions = 0;
        let fit = told.iter().take(BATCH).take_while(|total| {
            let fits = functions < FUNCTIONS_BATCH;
            functions += total.functions.len();
            fits
        });
        let (batch, rest) = told.split_at(fit.count());
        told = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

impl VerifySummary {
    fn add(&mut self, reply: VerifyReply) {
        self.rows += reply.rows;
        self.journal.agreeing += reply.agreeing;
        self.journal.waiting += reply.waiting;
        self.journal.capped += reply.capped;
        self.problems.extend(reply.problems);
        self.disputed.extend(reply.disputed.into_iter().map(|row| {
            let usage = row.usage.unwrap_or_default();
            DisputedRow {
                lease: row.lease,
                agent: row.agent,
                boot: row.boot,
                tenant: row.tenant,
                allocated_ns: usage.allocated_ns,
                invocations: usage.invocations,
            }
        }));
    }

    fn text(&self) -> String {
        let journal = &self.journal;
        let mut lines = vec![
            format!("{} rows in the ledger", self.rows),
            format!(
                "{} journals: {} totals agree, {} wait to be reported, {} are beyond what their lease allows",
                journal.files, journal.agreeing, journal.waiting, journal.capped
            ),
        ];
        if journal.damaged_bytes > 0 {
            lines.push(format!("{} bytes of journals are no records", journal.damaged_bytes));
        }
        for row in &self.disputed {
            lines.push(format!(
                "not billed: lease {} of agent {} for {}: this manager has no grant of it",
                row.lease,
                row.agent,
                printable(&row.tenant)
            ));
        }
        lines.extend(
            self.problems
                .iter()
                .map(|problem| format!("WRONG: {}", printable(problem))),
        );
        if self.problems.is_empty() {
            lines.push("nothing is wrong".into());
        }
        lines.join("\n")
    }
}

pub(crate) fn carry_out(args: VerifyArgs, output: &mut Printer) -> anyhow::Result<()> {
    let dir = RuntimeDir::resolve()?;
    let files: Vec<PathBuf> = if args.journals.is_empty() {
        let own = args.state.of_agent(&dir).join(JOURNAL_FILE);
        own.exists().then_some(own).into_iter().collect()
    } else {
        let file = |path: PathBuf| match path.is_dir() {
            true => path.join(JOURNAL_FILE),
            false => path,
        };
        args.journals.into_iter().map(file).collect()
    };
    let mut verdict = VerifySummary::default();
    // The journals are read before the ledger: usage that was acknowledged when a journal was written is in the ledger
    // by then.
    let mut told = Vec::new();
    for file in &files {
        anyhow::ensure!(file.exists(), "there is no journal at {}", file.display());
        let (totals, damaged_bytes) = totals(file)?;
        told.extend(totals);
        verdict.journal.files += 1;
        verdict.journal.damaged_bytes += damaged_bytes;
    }
    let mut platform = Platform::connect(&dir)?;
    let mut audit = true;
    let mut batches = batches(&told);
    loop {
        let batch = batches.next();
        if batch.is_none() && !audit {
            break;
        }
        let request = VerifyRequest {
            audit: std::mem::take(&mut audit),
            journal: batch.unwrap_or_default().to_vec(),
        };
        verdict.add(platform.request(async |client| client.verify(request).await)?);
    }
    output.answer(&verdict, || verdict.text())?;
    output.flush()?;
    anyhow::ensure!(
        verdict.problems.is_empty(),
        "{} things are wrong with the ledger",
        verdict.problems.len()
    );
    Ok(())
}
