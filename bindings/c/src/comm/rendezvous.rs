//! `hotlease_comm_rendezvous`: where members of a communicator meet.

use crate::argument::{bytes, give, require_place, text};
use crate::status::{Failure, exported};
use hotlease_comm::Secret;
use hotlease_comm::rendezvous::{Limits, Server};
use std::ffi::{CString, c_char, c_void};

/// `hotlease_comm_rendezvous`.
pub struct RendezvousHandle {
    /// Owned by the handle, because a function returns a pointer to it.
    address: CString,
    /// Serves until it is dropped.
    _server: Server,
}

exported!(hotlease_comm_rendezvous_start(
    listen: *const c_char,
    secret: *const c_void,
    secret_size: usize,
    rendezvous: *mut *mut RendezvousHandle,
) {
    require_place(rendezvous, "rendezvous")?;
    let listen = text(listen, "listen")?;
    let given = given_secret(secret, secret_size)?;
    let secret = given.map_or_else(Secret::from_environment, Ok)?;
    let server = Server::start(listen, vec![secret], Limits::default())?;
    let handle = RendezvousHandle {
        address: CString::new(server.address().to_string()).unwrap_or_default(),
        _server: server,
    };
    give(rendezvous, handle)
});

/// Makes a secret of `size` bytes; returns `None` if `secret` is NULL and `size` is 0.
///
/// # Safety
/// `secret` is NULL or valid for reading `size` bytes.
pub(super) unsafe fn given_secret(secret: *const c_void, size: usize) -> Result<Option<Secret>, Failure> {
    if secret.is_null() && size == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let secret = unsafe { bytes(secret, size, "secret") }?;
    Ok(Some(Secret::new(secret)?))
}

exported!(get hotlease_comm_rendezvous_address(rendezvous: RendezvousHandle) -> *const c_char {
    c"".as_ptr(), rendezvous.address.as_ptr()
});

exported!(free hotlease_comm_rendezvous_free(RendezvousHandle));
