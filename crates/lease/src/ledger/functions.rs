//! Usage of the functions of a lease: a part of the lease's usage, and never more.
//!
//! Rows are cumulative and merged by the larger value, like the lease's own totals. A row only grows while the sum of
//! all rows is less than the lease's total. So the rows of a lease never add up to more than the lease's bill, even if
//! a worker or an agent reports more. Usage that is in no row belongs to the lease alone: computing of calls that were
//! refused or cut off, and usage that was not attributed before a crash.
//!
//! ```
//! use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
//! use hotlease_wire::ids::CodeHash;
//! use hotlease_wire::session::UsageTotals;
//!
//! let id = |name| FunctionId::new(CodeHash([1; 32]), name);
//! let told = FunctionTotals::from_iter([
//!     (id("f"), FunctionUse { compute_ns: 70, invocations: 1 }),
//!     (id("g"), FunctionUse { compute_ns: 70, invocations: 1 }),
//! ]);
//! let lease = UsageTotals { compute_ns: 100, invocations: 2, ..Default::default() };
//! let mut kept = FunctionTotals::default();
//! kept.merge(&told, lease);
//! kept.merge(&told, lease); // told again, counted once
//! assert_eq!(kept.sum(), FunctionUse { compute_ns: 100, invocations: 2 });
//! ```

use super::TOTAL_MAX;
use hotlease_wire::ids::CodeHash;
use hotlease_wire::limits::{FUNCTION_LABEL_BYTES_MAX, FUNCTIONS_BILLED_MAX};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of the row that counts all functions beyond [`FUNCTIONS_BILLED_MAX`].
const OTHERS: &str = "(others)";
/// Number of digits of the hash at the end of a name that was cut.
const DIGITS: usize = 16;

/// Identity of a function: its library and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionId {
    /// Hash of the library's bytes; zeros for the row of all other functions, see [`FunctionId::others`].
    pub library: CodeHash,
    /// Symbol of the function, at most [`FUNCTION_LABEL_BYTES_MAX`] bytes. A symbol that is too long for a bill is cut,
    /// and ends in a hash of the whole symbol, so that names stay different.
    pub name: Arc<str>,
}

impl FunctionId {
    /// Identity of a library's function.
    pub fn new(library: CodeHash, name: &str) -> Self {
        let name = if name.len() <= FUNCTION_LABEL_BYTES_MAX {
            name.into()
        } else {
            let most = FUNCTION_LABEL_BYTES_MAX - DIGITS - 1;
            let end = (0..=most).rfind(|end| name.is_char_boundary(*end)).unwrap_or(0);
            let digits = CodeHash::of(name.as_bytes()).to_string();
            format!("{}~{}", &name[..end], &digits[..DIGITS]).into()
        };
        Self { library, name }
    }

    /// Identity of the row for all functions that have no row of their own.
    pub fn others() -> Self {
        Self::new(CodeHash([0; 32]), OTHERS)
    }

    /// Whether this is the row for all functions that have no row of their own.
    pub fn is_others(&self) -> bool {
        self.library.0 == [0; 32]
    }
}

/// Usage of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FunctionUse {
    /// Time spent in the function.
    pub compute_ns: u64,
    /// Number of runs.
    pub invocations: u64,
}

impl FunctionUse {
    /// Saturating sum, like [`sum`](super::sum).
    pub fn plus(self, other: Self) -> Self {
        let add = |one: u64, other: u64| one.saturating_add(other).min(TOTAL_MAX);
        Self {
            compute_ns: add(self.compute_ns, other.compute_ns),
            invocations: add(self.invocations, other.invocations),
        }
    }

    /// Usage since `earlier`.
    pub fn minus(self, earlier: Self) -> Self {
        Self {
            compute_ns: self.compute_ns.saturating_sub(earlier.compute_ns),
            invocations: self.invocations.saturating_sub(earlier.invocations),
        }
    }

    /// Whether both counters are at least as large as in `other`.
    pub fn covers(self, other: Self) -> bool {
        self.compute_ns >= other.compute_ns && self.invocations >= other.invocations
    }

    /// The smaller value of each counter.
    pub fn within(self, most: Self) -> Self {
        Self {
            compute_ns: self.compute_ns.min(most.compute_ns),
            invocations: self.invocations.min(most.invocations),
        }
    }
}

/// The part of a lease's totals that its functions can account for.
impl From<UsageTotals> for FunctionUse {
    fn from(lease: UsageTotals) -> Self {
        Self {
            compute_ns: lease.compute_ns,
            invocations: lease.invocations,
        }
    }
}

/// Rows by function: at most [`FUNCTIONS_BILLED_MAX`], and one row for all other functions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FunctionTotals(BTreeMap<FunctionId, FunctionUse>);

impl FunctionTotals {
    /// The row that counts this function: its own row, or the row of all other functions if the table is full.
    fn row_of(&self, id: &FunctionId) -> FunctionId {
        let others = FunctionId::others();
        let own = self.0.len() - usize::from(self.0.contains_key(&others));
        match self.0.contains_key(id) || own < FUNCTIONS_BILLED_MAX {
            true => id.clone(),
            false => others,
        }
    }

