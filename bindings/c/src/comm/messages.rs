//! Messages from one member to another.

use crate::argument::{bytes, bytes_mut, object, put, require_place};
use crate::comm::collective_call::check_overlap;
use crate::comm::request::{LentMemory, Message, RequestHandle};
use crate::comm::{CommHandle, number_or_none};
use crate::status::{ErrorHandle, Failure, Status, run_guarded};
use hotlease_comm::Pattern;
use std::ffi::{c_int, c_void};

/// Reads a pattern; -1 is any.
fn pattern(source: i64, tag: i64) -> Result<Pattern, Failure> {
    Ok(Pattern {
        source: number_or_none(source, "source")?,
        tag: number_or_none(tag, "tag")?,
    })
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_send(
    comm: *const CommHandle,
    start: *const c_void,
    size: usize,
    to: u32,
    tag: u32,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let (comm, message) = unsafe { (object(comm, "comm")?, bytes(start, size, "bytes")?) };
        Ok(comm.communicator.send(message, to, tag)?)
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_recv(
    comm: *const CommHandle,
    start: *mut c_void,
    capacity: usize,
    source: i64,
    tag: i64,
    message: *mut Message,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let (comm, into) = unsafe { (object(comm, "comm")?, bytes_mut(start, capacity, "bytes")?) };
        let status = comm.communicator.receive(into, pattern(source, tag)?)?;
        // SAFETY: NULL or valid, as the header demands.
        unsafe { put(message, status.into()) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "MPI's")]
pub unsafe extern "C" fn hotlease_comm_sendrecv(
    comm: *const CommHandle,
    start: *const c_void,
    size: usize,
    to: u32,
    send_tag: u32,
    into: *mut c_void,
    capacity: usize,
    source: i64,
    recv_tag: i64,
    message: *mut Message,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        check_overlap((start, size), (into, capacity), ["bytes", "into"])?;
        // SAFETY: NULL or valid, as the header demands, and not overlapping.
        let (sent, into) = unsafe { (bytes(start, size, "bytes")?, bytes_mut(into, capacity, "into")?) };
        let pattern = pattern(source, recv_tag)?;
        let status = comm.communicator.sendrecv(sent, to, send_tag, into, pattern)?;
        // SAFETY: NULL or valid, as the header demands.
        unsafe { put(message, status.into()) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_probe(
    comm: *const CommHandle,
    source: i64,
    tag: i64,
    message: *mut Message,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        let status = comm.communicator.probe(pattern(source, tag)?)?;
        // SAFETY: NULL or valid, as the header demands.
        unsafe { put(message, status.into()) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_iprobe(
    comm: *const CommHandle,
    source: i64,
    tag: i64,
    found: *mut c_int,
    message: *mut Message,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(found, "found")?;
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        let status = comm.communicator.iprobe(pattern(source, tag)?)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(found, status.is_some().into()) };
        if let Some(status) = status {
            // SAFETY: NULL or valid, as the header demands.
            unsafe { put(message, status.into()) };
        }
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_isend(
    comm: *const CommHandle,
    start: *const c_void,
    size: usize,
    to: u32,
    tag: u32,
    request: *mut *mut RequestHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(request, "request")?;
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        // SAFETY: as the header demands, until the request has ended.
        let memory = unsafe { LentMemory::of((start, size, "bytes"), (std::ptr::null_mut(), 0, "")) }?;
        let begun = comm.communicator.isend_lent(&memory.input, to, tag)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(request, RequestHandle::give(begun, memory)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_irecv(
    comm: *const CommHandle,
    start: *mut c_void,
    capacity: usize,
    source: i64,
    tag: i64,
    request: *mut *mut RequestHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(request, "request")?;
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        // SAFETY: as the header demands, until the request has ended.
        let memory = unsafe { LentMemory::of((std::ptr::null(), 0, ""), (start, capacity, "bytes")) }?;
        let begun = comm.communicator.irecv_lent(&memory.output, pattern(source, tag)?)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(request, RequestHandle::give(begun, memory)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}
