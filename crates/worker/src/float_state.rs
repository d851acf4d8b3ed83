//! Floating-point control state of a thread: rounding, precision, masked exceptions, and whether subnormal numbers are
//! treated as zero. Each thread has its own state. Constructors of libraries that are linked with `-ffast-math` change
//! it for the thread that loads them; `fesetround` changes it for the calling thread.
//!
//! Reading takes some nanoseconds and no system call, so slots read the state after each reply. Writing may take
//! longer, so only a changed state is written.

/// Floating-point control state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatState(registers::Registers);

impl FloatState {
    /// State of the calling thread.
    #[inline]
    pub fn current() -> Self {
        Self(registers::read())
    }

    /// Gives the calling thread this state, if it has another state. Recorded exceptions stay recorded.
    #[inline]
    pub fn restore(self) {
        if registers::read() != self.0 {
            registers::write(self.0);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::asm;

    /// Control bits of MXCSR; the other bits record exceptions.
    const CONTROL: u32 = 0xffc0;

    /// Control bits of MXCSR, and the control word of the x87 unit.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Registers(u32, u16);

    #[inline(always)]
    fn mxcsr() -> u32 {
        let mut word = 0u32;
        // SAFETY: stores four bytes to the variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline(always)]
    pub fn read() -> Registers {
        let mut word = 0u16;
        // SAFETY: stores two bytes to the variable.
        unsafe { asm!("fnstcw [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        Registers(mxcsr() & CONTROL, word)
    }

    #[cold]
    pub fn write(Registers(control, word): Registers) {
        let whole = control | mxcsr() & !CONTROL;
        // SAFETY: writes words that the unit had before. The noted exceptions of the x87 unit are cleared first:
        // otherwise exceptions that the function has unmasked would be raised here.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const whole, options(nostack, preserves_flags));
            asm!("fnclex", "fldcw [{}]", in(reg) &raw const word, options(nostack, preserves_flags));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use std::arch::asm;

    /// FPCR.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Registers(u64);

    #[inline(always)]
    pub fn read() -> Registers {
        let word: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        Registers(word)
    }

    #[cold]
    pub fn write(Registers(word): Registers) {
        // SAFETY: writes the value that the register had before.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nomem, nostack, preserves_flags)) };
    }
}

/// On other processors the state stays as functions leave it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod registers {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Registers;

    pub fn read() -> Registers {
        Registers
    }

    pub fn write(_: Registers) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn fesetround(mode: i32) -> i32;
        fn fegetround() -> i32;
    }

    #[test]
    fn a_changed_state_is_restored() {
        /// `FE_UPWARD` of each processor.
        const UPWARD: i32 = if cfg!(target_arch = "x86_64") { 0x800 } else { 0x40_0000 };
        if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            return;
        }
        let before = FloatState::current();
        // SAFETY: no arithmetic is done before the mode is restored.
        let (mode, changed) = unsafe {
            let mode = fegetround();
            fesetround(UPWARD);
            (mode, FloatState::current())
        };
        before.restore();
        assert_ne!(before, changed);
        assert_eq!(FloatState::current(), before);
        // SAFETY: only reads the mode.
        assert_eq!(unsafe { fegetround() }, mode);
    }
}
