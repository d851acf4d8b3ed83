//! Encoding of the journal's records.
//!
//! ```text
//! byte 0      4   6    8     16    24    32    40              72     80    84         86        150     248  256
//!      | magic|ver|kind| seq  |agent|boot |lease| four totals   |memory|slots|tenant len|tenant   | zeros | sum |
//! ```
//!
//! All frames have the same length, and each can be decoded without other frames. So damage to a frame does not affect
//! other frames: the reader continues at the next place where a frame can begin. The sum is BLAKE3 over the rest of the
//! frame, cut to 64 bits. Bytes with a wrong sum are no frame.

mod function;

pub use function::FunctionRecord;

use hotlease_lease::ledger::TOTAL_MAX;
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::limits::TENANT_BYTES_MAX;
use hotlease_wire::session::UsageTotals;

/// Length of every frame, bytes.
pub const FRAME_BYTES: usize = 256;
const SUM_AT: usize = FRAME_BYTES - 8;
const MAGIC: [u8; 4] = *b"HLuj";
const VERSION: u16 = 1;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// The lease is running; the total is its usage so far.
    Running,
    /// The lease has ended; the total is its last total.
    Ended,
    /// The manager has durably recorded this total of the ended lease.
    Acknowledged,
    /// The manager has durably recorded this total of a lease whose agent died: the lease may have used a little
    /// more.
    InterruptedAcknowledged,
    /// The lease was given back before it was used: its total is not reported.
    Discarded,
}

/// Record of a lease's cumulative usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TotalRecord {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Number that rises by one with every record of a journal.
    pub sequence: u64,
    /// Agent that owns the journal.
    pub agent: AgentId,
    /// Run of the agent that measured.
    pub boot: BootId,
    /// Lease that was measured.
    pub lease: LeaseId,
    /// Tenant that pays; at most 64 bytes.
    pub tenant: String,
    /// Usage so far.
    pub usage: UsageTotals,
    /// Number of slots of the lease.
    pub slots: u32,
    /// Memory of all workers of the lease together, bytes.
    pub memory_bytes: u64,
}

/// Writes fields one after the other into a frame.
struct FrameWriter<'a> {
    frame: &'a mut [u8; FRAME_BYTES],
    at: usize,
}

impl FrameWriter<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.frame[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Reads fields one after the other from a frame.
struct FrameReader<'a> {
    frame: &'a [u8; FRAME_BYTES],
    at: usize,
}

