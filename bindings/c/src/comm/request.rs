//! `hotlease_comm_request`: an operation in progress, and the memory that it uses.

use crate::argument::{bytes, bytes_mut, object, put, require_place};
use crate::status::{ErrorHandle, Failure, Status, catch_panic, exported, run_guarded};
use hotlease_comm::{Error, LentBytes, LentBytesMut, Request, wait_any};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// Longer than any wait.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// `hotlease_comm_request`.
pub struct RequestHandle {
    progress: RequestProgress,
    /// Taken back before the caller is told that it may use the memory again.
    memory: LentMemory,
}

enum RequestProgress {
    /// The request; `None` if a wait has taken it.
    Pending(Option<Request>),
    Ended(Result<hotlease_comm::MessageStatus, Error>),
}

/// Input and output of an operation, if it has them.
#[derive(Default)]
pub(super) struct LentMemory {
    pub input: Option<LentBytes>,
    pub output: Option<LentBytesMut>,
}

/// `hotlease_comm_message`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    source: u32,
    tag: u32,
    size: u64,
}

impl From<hotlease_comm::MessageStatus> for Message {
    fn from(status: hotlease_comm::MessageStatus) -> Self {
        Self {
            source: status.source,
            tag: status.tag,
            size: status.bytes,
        }
    }
}

impl LentMemory {
    /// Lends the caller's input.
    ///
    /// # Safety
    /// `start` is NULL, or valid for `size` until the memory is taken back. Until then, no other code writes it.
    pub(super) unsafe fn lend_input(
        &mut self,
        start: *const c_void,
        size: usize,
        name: &'static str,
    ) -> Result<&LentBytes, Failure> {
        // SAFETY: the caller's promise. The slice is checked, and has an address even if it is empty.
        let bytes = unsafe { bytes(start, size, name)? };
        // SAFETY: the caller's promise.
        let lent = unsafe { LentBytes::from_raw(bytes.as_ptr(), bytes.len()) };
        Ok(self.input.insert(lent))
    }

    /// Lends the caller's output.
    ///
    /// # Safety
    /// `start` is NULL, or valid for `size` until the memory is taken back. Until then, no other code uses it.
    pub(super) unsafe fn lend_output(
        &mut self,
        start: *mut c_void,
        size: usize,
        name: &'static str,
    ) -> Result<&LentBytesMut, Failure> {
        // SAFETY: the caller's promise. The slice is checked, and has an address even if it is empty.
        let bytes = unsafe { bytes_mut(start, size, name)? };
        // SAFETY: the caller's promise.
        let lent = unsafe { LentBytesMut::from_raw(bytes.as_mut_ptr(), bytes.len()) };
        Ok(self.output.insert(lent))
    }

