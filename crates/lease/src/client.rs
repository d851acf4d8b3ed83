//! The client's side: how a lease is got, kept, and known to be lost; and which failed invocations may be
//! submitted again.
//!
//! * [`Acquisition`] — asks the manager, or the agents themselves, until there is a lease, no more patience, or nobody left to serve it.
//! * [`Renewal`] — pushes the expiry of a lease, and says when it must be taken for lost.
//! * [`Redirects`] — where an invocation goes whose slot's core is taken.
//! * [`Attempts`] — what one invocation may still be tried after a failure.

mod acquisition;
mod attempts;
mod redirects;
mod renewal;

pub use acquisition::{
    Acquisition, AcquisitionAction, AcquisitionEvent, PAUSE_MAX, PAUSE_MIN, Patience, WITHOUT_MAX, Way,
};
pub use attempts::{Attempts, ChannelEnd, Failure, RESTARTS_MAX};
pub use redirects::{REDIRECTS_MAX, Redirect, Redirects};
pub use renewal::{FENCED_AFTER, Renewal, RenewalAction, RenewalEvent};
