//! The REST interface: JSON over HTTP/1.1, on `rest.sock` and, where it is asked for, over TLS.
//!
//! ```text
//! connection (bounded, and for a time) ─► observed: trace, time limit, count ─► gate: who, what, may they
//!      ─► nodes │ agents │ leases │ usage │ tenants │ info │ health │ metrics │ door
//! ```
//!
//! * `listen` — connections, and what they may cost.
//! * `gate` — stands before every route; a route that names no operation is refused to everybody.
//! * `routes` — the table of routes and operations, and the router.
//! * [`openapi`] — the document of it all, made from the code.
//! * `problem` — errors, as RFC 9457 has them.
//! * `extract` — what requests carry, checked.
//!
//! HTTP/2 is not spoken here: operators and batch systems ask a few things a minute, and each of its frames
//! would be one more thing that strangers can send.

mod agents;
mod door;
mod extract;
mod gate;
mod health;
mod info;
mod leases;
mod listen;
mod moment;
mod nodes;
mod openapi;
mod problem;
mod routes;
mod tenants;
mod usage;

pub(crate) use health::Readiness;
pub(crate) use listen::serve;
pub use openapi::openapi;
pub(crate) use problem::kind_of;
