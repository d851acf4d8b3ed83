//! Names of invocations in logs and messages.

use super::{EXPRESS_ENTRY, Seq};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of an invocation in logs and messages, equal for its client and its agent: `GENERATION.NUMBER`. An `e` precedes
/// the number if the invocation went through the express entry, which counts its invocations separately. Unique on a
/// worker (while it lives) until a channel has had 2^32 invocations; of the generation, only the lower 15 bits are
/// kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct InvocationId(u64);

impl InvocationId {
    /// Number of its bits.
    pub const BITS: u32 = 48;

    /// Id of the invocation with this sequence word and reply entry.
    #[inline]
    pub fn new(seq: Seq, reply_entry: u32) -> Self {
        let express = u64::from(reply_entry == EXPRESS_ENTRY);
        Self::from_bits(seq.word() << 1 | express)
    }

    /// Id from the lowest [`BITS`](Self::BITS) bits of a number.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// The id as a number.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Number of invocations by which this invocation came after `other`; negative if it came before. Returns `None` if
    /// the two did not go through the same channel in the same way (ring or express entry), or are more than `within`
    /// apart.
    pub fn behind(self, other: Self, within: u32) -> Option<i64> {
        if (self.0 ^ other.0) & 1 == 1 {
            return None;
        }
        // Moved to the upper end of the word, where a difference wraps as the numbers do.
        let unused = u64::BITS - Self::BITS;
        let apart = (self.0 << unused).wrapping_sub(other.0 << unused) as i64 >> (unused + 1);
        (apart.unsigned_abs() <= within.into()).then_some(apart)
    }

    /// Whether both invocations went through the same channel, whether through its ring or its express entry.
    pub fn is_of_channel_of(self, other: Self) -> bool {
        // Above the number and the bit of the express entry.
        (self.0 ^ other.0) >> (u32::BITS + 1) == 0
    }
}

impl From<u64> for InvocationId {
    fn from(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

impl From<InvocationId> for u64 {
    fn from(id: InvocationId) -> Self {
        id.bits()
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let express = if self.0 & 1 == 1 { "e" } else { "" };
        let (generation, number) = (self.0 >> 33, (self.0 >> 1) as u32);
        write!(f, "{generation}.{express}{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_say_the_same_of_the_ring_and_of_the_express_entry() {
        let said = |generation, number, entry| InvocationId::new(Seq::new(generation, number), entry).to_string();
        assert_eq!(said(1, 0, 0), "1.0");
        assert_eq!(said(7, 4_000_000_000, 3), "7.4000000000");
        assert_eq!(said(7, 41, EXPRESS_ENTRY), "7.e41");
        assert_eq!(said(0x12345, 41, 0), "9029.41", "generations are cut");
        let id = InvocationId::new(Seq::new(7, 41), EXPRESS_ENTRY);
        assert_eq!(InvocationId::from_bits(id.bits()), id);
    }
    #[test]
    fn only_invocations_of_one_channel_are_ordered() {
        let id = |generation, number, entry| InvocationId::new(Seq::new(generation, number), entry);
        assert_eq!(id(7, 41, 1).behind(id(7, 41, 1), 0), Some(0));
        assert_eq!(id(7, 44, 0).behind(id(7, 41, 1), 64), Some(3));
        assert_eq!(id(7, 41, 1).behind(id(7, 44, 0), 64), Some(-3));
        assert_eq!(id(7, 141, 1).behind(id(7, 41, 0), 64), None, "too far");
        assert_eq!(id(8, 42, 1).behind(id(7, 41, 0), 64), None, "another channel");
        assert_eq!(
            id(7, 42, EXPRESS_ENTRY).behind(id(7, 41, 0), 64),
            None,
            "the express entry counts its own"
        );
        let of_one = |a: InvocationId, b| a.is_of_channel_of(b);
        assert!(of_one(id(7, 42, EXPRESS_ENTRY), id(7, 41, 0)) && of_one(id(7, u32::MAX.into(), 0), id(7, 0, 0)));
        assert!(!of_one(id(8, 41, 0), id(7, 41, 0)));
        let (last, first) = (id(0x7fff, (1 << 32) - 1, 0), id(0x8000, 0, 0));
        assert_eq!(first.behind(last, 64), Some(1), "where numbers wrap");
        assert_eq!(last.behind(first, 64), Some(-1));
    }
}
