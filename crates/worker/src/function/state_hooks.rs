//! The two functions of a library that save and restore the state that its functions leave behind:
//! `HOTLEASE_STATE_SAVE` and `HOTLEASE_STATE_RESTORE` of `include/hotlease/function.h`.
//!
//! They get the slot's context, and a structure with functions to read or write the state. These can be called any
//! number of times, each time with the library's own memory. Large pieces are read or filled there in place, and small
//! pieces are copied through a buffer. So no state has to be in memory twice.

use crate::function::context::Context;
use crate::function::state_pieces::StatePieces;
use hotlease_wire::code::{STATE_RESTORE_PREFIX, STATE_SAVE_PREFIX};
use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::io::{BufReader, Read};
use std::ptr::NonNull;

/// Longest error message of a library.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Buffer for small reads; a read of this size or more goes directly to its destination.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// A save or restore function of the library. It gets the slot's context, and the structure for reading or writing.
type StateHook = unsafe extern "C" fn(*mut c_void, *mut StateLayout) -> i32;

/// Save and restore functions of one library.
#[derive(Clone)]
pub(crate) struct StateHooks {
    format: String,
    save: StateHook,
    restore: StateHook,
}

/// `hotlease_state` of the header.
#[repr(C)]
struct StateLayout {
    struct_size: u32,
    reserved: u32,
    size: u64,
    read: unsafe extern "C" fn(*mut StateLayout, *mut c_void, u64) -> i32,
    write: unsafe extern "C" fn(*mut StateLayout, *const c_void, u64) -> i32,
    fail: unsafe extern "C" fn(*mut StateLayout, i32, *const c_char) -> i32,
}

/// The structure that the library sees, followed by fields that the library does not see.
#[repr(C)]
struct StateTransfer<'a> {
    layout: StateLayout,
    stream: StateStream<'a>,
    /// Reason of a failure, even if the library ignores the failure.
    failed: Option<String>,
}

/// Stream that the library reads its state from, or writes it to.
enum StateStream<'a> {
    /// State to restore, and the number of bytes that are still to be read.
    In(BufReader<File>, u64),
    /// State that is being saved.
    Out(&'a mut StatePieces<File>),
}

impl StateHooks {
    /// Finds the functions of a library. `symbol` looks up a name in this library.
    pub fn find(format: String, symbol: impl Fn(&str) -> Result<NonNull<c_void>, String>) -> Result<Self, String> {
        let hook = |prefix: &str| {
            let address = symbol(&format!("{prefix}{format}"))?;
            // SAFETY: the address of a function in a library that is never unloaded, which has this type if it was made
            // as the header says.
            Ok::<_, String>(unsafe { std::mem::transmute::<*mut c_void, StateHook>(address.as_ptr()) })
        };
        Ok(Self {
            save: hook(STATE_SAVE_PREFIX)?,
            restore: hook(STATE_RESTORE_PREFIX)?,
            format,
        })
    }

    /// Calls the library's restore function with a state of `bytes` bytes from `pipe`; the function must read all of
    /// them. Errors are sentences for the tenant.
    pub fn restore(&self, context: &mut Context, pipe: File, bytes: u64) -> Result<(), String> {
        let reader = BufReader::with_capacity(READ_AHEAD_BYTES, pipe);
        let stream = run(self.restore, context, StateStream::In(reader, bytes), bytes);
        let what = || {
            format!(
                "the restore function of its state, HOTLEASE_STATE_RESTORE({}),",
                self.format
            )
        };
        match stream.map_err(|why| format!("{} {why}", what()))? {
            StateStream::In(_, left) if left > 0 => Err(format!("{} has left {left} of {bytes} bytes", what())),
            _ => Ok(()),
        }
    }

    /// Calls the library's save function, which writes the state to `to`. Errors are sentences for the tenant.
    pub fn save(&self, context: &mut Context, to: &mut StatePieces<File>) -> Result<(), String> {
        let done = run(self.save, context, StateStream::Out(to), 0);
        done.map(drop).map_err(|why| {
            format!(
                "the save function of its state, HOTLEASE_STATE_SAVE({}), {why}",
                self.format
            )
        })
    }
}

/// Calls a save or restore function; returns the reader or writer, or the reason of the failure.
fn run<'a>(
    hook: StateHook,
    context: &mut Context,
    stream: StateStream<'a>,
    size: u64,
) -> Result<StateStream<'a>, String> {
    let mut passing = StateTransfer {
        layout: StateLayout {
            struct_size: size_of::<StateLayout>() as u32,
            reserved: 0,
            size,
            read,
            write,
            fail,
        },
        stream,
        failed: None,
    };
    // SAFETY: a function of a library that the tenant has sent here to be run; both pointers are good until it returns,
    // and nothing else refers to the memory behind them meanwhile.
    let code = unsafe { hook(context.prepare_call(0), (&raw mut passing).cast()) };
    match (passing.failed, code) {
        (Some(why), _) => Err(why),
        (None, 0) => Ok(passing.stream),
        (None, code) => Err(format!("failed with error {code}")),
    }
}

