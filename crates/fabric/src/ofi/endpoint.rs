//! libfabric's objects of one port, and the calls on them: a thin layer that frees the objects that it opened.
//!
//! Nothing here locks: the provider is opened with FI_THREAD_DOMAIN, so the calls of one [`Endpoint`] must not overlap.
//! [`super::Port`] puts a mutex around the endpoint; the raw benchmarks use theirs from one thread.

use super::error::OfiError;
use super::ffi::*;
use super::library::Libfabric;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

mod open;
mod results;

pub use results::{CompletionRead, FailedOperation, PostResult};

/// Keys of registered memory, for a local operation and for the peer.
#[derive(Debug, Clone, Copy)]
pub struct RegionKeys {
    /// Descriptor for local operations.
    pub descriptor: *mut c_void,
    /// The provider's key.
    pub key: u64,
    /// Address of the first byte for peers.
    pub address: u64,
}

/// A registration of memory. Must be closed by [`Endpoint::deregister`].
pub struct RegionHandle(NonNull<fid_mr>);

// SAFETY: a handle that only Endpoint's methods use, whose calls do not overlap by the rule at the top.
unsafe impl Send for RegionHandle {}

/// One `fid`, closed when dropped.
struct Handle<T>(NonNull<T>);

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: every libfabric object begins with its fid. The object is open, and the owner drops it before the
        // objects of which it was made.
        unsafe {
            let fid = self.0.as_ptr().cast::<fid>();
            ((*(*fid).ops).close)(fid);
        }
    }
}

/// The libfabric endpoint, which can be closed before the other objects.
struct EndpointHandle(Option<Handle<fid_ep>>);

impl EndpointHandle {
    /// The endpoint; null if it was closed: then it must not be used any more.
    #[inline]
    fn get(&self) -> *mut fid_ep {
        self.0.as_ref().map_or(ptr::null_mut(), |endpoint| endpoint.0.as_ptr())
    }
}

/// Fabric, domain, address vector, completion queue and an endpoint of kind RDM.
pub struct Endpoint {
    // Dropped in this order: each object is made of the objects below it.
    endpoint: EndpointHandle,
    vector: Handle<fid_av>,
    queue: Handle<fid_cq>,
    domain: Handle<fid_domain>,
    fabric: Handle<fid_fabric>,
    wait_fd: Option<RawFd>,
    mr_mode: c_int,
    key_bytes: usize,
    inject_bytes: usize,
    message_bytes: usize,
    transmit_size: usize,
    receive_size: usize,
    source: bool,
    provider: &'static str,
    library: Arc<Libfabric>,
}

// SAFETY: handles without thread affinity; overlapping calls are excluded by the rule at the top.
unsafe impl Send for Endpoint {}

/// Checks the result of a call that opens something.
fn opened<T>(result: c_int, object: *mut T) -> Result<Handle<T>, isize> {
    match NonNull::new(object) {
        Some(object) if result == 0 => Ok(Handle(object)),
        _ => Err(if result == 0 {
            -(libc::ENOMEM as isize)
        } else {
            result as isize
        }),
    }
}

fn checked(result: c_int) -> Result<(), isize> {
    if result == 0 { Ok(()) } else { Err(result as isize) }
}

impl Endpoint {
    /// Name of the provider.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// Longest message that [`Endpoint::inject`] takes.
    pub fn inject_bytes(&self) -> usize {
        self.inject_bytes
    }

    /// Longest message or RMA operation.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Largest number of operations under way in each direction: sends, posted receives.
    pub fn sizes(&self) -> (usize, usize) {
        (self.transmit_size, self.receive_size)
    }

    /// Whether buffers of local operations must be registered.
    pub fn registers_local(&self) -> bool {
        self.mr_mode & FI_MR_LOCAL != 0
    }

    /// The text of a libfabric error number of either sign.
    pub fn text(&self, code: i32) -> String {
        self.library.text(code.abs())
    }

    pub(super) fn error(&self, call: &'static str, result: isize) -> OfiError {
        self.library.error(self.provider, call, result)
    }

