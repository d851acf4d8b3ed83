//! End of a process, with the last part of its output.

use std::fmt;

/// Way in which a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// The process exited with this status.
    Exited(i32),
    /// This signal killed it.
    Signalled(i32),
    /// The kernel's out-of-memory killer killed it.
    OutOfMemory,
}

/// End of a process, and the last part of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Way in which it ended.
    pub end: ProcessEnd,
    /// The last part of its output.
    pub output: String,
}

impl Exit {
    /// Whether the process itself caused its end. `false` if it was killed for lack of memory, or by SIGKILL or
    /// SIGTERM.
    pub fn is_its_own(&self) -> bool {
        !matches!(
            self.end,
            ProcessEnd::OutOfMemory | ProcessEnd::Signalled(libc::SIGKILL | libc::SIGTERM)
        )
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            ProcessEnd::Exited(status) => write!(f, "exited with status {status}"),
            ProcessEnd::Signalled(signal) => write!(f, "killed by signal {signal}"),
            ProcessEnd::OutOfMemory => f.write_str("killed by the out-of-memory killer"),
        }
    }
}
