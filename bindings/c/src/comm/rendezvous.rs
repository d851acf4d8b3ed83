//! `hotlease_comm_rendezvous`: where members of a communicator meet.

use crate::argument::{bytes, put, require_place, text};
use crate::status::{ErrorHandle, Failure, Status, free, run_guarded};
use hotlease_comm::Secret;
use hotlease_comm::rendezvous::{Limits, Server};
use std::ffi::{CString, c_char, c_void};

/// `hotlease_comm_rendezvous`.
pub struct RendezvousHandle {
    /// Owned by the handle, for the function that returns it.
    address: CString,
    /// Serves until it is dropped.
    _server: Server,
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_rendezvous_start(
    listen: *const c_char,
    secret: *const c_void,
    secret_size: usize,
    rendezvous: *mut *mut RendezvousHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(rendezvous, "rendezvous")?;
        // SAFETY: NULL or a string, as the header demands.
        let listen = unsafe { text(listen, "listen") }?;
        // SAFETY: NULL or valid, as the header demands.
        let given = unsafe { given_secret(secret, secret_size) }?;
        let secret = given.map_or_else(Secret::from_environment, Ok)?;
        let server = Server::start(listen, vec![secret], Limits::default())?;
        let handle = RendezvousHandle {
            address: CString::new(server.address().to_string()).unwrap_or_default(),
            _server: server,
        };
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(rendezvous, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// Makes a secret of these bytes, unless they are NULL.
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

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_rendezvous_address(rendezvous: *const RendezvousHandle) -> *const c_char {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { rendezvous.as_ref() }.map_or(c"".as_ptr(), |rendezvous| rendezvous.address.as_ptr())
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_rendezvous_free(rendezvous: *mut RendezvousHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(rendezvous) };
}
