//! Memory of a caller, lent to an engine for as long as a closure runs.
//!
//! An engine that any thread may drive outlives the calls that pass memory to it, so it cannot hold `&[u8]`. Instead it
//! holds a [`LentBytes`] or a [`LentBytesMut`]. These own no memory, and access the bytes only while the closure of
//! [`lend`] or [`lend_mut`] runs. When the closure returns, or panics, the memory is taken back; the return waits for
//! threads that are using the memory at that moment.
//!
//! ```
//! use hotlease_fabric::loan::lend;
//! let bytes = [1, 2, 3];
//! let kept = lend(&bytes, |lent| {
//!     assert_eq!(lent.with(|bytes| bytes[1]), Some(2));
//!     lent.clone()
//! });
//! assert_eq!(kept.with(|bytes| bytes[1]), None, "it was taken back");
//! ```
//!
//! Another process may also copy lent bytes (`process_vm_readv`), without the lock. It reads a word of validity after the
//! bytes ([`LentBytes::expose`]), and this word changes before the bytes are the caller's again.
//!
//! Why this is sound: the pointer is used under the lock only, and only while it is set. It is set when the borrow
//! begins, and removed, under the same lock, before the borrow ends. A `LentBytesMut` passes its bytes to one closure
//! at a time, under the lock; a `LentBytes` passes shared references.

use crate::lane::BodySource;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Address and length of lent bytes.
#[derive(Clone, Copy)]
struct RawBytes {
    start: *mut u8,
    length: usize,
}

// SAFETY: only an address. Bytes belong to no thread, and their borrow allows shared (`LentBytes`) or exclusive
// (`LentBytesMut`) access, which the lock enforces.
unsafe impl Send for RawBytes {}

struct Loan {
    length: usize,
    place: Mutex<Option<RawBytes>>,
    /// The key with which the bytes were exposed, until they are taken back; 0 if they were not exposed.
    validity: AtomicU64,
}

impl Loan {
    fn place(&self) -> MutexGuard<'_, Option<RawBytes>> {
        // A panic of a thread that used the bytes does not change their owner.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_back(&self) {
        let mut place = self.place();
        *place = None;
        if self.validity.load(Ordering::Relaxed) != 0 {
            self.validity.store(0, Ordering::Relaxed);
            // The caller writes the bytes after this fence. A process that reads one of these writes, and then the word,
            // does not find the key any more.
            fence(Ordering::SeqCst);
        }
    }

    /// See [`LentBytes::expose`].
    fn expose(&self, key: u64) -> Option<BodySource> {
        let place = self.place();
        let start = place.as_ref()?.start;
        match self.validity.load(Ordering::Relaxed) {
            0 => self.validity.store(key, Ordering::Release),
            exposed if exposed == key => {}
            _ => return None,
        }
        Some(BodySource {
            address: start.expose_provenance() as u64,
            validity: std::ptr::from_ref(&self.validity).addr() as u64,
        })
    }
}

/// Takes the memory back, even if the closure panics.
struct LoanGuard<'a>(&'a Loan);

impl Drop for LoanGuard<'_> {
    fn drop(&mut self) {
        self.0.take_back();
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Arc<Loan>);

        impl $name {
            fn of(start: *mut u8, length: usize) -> Self {
                Self(Arc::new(Loan {
                    length,
                    place: Mutex::new(Some(RawBytes { start, length })),
                    validity: AtomicU64::new(0),
                }))
            }

            /// Number of lent bytes.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(&self) -> usize {
                self.0.length
            }

            /// Whether both handles belong to the same loan.
            pub fn is_same(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }

            /// Ends the loan early, for memory that was lent by `from_raw`: when this returns, no thread uses the
            /// memory.
            pub fn take_back(&self) {
                self.0.take_back();
            }

            /// Place of the bytes for another process that copies them, as long as this handle lives. The bytes that it
            /// has copied are valid if the word of validity has this key afterwards. Returns `None` if the bytes were
            /// taken back, or were exposed with another key. `key` is not 0.
            pub fn expose(&self, key: u64) -> Option<BodySource> {
                self.0.expose(key)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({} bytes)", stringify!($name), self.len())
            }
        }
    };
}

handle!(
    /// Memory that may be read.
    LentBytes
);
handle!(
    /// Memory that may be read and written.
    LentBytesMut
);

impl LentBytes {
    /// Lends memory whose owner makes the promises of a borrow.
    ///
    /// # Safety
    /// `start` is valid for reads of `length` bytes, and no thread writes them, until [`LentBytes::take_back`] has returned.
    pub unsafe fn from_raw(start: *const u8, length: usize) -> Self {
        Self::of(start.cast_mut(), length)
    }

