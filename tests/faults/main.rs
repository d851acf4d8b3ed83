//! Tests of faults on real processes. Each test breaks one thing, many times, while calls are made whose every result
//! is checked, and prints a row of what was promised and measured. `hotlease_tests::faults::scale` says how often.
//!
//! * [`kills`] — kill -9 of manager, agent and workers, and loss of power.
//! * [`disks`] — full and failing disks.
//! * [`journals`] — torn and flipped bytes of the usage journal.
//! * [`clocks`] — clocks that jump an hour forth and back.
//! * [`clients`] — clients that vanish with a thousand leases.
//! * [`hostile`] — ten thousand hostile requests to every listener.
//! * [`stops`] — processes that are stopped for a while.
//! * [`partitions`] — networks that are cut.
//! * [`removals`] — nodes that are given back.
//! * [`yields`] — batch jobs that take nodes.
//! * [`scene`] — the platform and the client that all of these tests use.

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
mod yields;
