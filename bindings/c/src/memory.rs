//! `hotlease_memory`: memory of other nodes.

use crate::argument::{bytes, bytes_mut, give, object, require_place, sized};
use crate::invoker::{Options, Usage};
use crate::status::{Failure, exported};
use hotlease_client::{MemoryOptions, MemoryTransfer, RemoteMemory};
use std::ffi::{CString, c_char, c_void};

/// `hotlease_memory`.
pub struct MemoryHandle {
    memory: RemoteMemory,
    /// Owned by the handle, because a function returns a pointer to it.
    transport: CString,
}

/// `hotlease_memory_transfer`.
pub struct TransferHandle {
    transfer: MemoryTransfer<()>,
}

/// `hotlease_memory_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryOptionsInC {
    struct_size: usize,
    nodes: u32,
    stripe_bytes: u32,
    lease: *const Options,
}

/// `hotlease_memory_piece`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryPiece {
    offset: u64,
    bytes: *mut c_void,
    size: usize,
}

/// Address of a caller's bytes, which the caller leaves to a copy until the copy has ended.
struct CallerBytes(*mut c_void, usize);

// SAFETY: the header gives the bytes to the copy, on each thread on which it runs.
unsafe impl Send for CallerBytes {}

impl MemoryOptionsInC {
    /// Reads the options of a new memory; returns the defaults for NULL.
    ///
    /// # Safety
    /// `options` is NULL, or valid with its size set, and so are the options of its leases.
    unsafe fn read(options: *const Self) -> Result<MemoryOptions, Failure> {
        let mut read = MemoryOptions::default();
        // SAFETY: the caller's promise.
        let Some(given) = unsafe { sized(options, "options") }? else {
            return Ok(read);
        };
        if given.nodes != 0 {
            let too_many = |_| Failure::Argument(format!("options->nodes: {} is too many", given.nodes));
            read.nodes = u16::try_from(given.nodes).map_err(too_many)?;
        }
        if given.stripe_bytes != 0 {
            read.stripe_bytes = given.stripe_bytes;
        }
        // SAFETY: the caller's promise.
        read.lease = unsafe { Options::read(given.lease) }?;
        Ok(read)
    }
}

/// The pieces of a caller.
///
/// # Safety
/// `pieces` is NULL, or valid for reading `count` of them.
unsafe fn all_pieces<'a>(pieces: *const MemoryPiece, count: usize) -> Result<&'a [MemoryPiece], Failure> {
    match (pieces.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::Null("pieces")),
        // SAFETY: not NULL, so valid by the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pieces, count) }),
    }
}

exported!(hotlease_memory_allocate(
    size_bytes: u64,
    options: *const MemoryOptionsInC,
    memory: *mut *mut MemoryHandle,
) {
    require_place(memory, "memory")?;
    let allocated = RemoteMemory::allocate(size_bytes, MemoryOptionsInC::read(options)?)?;
    let handle = MemoryHandle {
        transport: CString::new(allocated.transport()).unwrap_or_default(),
        memory: allocated,
    };
    give(memory, handle)
});

exported!(get hotlease_memory_size(memory: MemoryHandle) -> u64 { 0, memory.memory.size_bytes() });
exported!(get hotlease_memory_transport(memory: MemoryHandle) -> *const c_char {
    c"".as_ptr(), memory.transport.as_ptr()
});

exported!(hotlease_memory_read(memory: *const MemoryHandle, offset: u64, out: *mut c_void, size: usize) {
    let memory = object(memory, "memory")?;
    Ok(memory.memory.read(offset, bytes_mut(out, size, "bytes")?)?)
});

exported!(hotlease_memory_write(memory: *const MemoryHandle, offset: u64, from: *const c_void, size: usize) {
    let memory = object(memory, "memory")?;
    Ok(memory.memory.write(offset, bytes(from, size, "bytes")?)?)
});

exported!(hotlease_memory_read_pieces(memory: *const MemoryHandle, pieces: *const MemoryPiece, count: usize) {
    let memory = object(memory, "memory")?;
    let pieces = all_pieces(pieces, count)?.iter();
    let targets = pieces.map(|piece| Ok((piece.offset, bytes_mut(piece.bytes, piece.size, "pieces->bytes")?)));
    let mut targets = targets.collect::<Result<Vec<_>, Failure>>()?;
    Ok(memory.memory.read_pieces(&mut targets)?)
});

exported!(hotlease_memory_write_pieces(memory: *const MemoryHandle, pieces: *const MemoryPiece, count: usize) {
    let memory = object(memory, "memory")?;
    let pieces = all_pieces(pieces, count)?.iter();
    let sources = pieces.map(|piece| Ok((piece.offset, bytes(piece.bytes, piece.size, "pieces->bytes")?)));
    let sources = sources.collect::<Result<Vec<_>, Failure>>()?;
    Ok(memory.memory.write_pieces(&sources)?)
});

exported!(hotlease_memory_begin_read(
    memory: *const MemoryHandle,
    offset: u64,
    out: *mut c_void,
    size: usize,
    transfer: *mut *mut TransferHandle,
) {
    require_place(transfer, "transfer")?;
    let memory = object(memory, "memory")?;
    // Checked before the copy begins; the slice is made again on its thread.
    bytes_mut(out, size, "bytes")?;
    memory.memory.check_span(offset, size)?;
    let target = CallerBytes(out, size);
    let begun = memory.memory.begin(move |memory| {
        let CallerBytes(out, size) = { target };
        // Checked above. The caller leaves the bytes to this copy, as the header demands.
        let out = bytes_mut(out, size, "bytes").unwrap_or_default();
        memory.read(offset, out)
    })?;
    give(transfer, TransferHandle { transfer: begun })
});

exported!(hotlease_memory_begin_write(
    memory: *const MemoryHandle,
    offset: u64,
    from: *const c_void,
    size: usize,
    transfer: *mut *mut TransferHandle,
) {
    require_place(transfer, "transfer")?;
    let memory = object(memory, "memory")?;
    // Checked before the copy begins; the slice is made again on its thread.
    bytes(from, size, "bytes")?;
    memory.memory.check_span(offset, size)?;
    let source = CallerBytes(from.cast_mut(), size);
    let begun = memory.memory.begin(move |memory| {
        let CallerBytes(from, size) = { source };
        // Checked above. The caller leaves the bytes to this copy, as the header demands.
        let from = bytes(from, size, "bytes").unwrap_or_default();
        memory.write(offset, from)
    })?;
    give(transfer, TransferHandle { transfer: begun })
});

exported!(hotlease_memory_wait(transfer: *mut TransferHandle) {
    if transfer.is_null() {
        return Err(Failure::Null("transfer"));
    }
    // The header gives the transfer back with this call.
    let handle = Box::from_raw(transfer);
    Ok(handle.transfer.wait()?)
});

exported!(hotlease_memory_flush(memory: *const MemoryHandle) {
    Ok(object(memory, "memory")?.memory.flush()?)
});

exported!(hotlease_memory_deallocate(memory: *mut MemoryHandle, usage: *mut Usage) {
    if memory.is_null() {
        return Err(Failure::Null("memory"));
    }
    // The header gives the memory back with this call.
    let handle = Box::from_raw(memory);
    Usage::report(usage, || Ok(handle.memory.deallocate()?))
});

exported!(free hotlease_memory_transfer_free(TransferHandle));
exported!(free hotlease_memory_free(MemoryHandle));
