//! Faults on real processes: each test breaks one thing, many times, under work whose every result is checked, and
//! prints a row of what was promised and measured. How often is in `hotlease_tests::faults::scale`.
//!
//! * [`kills`] — kill -9 of manager, agent and workers, and loss of power.
//! * [`disks`] — full ones, and ones that fail.
//! * [`journals`] — torn and flipped bytes of the usage journal.
//! * [`clocks`] — an hour forth and back.
//! * [`clients`] — clients that vanish with a thousand leases.
//! * [`hostile`] — ten thousand hostile requests on every listener.
//! * [`stops`] — parties that do nothing for a while.
//! * [`partitions`] — networks that are cut.
//! * [`removals`] — nodes that are given back.
//! * [`scene`] — what all of these happen to.

mod clients;
mod clocks;
mod disks;
mod hostile;
mod journals;
mod kills;
mod partitions;
mod removals;
mod scene;
mod stops;
