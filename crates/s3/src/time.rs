//! Times in the format of signatures: `20260102T030405Z`.

use std::time::SystemTime;
use time::{Date, Duration, Month, OffsetDateTime, PrimitiveDateTime, Time};

/// Largest difference between the signer's clock and ours.
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
        let number = |from: usize, to: usize| -> Option<u16> {
            let digits = text.get(from..to)?;
            digits
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| digits.parse().ok())?
        };
        if text.len() != 16 || text.get(8..9) != Some("T") || text.get(15..) != Some("Z") {
            return None;
        }
        let small = |from| number(from, from + 2).map(|value| value as u8);
        let month = Month::try_from(small(4)?).ok()?;
        let date = Date::from_calendar_date(number(0, 4)?.into(), month, small(6)?).ok()?;
        let time = Time::from_hms(small(9)?, small(11)?, small(13)?).ok()?;
        Some(Self(PrimitiveDateTime::new(date, time).assume_utc()))
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
        let (date, time) = (self.0.date(), self.0.time());
        format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second()
        )
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
