//! Claims on requests that their clients may withdraw.

use super::{Flags, RequestHeader};

/// A claim on a request that its client may withdraw. Each party makes its claim in the request's line by one atomic
/// exchange, and only the first claim succeeds: a request runs once or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum RequestClaim {
    /// The worker begins the request.
    Begun = 1 << 5,
    /// The client takes the request back.
    Withdrawn = 1 << 6,
}

impl Flags {
    /// The client may withdraw the request until its worker begins it.
    pub const WITHDRAWABLE: Self = Self(1 << 7);
    const CLAIMS: u16 = RequestClaim::Begun as u16 | RequestClaim::Withdrawn as u16;

    /// Whether the client may withdraw the request.
    #[inline]
    pub fn is_withdrawable(self) -> bool {
        self.0 & Self::WITHDRAWABLE.0 != 0
    }

    /// Whether the request has a claim although it cannot be withdrawn.
    #[inline]
    pub(super) fn has_stray_claim(self) -> bool {
        self.0 & Self::CLAIMS != 0 && !self.is_withdrawable()
    }
}

impl RequestHeader {
    /// Word of a line in which claims are made: the word with the flags.
    pub const CLAIM_WORD: usize = 1;

    /// Adds a claim to the word [`CLAIM_WORD`](Self::CLAIM_WORD) of a line; `None` if the request cannot be withdrawn,
    /// or was claimed before.
    #[inline]
    pub fn claimed(word: u64, claim: RequestClaim) -> Option<u64> {
        let flags = (word >> 48) as u16 & (Flags::WITHDRAWABLE.0 | Flags::CLAIMS);
        (flags == Flags::WITHDRAWABLE.0).then_some(word | u64::from(claim as u16) << 48)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_claim_holds_and_changes_no_other_flag() {
        let parts = Flags::of_parts(16, 16).unwrap();
        let word = |flags: Flags| u64::from(flags.0) << 48 | 0x1234_5678_9abc;
        for claim in [RequestClaim::Begun, RequestClaim::Withdrawn] {
            assert_eq!(
                RequestHeader::claimed(word(parts), claim),
                None,
                "it cannot be withdrawn"
            );
            let claimed = RequestHeader::claimed(word(parts.with(Flags::WITHDRAWABLE)), claim).unwrap();
            assert_eq!(RequestHeader::claimed(claimed, RequestClaim::Begun), None);
            assert_eq!(RequestHeader::claimed(claimed, RequestClaim::Withdrawn), None);
            assert_eq!(claimed << 16, word(parts) << 16);
            let flags = Flags((claimed >> 48) as u16);
            assert_eq!((flags.inputs(), flags.outputs()), (16, 16));
        }
    }
}
