//! Loading libfabric at run time, and listing the providers of this host.

use super::error::OfiError;
use super::ffi::{self, fi_fabric_attr, fi_info, fid_fabric};
use super::signal_handlers::SignalHandlers;
use crate::forks::PerProcess;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Requested API version: the oldest that has all necessary features, so that sites with an old libfabric work.
pub(super) const API_VERSION: u32 = ffi::fi_version(1, 9);
/// Environment variable with the path of a library to use instead of the system's.
const ENVIRONMENT: &str = "HOTLEASE_LIBFABRIC";
/// Name of the system's library.
const SYSTEM: &str = "libfabric.so.1";

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;

/// Libraries that this process has loaded. The lock is held while loading, so that no library is loaded twice.
static LOADED: PerProcess<Mutex<Vec<Arc<Libfabric>>>> = PerProcess::new();

/// A loaded libfabric. Never unloaded: it has threads and exit handlers of its own.
pub struct Libfabric {
    path: PathBuf,
    version: u32,
    get_info: GetInfo,
    free_info: unsafe extern "C" fn(*mut fi_info),
    duplicate_info: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl std::fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.version();
        write!(f, "libfabric {major}.{minor} ({})", self.path.display())
    }
}

impl Libfabric {
    /// Loads the library named by `HOTLEASE_LIBFABRIC` if this is set, else the system's `libfabric.so.1`. The first
    /// load takes 1 to 300 ms, depending on the library's providers: see [`Libfabric::preload`].
    pub fn load() -> Result<Arc<Self>, OfiError> {
        let named = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty());
        Self::load_from(Path::new(&named.unwrap_or(SYSTEM.into())))
    }

    /// Loads the library at this path.
    pub fn load_from(path: &Path) -> Result<Arc<Self>, OfiError> {
        let mut all = LOADED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = all.iter().find(|loaded| loaded.path == path) {
            return Ok(loaded.clone());
        }
        let before = SignalHandlers::note();
        let loaded = Self::open(path);
        before.restore();
        let loaded = loaded?;
        all.push(loaded.clone());
        Ok(loaded)
    }

    /// Starts loading the library on a thread of its own, for a process that will need it soon. [`Libfabric::load`]
    /// then waits until the library is loaded. In Debian's 1.17, two libraries for PSM adapters measure the clock for
    /// 100 ms each when they are loaded, and the search for providers reads /proc/kallsyms for 80 ms; no setting turns
    /// these off. Returns the thread, if there is one.
    pub fn preload() -> Option<JoinHandle<()>> {
        let load = || {
            if let Ok(library) = Self::load() {
                // Any first query makes the library search for all its providers.
                if let Some(hints) = library.new_info() {
                    let _ = library.infos(&hints, None);
                }
            }
        };
        // Without a thread the library is loaded when it is needed.
        std::thread::Builder::new().name("libfabric".into()).spawn(load).ok()
    }

    fn open(path: &Path) -> Result<Arc<Self>, OfiError> {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: loading runs the library's constructors. The site that installs the library, or the user who names it
        // by an environment variable, vouches for them.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| OfiError::NoLibrary {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        let handle = library.into_raw();
        let symbol = |name: &'static CStr, version: &'static CStr| {
            // SAFETY: a handle that was just opened, and two C strings.
            let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
            NonNull::new(found).ok_or_else(|| OfiError::Foreign {
                path: path.to_owned(),
                why: format!("it has no {}@{}", name.to_string_lossy(), version.to_string_lossy()),
            })
        };
        // FABRIC_1.3 is the version whose structures `ffi` declares; FABRIC_1.0 and 1.1 are the only versions of the
        // other symbols.
        let get_info = symbol(c"fi_getinfo", c"FABRIC_1.3")?;
        let free_info = symbol(c"fi_freeinfo", c"FABRIC_1.3")?;
        let duplicate_info = symbol(c"fi_dupinfo", c"FABRIC_1.3")?;
        let fabric = symbol(c"fi_fabric", c"FABRIC_1.1")?;
        let error_text = symbol(c"fi_strerror", c"FABRIC_1.0")?;
        let version = symbol(c"fi_version", c"FABRIC_1.0")?;
        // SAFETY: the symbols of these names and versions have these signatures in every libfabric.
        let loaded = unsafe {
            let version: unsafe extern "C" fn() -> u32 = std::mem::transmute(version);
            Self {
                path: path.to_owned(),
                version: version(),
                get_info: std::mem::transmute::<NonNull<c_void>, GetInfo>(get_info),
                free_info: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut fi_info)>(free_info),
                duplicate_info: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
                >(duplicate_info),
                fabric: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
                >(fabric),
                error_text: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(c_int) -> *const c_char>(
                    error_text,
                ),
            }
        };
        if loaded.version < API_VERSION {
            let (major, minor) = loaded.version();
            return Err(OfiError::TooOld {
                path: path.to_owned(),
                major,
                minor,
                why: "too old".into(),
            });
        }
        Ok(Arc::new(loaded))
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// Path from which the library was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of a positive libfabric error number.
    pub(super) fn text(&self, code: i32) -> String {
        // SAFETY: fi_strerror takes any number and returns a static string.
        let text = unsafe { CStr::from_ptr((self.error_text)(code)) };
        text.to_string_lossy().into_owned()
    }

    /// Error of a libfabric call.
    pub(super) fn error(&self, provider: &str, call: &'static str, result: isize) -> OfiError {
        let code = i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX);
        OfiError::Call {
            provider: provider.to_owned(),
            call,
            code,
            why: self.text(code),
        }
    }

    pub(super) fn open_fabric(&self, attributes: *mut fi_fabric_attr) -> Result<NonNull<fid_fabric>, isize> {
        let mut fabric = ptr::null_mut();
        // SAFETY: attributes of an info of this library, which the caller keeps alive.
        let result = unsafe { (self.fabric)(attributes, &mut fabric, ptr::null_mut()) };
        NonNull::new(fabric).filter(|_| result == 0).ok_or(result as isize)
    }

    /// Infos of the library that match `hints`, in the library's order.
    pub(super) fn infos(
        self: &Arc<Self>,
        hints: &ProviderInfo,
        source: Option<&str>,
    ) -> Result<Vec<ProviderInfo>, isize> {
        let source = source.map(|text| CString::new(text).map_err(|_| -(libc::EINVAL as isize)));
        let source = source.transpose()?;
        let node = source.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let flags = if source.is_some() {
            ffi::FI_SOURCE | ffi::FI_NUMERICHOST
        } else {
            0
        };
        let mut list = ptr::null_mut();
        // SAFETY: hints of this library, a C string or null, and a place for the result.
        let result = unsafe { (self.get_info)(API_VERSION, node, ptr::null(), flags, hints.0.as_ptr(), &mut list) };
        if result != 0 {
            return Err(result as isize);
        }
        let mut infos = Vec::new();
        let mut next = list;
        while let Some(found) = NonNull::new(next) {
            // SAFETY: an element of the list that fi_getinfo returned, copied whole by fi_dupinfo.
            unsafe {
                next = found.as_ref().next;
                infos.extend(
                    NonNull::new((self.duplicate_info)(found.as_ptr())).map(|copy| ProviderInfo(copy, self.clone())),
                );
            }
        }
        // SAFETY: the list is ours, and no element of it is used any more.
        unsafe { (self.free_info)(list) };
        Ok(infos)
    }

    /// Makes empty hints.
    pub(super) fn new_info(self: &Arc<Self>) -> Option<ProviderInfo> {
        // SAFETY: fi_dupinfo of a null pointer allocates an empty info with all its attributes.
        let info = unsafe { (self.duplicate_info)(ptr::null()) };
        NonNull::new(info).map(|info| ProviderInfo(info, self.clone()))
    }
}