impl StateTransfer<'_> {
    /// Fills all of `to`, or returns a number of `errno.h` and the reason.
    ///
    /// # Safety
    /// `size` bytes may be written at `to`.
    unsafe fn read(&mut self, to: *mut u8, size: u64) -> Result<(), (i32, String)> {
        let StateStream::In(reader, left) = &mut self.stream else {
            return Err((libc::EBADF, "reads a state, though it is to save one".into()));
        };
        let Some(rest) = left.checked_sub(size) else {
            return Err((
                libc::ENODATA,
                format!("reads {size} bytes where {left} of {} are left", self.layout.size),
            ));
        };
        // SAFETY: the caller's promise, for no more bytes than the state has.
        let to = unsafe { std::slice::from_raw_parts_mut(to, size as usize) };
        let done = reader.read_exact(to);
        done.map_err(|error| (libc::EIO, format!("is not given its state: {error}")))?;
        *left = rest;
        Ok(())
    }

    fn write(&mut self, from: &[u8]) -> Result<(), (i32, String)> {
        let StateStream::Out(pieces) = &mut self.stream else {
            return Err((libc::EBADF, "writes a state, though it is to restore one".into()));
        };
        let done = pieces.add(from);
        done.map_err(|error| (libc::EIO, format!("cannot write its state: {error}")))
    }

    /// Runs one operation for the library; returns 0, or a number of `errno.h`. After the first failure, no further
    /// operation runs.
    fn run_operation(&mut self, doing: impl FnOnce(&mut Self) -> Result<(), (i32, String)>) -> i32 {
        if self.failed.is_some() {
            return libc::EIO;
        }
        match doing(self) {
            Ok(()) => 0,
            Err((code, why)) => {
                self.failed = Some(why);
                code
            }
        }
    }
}