    /// Takes the memory back: when this returns, no other code uses the memory.
    fn take_back(&self) {
        self.input.iter().for_each(LentBytes::take_back);
        self.output.iter().for_each(LentBytesMut::take_back);
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl RequestHandle {
    pub(super) fn new(request: Request, memory: LentMemory) -> Self {
        Self {
            progress: RequestProgress::Pending(Some(request)),
            memory,
        }
    }

    /// Makes a request for an operation that has already ended.
    pub(super) fn ended(status: hotlease_comm::MessageStatus) -> Self {
        Self {
            progress: RequestProgress::Ended(Ok(status)),
            memory: LentMemory::default(),
        }
    }

    /// Returns `true` if the operation has ended; then the caller may use the memory again.
    fn test(&mut self) -> bool {
        let RequestProgress::Pending(request) = &mut self.progress else {
            return true;
        };
        let result = match request {
            Some(request) => request.test(),
            None => Some(Err(Error::Finished)),
        };
        let Some(result) = result else { return false };
        self.progress = RequestProgress::Ended(result);
        self.memory.take_back();
        true
    }

    fn wait(&mut self) -> Result<hotlease_comm::MessageStatus, Error> {
        match &mut self.progress {
            RequestProgress::Pending(request) => request.take().map_or(Err(Error::Finished), Request::wait),
            RequestProgress::Ended(result) => result.clone(),
        }
    }

    fn cancel(&mut self) -> bool {
        match &mut self.progress {
            RequestProgress::Pending(Some(request)) => request.cancel(),
            _ => false,
        }
    }
}

impl Drop for RequestHandle {
    /// Cancels the operation if possible. If it continues, it can no longer use the memory, which is taken back.
    fn drop(&mut self) {
        self.cancel();
    }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_test(request: *mut RequestHandle) -> c_int {
    catch_panic(1, || {
        // SAFETY: NULL or valid and used by this thread only, as the header demands.
        unsafe { request.as_mut() }.is_none_or(RequestHandle::test).into()
    })
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_cancel(request: *mut RequestHandle) -> c_int {
    catch_panic(0, || {
        // SAFETY: NULL or valid and used by this thread only, as the header demands.
        unsafe { request.as_mut() }.is_some_and(RequestHandle::cancel).into()
    })
}

exported!(hotlease_comm_wait(request: *mut RequestHandle, message: *mut Message) {
    object(request, "request")?;
    // Not NULL, so returned to the caller and not freed yet, as the header demands.
    let mut request = Box::from_raw(request);
    let status = request.wait()?;
    put(message, status.into());
    Ok(())
});

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_wait_all(
    requests: *mut *mut RequestHandle,
    count: usize,
    messages: *mut Message,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        if count == 0 {
            return Ok(());
        }
        if requests.is_null() {
            return Err(Failure::Null("requests"));
        }
        if count > isize::MAX as usize / size_of::<Message>() {
            return Err(Failure::Argument(format!(
                "{count} requests are more than fit into memory"
            )));
        }
        let mut first_failure = None;
        for index in 0..count {
            // SAFETY: inside the array that the header demands.
            let place = unsafe { requests.add(index) };
            // SAFETY: as above.
            let request = unsafe { place.replace(std::ptr::null_mut()) };
            if request.is_null() {
                continue;
            }
            // SAFETY: not NULL, so returned to the caller and not freed yet, as the header demands.
            let mut request = unsafe { Box::from_raw(request) };
            match request.wait() {
                Ok(_) if messages.is_null() => {}
                // SAFETY: not NULL, so `messages` has an entry for each request, as the header demands.
                Ok(status) => unsafe { put(messages.add(index), status.into()) },
                Err(error) => drop(first_failure.get_or_insert(error)),
            }
        }
        first_failure.map_or(Ok(()), |error| Err(error.into()))
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_wait_any(
    requests: *const *mut RequestHandle,
    count: usize,
    index: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        if requests.is_null() && count > 0 {
            return Err(Failure::Null("requests"));
        }
        require_place(index, "index")?;
        if count > isize::MAX as usize / size_of::<*mut RequestHandle>() {
            return Err(Failure::Argument(format!(
                "{count} requests are more than fit into memory"
            )));
        }
        let (mut indices, mut watches) = (Vec::new(), Vec::new());
        let mut ended = None;
        for index in 0..count {
            // SAFETY: inside the array that the header demands; its entries are NULL, or valid and used by this thread only.
            let Some(request) = (unsafe { (*requests.add(index)).as_ref() }) else {
                continue;
            };
            match &request.progress {
                RequestProgress::Pending(Some(request)) => {
                    indices.push(index);
                    watches.push(request.watch());
                }
                RequestProgress::Pending(None) | RequestProgress::Ended(_) => {
                    ended = Some(index);
                    break;
                }
            }
        }
        // An earlier request may have ended as well, and is then returned instead.
        let at_most = if ended.is_some() { Duration::ZERO } else { FOR_EVER };
        let found = wait_any(&watches, at_most).map(|at| indices[at]).or(ended);
        // SAFETY: checked above.
        unsafe { put(index, found.unwrap_or(count)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

exported!(free hotlease_comm_request_free(RequestHandle));
