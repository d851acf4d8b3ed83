//! Encoding of records about the usage of one function of a lease.
//!
//! ```text
//! byte 0      4   6    8     16    24    32    40       48           56      88         90      218  248  256
//!      | magic|ver|  5 | seq  |agent|boot |lease|compute | invocations|library|name length|name   |zeros| sum |
//! ```
//!
//! The frame has the length of all other frames, and a kind of its own. A program that does not support the kind treats
//! the frame as damage, and loses only this record.

use super::{FRAME_BYTES, FrameReader, FrameWriter, MAGIC, SUM_AT, VERSION, sum};
use hotlease_lease::ledger::{FunctionId, FunctionUse, TOTAL_MAX};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, LeaseId};
use hotlease_wire::limits::FUNCTION_LABEL_BYTES_MAX;

const KIND: u16 = 5;

/// Record of the cumulative usage of one function of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Number that rises by one with every record of a journal.
    pub sequence: u64,
    /// Agent that owns the journal.
    pub agent: AgentId,
    /// Run of the agent that measured.
    pub boot: BootId,
    /// Lease of the function.
    pub lease: LeaseId,
    /// Function that was measured.
    pub function: FunctionId,
    /// Usage so far.
    pub used: FunctionUse,
}

impl FunctionRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        let name = self.function.name.as_bytes();
        let name = &name[..name.len().min(FUNCTION_LABEL_BYTES_MAX)];
        let mut pen = FrameWriter {
            frame: &mut frame,
            at: 0,
        };
        pen.put(&MAGIC);
        pen.put(&VERSION.to_le_bytes());
        pen.put(&KIND.to_le_bytes());
        pen.put(&self.sequence.to_le_bytes());
        pen.put(&self.agent.0);
        pen.put(&self.boot.0);
        pen.put(&self.lease.0);
        pen.put(&self.used.compute_ns.to_le_bytes());
        pen.put(&self.used.invocations.to_le_bytes());
        pen.put(&self.function.library.0);
        pen.put(&(name.len() as u16).to_le_bytes());
        pen.put(name);
        let sum = sum(&frame);
        frame[SUM_AT..].copy_from_slice(&sum);
        frame
    }

    /// Decodes a record. Returns `None` if the bytes are no frame of this type, or are damaged.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Option<Self> {
        let (mut eye, kind) = FrameReader::open(frame)?;
        if kind != KIND {
            return None;
        }
        let sequence = eye.number();
        let (agent, boot, lease) = (AgentId(eye.take()), BootId(eye.take()), LeaseId(eye.take()));
        let used = FunctionUse {
            compute_ns: eye.number(),
            invocations: eye.number(),
        };
        let library = CodeHash(eye.take());
        let length = usize::from(u16::from_le_bytes(eye.take()));
        let too_large = used.compute_ns > TOTAL_MAX || used.invocations > TOTAL_MAX;
        if length > FUNCTION_LABEL_BYTES_MAX || too_large {
            return None;
        }
        let name = std::str::from_utf8(frame.get(eye.at..eye.at + length)?).ok()?;
        Some(Self {
            sequence,
            agent,
            boot,
            lease,
            function: FunctionId::new(library, name),
            used,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::TotalRecord;

    fn record(name: &str) -> FunctionRecord {
        FunctionRecord {
            sequence: 7,
            agent: AgentId([1; 8]),
            boot: BootId([2; 8]),
            lease: LeaseId([3; 8]),
            function: FunctionId::new(CodeHash([4; 32]), name),
            used: FunctionUse {
                compute_ns: 5,
                invocations: 6,
            },
        }
    }

    #[test]
    fn a_record_survives_being_written_and_is_no_other_kind() {
        for name in ["", "f", &"ü".repeat(64), &"x".repeat(1000)] {
            let record = record(name);
            let frame = record.encode();
            assert_eq!(FunctionRecord::decode(&frame), Some(record));
            assert_eq!(TotalRecord::decode(&frame), None);
        }
    }

    #[test]
    fn any_flipped_bit_makes_it_no_record() {
        let frame = record("f").encode();
        for bit in 0..8 * FRAME_BYTES {
            let mut flipped = frame;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FunctionRecord::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_genuine_sum_over_nonsense_is_not_enough() {
        let spoiled: [fn(&mut [u8; FRAME_BYTES]); 4] = [
            |frame| frame[47] = 0xff,
            |frame| frame[55] = 0xff,
            |frame| frame[88] = 129,
            |frame| frame[90] = 0xff,
        ];
        for (number, spoil) in spoiled.iter().enumerate() {
            let mut frame = record("f").encode();
            spoil(&mut frame);
            let sum = sum(&frame);
            frame[SUM_AT..].copy_from_slice(&sum);
            assert_eq!(FunctionRecord::decode(&frame), None, "spoiled frame {number}");
        }
    }
}
