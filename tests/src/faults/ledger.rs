//! What is billed, held against what ran and what was told.

use super::parts::Parts;
use crate::platform::LIMIT;
use hotlease_lease::ledger::{covers, sum};
use hotlease_wire::session::UsageTotals;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Totals by lease.
pub type Bill = BTreeMap<String, UsageTotals>;

fn json(parts: &Parts, arguments: &[&str]) -> Result<Vec<Value>, String> {
    let output = parts.run(&[arguments, &["--json"]].concat());
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

/// What is billed, by lease.
pub fn bill(parts: &Parts) -> Result<Bill, String> {
    let rows = json(parts, &["bill", "--by", "lease"])?;
    let lease = |row: &Value| row["lease"].as_str().expect("an id").to_owned();
    Ok(rows.iter().map(|row| (lease(row), used(row))).collect())
}

/// Of all leases.
pub fn total(bill: &Bill) -> UsageTotals {
    bill.values()
        .fold(UsageTotals::default(), |all, one| sum(all, *one))
}

/// Waits until the manager has taken all that the agent's journal says.
///
/// # Panics
/// If it does not, or if anything is wrong with the ledger.
pub fn until_settled(parts: &Parts) -> Bill {
    let start = Instant::now();
    loop {
        // Fails while the manager is starting, or if something is wrong.
        let verdict = json(parts, &["bill", "verify"]);
        if let Ok(verdict) = &verdict
            && verdict[0]["journal"]["waiting"] == 0
        {
            assert_eq!(verdict[0]["problems"], serde_json::json!([]), "{verdict:?}");
            return bill(parts).expect("a bill");
        }
        assert!(start.elapsed() < LIMIT, "the ledger is not settled: {verdict:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing over-billed: no more calls than ran, no more time than passed on so many slots since `since`.
///
/// # Panics
/// If it is.
pub fn not_over_billed(bill: &Bill, ran: u64, slots: u32, since: Instant) {
    let billed = total(bill);
    assert!(
        billed.invocations <= ran,
        "{} calls are billed, {ran} ran",
        billed.invocations
    );
    // A thousandth for the clocks, and what the manager may round up.
    let most = since.elapsed().as_nanos() as u64 * u64::from(slots);
    let most = most + most / 500 + 100_000_000;
    assert!(
        billed.allocated_ns <= most && billed.compute_ns + billed.hot_ns <= most,
        "{billed:?} is billed for {slots} slots over {:?}",
        since.elapsed()
    );
}

/// Nothing lost: what somebody was told of a lease, durably, is billed.
///
/// # Panics
/// If it is not.
pub fn nothing_lost(bill: &Bill, told: &Bill) {
    for (lease, usage) in told {
        let billed = bill.get(lease).copied().unwrap_or_default();
        assert!(
            covers(billed, *usage),
            "lease {lease} is billed {billed:?}, and its client was told {usage:?}"
        );
    }
}
