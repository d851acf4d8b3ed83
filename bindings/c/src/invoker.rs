//! `hotlease_invoker`: a lease, and the connection to its workers.

use crate::argument::{check_struct_size, fill_sized, give, object, optional_text, require_place, sized};
use crate::code::CodeHandle;
use crate::status::{Failure, exported};
use hotlease_client::{
    Completion, Invoker, LeaseOptions, Placement, Polling, Sharing, Spread, StoragePlaceError, UsageTotals,
};
use std::ffi::{CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// `hotlease_invoker`.
pub struct InvokerHandle {
    pub(crate) invoker: Invoker,
    /// Owned by the handle, because a function returns a pointer to it.
    transport: CString,
}

/// `hotlease_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    struct_size: usize,
    workers: u32,
    slots: u32,
    polling: u32,
    completion: u32,
    hot_budget_us: u64,
    ttl_ms: u64,
    memory_bytes: u64,
    timeout_us: u64,
    depth: u32,
    request_bytes: u32,
    reply_bytes: u32,
    retries: i32,
    no_new_lease: u32,
    shared: u32,
    label: *const c_char,
    runtime_dir: *const c_char,
    manager: *const c_char,
    identity: *const c_char,
    transport: *const c_char,
    registered_bytes: u64,
    registered_buffers: u32,
    no_core_wait: u32,
    spread_least: u32,
    direct: u32,
    move_within_ms: u64,
    patience_ms: u64,
    gpus: u32,
    network: u32,
    sandbox: *const c_char,
    mounts: *const c_char,
    storage: *const c_char,
    state: *const c_char,
    no_renewal: u32,
    variables: *const c_char,
}

/// `hotlease_usage`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Usage {
    struct_size: usize,
    allocated_ns: u64,
    hot_ns: u64,
    compute_ns: u64,
    invocations: u64,
}

impl Usage {
    /// Ends a lease; writes the lease's usage, unless `usage` is NULL.
    ///
    /// # Safety
    /// `usage` is NULL, or valid for the size that it states.
    pub(crate) unsafe fn report(
        usage: *mut Self,
        end: impl FnOnce() -> Result<UsageTotals, Failure>,
    ) -> Result<(), Failure> {
        if usage.is_null() {
            end()?;
            return Ok(());
        }
        // Checked before the lease is released, because its usage cannot be read again afterwards.
        // SAFETY: not NULL, so there is at least a size by the caller's promise.
        check_struct_size::<Self>(unsafe { usage.cast::<usize>().read() }, "usage")?;
        let used = end()?;
        let used = Self {
            struct_size: size_of::<Self>(),
            allocated_ns: used.allocated_ns,
            hot_ns: used.hot_ns,
            compute_ns: used.compute_ns,
            invocations: used.invocations,
        };
        // SAFETY: not NULL, so valid by the caller's promise.
        unsafe { fill_sized(usage, &used, "usage") }
    }
}

impl Options {
    /// Reads the options of a new lease; returns the defaults for NULL.
    ///
    /// # Safety
    /// `options` is NULL, or valid with its size set, and its texts are NULL or valid.
    pub(crate) unsafe fn read(options: *const Self) -> Result<LeaseOptions, Failure> {
        // SAFETY: the caller's promise.
        match unsafe { sized(options, "options") }? {
            // SAFETY: as above.
            Some(options) => unsafe { options.lease_options() },
            None => Ok(LeaseOptions::default()),
        }
    }

