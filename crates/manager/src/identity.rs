//! Authentication and authorisation of callers, in one place for gRPC and HTTP alike.
//!
//! ```text
//! connection (uid, certificate) ──┐
//! authorization header ───────────┼─► authenticate ─► Caller ─► Operation::permits ─► the handler
//! directory (tenants, keys) ──────┘                     │
//!                                                       └─► refused
//! ```
//!
//! * [`Caller`] — name, tenant and role of a caller, and the proof of them.
//! * [`ManagerOperation`] — all operations, and who may perform them. A route without an operation is refused.
//! * [`Authenticator`] — finds the caller of a connection and a header.
//! * [`TenantDirectory`] — tenants, members and keys.
//! * [`Issuers`] — JSON web tokens; `munge`, `keys`, `sessions` — other credentials; `challenges` — their nonces.
//! * `gate` — checks every gRPC request before its route; `places` — how many requests each caller may have.

mod authenticator;
mod caller;
mod challenges;
mod directory;
mod gate;
mod jwt;
pub(crate) mod keys;
mod munge;
mod operation;
mod places;
mod sessions;
mod subject;

pub use authenticator::{AUTHORIZATION_BYTES_MAX, Authenticator, ConnectionPeer};
pub use caller::{Caller, CallerProof, Role};
pub(crate) use directory::REFRESH;
pub use directory::{TenantDirectory, TenantPolicy};
pub(crate) use gate::{Gate, GateConnection, caller_of, connection_of};
use hotlease_wire::Rejection;
pub use hotlease_wire::munge::payload as munge_payload;
pub(crate) use jwt::ISSUER_BYTES_MAX;
pub use jwt::{Issuers, IssuersError};
pub use munge::MungeConfig;
pub use operation::{CallerGroup, ManagerOperation};
pub(crate) use places::{PlaceLimits, RequestPlaces};
pub(crate) use sessions::LIFETIME_MS as SESSION_MS;
pub(crate) use subject::ISSUER_END;
use subject::Subject;

fn not_authenticated(why: impl Into<String>) -> Rejection {
    Rejection::NotAuthenticated { why: why.into() }
}
