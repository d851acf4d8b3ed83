//! Tests of the ledger's clock: no recorded time is earlier than a time that was billed.

use crate::fixture::{START_MS, lease, limits, report, row, stores};

/// A manager that restarts with its clock set back continues from the latest time in the ledger.
#[test]
fn a_lease_does_not_end_before_what_is_billed_of_it() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let used = |allocated_ms: u64, settled| {
            let mut row = row(key, 0, settled);
            row.usage.allocated_ns = allocated_ms * 1_000_000;
            row
        };
        let running = report(START_MS + 279, vec![lease(1, 1)], vec![used(279, false)]);
        scene.store.report(running).unwrap();
        let latest = scene.store.latest_ms().unwrap();
        assert_eq!(latest, START_MS + 279, "{}", scene.name);
        let last = report(latest, Vec::new(), vec![used(287, true)]);
        scene.store.report(last).unwrap();
        scene.assert_sound(latest);
    }
}