    /// Passes the bytes to `use_bytes`, unless they were taken back. Calls of one loan take turns: `use_bytes` must not
    /// call `with` again.
    pub fn with<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let place = self.0.place();
        let RawBytes { start, length } = (*place)?;
        // SAFETY: the pointer is set, so the borrow lives, and its end waits for the lock that is held here.
        Some(use_bytes(unsafe { std::slice::from_raw_parts(start, length) }))
    }
}

impl LentBytesMut {
    /// Lends memory whose owner makes the promises of an exclusive borrow.
    ///
    /// # Safety
    /// `start` is valid for reads and writes of `length` bytes, and no other thread uses them, until
    /// [`LentBytesMut::take_back`] has returned.
    pub unsafe fn from_raw(start: *mut u8, length: usize) -> Self {
        Self::of(start, length)
    }

    /// Passes the bytes to `use_bytes`, unless they were taken back. Calls of one loan take turns: `use_bytes` must not
    /// call `with` again.
    pub fn with<R>(&self, use_bytes: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let place = self.0.place();
        let RawBytes { start, length } = (*place)?;
        // SAFETY: as for `LentBytes`; the lock makes this the only use of an exclusive borrow.
        Some(use_bytes(unsafe { std::slice::from_raw_parts_mut(start, length) }))
    }
}

/// Lends bytes to `engine`, which may clone the handle, until `engine` returns.
pub fn lend<R>(bytes: &[u8], engine: impl FnOnce(&LentBytes) -> R) -> R {
    let lent = LentBytes::of(bytes.as_ptr().cast_mut(), bytes.len());
    let _return = LoanGuard(&lent.0);
    engine(&lent)
}

/// Lends bytes for reading and writing to `engine`, which may clone the handle, until `engine` returns.
pub fn lend_mut<R>(bytes: &mut [u8], engine: impl FnOnce(&LentBytesMut) -> R) -> R {
    let lent = LentBytesMut::of(bytes.as_mut_ptr(), bytes.len());
    let _return = LoanGuard(&lent.0);
    engine(&lent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    #[test]
    fn lent_memory_is_written_by_others_and_then_the_callers_again() {
        let mut bytes = vec![0; 100];
        lend_mut(&mut bytes, |lent| {
            let theirs = lent.clone();
            std::thread::spawn(move || theirs.with(|bytes| bytes.fill(7)))
                .join()
                .unwrap()
                .expect("it is lent");
        });
        assert_eq!(bytes, [7; 100]);
    }

    #[test]
    fn memory_comes_back_only_after_its_last_use() {
        let bytes = vec![5; 10];
        let is_used = AtomicBool::new(false);
        let (begun, wait) = mpsc::channel();
        std::thread::scope(|scope| {
            lend(&bytes, |lent| {
                let (theirs, is_used) = (lent.clone(), &is_used);
                scope.spawn(move || {
                    theirs.with(|bytes| {
                        begun.send(()).unwrap();
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        is_used.store(true, Ordering::Relaxed);
                        assert_eq!(bytes, [5; 10]);
                    })
                });
                wait.recv().unwrap();
            });
            assert!(is_used.load(Ordering::Relaxed), "taken back while it was used");
        });
    }

    #[test]
    fn memory_comes_back_from_a_panic() {
        let mut bytes = [1];
        let mut kept = None;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lend_mut(&mut bytes, |lent| {
                kept = Some(lent.clone());
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        let kept = kept.expect("it was lent");
        assert_eq!((kept.with(|bytes| bytes[0]), kept.len()), (None, 1));
    }

    #[test]
    fn exposed_bytes_are_invalid_before_they_are_the_callers_again() {
        let bytes = [1, 2, 3];
        let mut exposed = None;
        let kept = lend(&bytes, |lent| {
            let source = lent.expose(7).expect("they are lent");
            assert_eq!(source.address, bytes.as_ptr() as u64);
            assert_eq!(source.validity, std::ptr::from_ref(&lent.0.validity) as u64);
            assert_eq!(lent.0.validity.load(Ordering::Relaxed), 7);
            assert_eq!(
                (lent.expose(7), lent.expose(8)),
                (Some(source), None),
                "one key at a time"
            );
            exposed = Some(source);
            lent.clone()
        });
        assert_eq!(kept.0.validity.load(Ordering::Relaxed), 0);
        assert_eq!(kept.expose(7), None, "they were taken back");
    }

    #[test]
    fn a_panic_of_a_borrower_leaves_the_loan_intact() {
        let bytes = [1, 2];
        lend(&bytes, |lent| {
            let theirs = lent.clone();
            let panicked = std::panic::catch_unwind(move || theirs.with(|_| panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(lent.with(<[u8]>::len), Some(2));
        });
    }
}
