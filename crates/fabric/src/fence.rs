//! Asymmetric fence, free on one side. It is for two threads, each of which writes one word and then reads the other
//! thread's word, if one of them does this millions of times as often as the other.
//!
//! ```text
//!   often                          rarely
//!   write A                        write B
//!   light()                        heavy()
//!   read B                         read A
//! ```
//!
//! At least one of the two threads sees the other's write, as with a sequentially consistent fence on each side. The
//! light fence costs no instruction: it only keeps the compiler from reordering the accesses around it. The heavy fence
//! makes the kernel run a full barrier on every processor that runs a thread of this process (`membarrier(2)`), which
//! takes some microseconds. If a thread executes that barrier before its `write A`, it reads the new B; if after, the
//! rare side reads the new A.

use nix::errno::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Fence of the frequent side.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Fence of the rare side. Returns `false` if the kernel does not support it (before Linux 4.14, or forbidden by a
/// sandbox); it is then unknown what the other side has seen.
#[must_use]
pub fn heavy() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // Orders the fence against this thread's own accesses.
    compiler_fence(Ordering::SeqCst);
    let there = *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok());
    let done = there && membarrier(PRIVATE_EXPEDITED).is_ok();
    compiler_fence(Ordering::SeqCst);
    done
}

fn membarrier(command: i32) -> nix::Result<()> {
    // SAFETY: takes numbers only, and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    /// Without the fences the threads miss each other's write within some thousand rounds on x86.
    #[test]
    fn one_of_the_two_sides_sees_the_other() {
        if !heavy() {
            return eprintln!("skipped: this kernel has no membarrier");
        }
        const ROUNDS: usize = 3000;
        let (often, rarely) = (AtomicBool::new(false), AtomicBool::new(false));
        let saw = AtomicBool::new(false);
        let together = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    together.wait();
                    often.store(true, Ordering::Relaxed);
                    light();
                    saw.store(rarely.load(Ordering::Relaxed), Ordering::Relaxed);
                    together.wait();
                    together.wait();
                }
            });
            for round in 0..ROUNDS {
                together.wait();
                rarely.store(true, Ordering::Relaxed);
                assert!(heavy());
                let seen = often.load(Ordering::Relaxed);
                together.wait();
                assert!(
                    seen || saw.load(Ordering::Relaxed),
                    "round {round}: neither has seen the other"
                );
                often.store(false, Ordering::Relaxed);
                rarely.store(false, Ordering::Relaxed);
                together.wait();
            }
        });
    }
}
