//! Who asks, and what that lets them do: the one place that decides it, for gRPC and HTTP alike.
//!
//! ```text
//! connection (uid, certificate) ──┐
//! authorization header ───────────┼─► authenticate ─► Caller ─► Operation::permits ─► the handler
//! directory (tenants, keys) ──────┘                     │
//!                                                       └─► refused
//! ```
//!
//! * [`Caller`] — name, tenant, role, and how that is known.
//! * [`Operation`] — everything that can be asked for, and who may. A route that names none is refused.
//! * [`Authenticator`] — makes a caller of a connection and a header.
//! * `gate` — stands before every gRPC route.

mod authenticator;
mod caller;
mod gate;
mod operation;

pub use authenticator::{Authenticator, ConnectionIdentity};
pub use caller::{Caller, How, Role};
pub(crate) use gate::{Gate, caller_of};
pub use operation::{Operation, Who};
