//! The communicator of a gang, as a function on it gets it.

use crate::Error;
use hotlease_client::Seat;
use hotlease_comm::{Communicator, Options, Secret};
use hotlease_worker::{Foreign, FunctionContext, Keep};
use std::time::Duration;

/// The communicator of the ranks of the gang that the function runs on: this rank, their number, and all that can be asked of a
/// [`Communicator`]. To be called by the function's own thread; what it gives may be used by others as long as the function runs.
///
/// The first call that asks for it makes it, at all ranks: they wait for each other then, 15 s at most. Later ones find it as it was left,
/// with messages that nobody has received. It is the worker's: a function does not finish it.
///
/// # Errors
/// [`Error::NoGang`], [`Error::Over`], [`Error::Foreign`], and [`Error::Comm`] with why the ranks do not come together.
pub fn communicator(context: &FunctionContext) -> Result<&Communicator, Error> {
    struct Kept(Communicator);
    impl Keep for Kept {
        fn give_up(self: Box<Self>) {
            self.0.abort();
        }
    }
    kept(context, Kept).map(|kept| &kept.0)
}

/// The same, kept as something else, which has to abort the communicator when it is given up.
///
/// # Errors
/// Those of [`communicator`].
pub fn kept<T: Keep>(context: &FunctionContext, of: impl FnOnce(Communicator) -> T) -> Result<&T, Error> {
    let seat = context.seat().ok_or(Error::NoGang)?;
    let foreign = |_: Foreign| Error::Foreign;
    if let Some(kept) = seat.kept().map_err(foreign)? {
        return Ok(kept);
    }
    if seat.is_over() {
        return Err(Error::Over);
    }
    // The worker's program encodes it in another way only if it is of another version.
    let seated: Seat = hotlease_wire::decode(seat.told()).map_err(|_| Error::Foreign)?;
    let secret = Secret::new(&seated.secret.0)?;
    let mut options = Options::new(seated.name, seated.size, seated.rendezvous, secret);
    options.rank = Some(seated.rank);
    options.join_timeout = Duration::from_millis(seated.join_ms);
    seat.keep(of(Communicator::join(&options)?)).map_err(foreign)
}
