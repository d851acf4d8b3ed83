//! A slot's seat in a gang: the client's description of it, and the value that a function's library has made from it.
//!
//! The worker has no code for message passing. It stores the client's description ([`hotlease_wire::comm::seat::Seat`],
//! as bytes) where functions find it. Beside the description it stores one value that a library has made from it; the
//! value outlives the call. When a function fails, and when the slot gets another seat, the worker calls the library's
//! `give_up` on the value.
//!
//! ```text
//! hotlease_context.communicator ──► Seat { description, kept, give_up, owner }
//!                                                   │     ▲ called by the worker: behind the reply of a call that
//!                                                   │     │ failed, and before the slot gets another seat
//!                                                   └► made by the library `owner`, in the first call that asks for it
//! ```
//!
//! All of this happens on the slot's thread, so there is no lock.

use hotlease_wire::encode;
use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::AtomicU8;

/// A value that a library makes from a seat, and that is kept between calls.
pub trait SeatValue: Any {
    /// Gives up the value: no function uses it any more, and its peers stop waiting for it.
    fn give_up(self: Box<Self>);
}

/// Error: the value that the seat keeps was made by another library, or by another version of this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignValue;

/// The structure that `hotlease_context.communicator` points to. The worker's program and a function's library may be
/// of different builds.
#[repr(C)]
pub struct SeatLayout {
    struct_size: u32,
    /// Not 0 after a function has failed: the kept value was given up, and no other value is made.
    is_over: Cell<u32>,
    description: *const u8,
    description_bytes: u64,
    kept: Cell<*mut c_void>,
    give_up: Cell<Option<unsafe extern "C" fn(*mut c_void)>>,
    /// Address in the library that made `kept`.
    owner: Cell<*const c_void>,
}

/// Variable whose address distinguishes this library's copy of this code from another library's.
static OWNER: AtomicU8 = AtomicU8::new(0);

fn owner() -> *const c_void {
    ptr::from_ref(&OWNER).cast()
}

impl SeatLayout {
    /// The client's description of the seat, encoded.
    pub fn description(&self) -> &[u8] {
        if self.description_bytes == 0 {
            return &[];
        }
        // SAFETY: the worker's memory, which it does not free while the seat exists.
        unsafe { std::slice::from_raw_parts(self.description, self.description_bytes as usize) }
    }

    /// Whether a function of this slot has failed on this seat. Then no value is stored any more.
    pub fn is_over(&self) -> bool {
        self.is_over.get() != 0
    }

    /// The kept value, if there is one.
    ///
    /// # Errors
    /// [`ForeignValue`] if another library made it.
    pub fn value<T: SeatValue>(&self) -> Result<Option<&T>, ForeignValue> {
        let kept = self.kept.get();
        if kept.is_null() {
            return Ok(None);
        }
        if self.owner.get() != owner() {
            return Err(ForeignValue);
        }
        // SAFETY: made below by this very code, and taken back by the worker only when no function runs.
        let kept: &dyn Any = unsafe { &**kept.cast::<Box<dyn SeatValue>>() };
        kept.downcast_ref().map(Some).ok_or(ForeignValue)
    }

    /// Keeps a value until a function fails or the slot gets another seat.
    ///
    /// # Errors
    /// [`ForeignValue`] if another value is kept already, or the seat is over; the new value is then given up.
    pub fn keep<T: SeatValue>(&self, value: T) -> Result<&T, ForeignValue> {
        let value: Box<dyn SeatValue> = Box::new(value);
        if !self.kept.get().is_null() || self.is_over() {
            value.give_up();
            return Err(ForeignValue);
        }
        self.give_up.set(Some(give_up_value));
        self.owner.set(owner());
        self.kept.set(Box::into_raw(Box::new(value)).cast());
        self.value()?.ok_or(ForeignValue)
    }
}

/// Gives up the value of a seat.
///
/// # Safety
/// `kept` was made by [`SeatLayout::keep`], and no code uses it any more.
unsafe extern "C" fn give_up_value(kept: *mut c_void) {
    // SAFETY: the caller's promise.
    let kept = unsafe { Box::from_raw(kept.cast::<Box<dyn SeatValue>>()) };
    // The value was made by a function's library, whose panics must not reach the worker.
    let _ = catch_unwind(AssertUnwindSafe(|| kept.give_up()));
}

/// A slot's own seat.
pub(crate) struct SlotSeat {
    layout: Box<SeatLayout>,
    _description: Box<[u8]>,
}

