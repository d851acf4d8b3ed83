//! What keeps tenants and functions apart: sandboxes, and hostile functions, frames and sockets.

mod connections;
mod escapes;
mod frames;
mod sandboxes;
mod sockets;
mod storage;
mod workers;