    /// Converts to the options of the client library; a field that is 0 means the default.
    ///
    /// # Safety
    /// The texts are NULL or valid.
    pub(crate) unsafe fn lease_options(&self) -> Result<LeaseOptions, Failure> {
        let mut options = LeaseOptions::default();
        let narrow = |value: u32, name: &str| {
            u16::try_from(value).map_err(|_| Failure::Argument(format!("options->{name}: {value} is too many")))
        };
        if self.workers != 0 {
            options.workers = narrow(self.workers, "workers")?;
        }
        if self.slots != 0 {
            options.slots = narrow(self.slots, "slots")?;
        }
        options.polling = match self.polling {
            0 => Polling::Adaptive,
            1 => Polling::Hot,
            2 => Polling::Warm,
            other => return Err(unknown("polling", other)),
        };
        options.completion = match self.completion {
            0 => Completion::Adaptive,
            1 => Completion::Spin,
            2 => Completion::Sleep,
            other => return Err(unknown("completion", other)),
        };
        if self.hot_budget_us != 0 {
            options.hot_budget = Duration::from_micros(self.hot_budget_us);
        }
        if self.ttl_ms != 0 {
            options.ttl = Duration::from_millis(self.ttl_ms);
        }
        if self.registered_bytes != 0 {
            options.registered_bytes = self.registered_bytes;
        }
        options.memory_bytes = self.memory_bytes;
        options.gpus = narrow(self.gpus, "gpus")?;
        options.reach.network = match self.network {
            0 => false,
            1 => true,
            other => return Err(unknown("network", other)),
        };
        options.timeout = (self.timeout_us != 0).then(|| Duration::from_micros(self.timeout_us));
        for (asked, option) in [
            (self.depth, &mut options.depth),
            (self.request_bytes, &mut options.request_bytes),
            (self.reply_bytes, &mut options.reply_bytes),
            (self.registered_buffers, &mut options.registered_buffers),
        ] {
            if asked != 0 {
                *option = asked;
            }
        }
        options.retries = match self.retries {
            0 => options.retries,
            -1 => 0,
            retries => u32::try_from(retries).map_err(|_| unknown("retries", retries))?,
        };
        options.replace_lease = match self.no_new_lease {
            0 => true,
            1 => false,
            other => return Err(unknown("no_new_lease", other)),
        };
        options.renew_lease = match self.no_renewal {
            0 => true,
            1 => false,
            other => return Err(unknown("no_renewal", other)),
        };
        options.sharing = match self.shared {
            0 => Sharing::Exclusive,
            1 => Sharing::Shared,
            other => return Err(unknown("shared", other)),
        };
        options.wait_for_core = match self.no_core_wait {
            0 => true,
            1 => false,
            other => return Err(unknown("no_core_wait", other)),
        };
        options.spread = match narrow(self.spread_least, "spread_least")? {
            0 => Spread::OneAgent,
            least => Spread::AtLeast(least),
        };
        if self.move_within_ms != 0 {
            options.move_within = Duration::from_millis(self.move_within_ms);
        }
        options.patience = Duration::from_millis(self.patience_ms);
        options.placement = match self.direct {
            0 => Placement::Managed,
            1 => Placement::Direct,
            other => return Err(unknown("direct", other)),
        };
        // SAFETY: the caller's promise.
        let text = |text, name| unsafe { optional_text(text, name) };
        for (given, name, option) in [
            (self.label, "options->label", &mut options.label),
            (self.sandbox, "options->sandbox", &mut options.sandbox),
            (self.state, "options->state", &mut options.state),
        ] {
            if let Some(given) = text(given, name)? {
                given.clone_into(option);
            }
        }
        if let Some(mounts) = text(self.mounts, "options->mounts")? {
            let mounts = mounts.lines().filter(|line| !line.is_empty()).map(str::parse);
            options.reach.directories = mounts.collect::<Result<_, _>>()?;
        }
        if let Some(variables) = text(self.variables, "options->variables")? {
            let lines = variables.split('\n').filter(|line| !line.is_empty());
            options.variables = lines.map(variable).collect::<Result<_, _>>()?;
        }
        if let Some(storage) = text(self.storage, "options->storage")? {
            let places = storage.lines().filter(|line| !line.is_empty()).map(str::parse);
            let read = places.collect::<Result<_, StoragePlaceError>>();
            options.reach.storage = read.map_err(|bad| Failure::Argument(format!("options->storage: {bad}")))?;
        }
        for (path, option) in [
            (self.runtime_dir, &mut options.runtime_dir),
            (self.identity, &mut options.identity),
        ] {
            if !path.is_null() {
                // SAFETY: not NULL, so valid by the caller's promise.
                let path = unsafe { std::ffi::CStr::from_ptr(path) };
                *option = Some(OsStr::from_bytes(path.to_bytes()).into());
            }
        }
        for (given, name, option) in [
            (self.manager, "options->manager", &mut options.manager),
            (self.transport, "options->transport", &mut options.transport),
        ] {
            if let Some(given) = text(given, name)? {
                *option = Some(given.to_owned());
            }
        }
        Ok(options)
    }
}