impl<'a> FrameReader<'a> {
    /// Checks a frame; returns a reader after its header, and the kind of the record. Returns `None` if the bytes are
    /// no frame.
    fn open(frame: &'a [u8; FRAME_BYTES]) -> Option<(Self, u16)> {
        let mut eye = Self { frame, at: 0 };
        // The magic number is checked first, because that is quick: in a damaged journal, a frame may begin at any
        // byte.
        if eye.take() != MAGIC {
            return None;
        }
        if frame[SUM_AT..] != sum(frame) {
            return None;
        }
        if u16::from_le_bytes(eye.take()) != VERSION {
            return None;
        }
        let kind = u16::from_le_bytes(eye.take());
        Some((eye, kind))
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.frame[self.at..self.at + N]);
        self.at += N;
        bytes
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Checksum by which damage of durable records is found: BLAKE3 over these parts, one after the other, cut to 64
/// bits.
pub fn checksum(parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut sum = [0; 8];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    sum
}

fn sum(frame: &[u8; FRAME_BYTES]) -> [u8; 8] {
    checksum(&[&frame[..SUM_AT]])
}

impl TotalRecord {
    /// Encodes the record. A tenant that is too long would be cut, but no caller passes such a tenant.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        let kind: u16 = match self.kind {
            RecordKind::Running => 1,
            RecordKind::Ended => 2,
            RecordKind::Acknowledged => 3,
            RecordKind::InterruptedAcknowledged => 4,
            // 5 is the kind of `FunctionRecord`.
            RecordKind::Discarded => 6,
        };
        let tenant = &self.tenant.as_bytes()[..self.tenant.len().min(TENANT_BYTES_MAX)];
        let mut pen = FrameWriter {
            frame: &mut frame,
            at: 0,
        };
        pen.put(&MAGIC);
        pen.put(&VERSION.to_le_bytes());
        pen.put(&kind.to_le_bytes());
        pen.put(&self.sequence.to_le_bytes());
        pen.put(&self.agent.0);
        pen.put(&self.boot.0);
        pen.put(&self.lease.0);
        let usage = self.usage;
        for total in [usage.allocated_ns, usage.hot_ns, usage.compute_ns, usage.invocations] {
            pen.put(&total.to_le_bytes());
        }
        pen.put(&self.memory_bytes.to_le_bytes());
        pen.put(&self.slots.to_le_bytes());
        pen.put(&(tenant.len() as u16).to_le_bytes());
        pen.put(tenant);
        let sum = sum(&frame);
        frame[SUM_AT..].copy_from_slice(&sum);
        frame
    }

    /// Decodes a record. Returns `None` if the bytes are no frame of this type, or are damaged.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Option<Self> {
        let (mut eye, kind) = FrameReader::open(frame)?;
        let kind = match kind {
            1 => RecordKind::Running,
            2 => RecordKind::Ended,
            3 => RecordKind::Acknowledged,
            4 => RecordKind::InterruptedAcknowledged,
            6 => RecordKind::Discarded,
            _ => return None,
        };
        let sequence = eye.number();
        let (agent, boot, lease) = (AgentId(eye.take()), BootId(eye.take()), LeaseId(eye.take()));
        let usage = UsageTotals {
            allocated_ns: eye.number(),
            hot_ns: eye.number(),
            compute_ns: eye.number(),
            invocations: eye.number(),
        };
        let memory_bytes = eye.number();
        let slots = u32::from_le_bytes(eye.take());
        let length = usize::from(u16::from_le_bytes(eye.take()));
        if length > TENANT_BYTES_MAX {
            return None;
        }
        let tenant = frame.get(eye.at..eye.at + length)?;
        let totals = [usage.allocated_ns, usage.hot_ns, usage.compute_ns, usage.invocations];
        if totals.into_iter().any(|total| total > TOTAL_MAX) {
            return None;
        }
        Some(Self {
            kind,
            sequence,
            agent,
            boot,
            lease,
            tenant: String::from_utf8(tenant.to_vec()).ok()?,
            usage,
            slots,
            memory_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TotalRecord {
        TotalRecord {
            kind: RecordKind::Ended,
            sequence: 7,
            agent: AgentId([1; 8]),
            boot: BootId([2; 8]),
            lease: LeaseId([3; 8]),
            tenant: "uid:1000".into(),
            usage: UsageTotals {
                allocated_ns: 1,
                hot_ns: 2,
                compute_ns: 3,
                invocations: 4,
            },
            slots: 5,
            memory_bytes: 6,
        }
    }

    #[test]
    fn a_record_survives_being_written() {
        for (kind, tenant) in [
            (RecordKind::Running, "x".repeat(TENANT_BYTES_MAX)),
            (RecordKind::Ended, String::new()),
            (RecordKind::Acknowledged, "ü".repeat(32)),
            (RecordKind::InterruptedAcknowledged, "uid:7".into()),
            (RecordKind::Discarded, "uid:7".into()),
        ] {
            let record = TotalRecord {
                kind,
                tenant,
                ..record()
            };
            assert_eq!(TotalRecord::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn any_flipped_bit_makes_it_no_record() {
        let frame = record().encode();
        for bit in 0..8 * FRAME_BYTES {
            let mut flipped = frame;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(TotalRecord::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(TotalRecord::decode(&[0; FRAME_BYTES]), None);
    }

    #[test]
    fn a_genuine_sum_over_nonsense_is_not_enough() {
        let spoiled: [fn(&mut [u8; FRAME_BYTES]); 6] = [
            |frame| frame[0] = b'x',
            |frame| frame[4] = 9,
            |frame| frame[6] = 0,
            |frame| frame[47] = 0xff,
            |frame| frame[84] = 65,
            |frame| frame[86] = 0xff,
        ];
        for (number, spoil) in spoiled.iter().enumerate() {
            let mut frame = record().encode();
            spoil(&mut frame);
            let sum = sum(&frame);
            frame[SUM_AT..].copy_from_slice(&sum);
            assert_eq!(TotalRecord::decode(&frame), None, "spoiled frame {number}");
        }
    }
}
