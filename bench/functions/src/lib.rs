//! Functions that the benchmarks invoke.
