//! The context that a function of the context interface gets; the layout of `hotlease_context` in
//! `include/hotlease/function.h`.

use crate::function::seat::{self, SeatLayout, SlotSeat};
use hotlease_fabric::clock::monotonic_ns;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of scratch memory per slot.
pub const SCRATCH_BYTES: usize = 64 * 1024;

/// Context of a function, whether it belongs to a library or to the program that hosts the worker.
#[repr(C)]
pub struct FunctionContext {
    struct_size: u32,
    slot: u32,
    slots: u32,
    reserved: u32,
    tenant: *const c_char,
    deadline_ns: u64,
    cancelled: *const AtomicU32,
    state: *mut *mut c_void,
    scratch: *mut c_void,
    scratch_bytes: u64,
    communicator: *mut c_void,
}

impl FunctionContext {
    /// Whether the running invocation is past its deadline, or was cancelled.
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: the slot's flag, which lives as long as the context.
        unsafe { &*self.cancelled }.load(Ordering::Relaxed) != 0
    }

    /// Slot that the function runs in.
    pub(crate) fn slot(&self) -> u16 {
        self.slot as u16
    }

    /// Time left until the deadline, microseconds, at least 1; 0 if it is unlimited.
    pub(crate) fn timeout_us(&self) -> u32 {
        match self.deadline_ns {
            0 => 0,
            deadline => {
                let left = deadline.saturating_sub(monotonic_ns()) / 1000;
                u32::try_from(left).unwrap_or(u32::MAX).max(1)
            }
        }
    }

    /// Deadline of the invocation (CLOCK_MONOTONIC, nanoseconds); 0 if it has none.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Seat in the gang that the function runs in; `None` outside a gang.
    pub fn seat(&self) -> Option<&SeatLayout> {
        // SAFETY: the slot's seat, which the slot neither ends nor replaces while a function runs.
        unsafe { seat::at(self.communicator) }
    }
}

/// Context of one slot, with everything that it points to.
pub struct Context {
    layout: Box<FunctionContext>,
    _cancelled: Arc<AtomicU32>,
    _state: Box<*mut c_void>,
    _scratch: Box<[Aligned]>,
    _tenant: CString,
    seat: Option<SlotSeat>,
}

#[repr(C, align(64))]
#[derive(Clone)]
struct Aligned([u8; 64]);

impl Context {
    /// Makes the context of a slot, whose cancel flag the watchdog sets.
    pub fn new(slot: u16, slots: u16, tenant: &str, cancelled: Arc<AtomicU32>) -> Self {
        let tenant = CString::new(tenant.replace('\0', "")).unwrap_or_default();
        let mut state = Box::new(std::ptr::null_mut());
        let mut scratch = vec![Aligned([0; 64]); SCRATCH_BYTES / 64].into_boxed_slice();
        let layout = Box::new(FunctionContext {
            struct_size: size_of::<FunctionContext>() as u32,
            slot: slot.into(),
            slots: slots.into(),
            reserved: 0,
            tenant: tenant.as_ptr(),
            deadline_ns: 0,
            cancelled: Arc::as_ptr(&cancelled),
            state: &mut *state,
            scratch: scratch.as_mut_ptr().cast(),
            scratch_bytes: SCRATCH_BYTES as u64,
            communicator: std::ptr::null_mut(),
        });
        Self {
            layout,
            _cancelled: cancelled,
            _state: state,
            _scratch: scratch,
            _tenant: tenant,
            seat: None,
        }
    }

    /// Gives functions this seat in a gang, in place of the previous seat.
    pub fn set_seat(&mut self, seat: &hotlease_wire::comm::seat::Seat) {
        let seat = self.seat.insert(SlotSeat::new(seat));
        self.layout.communicator = seat.layout();
    }

    /// Gives up the slot's seat after a function has failed: the other members of the gang stop waiting for it.
    pub fn leave_gang(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.end();
        }
    }

    /// Pointer to the context for one call with this deadline (CLOCK_MONOTONIC; 0 for none). The pointer is valid until
    /// self is moved or dropped.
    pub fn prepare_call(&mut self, deadline_ns: u64) -> *mut c_void {
        self.layout.deadline_ns = deadline_ns;
        (&raw mut *self.layout).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_one_of_the_header() {
        assert_eq!(size_of::<FunctionContext>(), 72);
        assert_eq!(std::mem::offset_of!(FunctionContext, tenant), 16);
        assert_eq!(std::mem::offset_of!(FunctionContext, state), 40);
        assert_eq!(std::mem::offset_of!(FunctionContext, communicator), 64);
        let mut context = Context::new(1, 2, "uid:0", Arc::default());
        assert_eq!(context.layout.scratch as usize % 64, 0);
        assert_eq!(context.prepare_call(9) as usize, &raw const *context.layout as usize);
    }
}
