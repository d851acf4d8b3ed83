//! Support for tests of faults: daemons that can be broken one at a time, calls of which each result is checked, and
//! tables of measurements.
//!
//! * [`system`] — disks, clocks and cores that behave as a test says, for daemons as they are shipped.
//! * [`parts`] — manager and agent of one machine as separate processes.
//! * [`tally`] — calls that leave a mark of each run.
//! * [`caller`] — threads that make calls, and their outcomes.
//! * [`ledger`] — bills, compared with marks and with the usage that clients were told.
//! * [`row`] — one row of the table of faults.
//! * [`scale`] — how often each fault is tried, and with which seeds.

pub mod caller;
pub mod ledger;
pub mod parts;
pub mod row;
pub mod scale;
pub mod system;
pub mod tally;
