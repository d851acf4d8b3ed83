//! `hotlease bill`: usage and cost.

mod accounts;
mod moment;
mod sreport;
mod verify;

use clap::{Args, Subcommand, ValueEnum};
use hotlease_terminal::output::{Printer, printable};
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{BillBy, BillReply, BillRequest, BillRow};
use moment::Moment;
use serde::Serialize;

/// Show usage and its cost
///
/// The cost is `Ca*ta + Cc*tc + Ch*th + Cm*memory*time`: the time that slots were allocated, computed and polled, and
/// the memory that was held, at the manager's prices (`hotlease manager --tariff FILE`). Ranges are widened to whole
/// hours. With `--json`, prints one object per row: tenant, job, lease, agent, boot, label, leases,
/// allocated_ns, hot_ns, compute_ns, invocations, memory_mib_ms, allocated_cost, computing_cost, hot_cost,
/// memory_cost, cost (text, nine decimals), currency, function, library.
///
/// Rows by function divide only the computing time: slots are allocated to a lease, and poll before it is known
/// which function will be called. Allocated and polled time, and computing of calls that were refused or cut off by a
/// crash of the node, are in a row without a function, so that all rows together add up to the tenants' cost. The 64
/// functions of a lease that were called first have rows of their own; all others share one row "(others)".
///
/// Rows by account are rows by tenant, for sites that name a tenant after each account of Slurm. Beside the core-hours
/// that were leased they show the core-hours of the account's jobs, as `sreport` says. With `--json`: account, leases,
/// invocations, leased_core_hours, slurm_core_hours (null: Slurm does not say), cost, currency.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BillArgs {
    #[command(subcommand)]
    command: Option<BillCommand>,
    /// One row for each tenant, job of a tenant, lease, or function of a tenant (with a row for usage of no
    /// function); or for each Slurm account, with the core-hours of its jobs
    #[arg(long, value_enum, default_value_t)]
    by: BillGrouping,
    /// Show usage of this tenant only, such as uid:1000
    #[arg(long)]
    tenant: Option<String>,
    /// Show usage of this job only
    #[arg(long)]
    job: Option<String>,
    /// Show usage from this time on: 2026-11-30, 2026-11-30T08:00:00Z, or a time ago like 24h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Show usage until this time
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
    /// Print comma-separated values with a header line
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Debug, Subcommand)]
enum BillCommand {
    Verify(verify::VerifyArgs),
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum BillGrouping {
    #[default]
    Tenant,
    Job,
    Lease,
    Function,
    Account,
}

#[derive(Serialize)]
struct BillLine {
    tenant: String,
    job: String,
    lease: String,
    agent: String,
    boot: String,
    label: String,
    leases: u64,
    allocated_ns: u64,
    hot_ns: u64,
    compute_ns: u64,
    invocations: u64,
    memory_mib_ms: u64,
    allocated_cost: String,
    computing_cost: String,
    hot_cost: String,
    memory_cost: String,
    cost: String,
    currency: String,
    function: String,
    library: String,
}

impl BillLine {
    fn of(row: BillRow, currency: &str) -> Self {
        let usage = row.usage.unwrap_or_default();
        Self {
            tenant: row.tenant,
            job: row.job,
            lease: row.lease,
            agent: row.agent,
            boot: row.boot,
            label: row.label,
            leases: row.leases,
            allocated_ns: usage.allocated_ns,
            hot_ns: usage.hot_ns,
            compute_ns: usage.compute_ns,
            invocations: usage.invocations,
            memory_mib_ms: row.memory_mib_ms,
            allocated_cost: row.allocated_cost,
            computing_cost: row.computing_cost,
            hot_cost: row.hot_cost,
            memory_cost: row.memory_cost,
            cost: row.cost,
            currency: currency.to_owned(),
            function: row.function,
            library: row.library,
        }
    }
}

/// Marks a text that a spreadsheet would read as a formula; the lease's holder may choose any label.
fn harmless(mut text: String) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        text.insert(0, '\'');
    }
    text
}

pub(crate) fn carry_out(args: BillArgs, output: &mut Printer) -> anyhow::Result<()> {
    if let Some(BillCommand::Verify(verify)) = args.command {
        return verify::carry_out(verify, output);
    }
    let mut platform = Platform::of(&args.site)?;
    let by = match args.by {
        BillGrouping::Tenant | BillGrouping::Account => BillBy::Tenant,
        BillGrouping::Job => BillBy::Job,
        BillGrouping::Lease => BillBy::Lease,
        BillGrouping::Function => BillBy::Function,
    };
    let ms = |moment: Option<Moment>| moment.map_or(0, |moment| moment.unix_ms().max(1));
    let request = BillRequest {
        tenant: args.tenant.unwrap_or_default(),
        job: args.job.unwrap_or_default(),
        since_ms: ms(args.since),
        until_ms: ms(args.until),
        by: by.into(),
    };
    let bill = platform.request(async |client| client.bill(request.clone()).await)?;
    if matches!(args.by, BillGrouping::Account) {
        return accounts::show(&bill, &request, args.csv, output);
    }
    let rows: Vec<BillLine> = bill
        .rows
        .iter()
        .map(|row| BillLine::of(row.clone(), &bill.currency))
        .collect();
    if args.csv {
        return csv(rows, output);
    }
    table(&rows, args.by, &bill, output)
}

fn csv(rows: Vec<BillLine>, output: &mut Printer) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for mut row in rows {
        for text in [&mut row.tenant, &mut row.job, &mut row.label, &mut row.function] {
            *text = harmless(std::mem::take(text));
        }
        writer.serialize(row)?;
    }
    let text = writer.into_inner().map_err(|error| error.into_error())?;
    output.bytes(&text)
}

fn table(rows: &[BillLine], by: BillGrouping, bill: &BillReply, output: &mut Printer) -> anyhow::Result<()> {
    let what = match by {
        BillGrouping::Tenant | BillGrouping::Account => "LEASES",
        BillGrouping::Job => "JOB",
        BillGrouping::Lease => "LEASE",
        BillGrouping::Function => "FUNCTION",
    };
    let columns = format!("TENANT, {what}, >CALLS, >ALLOCATED, >COMPUTE, >POLLING, >COST");
    output.list(rows, &columns, "nothing was used", |row| {
        vec![
            row.tenant.clone(),
            match by {
                BillGrouping::Tenant | BillGrouping::Account => row.leases.to_string(),
                BillGrouping::Job => row.job.clone(),
                BillGrouping::Lease if row.lease.is_empty() => "(earlier ones)".into(),
                BillGrouping::Lease => format!("{} {}", row.lease, row.label),
                BillGrouping::Function if row.library.is_empty() => "(no function)".into(),
                BillGrouping::Function if row.library.bytes().all(|digit| digit == b'0') => row.function.clone(),
                BillGrouping::Function => format!("{} of {:.12}", row.function, row.library),
            },
            row.invocations.to_string(),
            quantity::nanoseconds(row.allocated_ns),
            quantity::nanoseconds(row.compute_ns),
            quantity::nanoseconds(row.hot_ns),
            row.cost.clone(),
        ]
    })?;
    if output.is_json() {
        return Ok(());
    }
    output.line(&format!("total {} {}", bill.total, printable(&bill.currency)))?;
    if bill.disputed > 0 {
        output.line(&format!(
            "{} leases are not billed, because this manager has no grant of them; see `hotlease bill verify`",
            bill.disputed
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_no_formula_in_a_spreadsheet() {
        assert_eq!(harmless("=1+1".into()), "'=1+1");
        assert_eq!(harmless("a=b".into()), "a=b");
    }
}
