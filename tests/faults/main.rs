//! Faults on real processes: each test breaks one thing, many times, under work whose every result is checked, and
//! prints a row of what was promised and measured. How often is in `hotlease_tests::faults::scale`.
//!
//! * [`kills`] — kill -9 of manager, agent and workers, and loss of power.
//! * [`disks`] — full ones, and ones that fail.
//! * [`journals`] — torn and flipped bytes of the usage journal.
//! * [`clocks`] — an hour forth and back.
//! * [`scene`] — what all of these happen to.

mod clocks;
mod disks;
mod journals;
mod kills;
mod scene;
