//! Two futex calls on the low half of a sequence word.

use std::sync::atomic::{AtomicU64, Ordering};

fn call(word: &AtomicU64, operation: libc::c_int, value: u32) {
    // Little-endian, as all supported machines are: the low half comes first.
    let address = word.as_ptr().cast::<u32>();
    // SAFETY: the word is valid as long as it is borrowed; there is no timeout; FUTEX_WAIT returns early for many
    // reasons, and all callers check their condition again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            address,
            operation,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Sleeps until the word is no longer `old`; returns its new value.
pub(crate) fn sleep_while(word: &AtomicU64, old: u64) -> u64 {
    loop {
        let now = word.load(Ordering::Acquire);
        if now != old {
            return now;
        }
        call(word, libc::FUTEX_WAIT, old as u32);
    }
}

/// Wakes one sleeper.
pub(crate) fn wake(word: &AtomicU64) {
    call(word, libc::FUTEX_WAKE, 1);
}