    /// Adds usage to the row of this function.
    pub fn add(&mut self, id: &FunctionId, used: FunctionUse) {
        if used != FunctionUse::default() {
            let row = self.0.entry(self.row_of(id)).or_default();
            *row = row.plus(used);
        }
    }

    /// Adds all rows of `other`.
    pub fn add_all(&mut self, other: &Self) {
        for (id, used) in &other.0 {
            self.add(id, *used);
        }
    }

    /// Merges the reported rows of a lease whose total is `lease`. No row falls, and the sum of the rows stays within
    /// the lease's total. Returns the rows that changed.
    pub fn merge(&mut self, told: &Self, lease: UsageTotals) -> Vec<FunctionId> {
        let mut room = FunctionUse::from(lease).minus(self.sum());
        let mut changed = Vec::new();
        for (id, told) in &told.0 {
            let id = self.row_of(id);
            let growth = told.minus(self.get(&id)).within(room);
            if growth != FunctionUse::default() {
                self.add(&id, growth);
                room = room.minus(growth);
                changed.push(id);
            }
        }
        changed
    }

    /// Sum of all rows.
    pub fn sum(&self) -> FunctionUse {
        self.0.values().fold(FunctionUse::default(), |all, one| all.plus(*one))
    }

    /// Whether each row of `other` is also in `self`, with counters that are at least as large.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|(id, used)| self.get(id).covers(*used))
    }

    /// Usage of this function.
    pub fn get(&self, id: &FunctionId) -> FunctionUse {
        self.0.get(id).copied().unwrap_or_default()
    }

    /// The rows, ordered by function.
    pub fn iter(&self) -> impl Iterator<Item = (&FunctionId, FunctionUse)> {
        self.0.iter().map(|(id, used)| (id, *used))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(FunctionId, FunctionUse)> for FunctionTotals {
    /// Adds up rows of the same function.
    fn from_iter<T: IntoIterator<Item = (FunctionId, FunctionUse)>>(rows: T) -> Self {
        let mut totals = Self::default();
        for (id, used) in rows {
            totals.add(&id, used);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn id(number: usize) -> FunctionId {
        FunctionId::new(CodeHash([1; 32]), &format!("f{number:04}"))
    }

    fn used(compute_ns: u64, invocations: u64) -> FunctionUse {
        FunctionUse {
            compute_ns,
            invocations,
        }
    }

    fn lease(all: FunctionUse) -> UsageTotals {
        UsageTotals {
            compute_ns: all.compute_ns,
            invocations: all.invocations,
            ..UsageTotals::default()
        }
    }

    #[test]
    fn reports_in_any_order_and_number_count_once() {
        for seed in 0..100 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut truth = FunctionTotals::default();
            let mut reports = vec![truth.clone()];
            for _ in 0..20 {
                truth.add(&id(random.random_range(0..5)), used(random.random_range(0..1000), 1));
                reports.push(truth.clone());
            }
            let mut kept = FunctionTotals::default();
            let mut most = FunctionUse::default();
            for _ in 0..200 {
                let report = &reports[random.random_range(0..reports.len())];
                let sum = report.sum();
                most = used(
                    most.compute_ns.max(sum.compute_ns),
                    most.invocations.max(sum.invocations),
                );
                kept.merge(report, lease(most));
            }
            kept.merge(&truth, lease(truth.sum()));
            assert_eq!(kept, truth, "seed {seed}");
        }
    }

    #[test]
    fn no_sequence_of_reports_gives_functions_more_than_their_lease_has() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut kept = FunctionTotals::default();
            let mut all = FunctionUse::default();
            for step in 0..40 {
                all = all.plus(used(random.random_range(0..1000), random.random_range(0..10)));
                let told: FunctionTotals = (0..random.random_range(0..4))
                    .map(|_| {
                        let most = [0, 10, 1000, u64::MAX][random.random_range(0..4)];
                        let any = used(most, most);
                        (id(random.random_range(0..100)), any)
                    })
                    .collect();
                let before = kept.clone();
                kept.merge(&told, lease(all));
                assert!(kept.covers(&before), "seed {seed}, step {step}: a row fell");
                assert!(
                    all.covers(kept.sum()),
                    "seed {seed}, step {step}: {:?} of {all:?}",
                    kept.sum()
                );
                assert!(kept.len() <= FUNCTIONS_BILLED_MAX + 1, "seed {seed}: the table grew");
            }
        }
    }

    #[test]
    fn functions_beyond_the_table_are_counted_together() {
        let all: FunctionTotals = (0..FUNCTIONS_BILLED_MAX + 3)
            .map(|number| (id(number), used(10, 1)))
            .collect();
        assert_eq!(all.len(), FUNCTIONS_BILLED_MAX + 1);
        assert_eq!(all.get(&FunctionId::others()), used(30, 3));
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let long = "ü".repeat(400);
        let one = FunctionId::new(CodeHash([1; 32]), &format!("{long}a"));
        let other = FunctionId::new(CodeHash([1; 32]), &format!("{long}b"));
        assert!(
            one.name.len() <= FUNCTION_LABEL_BYTES_MAX && one != other,
            "{one:?} {other:?}"
        );
    }
}
