//! The monitor of a virtual machine ↔ the guest that runs a worker in it, over one byte stream (a serial port of the machine's).
//!
//! ```text
//! monitor                            guest
//!                         ◄───────── Booted
//! Run                     ─────────► starts the worker's program
//!                         ◄───────── Ready
//! Pause                   ─────────► says nothing any more once all that it has asked is answered
//!                         ◄───────── Obeyed, its last word until it goes on
//! Resume                  ─────────► a machine that was saved then: its worker is another one
//!                         ◄───────── Ready
//! Assign, Load            ─────────► told to the worker in turn
//!                         ◄───────── Obeyed
//! Call{slot} + input      ─────────► one under way for each slot
//!                         ◄───────── Returned{slot} + output
//!                         ◄───────── File + a question of the machine's kernel
//! File + the answer       ─────────► to the machine's kernel
//!                         ◄───────── Printed + text; Ended, the last one
//! ```
//!
//! A message is a [`Head`], the message, and what the message brings along: code, input, output, text. Neither side trusts the
//! other's numbers: lengths are bounded before anything is allocated.

use crate::DecodeError;
use crate::ids::Epoch;
use crate::limits::{CODE_BYTES_MAX, MESSAGE_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// Bytes that an input or output may have on its way into a machine or out of it.
pub const CARRIED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a question about files, and of its answer.
pub const FILE_BYTES_MAX: u64 = 136 << 10;
/// Bytes of [`Run`]: as long as what a sandbox is told.
pub const RUN_BYTES_MAX: u64 = 1 << 20;

/// To the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// The first one. Brings a [`Run`].
    Run {
        /// The time by the host's clock, nanoseconds since 1970.
        now_ns: u64,
    },
    /// To a machine that was saved once it was ready, and is not the only one that goes on from there. Brings 64 random bytes, which it has
    /// alone. Answer: [`FromGuest::Ready`].
    Resume {
        /// The time by the host's clock, nanoseconds since 1970.
        now_ns: u64,
    },
    /// Once in the worker's life. Answer: [`FromGuest::Obeyed`].
    Assign(Assignment),
    /// Brings a library. Answer: [`FromGuest::Obeyed`].
    Load {
        /// Index of its first function.
        base: u16,
    },
    /// Brings the input. Answer: [`FromGuest::Returned`], from the same slot.
    Call {
        /// Which slot's.
        slot: u16,
        /// Which function.
        function: u16,
        /// The time it has, microseconds; 0: unlimited.
        timeout_us: u32,
        /// Bytes that the output may have.
        capacity: u64,
    },
    /// Brings an answer about files, as FUSE has it.
    File,
    /// To a machine that is about to be saved. Answer: [`FromGuest::Obeyed`], once all that it has asked is answered; it says nothing more until
    /// [`Resume`](Self::Resume).
    Pause,
}

/// What a worker in a machine is to run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Absolute.
    pub path: Vec<u8>,
    /// With its name in front.
    pub arguments: Vec<Vec<u8>>,
    /// All of it.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where; `/` if that is no folder.
    pub directory: Vec<u8>,
    /// Whether workers are to be forked from it.
    pub zygote: bool,
    /// What its sandbox limits it to, and so the machine.
    pub limits: Limits,
    /// What of the sandbox's files is to be seen where the machine has folders of its own, such as `/tmp`.
    pub shown: Vec<Vec<u8>>,
}

/// What a sandbox limits its program to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processes and threads.
    pub processes: u64,
    /// Descriptors of each.
    pub files: u64,
    /// Size of a file that it writes, bytes.
    pub file_bytes: u64,
    /// Size of `/tmp`, bytes.
    pub tmp_bytes: u64,
    /// Size of `/dev/shm`, bytes.
    pub shm_bytes: u64,
}

/// What a worker is told of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Of the lease.
    pub epoch: Epoch,
    /// How many.
    pub slots: u16,
    /// Limit on private memory beyond what the worker itself needs, bytes; 0: none.
    pub memory_bytes: u64,
    /// Who holds the lease.
    pub tenant: String,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The first one: it waits for [`ToGuest::Run`].
    Booted,
    /// The worker takes orders.
    Ready {
        /// Of the worker's program.
        version: u32,
        /// How long its imports took.
        imports_us: u64,
    },
    /// To `Assign`, `Load` and `Pause`, in turn; an error is the worker's words.
    Obeyed(Result<(), String>),
    /// To `Call`. Brings the output.
    Returned {
        /// Which slot's.
        slot: u16,
        /// Ok, FunctionError, OutputTooLarge, or why it did not run.
        status: u16,
        /// The function's own error number.
        code: i32,
        /// Output bytes; for OutputTooLarge what the function claims.
        bytes: u64,
    },
    /// Brings a question about files, as FUSE has it.
    File,
    /// Brings what the worker has printed.
    Printed,
    /// The worker's program is gone, or was never there; the machine is about to end.
    Ended(Ended),
}

/// How a worker in a machine has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why it was not even started; empty: it was.
    pub failure: String,
    /// Its exit status, or else the signal that killed it, negative.
    pub status: i32,
    /// Whether the machine has run out of memory.
    pub out_of_memory: bool,
    /// What it wrote down when it died.
    pub crash: Option<Crash>,
}

/// What a worker wrote down when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// In which slot.
    pub slot: Option<u16>,
    /// Of which signal; 0: it called `exit`.
    pub signal: i32,
    /// The capacity that a function wrote past, if that was it.
    pub overrun_capacity: Option<u64>,
}

/// What stands before each message: how long it is, and what it brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Of the message.
    pub message_bytes: u32,
    /// Of what comes behind it.
    pub brought_bytes: u64,
}

impl Head {
    /// Encoded size.
    pub const BYTES: usize = 12;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.message_bytes.to_le_bytes());
        bytes[4..].copy_from_slice(&self.brought_bytes.to_le_bytes());
        bytes
    }

    /// From bytes; refuses what no message is as long as.
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

impl Ended {
    /// Of one that was never there.
    pub fn never(failure: String) -> Self {
        Self {
            failure,
            status: 1,
            out_of_memory: false,
            crash: None,
        }
    }
}

impl Run {
    /// From bytes; refuses more than [`RUN_BYTES_MAX`].
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
        let head = |message_bytes, brought_bytes| Head {
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
            let decoded = Head::decode(&head.encode());
            assert_eq!(decoded.ok(), is_good.then_some(head), "{head:?}");
        }
    }
}
