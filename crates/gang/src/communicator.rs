//! Communicator of a gang, for functions that run on the gang.

use crate::Error;
use hotlease_client::Seat;
use hotlease_comm::{Communicator, Options, Secret};
use hotlease_worker::{ForeignValue, FunctionContext, SeatValue};
use std::time::Duration;

/// Returns the communicator of the gang that the function runs on: it has this rank, the number of ranks, and all
/// operations of a [`Communicator`]. Must be called by the function's own thread; other threads may use the
/// communicator as long as the function runs.
///
/// The first call, at all ranks, makes the communicator; the ranks wait for each other, 15 s at most. Later calls
/// return the same communicator, with the messages that were not received. The worker owns the communicator, so a
/// function must not finish it.
///
/// # Errors
/// [`Error::NoGang`], [`Error::CommunicatorEnded`], [`Error::ForeignCommunicator`], and [`Error::Comm`] if the ranks do
/// not meet.
pub fn communicator(context: &FunctionContext) -> Result<&Communicator, Error> {
    struct AbortOnGiveUp(Communicator);
    impl SeatValue for AbortOnGiveUp {
        fn give_up(self: Box<Self>) {
            self.0.abort();
        }
    }
    communicator_in(context, AbortOnGiveUp).map(|kept| &kept.0)
}

/// Returns the communicator of the gang inside a value of type `T`, whose `give_up` must abort the communicator.
///
/// # Errors
/// Errors of [`communicator`].
pub fn communicator_in<T: SeatValue>(
    context: &FunctionContext,
    of: impl FnOnce(Communicator) -> T,
) -> Result<&T, Error> {
    let seat = context.seat().ok_or(Error::NoGang)?;
    let foreign = |_: ForeignValue| Error::ForeignCommunicator;
    if let Some(kept) = seat.value().map_err(foreign)? {
        return Ok(kept);
    }
    if seat.is_over() {
        return Err(Error::CommunicatorEnded);
    }
    // Decoding fails only if the worker's program has another version.
    let seated: Seat = hotlease_wire::decode(seat.description()).map_err(|_| Error::ForeignCommunicator)?;
    let secret = Secret::new(&seated.secret.0)?;
    let mut options = Options::new(seated.name, seated.size, seated.rendezvous, secret);
    options.rank = Some(seated.rank);
    options.join_timeout = Duration::from_millis(seated.join_ms);
    #[cfg(feature = "stores")]
    {
        options.stores = hotlease_stores::openers();
    }
    seat.keep(of(Communicator::join(&options)?)).map_err(foreign)
}