/// `hotlease_state_read`.
unsafe extern "C" fn read(state: *mut StateLayout, to: *mut c_void, size: u64) -> i32 {
    // SAFETY: the structure that `run` has made. By the header, only the save or restore function that got it uses it,
    // and this function runs on the slot's thread.
    let passing = unsafe { &mut *state.cast::<StateTransfer<'_>>() };
    passing.run_operation(|passing| match size {
        0 => Ok(()),
        // SAFETY: the library's own memory, which may be written; as the header demands.
        size => unsafe { passing.read(to.cast(), size) },
    })
}

/// `hotlease_state_write`.
unsafe extern "C" fn write(state: *mut StateLayout, from: *const c_void, size: u64) -> i32 {
    // SAFETY: as in `read`.
    let passing = unsafe { &mut *state.cast::<StateTransfer<'_>>() };
    passing.run_operation(|passing| match size {
        0 => Ok(()),
        size if isize::try_from(size).is_err() => Err((libc::EINVAL, format!("writes {size} bytes"))),
        // SAFETY: the library's memory, of this size, which does not change during the call; as the header demands.
        size => passing.write(unsafe { std::slice::from_raw_parts(from.cast(), size as usize) }),
    })
}

/// `hotlease_state_fail`.
unsafe extern "C" fn fail(state: *mut StateLayout, code: i32, message: *const c_char) -> i32 {
    // SAFETY: as in `read`.
    let passing = unsafe { &mut *state.cast::<StateTransfer<'_>>() };
    let said = match message.is_null() {
        true => &[][..],
        // SAFETY: a C string, as the header demands.
        false => unsafe { CStr::from_ptr(message) }.to_bytes(),
    };
    let said = String::from_utf8_lossy(&said[..said.len().min(MESSAGE_BYTES_MAX)]);
    // Only the first reason is recorded.
    passing
        .failed
        .get_or_insert_with(|| format!("failed with error {code}: {said}"));
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    /// The structure that `run` gives a function, as the function sees it.
    type Seen<'a> = (&'a mut StateLayout, *mut StateLayout);

    fn seen<'a>(state: *mut StateLayout) -> Seen<'a> {
        // SAFETY: as `run` has made it; only numbers and functions of it are read.
        (unsafe { &mut *state }, state)
    }

    unsafe extern "C" fn saves(_: *mut c_void, state: *mut StateLayout) -> i32 {
        let (layout, state) = seen(state);
        let bytes = [b'x'; 70_000];
        // SAFETY: our own memory.
        unsafe {
            (layout.write)(state, b"ab".as_ptr().cast(), 2)
                + (layout.write)(state, std::ptr::null(), 0)
                + (layout.write)(state, bytes.as_ptr().cast(), 70_000)
        }
    }

    unsafe extern "C" fn restores_two_times_two(_: *mut c_void, state: *mut StateLayout) -> i32 {
        let (layout, state) = seen(state);
        let mut bytes = [0_u8; 4];
        for half in bytes.chunks_mut(2) {
            // SAFETY: our own memory.
            let failed = unsafe { (layout.read)(state, half.as_mut_ptr().cast(), 2) };
            if failed != 0 {
                // A function that ignores the error fails all the same.
                return 0;
            }
        }
        i32::from(bytes != *b"abcd")
    }

    unsafe extern "C" fn fails_and_says_why(_: *mut c_void, state: *mut StateLayout) -> i32 {
        let (layout, state) = seen(state);
        // SAFETY: a C string.
        unsafe { (layout.fail)(state, 22, c"no model".as_ptr()) }
    }

    unsafe extern "C" fn passes_impossible_sizes(_: *mut c_void, state: *mut StateLayout) -> i32 {
        let (layout, state) = seen(state);
        let mut byte = 0_u8;
        // SAFETY: neither call touches our memory.
        unsafe {
            match layout.size {
                0 => (layout.write)(state, (&raw const byte).cast(), u64::MAX),
                _ => (layout.read)(state, (&raw mut byte).cast(), u64::MAX),
            }
        }
    }

    unsafe extern "C" fn fails(_: *mut c_void, _: *mut StateLayout) -> i32 {
        5
    }

    unsafe extern "C" fn takes_the_wrong_way(_: *mut c_void, state: *mut StateLayout) -> i32 {
        let (layout, state) = seen(state);
        let mut byte = 0_u8;
        // SAFETY: our own memory.
        unsafe { (layout.read)(state, (&raw mut byte).cast(), 1) }
    }

    fn hooks(save: StateHook, restore: StateHook) -> StateHooks {
        let format = "words".into();
        StateHooks { format, save, restore }
    }

    fn context() -> Context {
        Context::new(0, 1, "uid:0", Default::default())
    }

    /// A file that delivers these bytes to its reader.
    fn pipe(bytes: &[u8]) -> File {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(bytes).expect("it fits");
        OwnedFd::from(reader).into()
    }

    fn saved(hook: StateHook) -> Result<Vec<u8>, String> {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        });
        let mut pieces = StatePieces::new(File::from(OwnedFd::from(writer)));
        let done = hooks(hook, fails).save(&mut context(), &mut pieces);
        drop(pieces);
        let sent = reading.join().expect("no panic").expect("read");
        done.map(|()| sent)
    }

    fn restored(hook: StateHook, bytes: &[u8]) -> Result<(), String> {
        hooks(fails, hook).restore(&mut context(), pipe(bytes), bytes.len() as u64)
    }

    #[test]
    fn layout_is_the_one_of_the_header() {
        assert_eq!(size_of::<StateLayout>(), 40);
        assert_eq!(std::mem::offset_of!(StateLayout, size), 8);
        assert_eq!(std::mem::offset_of!(StateLayout, fail), 32);
    }

    #[test]
    fn state_is_written_in_order_and_read_in_pieces_of_any_size() {
        let sent = saved(saves).expect("saved");
        let mut expected = [&2_u64.to_le_bytes()[..], b"ab", &70_000_u64.to_le_bytes()].concat();
        expected.extend([b'x'; 70_000]);
        assert_eq!(sent, expected);
        restored(restores_two_times_two, b"abcd").expect("restored");
    }

    #[test]
    fn a_function_that_fails_reads_too_much_or_too_little_is_told_with_its_name() {
        let restore = "the restore function of its state, HOTLEASE_STATE_RESTORE(words),";
        for (hook, bytes, expected) in [
            (
                restores_two_times_two as StateHook,
                &b"abc"[..],
                "reads 2 bytes where 1 of 3 are left",
            ),
            (restores_two_times_two, b"abcdefg", "has left 3 of 7 bytes"),
            (restores_two_times_two, b"dcba", "failed with error 1"),
            (fails_and_says_why, b"", "failed with error 22: no model"),
            (saves, b"", "writes a state, though it is to restore one"),
            (
                passes_impossible_sizes,
                b"a",
                "reads 18446744073709551615 bytes where 1 of 1 are left",
            ),
        ] {
            assert_eq!(restored(hook, bytes), Err(format!("{restore} {expected}")));
        }
        let save = "the save function of its state, HOTLEASE_STATE_SAVE(words),";
        for (hook, expected) in [
            (fails as StateHook, "failed with error 5"),
            (fails_and_says_why, "failed with error 22: no model"),
            (takes_the_wrong_way, "reads a state, though it is to save one"),
            (passes_impossible_sizes, "writes 18446744073709551615 bytes"),
        ] {
            assert_eq!(saved(hook), Err(format!("{save} {expected}")));
        }
    }

    #[test]
    fn a_pipe_that_is_cut_fails_the_function_even_if_it_returns_success() {
        let mut whole = context();
        let cut = hooks(fails, restores_two_times_two).restore(&mut whole, pipe(b"ab"), 4);
        let error = cut.expect_err("two bytes are missing");
        assert!(error.contains("is not given its state"), "{error}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut pieces = StatePieces::new(File::from(OwnedFd::from(writer)));
        let error = hooks(saves, fails)
            .save(&mut whole, &mut pieces)
            .expect_err("the pipe has no reader");
        assert!(error.contains("cannot write its state"), "{error}");
    }
}
