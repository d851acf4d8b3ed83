//! Black-box tests of the built programs. Each is named by the promise that it proves.

mod control;
mod invocation;
mod isolation;
mod leases;