/// One `fi_info`, with everything to which it points.
pub(super) struct ProviderInfo(NonNull<fi_info>, Arc<Libfabric>);

// SAFETY: plain memory owned by this value; libfabric keeps no reference to it.
unsafe impl Send for ProviderInfo {}
// SAFETY: as above, and the memory is only changed through `&mut`.
unsafe impl Sync for ProviderInfo {}

macro_rules! part {
    ($name:ident, $kind:ident, $field:ident) => {
        pub(super) fn $name(&self) -> &ffi::$kind {
            // SAFETY: libfabric allocates every attribute with the info.
            unsafe { &*self.0.as_ref().$field }
        }
    };
    ($name:ident, $name_mut:ident, $kind:ident, $field:ident) => {
        part!($name, $kind, $field);
        pub(super) fn $name_mut(&mut self) -> &mut ffi::$kind {
            // SAFETY: as above; the info is ours alone.
            unsafe { &mut *self.0.as_mut().$field }
        }
    };
}

impl ProviderInfo {
    part!(tx, fi_tx_attr, tx_attr);
    part!(rx, fi_rx_attr, rx_attr);
    part!(endpoint, endpoint_mut, fi_ep_attr, ep_attr);
    part!(domain, domain_mut, fi_domain_attr, domain_attr);
    part!(fabric, fabric_mut, fi_fabric_attr, fabric_attr);

