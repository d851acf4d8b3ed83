//! `hotlease_comm_operator`: operators of reductions.

use crate::argument::{give, require_place};
use crate::comm::datatype::{ALIGNMENT_MAX, alignment, number};
use crate::status::{Failure, exported, free};
use hotlease_comm::{Datatype, Operator};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Operators in the order of their numbers in `communicator.h`, from 1.
const BUILT_IN: [Operator; 12] = [
    Operator::Sum,
    Operator::Prod,
    Operator::Min,
    Operator::Max,
    Operator::BitAnd,
    Operator::BitOr,
    Operator::BitXor,
    Operator::LogicalAnd,
    Operator::LogicalOr,
    Operator::LogicalXor,
    Operator::MinLoc,
    Operator::MaxLoc,
];
/// Number of bytes of unaligned operands that are copied at a time.
const ALIGNED_COPY: usize = 16 * 1024;

/// `hotlease_comm_operator`.
pub struct OperatorHandle(Operator);

/// Returns the operator of a handle.
///
/// # Safety
/// `handle` is a built-in operator, NULL, or valid for `'a`.
pub(super) unsafe fn operator<'a>(handle: *const OperatorHandle) -> Result<&'a Operator, Failure> {
    if let Some(built_in) = built_in(handle) {
        return Ok(built_in);
    }
    // SAFETY: the caller's promise.
    let made = unsafe { handle.as_ref() };
    made.map(|made| &made.0).ok_or(Failure::Null("op"))
}

fn built_in(handle: *const OperatorHandle) -> Option<&'static Operator> {
    static OPERATORS: [Operator; 12] = BUILT_IN;
    OPERATORS.get(handle.addr().checked_sub(1)?)
}

type RawFunction = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize, u64) -> c_int;

/// A function of the caller, with its `user` pointer.
struct UserFunction {
    function: RawFunction,
    user: UserOperator,
}

/// The `user` pointer of a function, and the callback that releases it.
struct UserOperator {
    pointer: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header says that any thread may call the function, and several threads at once; the library only passes
// the pointer to the function.
unsafe impl Send for UserOperator {}
// SAFETY: as for `Send`.
unsafe impl Sync for UserOperator {}

impl Drop for UserOperator {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the header says that `release` takes this pointer, once.
            unsafe { release(self.pointer) };
        }
    }
}

impl UserFunction {
    fn apply(&self, first: &[u8], second: &mut [u8], datatype: Datatype) {
        let aligned = |bytes: &[u8]| bytes.as_ptr().addr().is_multiple_of(alignment(datatype));
        if aligned(first) && aligned(second) {
            return self.call(first, second, datatype);
        }
        let piece = (ALIGNED_COPY / datatype.size()).max(1) * datatype.size();
        let (mut one, mut two) = (
            AlignedCopy::new(piece.min(first.len())),
            AlignedCopy::new(piece.min(first.len())),
        );
        for (first, second) in first.chunks(piece).zip(second.chunks_mut(piece)) {
            let (one, two) = (one.bytes(first.len()), two.bytes(second.len()));
            one.copy_from_slice(first);
            two.copy_from_slice(second);
            self.call(one, two, datatype);
            second.copy_from_slice(two);
        }
    }

    fn call(&self, first: &[u8], second: &mut [u8], datatype: Datatype) {
        let count = first.len().min(second.len()) / datatype.size();
        let (one, two) = (first.as_ptr().cast(), second.as_mut_ptr().cast());
        // SAFETY: the header says that the function takes these arguments; both operands have `count` elements.
        let answer = unsafe { (self.function)(self.user.pointer, one, two, count, number(datatype)) };
        if answer != 0 {
            // The engine catches this and tells all members. The panic hook is not called, because the failure is the
            // caller's.
            std::panic::resume_unwind(Box::new(format!("the function returned {answer}")));
        }
    }
}

/// Memory aligned for elements of any type.
struct AlignedCopy(Vec<Block>);

#[derive(Clone)]
#[repr(C, align(16))]
struct Block([u8; ALIGNMENT_MAX]);

impl AlignedCopy {
    fn new(bytes: usize) -> Self {
        Self(vec![Block([0; ALIGNMENT_MAX]); bytes.div_ceil(ALIGNMENT_MAX)])
    }

    fn bytes(&mut self, size: usize) -> &mut [u8] {
        let room = self.0.len() * ALIGNMENT_MAX;
        // SAFETY: blocks are bytes without gaps, and the slice is not longer than all blocks.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size.min(room)) }
    }
}

