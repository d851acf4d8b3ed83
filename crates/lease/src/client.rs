//! The client's side: acquisition and renewal of a lease, detection of its loss, and resubmission of failed
//! invocations.
//!
//! - [`Acquisition`] — asks the manager, or the agents directly. Ends when there is a lease, when the patience is over,
//!   or when no manager or agent is left that could serve the request.
//! - [`Renewal`] — renews a lease, and decides when the client must regard the lease as lost.
//! - [`Redirects`] — chooses another slot for an invocation whose slot found its core taken.
//! - [`Attempts`] — the remaining attempts of one invocation after a failure.

mod acquisition;
mod attempts;
mod redirects;
mod renewal;

pub use acquisition::{Acquisition, AcquisitionAction, AcquisitionEvent, GrantSource, PAUSE_MAX, PAUSE_MIN, Patience};
pub use attempts::{AttemptFailure, Attempts, ChannelEnd, RESTARTS_MAX};
pub use redirects::{REDIRECTS_MAX, Redirect, Redirects};
pub use renewal::{FENCED_AFTER, Renewal, RenewalAction, RenewalEvent};
