//! The REST interface: JSON over HTTP/1.1, on `rest.sock`, and over TLS if it is configured.
//!
//! ```text
//! connection (limited in number and in time) ─► observed: trace, time limit, count ─► gate: caller, operation, permission
//!      ─► nodes │ agents │ leases │ usage │ tenants │ info │ health │ metrics │ sessions
//! ```
//!
//! * `server` — connections, and their limits.
//! * `gate` — checks every request before its route; a route without an operation is refused to every caller.
//! * `routes` — the table of routes and operations, and the router.
//! * [`openapi`] — the OpenAPI document of the interface, generated from the code.
//! * `problem` — errors in the format of RFC 9457.
//! * `extract` — checked parameters and bodies of requests.
//!
//! HTTP/2 is not spoken here: operators and batch systems send a few requests a minute, and each kind of HTTP/2 frame
//! would be one more thing that strangers can send.

mod agents;
mod extract;
mod gate;
mod health;
mod info;
mod leases;
mod nodes;
mod openapi;
mod problem;
mod routes;
mod server;
mod sessions;
mod tenants;
mod time;
mod usage;

pub use openapi::openapi;
pub(crate) use server::serve;
