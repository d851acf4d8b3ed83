//! Journal on an agent's disk: totals in the order of writing. A crash may lose the last totals.

use crate::shared_state::SharedState;
use hotlease_lease::agent::FinalTotal;
use hotlease_wire::ids::{BootId, LeaseId};
use std::collections::BTreeMap;

/// Journal on an agent's disk.
#[derive(Debug, Default)]
pub struct Journal {
    records: Vec<FinalTotal>,
    /// Number of records that are synced to the disk.
    synced: usize,
}

impl Journal {
    pub fn append(&mut self, total: FinalTotal, sync: bool, site: &mut SharedState, agent: usize) {
        self.records.push(total);
        if sync {
            for total in &self.records[self.synced..] {
                let key = (agent, total.boot, total.lease);
                site.truth.journalled.insert(key, total.usage);
            }
            self.synced = self.records.len();
        }
    }

    /// Drops a total that is no longer needed. The removal need not be synced.
    pub fn remove_acknowledged(&mut self, boot: BootId, lease: LeaseId) {
        let before = self.records.len();
        let is_it = |total: &FinalTotal| total.boot == boot && total.lease == lease;
        let synced = self.records[..self.synced].iter().filter(|total| is_it(total)).count();
        self.records.retain(|total| !is_it(total));
        self.synced -= synced;
        debug_assert!(before >= self.records.len());
    }

    /// Drops some of the records that are not synced, as a sudden stop of the node would. `kept`: the fraction that
    /// remains.
    pub fn tear(&mut self, kept: f64) {
        let loose = self.records.len() - self.synced;
        self.records.truncate(self.synced + (loose as f64 * kept) as usize);
        self.synced = self.records.len();
    }

    /// Loses all records, as if the disk was replaced.
    pub fn lose(&mut self, site: &mut SharedState, agent: usize) {
        *self = Self::default();
        site.truth.journalled.retain(|(of, ..), _| *of != agent);
    }

    /// Last total of each lease.
    pub fn recover(&self) -> Vec<FinalTotal> {
        let mut totals = BTreeMap::new();
        for total in &self.records {
            totals.insert((total.boot, total.lease), total.clone());
        }
        totals.into_values().collect()
    }
}
