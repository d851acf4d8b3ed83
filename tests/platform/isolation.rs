//! Tests of isolation between tenants and functions: sandboxes, and hostile functions, frames and sockets.

mod connections;
mod escapes;
mod frames;
mod sandboxes;
mod sockets;
mod storage;
mod workers;
