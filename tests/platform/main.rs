//! Black-box tests of the built programs. Each is named by the promise that it proves.

mod clients;
mod commands;
mod frames;
mod functions;
mod invocation;
mod leases;
mod libraries;
mod resources;
mod retries;
mod sockets;
mod tokens;
