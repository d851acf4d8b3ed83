//! `hotlease bill --by account`: leased core-hours, beside the core-hours of Slurm's accounts of the same names.

use super::harmless;
use super::sreport;
use hotlease_terminal::output::{Printer, printable};
use hotlease_wire::grpc::{BillReply, BillRequest};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Slurm's program for reports.
const SREPORT: &str = "sreport";

#[derive(Debug, Serialize)]
struct AccountLine {
    account: String,
    leases: u64,
    invocations: u64,
    leased_core_hours: f64,
    /// `None` if Slurm has no figure.
    slurm_core_hours: Option<f64>,
    cost: String,
    currency: String,
}

fn core_hours(seconds: f64) -> f64 {
    (seconds / 3.6).round() / 1e3
}

/// Shows a bill by tenant as a bill by account. The bill is also shown if Slurm's figures are missing.
pub(super) fn show(bill: &BillReply, range: &BillRequest, csv: bool, output: &mut Printer) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = |ms: u64| Some(ms).filter(|ms| *ms > 0);
    let until_ms = moment(range.until_ms).unwrap_or(now.as_millis() as u64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = sreport::cpu_seconds(SREPORT, moment(range.since_ms), until_ms, sreport::WITHIN);
    let known = runtime.block_on(asked);
    if let Err(why) = &known {
        eprintln!(
            "hotlease: Slurm's figures are missing: {}; they need sreport and Slurm's accounting database (slurmdbd). \
             The rest of the bill is complete",
            printable(why)
        );
    }
    let rows = bill.rows.iter().map(|row| {
        let usage = row.usage.unwrap_or_default();
        // An account without jobs is not in Slurm's report.
        let seconds = known
            .as_ref()
            .ok()
            .map(|known| known.get(&row.tenant).copied().unwrap_or(0));
        AccountLine {
            account: row.tenant.clone(),
            leases: row.leases,
            invocations: usage.invocations,
            leased_core_hours: core_hours(usage.allocated_ns as f64 / 1e9),
            slurm_core_hours: seconds.map(|seconds| core_hours(seconds as f64)),
            cost: row.cost.clone(),
            currency: bill.currency.clone(),
        }
    });
    let rows: Vec<AccountLine> = rows.collect();
    if csv {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for mut row in rows {
            row.account = harmless(row.account);
            writer.serialize(row)?;
        }
        let text = writer.into_inner().map_err(|error| error.into_error())?;
        return output.bytes(&text);
    }
    let columns = "ACCOUNT, >LEASES, >CALLS, >LEASED CORE-HOURS, >SLURM CORE-HOURS, >COST";
    output.list(&rows, columns, "nothing was used", |row| {
        vec![
            row.account.clone(),
            row.leases.to_string(),
            row.invocations.to_string(),
            format!("{:.3}", row.leased_core_hours),
            row.slurm_core_hours.map_or("-".into(), |hours| format!("{hours:.3}")),
            row.cost.clone(),
        ]
    })?;
    if output.is_json() {
        return Ok(());
    }
    output.line(&format!("total {} {}", bill.total, printable(&bill.currency)))
}
