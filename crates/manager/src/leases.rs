//! Leases: requests to get and to end them, and the slots that their holders offer.

pub(crate) mod acquire;
pub(crate) mod offers;