// SAFETY: it is made on its slot's thread and stays there; it points only to memory of its own.
unsafe impl Send for SlotSeat {}

impl SlotSeat {
    pub(crate) fn new(seat: &hotlease_wire::comm::seat::Seat) -> Self {
        let description = encode(seat).into_boxed_slice();
        let layout = Box::new(SeatLayout {
            struct_size: size_of::<SeatLayout>() as u32,
            is_over: Cell::new(0),
            description: description.as_ptr(),
            description_bytes: description.len() as u64,
            kept: Cell::new(ptr::null_mut()),
            give_up: Cell::new(None),
            owner: Cell::new(ptr::null()),
        });
        Self {
            layout,
            _description: description,
        }
    }

    /// Address of the seat for the context of functions.
    pub(crate) fn layout(&mut self) -> *mut c_void {
        (&raw mut *self.layout).cast()
    }

    /// Calls the library's `give_up` on the kept value; no value is kept from now on.
    pub(crate) fn end(&mut self) {
        self.layout.is_over.set(1);
        let kept = self.layout.kept.replace(ptr::null_mut());
        if let Some(give_up) = self.layout.give_up.take()
            && !kept.is_null()
        {
            // SAFETY: both were set by the library that made the value, and no function runs on this slot now.
            unsafe { give_up(kept) }
        }
    }
}

impl Drop for SlotSeat {
    fn drop(&mut self) {
        self.end();
    }
}

/// The seat at an address from a context.
///
/// # Safety
/// The address is NULL, or a seat of the worker that stays for `'a`.
pub(crate) unsafe fn at<'a>(seat: *mut c_void) -> Option<&'a SeatLayout> {
    // SAFETY: the caller's promise. Every version begins with its size.
    let size = unsafe { seat.cast::<u32>().as_ref() }?;
    // SAFETY: at least as large as this version's structure.
    (*size as usize >= size_of::<SeatLayout>()).then(|| unsafe { &*seat.cast() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::comm::seat::SeatSecret;
    use std::rc::Rc;

    struct Kept(Rc<Cell<u32>>);

    impl SeatValue for Kept {
        fn give_up(self: Box<Self>) {
            self.0.set(self.0.get() + 1);
        }
    }

    struct Other;

    impl SeatValue for Other {
        fn give_up(self: Box<Self>) {}
    }

    fn seat() -> SlotSeat {
        SlotSeat::new(&hotlease_wire::comm::seat::Seat {
            name: "gang".into(),
            size: 2,
            rank: 1,
            rendezvous: "127.0.0.1:7072".into(),
            secret: SeatSecret(vec![7; 32]),
            join_ms: 1000,
        })
    }

    #[test]
    fn a_kept_value_is_given_up_once_when_a_function_fails() {
        let mut own = seat();
        let count = Rc::new(Cell::new(0));
        // SAFETY: `own` outlives it.
        let seat = unsafe { at(own.layout()) }.expect("a seat");
        assert!(seat.value::<Kept>().is_ok_and(|kept| kept.is_none()));
        assert!(seat.keep(Kept(count.clone())).is_ok());
        assert!(seat.value::<Kept>().is_ok_and(|kept| kept.is_some()));
        assert!(seat.value::<Other>().is_err(), "it is something else");
        assert!(seat.keep(Kept(count.clone())).is_err());
        assert_eq!(count.get(), 1, "the second one");
        own.end();
        assert_eq!(count.get(), 2);
        // SAFETY: as above.
        let seat = unsafe { at(own.layout()) }.expect("a seat");
        assert!(seat.is_over());
        assert!(seat.keep(Kept(count.clone())).is_err(), "nothing is kept any more");
        drop(own);
        assert_eq!(count.get(), 3);
    }

    #[test]
    fn a_value_of_another_library_is_not_touched() {
        let mut own = seat();
        let count = Rc::new(Cell::new(0));
        // SAFETY: `own` outlives it.
        let seat = unsafe { at(own.layout()) }.expect("a seat");
        assert!(seat.keep(Kept(count.clone())).is_ok());
        seat.owner.set(ptr::null());
        assert_eq!(seat.value::<Kept>().err(), Some(ForeignValue));
        drop(own);
        assert_eq!(count.get(), 1, "by its owner");
    }

    #[test]
    fn there_is_no_seat_outside_a_gang() {
        // SAFETY: NULL.
        assert!(unsafe { at(ptr::null_mut()) }.is_none());
    }
}