    /// Address of the endpoint, to give to peers.
    pub fn address(&self) -> Result<Vec<u8>, OfiError> {
        let fid = self.endpoint.get().cast::<fid>();
        let mut bytes = vec![0u8; 512];
        let mut length = bytes.len();
        // SAFETY: an enabled endpoint, a buffer, and its length.
        let result = unsafe {
            let getname = (*(*self.endpoint.get()).cm).getname;
            getname(fid, bytes.as_mut_ptr().cast(), &mut length)
        };
        checked(result).map_err(|result| self.error("fi_getname", result))?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Makes a peer reachable. [`super::Port::peer`] checks that the peer's address has the format and length of our
    /// own.
    ///
    /// # Safety
    /// `address` is complete in the provider's format.
    pub unsafe fn insert(&mut self, address: &[u8]) -> Result<fi_addr_t, OfiError> {
        let mut peer = FI_ADDR_NOTAVAIL;
        // SAFETY: an open vector, and an address by the caller's promise.
        let inserted = unsafe {
            let insert = (*(*self.vector.0.as_ptr()).ops).insert;
            insert(
                self.vector.0.as_ptr(),
                address.as_ptr().cast(),
                1,
                &mut peer,
                0,
                ptr::null_mut(),
            )
        };
        if inserted != 1 || peer == FI_ADDR_NOTAVAIL {
            let code = if inserted < 0 {
                inserted as isize
            } else {
                -(libc::EINVAL as isize)
            };
            return Err(self.error("fi_av_insert", code));
        }
        Ok(peer)
    }

    /// Removes a peer.
    pub fn remove(&mut self, mut peer: fi_addr_t) {
        // SAFETY: an open vector and an address that `insert` returned.
        unsafe {
            let remove = (*(*self.vector.0.as_ptr()).ops).remove;
            remove(self.vector.0.as_ptr(), &mut peer, 1, 0);
        }
    }

    /// Registers memory under `key` (cut to the provider's key size; ignored if the provider draws keys itself).
    ///
    /// # Safety
    /// `length` bytes from `start` are mapped until [`Endpoint::deregister`]; a peer that learns the key may do with
    /// them what `access` allows, at any time.
    pub unsafe fn register(
        &mut self,
        start: NonNull<u8>,
        length: usize,
        access: u64,
        key: u64,
    ) -> Result<(RegionHandle, RegionKeys), OfiError> {
        let provider_keys = self.mr_mode & FI_MR_PROV_KEY != 0;
        let bits = 8 * self.key_bytes.min(8) as u32;
        let key = if provider_keys || bits == 0 {
            0
        } else {
            key & (u64::MAX >> (64 - bits))
        };
        let mut region = ptr::null_mut();
        // SAFETY: an open domain, and memory by the caller's promise.
        let result = unsafe {
            let reg = (*(*self.domain.0.as_ptr()).mr).reg;
            let domain = self.domain.0.as_ptr().cast();
            reg(
                domain,
                start.as_ptr().cast(),
                length,
                access,
                0,
                key,
                0,
                &mut region,
                ptr::null_mut(),
            )
        };
        let region = opened::<fid_mr>(result, region).map_err(|result| self.error("fi_mr_reg", result))?;
        if self.mr_mode & FI_MR_ENDPOINT != 0 {
            let fid = region.0.as_ptr().cast::<fid>();
            // SAFETY: a region that was just opened, and the endpoint of the same domain.
            unsafe {
                let ops = (*fid).ops;
                let bound = ((*ops).bind)(fid, self.endpoint.get().cast(), 0);
                checked(bound).map_err(|result| self.error("fi_mr_bind", result))?;
                let enabled = ((*ops).control)(fid, FI_ENABLE, ptr::null_mut());
                checked(enabled).map_err(|result| self.error("fi_mr_enable", result))?;
            }
        }
        // SAFETY: an open region.
        let (descriptor, key) = unsafe { ((*region.0.as_ptr()).mem_desc, (*region.0.as_ptr()).key) };
        let virtual_addresses = self.mr_mode & FI_MR_VIRT_ADDR != 0;
        let keys = RegionKeys {
            descriptor,
            key,
            address: if virtual_addresses { start.as_ptr() as u64 } else { 0 },
        };
        let region = RegionHandle(std::mem::ManuallyDrop::new(region).0);
        Ok((region, keys))
    }

    /// Ends every operation, before the memory that they use is deregistered. Only [`Endpoint::deregister`] may be
    /// called afterwards. Does nothing if registrations are bound to the endpoint, as these must be closed before it.
    pub(super) fn close_transfers(&mut self) {
        if self.mr_mode & FI_MR_ENDPOINT == 0 {
            self.endpoint.0 = None;
        }
    }

    /// Ends a registration.
    pub fn deregister(&mut self, region: RegionHandle) {
        drop(Handle(region.0));
    }

    /// Posts a buffer for one incoming message.
    ///
    /// # Safety
    /// Buffer and context (64 bytes) stay valid and unused until the completion with this context.
    #[inline]
    pub unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        length: usize,
        descriptor: *mut c_void,
        context: *mut c_void,
    ) -> PostResult {
        let endpoint = self.endpoint.get();
        // SAFETY: an enabled endpoint; buffers by the caller's promise.
        unsafe {
            let call = (*(*endpoint).msg).recv;
            call(endpoint, buffer.cast(), length, descriptor, FI_ADDR_UNSPEC, context).into()
        }
    }

    /// Sends a message.
    ///
    /// # Safety
    /// As [`Endpoint::receive`].
    #[inline]
    pub unsafe fn send(
        &mut self,
        buffer: *const u8,
        length: usize,
        descriptor: *mut c_void,
        peer: fi_addr_t,
        context: *mut c_void,
    ) -> PostResult {
        let endpoint = self.endpoint.get();
        // SAFETY: as above.
        unsafe {
            let call = (*(*endpoint).msg).send;
            call(endpoint, buffer.cast_mut().cast(), length, descriptor, peer, context).into()
        }
    }

