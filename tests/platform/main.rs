//! Black-box tests of the built programs. Each is named by the promise that it proves.

mod frames;
mod functions;
mod leases;
mod sockets;
mod tokens;
