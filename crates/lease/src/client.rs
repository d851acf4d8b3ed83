//! The client's side: how a lease is acquired and kept, how its loss is detected, and which failed invocations may
//! be submitted again.
//!
//! - [`Acquisition`] — asks the manager, or the agents themselves, until there is a lease, the patience is over, or
//!   no manager or agent is left that could serve the request.
//! - [`Renewal`] — renews a lease, and says when the client must take the lease for lost.
//! - [`Redirects`] — chooses another slot for an invocation whose slot found its core taken.
//! - [`Attempts`] — the attempts that one invocation has left after a failure.

mod acquisition;
mod attempts;
mod redirects;
mod renewal;

pub use acquisition::{Acquisition, AcquisitionAction, AcquisitionEvent, GrantSource, PAUSE_MAX, PAUSE_MIN, Patience};
pub use attempts::{AttemptFailure, Attempts, ChannelEnd, RESTARTS_MAX};
pub use redirects::{REDIRECTS_MAX, Redirect, Redirects};
pub use renewal::{FENCED_AFTER, Renewal, RenewalAction, RenewalEvent};
