//! How an invocation is called.

use super::{EXPRESS_ENTRY, Seq};
use std::fmt;

/// How an invocation is called in logs and messages, alike by its client and its agent: `GENERATION.NUMBER`, and with
/// an `e` before the number if it went through the express entry, which counts its own. Unique on a worker (while it
/// lives) until a channel has had 2^32 invocations; generations beyond 15 bits are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvocationId(u64);

impl InvocationId {
    /// How many bits it has.
    pub const BITS: u32 = 48;

    /// Of what stands in a frame.
    #[inline]
    pub fn new(seq: Seq, reply_entry: u32) -> Self {
        let express = u64::from(reply_entry == EXPRESS_ENTRY);
        Self::from_bits(seq.word() << 1 | express)
    }

    /// From a number, of which the lowest [`BITS`](Self::BITS) count.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// As a number.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
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
        let said =
            |generation, number, entry| InvocationId::new(Seq::new(generation, number), entry).to_string();
        assert_eq!(said(1, 0, 0), "1.0");
        assert_eq!(said(7, 4_000_000_000, 3), "7.4000000000");
        assert_eq!(said(7, 41, EXPRESS_ENTRY), "7.e41");
        assert_eq!(said(0x12345, 41, 0), "9029.41", "generations are cut");
        let id = InvocationId::new(Seq::new(7, 41), EXPRESS_ENTRY);
        assert_eq!(InvocationId::from_bits(id.bits()), id);
    }
}
