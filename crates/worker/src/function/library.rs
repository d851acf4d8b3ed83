//! Loading function libraries: bytes in a sealed memfd become callable functions.
//!
//! Only the worker calls `dlopen`. A process that represents a worker elsewhere orders that worker to call `dlopen`
//! ([`RemoteWorker`]). The library's constructors may do anything. If they kill the process, the agent reports that
//! this library was being loaded.

use crate::HostFunction;
use crate::float_state::FloatState;
use crate::function::remote_worker::RemoteWorker;
use crate::function::state_hooks::StateHooks;
use crate::function::unique_symbols::UniqueSymbols;
use hotlease_fabric::memory::{SealedBytes, sealed_copy};
use hotlease_wire::code::{self, CodeError, Interface};
use hotlease_wire::limits::CODE_BYTES_MAX;
use libloading::os::unix::{Library as DynamicLibrary, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

/// A function that can be called.
#[derive(Clone, Copy)]
pub struct LoadedFunction {
    /// Interface of the function.
    pub interface: Interface,
    /// Location of its code.
    pub code: CodeLocation,
}

/// Location of a function's code.
#[derive(Clone, Copy)]
pub enum CodeLocation {
    /// In this process.
    Local(NonNull<c_void>),
    /// In the remote worker, under this index.
    Remote(&'static dyn RemoteWorker, u16),
}

// SAFETY: an address of code in a library that is never unloaded, or a reference to a value that is `Sync`.
unsafe impl Send for LoadedFunction {}
// SAFETY: as above.
unsafe impl Sync for LoadedFunction {}

/// All functions of the worker, by the index that frames use.
#[derive(Default, Clone)]
pub struct FunctionTable(Vec<LoadedFunction>);

impl FunctionTable {
    /// The function of the program that hosts the worker.
    pub fn of_host(function: HostFunction) -> Self {
        let address = NonNull::new(function as *mut c_void);
        let loaded = address.map(|address| LoadedFunction {
            interface: Interface::Context,
            code: CodeLocation::Local(address),
        });
        Self(loaded.into_iter().collect())
    }

    /// The functions that a remote worker's program has from the beginning: `count` functions of the context interface.
    pub fn of_remote_worker(there: &'static dyn RemoteWorker, count: u16) -> Self {
        let loaded = |index| LoadedFunction {
            interface: Interface::Context,
            code: CodeLocation::Remote(there, index),
        };
        Self((0..count).map(loaded).collect())
    }

    /// The function of this index.
    #[inline]
    pub fn get(&self, index: u16) -> Option<LoadedFunction> {
        self.0.get(usize::from(index)).copied()
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// This table with the functions of one more library, from index `base` on. The library is loaded here, or by the
    /// remote worker. Also returns the library's save and restore functions, if it has them.
    pub fn with_library(
        &self,
        there: Option<&'static dyn RemoteWorker>,
        code: OwnedFd,
        size_bytes: u64,
        base: u16,
    ) -> Result<(Self, Option<StateHooks>), String> {
        if usize::from(base) != self.0.len() {
            return Err(format!(
                "functions from {base} on were announced, {} are loaded",
                self.0.len()
            ));
        }
        let (loaded, hooks) = match there {
            None => open(code, size_bytes)?,
            Some(there) => (open_remotely(there, code, size_bytes, base)?, None),
        };
        let loaded = loaded.into_iter().map(|(_, function)| function);
        Ok((Self(self.0.iter().copied().chain(loaded).collect()), hooks))
    }
}

/// A library in this process, with its functions by name, for programs that call functions outside a slot's own table.
///
/// `Send + Sync`. The library stays loaded when this value is dropped.
pub struct Library(Vec<(String, LoadedFunction)>);

impl Library {
    /// Loads a copy of these bytes.
    ///
    /// # Errors
    /// The bytes are no function library, or the loader has failed.
    pub fn load(bytes: &[u8]) -> Result<Self, String> {
        let size = bytes.len() as u64;
        if size > CODE_BYTES_MAX {
            return Err(CodeError::TooLarge { size }.to_string());
        }
        let code = sealed_copy("hotlease-code", bytes).map_err(|error| error.to_string())?;
        open(code, size).map(|(functions, _)| Self(functions))
    }

    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<LoadedFunction> {
        let found = self.0.binary_search_by(|(theirs, _)| theirs.as_str().cmp(name));
        found.ok().map(|at| self.0[at].1)
    }
}

/// Functions with their names, sorted by name.
type NamedFunctions = Vec<(String, LoadedFunction)>;

/// Loads a library from a sealed memfd; returns its functions, and its save and restore functions.
fn open(code: OwnedFd, size_bytes: u64) -> Result<(NamedFunctions, Option<StateHooks>), String> {
    let bytes = SealedBytes::attach(code.as_fd(), size_bytes).map_err(|error| error.to_string())?;
    let exports = code::exports(&bytes).map_err(|error| error.to_string())?;
    let unique = UniqueSymbols::bring(&bytes).map_err(|error| error.to_string())?;
    let code = match &unique.separated {
        Some(separated) => sealed_copy("hotlease-code", separated).map_err(|error| error.to_string())?,
        None => code,
    };
    drop(bytes);
    let path = format!("/proc/self/fd/{}", code.as_raw_fd());
    let floats = FloatState::current();
    // SAFETY: runs the library's constructors: a tenant's code, in the process that exists for it, or code of the
    // program that asks for it.
    let library = unsafe { DynamicLibrary::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    floats.restore();
    let library = library.map_err(|error| explain(&error, &path))?;
    let symbol = |name: &[u8]| {
        // SAFETY: only the address of the symbol is used here.
        let symbol = unsafe { library.get::<*mut c_void>(name) };
        symbol.map(|symbol| symbol.as_raw_ptr())
    };
    let address_of = |name: &str| {
        let address = symbol(name.as_bytes()).map_err(|error| explain(&error, &path))?;
        NonNull::new(address).ok_or_else(|| format!("function {name} is at address 0"))
    };
    unique.keep_own(|name| symbol(name).is_ok_and(|address| is_in(&path, address)));
    let mut functions = Vec::with_capacity(exports.functions.len());
    for function in exports.functions {
        let address = address_of(&function.name)?;
        let interface = function.interface;
        let code = CodeLocation::Local(address);
        functions.push((function.name, LoadedFunction { interface, code }));
    }
    let hooks = exports
        .state
        .map(|format| StateHooks::find(format, address_of))
        .transpose()?;
    // Never unloaded: slots keep its addresses, and destructors of a tenant's code need not run. The descriptor is
    // never closed either. The loader identifies libraries by their path, which contains the descriptor's number. If
    // the number was used again, the loader would return the old library for the new one.
    std::mem::forget(library);
    std::mem::forget(code);
    Ok((functions, hooks))
}

/// Whether an address lies in the file that was loaded from this path. The address of a thread-local variable lies in
/// no file; for it the result is `true`.
fn is_in(path: &str, address: *mut c_void) -> bool {
    // SAFETY: plain data, for which zeros are valid.
    let mut found: libc::Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be asked for, and the place is valid.
    let is_known = unsafe { libc::dladdr(address, &mut found) } != 0 && !found.dli_fname.is_null();
    // SAFETY: a string of the loader, which it keeps as long as the file is loaded.
    !is_known || unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes() == path.as_bytes()
}

/// Makes the remote worker load a library from a sealed memfd; returns its functions.
fn open_remotely(
    there: &'static dyn RemoteWorker,
    code: OwnedFd,
    size_bytes: u64,
    base: u16,
) -> Result<NamedFunctions, String> {
    let bytes = SealedBytes::attach(code.as_fd(), size_bytes).map_err(|error| error.to_string())?;
    let names = code::functions(&bytes).map_err(|error| error.to_string())?;
    there.load(&bytes, base)?;
    // The agent numbers functions with 16 bits.
    let loaded = names.into_iter().zip(base..).map(|(function, index)| {
        let interface = function.interface;
        let code = CodeLocation::Remote(there, index);
        (function.name, LoadedFunction { interface, code })
    });
    Ok(loaded.collect())
}

/// The loader's error text without our descriptor's path, which means nothing to the user.
fn explain(error: &libloading::Error, path: &str) -> String {
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.replace(&format!("{path}: "), "").replace(path, "the library")
}
