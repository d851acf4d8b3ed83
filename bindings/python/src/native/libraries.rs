//! Libraries that this process has loaded, by key. They are never unloaded, because other code may have addresses in
//! them; so their number and size are bounded.

use crate::locks::locked;
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::task::FunctionKey;
use hotlease_worker::{CallOutcome, FloatState, Library, LoadedFunction, MemoryPlace};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

/// Limit of the libraries of one process.
const LIBRARIES_MAX: usize = 256;
/// Limit of the bytes of all libraries together.
const BYTES_MAX: usize = 1 << 30;

struct LibraryTable {
    loaded: BTreeMap<FunctionKey, Arc<Library>>,
    /// Number of libraries that are loaded or being loaded; `bytes` has the sum of their bytes.
    number: usize,
    bytes: usize,
}

static TABLE: Mutex<LibraryTable> = Mutex::new(LibraryTable {
    loaded: BTreeMap::new(),
    number: 0,
    bytes: 0,
});

fn table() -> MutexGuard<'static, LibraryTable> {
    locked(&TABLE)
}

/// The library of this key, if it was loaded.
pub fn find(key: &FunctionKey) -> Option<Arc<Library>> {
    table().loaded.get(key).cloned()
}

/// Loads the library of this key from its bytes. Must be called without the GIL, because initialisers of the library
/// may take it.
pub fn load(key: FunctionKey, bytes: &[u8]) -> Result<Arc<Library>, String> {
    let mut reserved = table();
    if reserved.number >= LIBRARIES_MAX || reserved.bytes.saturating_add(bytes.len()) > BYTES_MAX {
        return Err(format!(
            "this process has loaded {} libraries of {} bytes, which stay as long as it does, and {LIBRARIES_MAX} of {BYTES_MAX} \
             bytes are the most: another Executor has other workers",
            reserved.number, reserved.bytes
        ));
    }
    reserved.number += 1;
    reserved.bytes += bytes.len();
    // The lock is not held while code of the library runs.
    drop(reserved);
    let loaded = Library::load(bytes);
    let mut table = table();
    match loaded {
        // Another thread may have been faster; an unused second copy does no harm.
        Ok(library) => Ok(table.loaded.entry(key).or_insert_with(|| Arc::new(library)).clone()),
        Err(why) => {
            table.number -= 1;
            table.bytes -= bytes.len();
            Err(why)
        }
    }
}

/// A call that is about to be made.
pub struct NativeCall {
    pub function: LoadedFunction,
    /// Context of a slot, or of a thread.
    pub context: *mut c_void,
    pub input: MemoryPlace,
    pub output: MemoryPlace,
}

// SAFETY: made and used on one thread, which only releases the GIL in between.
unsafe impl Send for NativeCall {}

impl NativeCall {
    /// Makes the call, and restores the floating-point state of the thread.
    ///
    /// # Safety
    /// As for [`LoadedFunction::call`].
    pub unsafe fn make(self) -> Result<CallOutcome, InvocationStatus> {
        let floats = FloatState::current();
        // SAFETY: by the contract of this function.
        let outcome = unsafe { self.function.call(self.context, self.input, self.output) };
        floats.restore();
        outcome
    }
}
