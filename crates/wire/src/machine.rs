//! The monitor of a virtual machine ↔ the guest that runs a worker in it, over one byte stream (a serial port of the
//! machine).
//!
//! ```text
//! monitor                            guest
//!                         ◄───────── Booted
//! Run                     ─────────► starts the worker's program
//!                         ◄───────── Ready
//! Pause                   ─────────► sends nothing more once all its questions are answered
//!                         ◄───────── Obeyed, its last message until it is resumed
//! Resume                  ─────────► to a copy of the machine that was saved after Pause: forks a worker
//!                         ◄───────── Ready
//! Assign, Load            ─────────► passed to the worker in turn
//!                         ◄───────── Obeyed
//! Call{slot} + input      ─────────► one under way for each slot
//!                         ◄───────── Returned{slot} + output
//!                         ◄───────── File + a question of the machine's kernel
//! File + the answer       ─────────► to the machine's kernel
//!                         ◄───────── Printed + text; Ended, the last message
//! ```
//!
//! Each message follows a [`MachineHead`], and is followed by the bytes that it carries: code, input, output, text.
//! Neither side trusts the other's numbers: lengths are bounded before anything is allocated.

use crate::DecodeError;
use crate::ids::Epoch;
use crate::limits::{CODE_BYTES_MAX, MESSAGE_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// Largest number of bytes of an input or output on its way into a machine or out of it.
pub const CARRIED_BYTES_MAX: u64 = 1 << 30;
/// Largest number of bytes of a question about files, and of its answer.
pub const FILE_BYTES_MAX: u64 = 136 << 10;
/// Largest number of bytes of [`WorkerStart`]: the same limit as for the start of a sandbox.
pub const RUN_BYTES_MAX: u64 = 1 << 20;

/// A message to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Starts the worker's program; the first message. Carries a [`WorkerStart`].
    Run {
        /// The time by the host's clock, nanoseconds since 1970.
        now_ns: u64,
    },
    /// Resumes a machine that was saved when it was ready. Other machines are resumed from the same copy, so this
    /// message carries 64 random bytes for this machine alone. Answer: [`FromGuest::Ready`].
    Resume {
        /// The time by the host's clock, nanoseconds since 1970.
        now_ns: u64,
    },
    /// Assigns the worker to a lease, once in its life. Answer: [`FromGuest::Obeyed`].
    Assign(Assignment),
    /// Loads a library, whose code it carries. Answer: [`FromGuest::Obeyed`].
    Load {
        /// Index of its first function.
        base: u16,
    },
    /// Calls a function; carries the input. Answer: [`FromGuest::Returned`], from the same slot.
    Call {
        /// Slot of the call.
        slot: u16,
        /// Index of the function.
        function: u16,
        /// Time limit, microseconds; 0: unlimited.
        timeout_us: u32,
        /// Capacity for the output, bytes.
        capacity: u64,
    },
    /// Carries an answer about files, in FUSE's format.
    File,
    /// Pauses a machine that is about to be saved. Answer: [`FromGuest::Obeyed`], once all its questions are answered;
    /// the guest sends nothing more until [`Resume`](Self::Resume).
    Pause,
}

/// Program of a worker in a machine, and its environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStart {
    /// Absolute path of the program.
    pub path: Vec<u8>,
    /// Arguments; the first is the program's name.
    pub arguments: Vec<Vec<u8>>,
    /// All environment variables.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; `/` if there is no such folder.
    pub directory: Vec<u8>,
    /// Whether workers are to be forked from the program.
    pub zygote: bool,
    /// Limits of the worker's sandbox, and so of the machine.
    pub limits: MachineLimits,
    /// Files of the sandbox that the program must see although the machine replaces their folders by its own, such as
    /// `/tmp`.
    pub shown: Vec<Vec<u8>>,
}

/// Limits of a sandbox for its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineLimits {
    /// Largest number of processes and threads.
    pub processes: u64,
    /// Largest number of descriptors of each process.
    pub files: u64,
    /// Largest file that the program may write, bytes.
    pub file_bytes: u64,
    /// Size of `/tmp`, bytes.
    pub tmp_bytes: u64,
    /// Size of `/dev/shm`, bytes.
    pub shm_bytes: u64,
}

