//! Messages from one member to another.

use crate::argument::{bytes, bytes_mut, give, object, put, require_place};
use crate::comm::collective_call::check_overlap;
use crate::comm::request::{LentMemory, Message, RequestHandle};
use crate::comm::{CommHandle, number_or_none};
use crate::status::{Failure, exported};
use hotlease_comm::{MessageStatus, Pattern};
use std::ffi::{c_int, c_void};

/// Reads a pattern; -1 means any source, or any tag.
fn pattern(source: i64, tag: i64) -> Result<Pattern, Failure> {
    Ok(Pattern {
        source: number_or_none(source, "source")?,
        tag: number_or_none(tag, "tag")?,
    })
}

exported!(hotlease_comm_send(comm: *const CommHandle, start: *const c_void, size: usize, to: u32, tag: u32) {
    let (comm, message) = (object(comm, "comm")?, bytes(start, size, "bytes")?);
    Ok(comm.communicator.send(message, to, tag)?)
});

exported!(hotlease_comm_recv(
    comm: *const CommHandle,
    start: *mut c_void,
    capacity: usize,
    source: i64,
    tag: i64,
    message: *mut Message,
) {
    let (comm, into) = (object(comm, "comm")?, bytes_mut(start, capacity, "bytes")?);
    let status = comm.communicator.receive(into, pattern(source, tag)?)?;
    put(message, status.into());
    Ok(())
});

exported!(hotlease_comm_sendrecv(
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
) {
    let comm = object(comm, "comm")?;
    check_overlap((start, size), (into, capacity), ["bytes", "into"])?;
    // `start` and `into` are NULL or valid, as the header demands, and do not overlap.
    let (sent, into) = (bytes(start, size, "bytes")?, bytes_mut(into, capacity, "into")?);
    let pattern = pattern(source, recv_tag)?;
    let status = comm.communicator.sendrecv(sent, to, send_tag, into, pattern)?;
    put(message, status.into());
    Ok(())
});

exported!(hotlease_comm_probe(comm: *const CommHandle, source: i64, tag: i64, message: *mut Message) {
    let comm = object(comm, "comm")?;
    let status = comm.communicator.probe(pattern(source, tag)?)?;
    put(message, status.into());
    Ok(())
});

exported!(hotlease_comm_iprobe(
    comm: *const CommHandle,
    source: i64,
    tag: i64,
    found: *mut c_int,
    message: *mut Message,
) {
    require_place(found, "found")?;
    let comm = object(comm, "comm")?;
    let status = comm.communicator.iprobe(pattern(source, tag)?)?;
    put(found, status.is_some().into());
    if let Some(status) = status {
        put(message, status.into());
    }
    Ok(())
});

exported!(hotlease_comm_isend(
    comm: *const CommHandle,
    start: *const c_void,
    size: usize,
    to: u32,
    tag: u32,
    request: *mut *mut RequestHandle,
) {
    require_place(request, "request")?;
    let communicator = &object(comm, "comm")?.communicator;
    // An error is reported by the request that `isend_lent` makes below.
    if let Ok(true) = communicator.try_send(bytes(start, size, "bytes")?, to, tag) {
        let (source, bytes) = (communicator.rank(), size as u64);
        return give(request, RequestHandle::ended(MessageStatus { source, tag, bytes }));
    }
    // The memory is valid until the request has ended, as the header demands.
    let mut memory = LentMemory::default();
    let begun = communicator.isend_lent(memory.lend_input(start, size, "bytes")?, to, tag)?;
    give(request, RequestHandle::new(begun, memory))
});

exported!(hotlease_comm_irecv(
    comm: *const CommHandle,
    start: *mut c_void,
    capacity: usize,
    source: i64,
    tag: i64,
    request: *mut *mut RequestHandle,
) {
    require_place(request, "request")?;
    let (communicator, pattern) = (&object(comm, "comm")?.communicator, pattern(source, tag)?);
    if let Some(status) = communicator.try_receive(bytes_mut(start, capacity, "bytes")?, pattern)? {
        return give(request, RequestHandle::ended(status));
    }
    // The memory is valid until the request has ended, as the header demands.
    let mut memory = LentMemory::default();
    let begun = communicator.irecv_lent(memory.lend_output(start, capacity, "bytes")?, pattern)?;
    give(request, RequestHandle::new(begun, memory))
});
