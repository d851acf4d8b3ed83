//! What the tests of faults stand on: daemons that can be broken one at a time, work whose every result is checked, and
//! tables of what was measured.
//!
//! * [`system`] — disks, clocks and cores that are as a test says, for daemons as they are shipped.
//! * [`parts`] — manager and agent of one machine as processes of their own.
//! * [`tally`] — calls that leave a mark of each run.
//! * [`caller`] — threads that make them, and what they were told.
//! * [`ledger`] — what is billed, held against both.
//! * [`row`] — one row of the table of faults.
//! * [`scale`] — how often each fault is tried, and with which seeds.

pub mod caller;
pub mod ledger;
pub mod parts;
pub mod row;
pub mod scale;
pub mod system;
pub mod tally;
