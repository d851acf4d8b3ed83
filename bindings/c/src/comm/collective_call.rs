//! Calls of collectives from C: their arguments, and whether to wait.

use crate::argument::{bytes, bytes_mut, give, optional_text, require_place};
use crate::comm::CommHandle;
use crate::comm::datatype::datatype;
use crate::comm::request::{LentMemory, RequestHandle};
use crate::status::{Failure, catch_panic};
use hotlease_comm::{Blocks, Collective};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::rc::Rc;

/// `HOTLEASE_COMM_IN_PLACE`.
const IN_PLACE: usize = usize::MAX;

thread_local! {
    /// Source location that this thread has set.
    static CALL_LOCATION: RefCell<Option<Rc<str>>> = const { RefCell::new(None) };
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_at(place: *const c_char) {
    catch_panic((), || {
        // SAFETY: NULL or a string, as the header demands.
        let place = unsafe { optional_text(place, "place") };
        CALL_LOCATION.set(place.ok().flatten().map(Rc::from));
    });
}

/// Whether to wait for the collective.
#[derive(Clone, Copy)]
pub(super) enum WaitMode {
    Wait,
    /// Does not wait; the request is written to this place.
    Begin(*mut *mut RequestHandle),
}

/// Runs or starts a collective, given with its element type, input and output.
///
/// # Safety
/// Input and output are NULL, `HOTLEASE_COMM_IN_PLACE`, or valid for the collective's reads and writes until it has
/// ended. The place for the request is NULL or valid.
pub(super) unsafe fn start(
    comm: &CommHandle,
    (collective, element_type, input, output): (Collective<'_>, u64, *const c_void, *mut c_void),
    how: WaitMode,
) -> Result<(), Failure> {
    let site = CALL_LOCATION.with_borrow(Clone::clone);
    let site = site.as_deref();
    let collective = comm
        .communicator
        .collective(collective, datatype(element_type)?)
        .in_place(is_in_place(input) || is_in_place(output))
        .at(site.unwrap_or("a place that the program has not named (hotlease_comm_at names it)"));
    let [read, written] = collective.lengths()?;
    let input = non_null_memory(input.cast_mut(), read, "input")?.cast_const();
    let output = non_null_memory(output, written, "output")?;
    check_overlap((input, read), (output, written), ["input", "output"])?;
    match how {
        WaitMode::Wait => {
            // SAFETY: the caller's promise; input and output do not overlap.
            let (input, output) = unsafe { (bytes(input, read, "input")?, bytes_mut(output, written, "output")?) };
            collective.run(input, output)?;
        }
        WaitMode::Begin(request) => {
            require_place(request, "request")?;
            let mut memory = LentMemory::default();
            // SAFETY: the caller's promise; input and output do not overlap.
            let input = unsafe { memory.lend_input(input, read, "input")? }.clone();
            // SAFETY: as above.
            let output = unsafe { memory.lend_output(output, written, "output")? };
            let begun = collective.begin(&input, output)?;
            // SAFETY: checked not to be NULL; valid by the caller's promise.
            unsafe { give(request, RequestHandle::new(begun, memory)) }?;
        }
    }
    Ok(())
}

pub(super) fn is_in_place(start: *const c_void) -> bool {
    start.addr() == IN_PLACE
}

/// Returns the address of a call's memory. `HOTLEASE_COMM_IN_PLACE` is an error, unless the memory has no bytes.
fn non_null_memory(start: *mut c_void, size: usize, name: &str) -> Result<*mut c_void, Failure> {
    if !is_in_place(start) {
        return Ok(start);
    }
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    Err(Failure::Argument(format!(
        "{name} cannot be HOTLEASE_COMM_IN_PLACE here: pass it as `input`, in scatters as `output`, and if the collective has a \
         root, at the root only"
    )))
}

/// Rejects overlapping input and output: Rust must not have a shared slice of memory that is written.
pub(super) fn check_overlap(
    (input, read): (*const c_void, usize),
    (output, written): (*mut c_void, usize),
    [input_name, output_name]: [&str; 2],
) -> Result<(), Failure> {
    let (input, output) = (input.addr(), output.addr());
    if read > 0 && written > 0 && input < output.saturating_add(written) && output < input.saturating_add(read) {
        return Err(Failure::Argument(format!(
            "{input_name} and {output_name} overlap; to use the same memory, pass HOTLEASE_COMM_IN_PLACE as one of them"
        )));
    }
    Ok(())
}

/// Blocks from C: counts and displacements; both are empty if the call does not use them.
#[derive(Clone)]
pub(super) struct BlockLists<'a> {
    counts: &'a [usize],
    displacements: Cow<'a, [usize]>,
}

impl<'a> BlockLists<'a> {
    /// Makes blocks with lengths `counts`; they follow one another if `displacements` is NULL.
    ///
    /// # Safety
    /// `counts` and `displacements` are NULL or have an entry for each member, for `'a`.
    pub(super) unsafe fn of(
        comm: &CommHandle,
        (counts, name): (*const usize, &'static str),
        displacements: *const usize,
    ) -> Result<Self, Failure> {
        let members = comm.communicator.size() as usize;
        if counts.is_null() {
            return Err(Failure::Null(name));
        }
        // SAFETY: not NULL, so there is an entry for each member by the caller's promise.
        let counts = unsafe { std::slice::from_raw_parts(counts, members) };
        if !displacements.is_null() {
            // SAFETY: as above.
            let displacements = unsafe { std::slice::from_raw_parts(displacements, members) };
            return Ok(Self {
                counts,
                displacements: displacements.into(),
            });
        }
        Ok(Self {
            counts,
            displacements: Blocks::consecutive_starts(counts).into(),
        })
    }

    /// Makes the blocks at the root, and no blocks at other ranks.
    ///
    /// # Safety
    /// As for [`BlockLists::of`].
    pub(super) unsafe fn at_root(
        comm: &CommHandle,
        root: u32,
        counts: (*const usize, &'static str),
        displacements: *const usize,
    ) -> Result<Self, Failure> {
        if comm.communicator.rank() == root {
            // SAFETY: the caller's promise.
            return unsafe { Self::of(comm, counts, displacements) };
        }
        Ok(Self {
            counts: &[],
            displacements: Cow::Borrowed(&[]),
        })
    }

    /// Returns the length of a rank's block; 0 if this rank has no blocks.
    pub(super) fn count(&self, rank: u32) -> usize {
        self.counts.get(rank as usize).copied().unwrap_or(0)
    }

    pub(super) fn blocks(&self) -> Blocks<'_> {
        if self.counts.is_empty() {
            return Blocks::Equal(0);
        }
        Blocks::Each {
            counts: self.counts,
            displacements: &self.displacements,
        }
    }
}
