//! Times in the format of signatures: `20260102T030405Z`.

use std::time::SystemTime;
use time::format_description::StaticFormatDescription;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

const FORMAT: StaticFormatDescription = format_description!("[year][month][day]T[hour][minute][second]Z");
/// Length of a time in this format, bytes.
const TEXT_BYTES: usize = 16;

/// Largest difference between the signer's clock and this host's clock.
const SKEW: Duration = Duration::minutes(15);

/// Time of a signature, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignatureTime(OffsetDateTime);

impl SignatureTime {
    /// The current time.
    pub fn now() -> Self {
        Self(SystemTime::now().into())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The parser would also accept a year with a sign.
        let has_length = text.len() == TEXT_BYTES;
        let read = has_length.then(|| PrimitiveDateTime::parse(text, FORMAT).ok())??;
        Some(Self(read.assume_utc()))
    }

    pub(crate) fn is_near(self, other: Self) -> bool {
        (self.0 - other.0).abs() <= SKEW
    }

    /// Day, in the format of scopes.
    pub(crate) fn day(self) -> String {
        self.text()[..8].to_owned()
    }

    /// Time, in the format of signatures.
    pub(crate) fn text(self) -> String {
        self.0.format(FORMAT).expect("a time has every part of the format")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_written_alike() {
        for text in ["20260102T030405Z", "19991231T235959Z"] {
            assert_eq!(SignatureTime::parse(text).expect("good").text(), text);
        }
        for bad in [
            "",
            "20260102T030405",
            "20261302T030405Z",
            "20260230T030405Z",
            "2026-102T030405Z",
            "20260102 030405Z",
            "20260102T250405Z",
            "+0260102T030405Z",
            "+20260102T030405Z",
            "-20260102T030405Z",
            "20260102T030460Z",
            "2026010 T030405Z",
            "20260102t030405Z",
            " 20260102T030405Z",
            "20260102T030405Z ",
            "é0260102T03040Z",
        ] {
            assert_eq!(SignatureTime::parse(bad), None, "{bad:?} was taken");
        }
        let at = |text| SignatureTime::parse(text).expect("good");
        assert!(at("20260102T030405Z").is_near(at("20260102T031905Z")));
        assert!(!at("20260102T030405Z").is_near(at("20260102T031906Z")));
        assert!(!at("20260102T031906Z").is_near(at("20260102T030405Z")));
    }
}