/// A worker's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Epoch of the worker.
    pub epoch: Epoch,
    /// Number of slots.
    pub slots: u16,
    /// Limit on private memory beyond the worker's own needs, bytes; 0: none.
    pub memory_bytes: u64,
    /// Tenant that holds the lease.
    pub tenant: String,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The guest waits for [`ToGuest::Run`]; the first message.
    Booted,
    /// The worker accepts orders.
    Ready {
        /// Protocol version of the worker's program.
        version: u32,
        /// Time that its imports took, microseconds.
        imports_us: u64,
    },
    /// Answer to `Assign`, `Load` and `Pause`, in turn; an error is the worker's text.
    Obeyed(Result<(), String>),
    /// Answer to `Call`. Carries the output.
    Returned {
        /// Slot of the call.
        slot: u16,
        /// Ok, FunctionError, OutputTooLarge, or the reason why the function did not run.
        status: u16,
        /// The function's own error number.
        code: i32,
        /// Output bytes; for OutputTooLarge the number that the function claims.
        bytes: u64,
    },
    /// Carries a question about files, in FUSE's format.
    File,
    /// Carries output that the worker has printed.
    Printed,
    /// The worker's program has ended, or was never started; the machine is about to end.
    Ended(GuestEnd),
}

/// End of a worker in a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEnd {
    /// Reason why the worker could not be started; empty if it was started.
    pub failure: String,
    /// Exit status, or the negative number of the signal that killed the worker.
    pub status: i32,
    /// Whether the machine has run out of memory.
    pub out_of_memory: bool,
    /// Crash record of the worker.
    pub crash: Option<GuestCrash>,
}

/// Crash record that a dying worker wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCrash {
    /// Slot of the crash.
    pub slot: Option<u16>,
    /// The signal; 0: the function called `exit`.
    pub signal: i32,
    /// If a function wrote past the end of its output: capacity of the output.
    pub overrun_capacity: Option<u64>,
}

/// Lengths before each message: of the message, and of the bytes that it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineHead {
    /// Bytes of the message.
    pub message_bytes: u32,
    /// Bytes that follow the message.
    pub brought_bytes: u64,
}

impl MachineHead {
    /// Encoded size.
    pub const BYTES: usize = 12;

    /// Encodes the lengths.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.message_bytes.to_le_bytes());
        bytes[4..].copy_from_slice(&self.brought_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the lengths; refuses lengths that no message has.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let (message, brought) = bytes.split_at(4);
        let head = Self {
            message_bytes: u32::from_le_bytes(message.try_into().expect("4 bytes")),
            brought_bytes: u64::from_le_bytes(brought.try_into().expect("8 bytes")),
        };
        match head.message_bytes as usize <= MESSAGE_BYTES_MAX
            && head.brought_bytes <= CARRIED_BYTES_MAX.max(CODE_BYTES_MAX)
        {
            true => Ok(head),
            false => Err(DecodeError::Malformed {
                what: "length of a machine's message",
            }),
        }
    }
}

impl GuestEnd {
    /// End of a worker that was never started.
    pub fn not_started(failure: String) -> Self {
        Self {
            failure,
            status: 1,
            out_of_memory: false,
            crash: None,
        }
    }
}

impl WorkerStart {
    /// Decodes a worker's start; refuses more than [`RUN_BYTES_MAX`] bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.len() as u64 <= RUN_BYTES_MAX {
            true => crate::message::decode_of_any_length(bytes),
            false => Err(DecodeError::TooLong { size: bytes.len() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_announce_too_much_are_refused() {
        let head = |message_bytes, brought_bytes| MachineHead {
            message_bytes,
            brought_bytes,
        };
        for (head, is_good) in [
            (head(0, 0), true),
            (head(MESSAGE_BYTES_MAX as u32, CARRIED_BYTES_MAX), true),
            (head(MESSAGE_BYTES_MAX as u32 + 1, 0), false),
            (head(1, CARRIED_BYTES_MAX.max(CODE_BYTES_MAX) + 1), false),
            (head(u32::MAX, u64::MAX), false),
        ] {
            let decoded = MachineHead::decode(&head.encode());
            assert_eq!(decoded.ok(), is_good.then_some(head), "{head:?}");
        }
    }
}
