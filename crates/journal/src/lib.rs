//! L1: the node's usage journal, and directories for durable state.
//!
//! An agent notes cumulative totals of its leases, keyed (boot, lease), and sends them to the manager until the manager
//! has acknowledged the last total of each lease. The journal keeps the totals across crashes:
//!
//! ```text
//! note ──▶ table (memory) ──changes──▶ usage.journal ──after a crash──▶ table ──▶ reported again
//!              ▲                         append, sync
//!          acknowledge
//! ```
//!
//! * [`UsageJournal`] — the running journal.
//! * [`TotalsTable`], [`Disk`] — the two halves of the journal: the totals, as pure data, and the writing of totals to
//!   a [`Medium`].
//! * [`frame`] — encoding of records. A damaged record is skipped, and no other record is lost. A later record of the
//!   same lease includes the total of the damaged record.
//! * [`StateDir`] — directory for durable state, also of the manager: locked, private, on a local disk.

#![forbid(unsafe_code)]

mod directory;
mod disk;
pub mod frame;
mod journal;
mod totals;

pub use directory::{DirectoryError, StateDir, network_file_system, sync_directory};
pub use disk::{Disk, FileMedium, JOURNAL_FILE, Medium, WritePlan, read};
pub use journal::UsageJournal;
pub use totals::{ACKNOWLEDGED_MAX, LeaseKey, LeaseTotal, Recovery, TotalsTable, UNACKNOWLEDGED_MAX};
