//! Bills, compared with the calls that ran and with the usage that clients were told.

use crate::platform::LIMIT;
use hotlease_lease::ledger::{covers, sum};
use hotlease_wire::session::UsageTotals;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Output;
use std::time::{Duration, Instant};

/// Runs an operator's commands for a manager.
pub trait Operator {
    /// Runs a `hotlease` command to its end.
    fn run(&self, arguments: &[&str]) -> Output;
    /// Journals to compare with the ledger, in addition to the journal that `hotlease bill verify` finds itself.
    fn journals(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Usage totals by lease.
pub type Bill = BTreeMap<String, UsageTotals>;

fn json(site: &impl Operator, arguments: &[&str]) -> Result<Vec<Value>, String> {
    let output = site.run(&[arguments, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{}{text}", String::from_utf8_lossy(&output.stderr)));
    }
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")))
        .collect()
}

fn used(row: &Value) -> UsageTotals {
    let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row}"));
    UsageTotals {
        allocated_ns: number("allocated_ns"),
        hot_ns: number("hot_ns"),
        compute_ns: number("compute_ns"),
        invocations: number("invocations"),
    }
}

/// Billed usage, by lease.
pub fn bill(site: &impl Operator) -> Result<Bill, String> {
    let rows = json(site, &["bill", "--by", "lease"])?;
    let lease = |row: &Value| row["lease"].as_str().expect("an id").to_owned();
    Ok(rows.iter().map(|row| (lease(row), used(row))).collect())
}

/// Sum over all leases.
pub fn total(bill: &Bill) -> UsageTotals {
    bill.values().fold(UsageTotals::default(), |all, one| sum(all, *one))
}

/// Waits until the manager has taken all usage in the agent's journal.
///
/// # Panics
/// If the manager does not do so, or if the verification of the ledger finds an error.
pub fn until_settled(site: &impl Operator) -> Bill {
    let start = Instant::now();
    loop {
        // Fails while the manager is starting, or if the ledger has an error.
        let journals = site.journals();
        let further = journals.iter().flat_map(|path| ["--journal", path]);
        let command: Vec<&str> = ["bill", "verify"].into_iter().chain(further).collect();
        let verdict = json(site, &command);
        if let Ok(verdict) = &verdict
            && verdict[0]["journal"]["waiting"] == 0
        {
            assert_eq!(verdict[0]["problems"], serde_json::json!([]), "{verdict:?}");
            return bill(site).expect("a bill");
        }
        assert!(start.elapsed() < LIMIT, "the ledger is not settled: {verdict:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the usage that a client was told is billed. The agent reports it without using its disk.
///
/// # Panics
/// If the usage is not billed within [`LIMIT`].
pub fn until_billed(site: &impl Operator, told: &Bill) -> Bill {
    let start = Instant::now();
    loop {
        let settled = until_settled(site);
        let is_billed = |(lease, usage): (&String, &UsageTotals)| {
            let billed = settled.get(lease).copied().unwrap_or_default();
            covers(billed, *usage)
        };
        if told.iter().all(is_billed) {
            return settled;
        }
        if start.elapsed() > LIMIT {
            nothing_lost(&settled, told);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that nothing is over-billed: no more calls than ran, no more time than passed on `slots` slots since `since`.
///
/// # Panics
/// If something is over-billed.
pub fn not_over_billed(bill: &Bill, ran: u64, slots: u32, since: Instant) {
    let billed = total(bill);
    assert!(
        billed.invocations <= ran,
        "{} calls are billed, {ran} ran",
        billed.invocations
    );
    // Tolerance: two thousandths for the clocks, and a tenth of a second by which the manager may round up.
    let most = since.elapsed().as_nanos() as u64 * u64::from(slots);
    let most = most + most / 500 + 100_000_000;
    assert!(
        billed.allocated_ns <= most && billed.compute_ns + billed.hot_ns <= most,
        "{billed:?} is billed for {slots} slots over {:?}",
        since.elapsed()
    );
}

/// Checks that nothing is lost: if a client was told the durable usage of a lease, the bill contains at least that
/// usage.
///
/// # Panics
/// If usage is lost.
pub fn nothing_lost(bill: &Bill, told: &Bill) {
    for (lease, usage) in told {
        let billed = bill.get(lease).copied().unwrap_or_default();
        assert!(
            covers(billed, *usage),
            "lease {lease} is billed {billed:?}, and its client was told {usage:?}"
        );
    }
}