    pub(super) fn top(&self) -> &fi_info {
        // SAFETY: ours.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn top_mut(&mut self) -> &mut fi_info {
        // SAFETY: ours alone.
        unsafe { self.0.as_mut() }
    }

    pub(super) fn as_ptr(&self) -> *mut fi_info {
        self.0.as_ptr()
    }

    pub(super) fn library(&self) -> &Arc<Libfabric> {
        &self.1
    }

    /// Deep copy, with everything to which the info points.
    pub(super) fn duplicate(&self) -> Option<Self> {
        // SAFETY: an info of this library.
        let copy = unsafe { (self.1.duplicate_info)(self.as_ptr()) };
        NonNull::new(copy).map(|copy| Self(copy, self.1.clone()))
    }

    /// Restricts the hints to this provider. (libfabric frees the name with the info, so the name is allocated by the C
    /// library.)
    pub(super) fn set_provider(&mut self, name: &str) {
        let Ok(name) = CString::new(name) else { return };
        // SAFETY: a C string; strdup's result belongs to the info from here on.
        self.fabric_mut().prov_name = unsafe { libc::strdup(name.as_ptr()) };
    }

    pub(super) fn provider(&self) -> String {
        text(self.fabric().prov_name)
    }

    pub(super) fn domain_name(&self) -> String {
        text(self.domain().name)
    }

    /// Source address, as libfabric would bind it.
    pub(super) fn source(&self) -> &[u8] {
        let top = self.top();
        if top.src_addr.is_null() {
            return &[];
        }
        // SAFETY: src_addr points to src_addrlen bytes that live as long as the info.
        unsafe { std::slice::from_raw_parts(top.src_addr.cast(), top.src_addrlen) }
    }
}

impl Drop for ProviderInfo {
    fn drop(&mut self) {
        // SAFETY: ours, made by the same library.
        unsafe { (self.1.free_info)(self.0.as_ptr()) }
    }
}

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: a C string of an info that is alive.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_or_foreign_library_is_a_polite_error() {
        let error = Libfabric::load_from(Path::new("/nonexistent/libfabric.so")).unwrap_err();
        assert!(matches!(error, OfiError::NoLibrary { .. }), "{error}");
        let error = Libfabric::load_from(Path::new("libc.so.6")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OfiError::Foreign { .. }), "{text}");
        assert!(
            text.contains("libc.so.6 is not libfabric") && text.contains("fi_getinfo@FABRIC_1.3"),
            "{text}"
        );
    }
}
