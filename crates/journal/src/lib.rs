//! L1: what a node writes down of its usage, and the directories that hold durable state.
//!
//! An agent notes cumulative totals of its leases, keyed (boot, lease), and sends them to the manager until
//! that has acknowledged the last one of each. The journal keeps them over crashes:
//!
//! ```text
//! note ──▶ table (memory) ──changes──▶ usage.journal ──after a crash──▶ table ──▶ reported again
//!              ▲                         append, sync
//!          acknowledge
//! ```
//!
//! * [`UsageJournal`] — the journal at work.
//! * [`Table`], [`Disk`] — its two halves: what it knows, pure; and how that gets onto a [`Medium`].
//! * [`frame`] — a record as bytes. A damaged one is skipped, and costs nothing but itself: a later record
//!   of the same lease says as much and more.
//! * [`StateDir`] — a directory for durable state, also the manager's: locked, private, on a local disk.

#![forbid(unsafe_code)]

mod directory;
mod disk;
pub mod frame;
mod journal;
mod table;

pub use directory::{DirectoryError, StateDir, network_file_system, sync_directory};
pub use disk::{Disk, FileMedium, JOURNAL_FILE, Medium, Work, read};
pub use journal::UsageJournal;
pub use table::{ACKNOWLEDGED_MAX, Entry, Key, Recovery, Table, UNACKNOWLEDGED_MAX};
