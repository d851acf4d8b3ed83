//! Faults on real processes: each test breaks one thing, many times, under work whose every result is checked, and
//! prints a row of what was promised and measured. How often is in `hotlease_tests::faults::scale`.
//!
//! * [`kills`] — kill -9 of manager, agent and workers.

mod kills;
