//! An agent's disk: totals in the order in which they were written, the last of which a crash may lose.

use crate::site::Site;
use hotlease_lease::agent::FinalTotal;
use hotlease_wire::ids::{BootId, LeaseId};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Journal {
    records: Vec<FinalTotal>,
    /// As many records are on the disk for good.
    synced: usize,
}

impl Journal {
    pub fn append(&mut self, total: FinalTotal, sync: bool, site: &mut Site, agent: usize) {
        self.records.push(total);
        if sync {
            for total in &self.records[self.synced..] {
                let key = (agent, total.boot, total.lease);
                site.truth.journalled.insert(key, total.usage);
            }
            self.synced = self.records.len();
        }
    }

    /// A total need not be kept any more. Whether that is on the disk does not matter.
    pub fn acknowledged(&mut self, boot: BootId, lease: LeaseId) {
        let before = self.records.len();
        let is_it = |total: &FinalTotal| total.boot == boot && total.lease == lease;
        let synced = self.records[..self.synced]
            .iter()
            .filter(|total| is_it(total))
            .count();
        self.records.retain(|total| !is_it(total));
        self.synced -= synced;
        debug_assert!(before >= self.records.len());
    }

    /// The machine stops at once: of what was not synced, a part is there.
    pub fn tear(&mut self, kept: f64) {
        let loose = self.records.len() - self.synced;
        self.records
            .truncate(self.synced + (loose as f64 * kept) as usize);
        self.synced = self.records.len();
    }

    /// The disk is replaced.
    pub fn lose(&mut self, site: &mut Site, agent: usize) {
        *self = Self::default();
        site.truth.journalled.retain(|(of, ..), _| *of != agent);
    }

    /// The last total of each lease.
    pub fn recover(&self) -> Vec<FinalTotal> {
        let mut totals = BTreeMap::new();
        for total in &self.records {
            totals.insert((total.boot, total.lease), total.clone());
        }
        totals.into_values().collect()
    }
}
