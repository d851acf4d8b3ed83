//! L1: what isolates a worker.