    /// Sends a message of at most [`Endpoint::inject_bytes`]. The buffer can be reused at once, and there is no
    /// completion.
    #[inline]
    pub fn inject(&mut self, message: &[u8], peer: fi_addr_t) -> PostResult {
        let endpoint = self.endpoint.get();
        // SAFETY: an enabled endpoint and a buffer that is needed during the call only.
        unsafe {
            let call = (*(*endpoint).msg).inject;
            call(endpoint, message.as_ptr().cast(), message.len(), peer).into()
        }
    }

    /// Writes to a peer's memory. If `delivered`, the completion means that the bytes are in place at the peer;
    /// otherwise it only means that the buffer is free.
    ///
    /// # Safety
    /// As [`Endpoint::receive`].
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn write(
        &mut self,
        buffer: *const u8,
        length: usize,
        mut descriptor: *mut c_void,
        peer: fi_addr_t,
        address: u64,
        key: u64,
        context: *mut c_void,
        delivered: bool,
    ) -> PostResult {
        let endpoint = self.endpoint.get();
        let buffer = buffer.cast_mut().cast::<c_void>();
        if !delivered {
            // SAFETY: as above.
            return unsafe {
                let call = (*(*endpoint).rma).write;
                call(endpoint, buffer, length, descriptor, peer, address, key, context).into()
            };
        }
        let local = libc::iovec {
            iov_base: buffer,
            iov_len: length,
        };
        let remote = fi_rma_iov {
            addr: address,
            len: length,
            key,
        };
        let message = fi_msg_rma {
            msg_iov: &local,
            desc: &mut descriptor,
            iov_count: 1,
            addr: peer,
            rma_iov: &remote,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        // SAFETY: as above; the message's own parts are needed during the call only.
        unsafe {
            let call = (*(*endpoint).rma).writemsg;
            call(endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE).into()
        }
    }

    /// Reads a peer's memory.
    ///
    /// # Safety
    /// As [`Endpoint::receive`].
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn read(
        &mut self,
        buffer: *mut u8,
        length: usize,
        descriptor: *mut c_void,
        peer: fi_addr_t,
        address: u64,
        key: u64,
        context: *mut c_void,
    ) -> PostResult {
        let endpoint = self.endpoint.get();
        // SAFETY: as above.
        unsafe {
            let call = (*(*endpoint).rma).read;
            call(endpoint, buffer.cast(), length, descriptor, peer, address, key, context).into()
        }
    }

    /// Drives the provider and reads completions; `sources` gets each message's sender, or FI_ADDR_NOTAVAIL if the
    /// provider does not report it.
    #[inline]
    pub fn completions(&mut self, entries: &mut [fi_cq_msg_entry], sources: &mut [fi_addr_t]) -> CompletionRead {
        let queue = self.queue.0.as_ptr();
        let room = entries.len().min(sources.len());
        // SAFETY: an open queue of format MSG, and room for that many entries and addresses.
        let result = unsafe {
            let ops = (*queue).ops;
            if self.source {
                ((*ops).readfrom)(queue, entries.as_mut_ptr().cast(), room, sources.as_mut_ptr())
            } else {
                sources.fill(FI_ADDR_NOTAVAIL);
                ((*ops).read)(queue, entries.as_mut_ptr().cast(), room)
            }
        };
        match result {
            count if count >= 0 => CompletionRead::Read(count as usize),
            again if again == -FI_EAGAIN || again == -(libc::EINTR as isize) => CompletionRead::Read(0),
            error if error == -FI_EAVAIL => self.failure(),
            failed => CompletionRead::Failed(failed),
        }
    }

    #[cold]
    fn failure(&mut self) -> CompletionRead {
        // SAFETY: plain data, for which zeros are a valid value.
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        let queue = self.queue.0.as_ptr();
        // SAFETY: an open queue and room for an entry of any version.
        let result = unsafe { ((*(*queue).ops).readerr)(queue, &mut entry, 0) };
        match result {
            1 => CompletionRead::Error(FailedOperation {
                context: entry.op_context,
                flags: entry.flags,
                code: entry.err,
            }),
            again if again == 0 || again == -FI_EAGAIN => CompletionRead::Read(0),
            failed => CompletionRead::Failed(failed),
        }
    }

    /// Whether source addresses are reported.
    pub fn knows_sources(&self) -> bool {
        self.source
    }

    /// Descriptor that is readable when completions may be waiting, after [`Endpoint::prepare_sleep`] returned true.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the queue and lives as long as the queue.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Prepares a wait for the descriptor. Returns `true` if the descriptor will become readable for every later
    /// completion, and `false` if there is work to do first.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut fids = [self.queue.0.as_ptr().cast::<fid>()];
        // SAFETY: an open fabric and a queue of it.
        let result = unsafe {
            let trywait = (*(*self.fabric.0.as_ptr()).ops).trywait;
            trywait(self.fabric.0.as_ptr(), fids.as_mut_ptr(), 1)
        };
        result == 0
    }
}