/// Reads a line `NAME=VALUE`.
fn variable(line: &str) -> Result<(String, String), Failure> {
    match line.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::Argument(format!(
            "options->variables: {line:?} is not NAME=VALUE"
        ))),
    }
}

fn unknown(field: &str, value: impl std::fmt::Display) -> Failure {
    Failure::Argument(format!("options->{field} cannot be {value}"))
}

exported!(hotlease_allocate(code: *const CodeHandle, options: *const Options, invoker: *mut *mut InvokerHandle) {
    require_place(invoker, "invoker")?;
    let code = object(code, "code")?;
    let allocated = Invoker::allocate(&code.code, Options::read(options)?)?;
    let handle = InvokerHandle {
        transport: CString::new(allocated.transport()).unwrap_or_default(),
        invoker: allocated,
    };
    give(invoker, handle)
});

exported!(hotlease_deallocate(invoker: *const InvokerHandle, usage: *mut Usage) {
    let invoker = object(invoker, "invoker")?;
    Usage::report(usage, || Ok(invoker.invoker.clone().deallocate()?))
});

exported!(get hotlease_invoker_slots(invoker: InvokerHandle) -> u32 {
    0, u32::try_from(invoker.invoker.slots()).unwrap_or(u32::MAX)
});

exported!(get hotlease_invoker_transport(invoker: InvokerHandle) -> *const c_char {
    c"".as_ptr(), invoker.transport.as_ptr()
});
exported!(free hotlease_invoker_free(InvokerHandle));

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> Options {
        // SAFETY: all fields are numbers or pointers.
        let mut options: Options = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<Options>();
        options
    }

    #[test]
    fn zero_is_the_default_of_every_option() {
        // SAFETY: the texts are NULL.
        let options = unsafe { zeroed().lease_options() }.ok().unwrap();
        assert_eq!(options, LeaseOptions::default());
    }

    #[test]
    fn unknown_option_values_are_refused() {
        let refused = |options: Options| {
            // SAFETY: the texts are NULL.
            unsafe { options.lease_options() }.is_err()
        };
        assert!(refused(Options { polling: 3, ..zeroed() }));
        assert!(refused(Options {
            completion: 3,
            ..zeroed()
        }));
        assert!(refused(Options {
            retries: -2,
            ..zeroed()
        }));
        assert!(
            refused(Options {
                slots: 65_536 + 1,
                ..zeroed()
            }),
            "must not be cut to 1"
        );
        assert!(refused(Options { shared: 2, ..zeroed() }));
        assert!(refused(Options {
            no_core_wait: 2,
            ..zeroed()
        }));
        assert!(refused(Options { direct: 2, ..zeroed() }));
        assert!(refused(Options {
            spread_least: 65_536 + 1,
            ..zeroed()
        }));
    }

    #[test]
    fn a_caller_with_a_shorter_struct_gets_defaults_for_the_rest() {
        let mut options = zeroed();
        options.slots = 2;
        options.retries = 7;
        options.struct_size = std::mem::offset_of!(Options, polling);
        // SAFETY: a valid struct.
        let known = unsafe { sized(&raw const options, "options") }.ok().unwrap().unwrap();
        assert_eq!((known.slots, known.retries), (2, 0));
        options.struct_size = size_of::<Options>() + 8;
        // SAFETY: its size is refused before it is read.
        assert!(unsafe { sized(&raw const options, "options") }.is_err());
    }
}