exported!(hotlease_comm_operator_create(
    function: Option<RawFunction>,
    user: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    commutes: c_int,
    made: *mut *mut OperatorHandle,
) {
    // Made first, because `release` must be called in any case.
    let user = UserOperator { pointer: user, release };
    require_place(made, "made")?;
    let function = function.ok_or(Failure::Null("function"))?;
    let function = UserFunction { function, user };
    let operator = Operator::User {
        function: Arc::new(move |first: &[u8], second: &mut [u8], datatype| {
            function.apply(first, second, datatype);
        }),
        commutes: commutes != 0,
    };
    give(made, OperatorHandle(operator))
});

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_operator_free(made: *mut OperatorHandle) {
    if built_in(made).is_none() {
        // SAFETY: NULL, or returned by the function above and not freed yet, as the header demands.
        unsafe { free(made) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;
    use hotlease_comm::{Operands, Reduction};

    /// Computes `second = first - second`, which does not commute; fails if `first` has a 13. Adds 1 to the counter at
    /// each call; `released` adds 1000.
    unsafe extern "C" fn minus(
        user: *mut c_void,
        first: *const c_void,
        second: *mut c_void,
        count: usize,
        datatype: u64,
    ) -> c_int {
        assert_eq!(datatype, 10);
        assert!(
            first.addr().is_multiple_of(8) && second.addr().is_multiple_of(8),
            "not aligned"
        );
        // SAFETY: the library passes `count` doubles in each operand, and the tests pass a number.
        let (calls, first, second) = unsafe {
            (
                &mut *user.cast::<u32>(),
                std::slice::from_raw_parts(first.cast::<f64>(), count),
                std::slice::from_raw_parts_mut(second.cast::<f64>(), count),
            )
        };
        *calls += 1;
        for (first, second) in first.iter().zip(second) {
            if *first == 13.0 {
                return 4;
            }
            *second = first - *second;
        }
        0
    }

    unsafe extern "C" fn released(user: *mut c_void) {
        // SAFETY: the tests pass a number.
        unsafe { *user.cast::<u32>() += 1000 };
    }

    fn make(calls: *mut u32) -> *mut OperatorHandle {
        let mut made = std::ptr::null_mut();
        // SAFETY: all arguments are valid.
        let status = unsafe {
            hotlease_comm_operator_create(
                Some(minus),
                calls.cast(),
                Some(released),
                0,
                &raw mut made,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(status, Status::Ok);
        made
    }

    fn reduction(made: *const OperatorHandle) -> Reduction {
        // SAFETY: it is valid.
        let operator = unsafe { operator(made) }.ok().expect("an operator");
        assert!(!operator.commutes());
        operator.of(Datatype::F64).expect("any type is good")
    }

    #[test]
    fn a_function_sees_aligned_elements_wherever_they_are() {
        let mut calls = 0;
        let made = make(&raw mut calls);
        let reduction = reduction(made);
        // More elements than are copied at a time.
        let count = 5000;
        for shift in [0, 1, 4] {
            let bytes = |start: f64| (0..count).flat_map(move |index| (start + f64::from(index)).to_ne_bytes());
            let padding = || std::iter::repeat_n(0, shift);
            let left: Vec<u8> = padding().chain(bytes(105.0)).collect();
            let mut right: Vec<u8> = padding().chain(bytes(103.0)).collect();
            let operands = Operands::OntoRight {
                left: &left[shift..],
                right: &mut right[shift..],
            };
            reduction.apply(operands).expect("operands of one length");
            assert!(
                right[shift..].chunks(8).all(|number| *number == 2f64.to_ne_bytes()),
                "shifted by {shift}"
            );
        }
        drop(reduction);
        assert!(calls > 3 && calls < 100, "{calls} calls");
        // SAFETY: given out above.
        unsafe { hotlease_comm_operator_free(made) };
        assert!(calls > 1000, "it was not released");
    }

    #[test]
    fn a_failing_operator_is_reported_with_its_number() {
        let mut calls = 0;
        let made = make(&raw mut calls);
        let reduction = reduction(made);
        // SAFETY: given out above.
        unsafe { hotlease_comm_operator_free(made) };
        assert_eq!(calls, 0, "it is released after its last use");
        let mut right = [0; 8];
        let left = 13f64.to_ne_bytes();
        let refused = std::panic::AssertUnwindSafe(|| {
            let _ = reduction.apply(Operands::OntoRight {
                left: &left,
                right: &mut right,
            });
        });
        let refused = std::panic::catch_unwind(refused).expect_err("it refuses 13");
        assert_eq!(
            crate::status::panic_message(refused.as_ref()),
            "the function returned 4"
        );
        drop(reduction);
        assert_eq!(calls, 1001);
    }

    #[test]
    fn addresses_that_stand_for_operators_are_never_freed() {
        for (index, expected) in BUILT_IN.iter().enumerate() {
            let handle: *mut OperatorHandle = std::ptr::without_provenance_mut(index + 1);
            // SAFETY: it is a built-in operator.
            let found = unsafe { operator(handle) }.ok().expect("an operator");
            assert_eq!(found.name(), expected.name());
            // SAFETY: as above.
            unsafe { hotlease_comm_operator_free(handle) };
        }
        // SAFETY: NULL is allowed.
        assert!(unsafe { operator(std::ptr::null()) }.is_err());
    }
}
