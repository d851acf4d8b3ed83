//! A point in time on the command line.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use time::format_description::well_known::Rfc3339;
use time::{Date, OffsetDateTime, UtcOffset, macros::format_description};

/// A point in time, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn unix_ms(self) -> u64 {
        self.0
    }

    fn of(moment: OffsetDateTime) -> Result<Self, String> {
        let ms = moment.unix_timestamp_nanos() / 1_000_000;
        u64::try_from(ms).map(Self).map_err(|_| "it is before 1970".into())
    }
}

/// Seconds of a time like `24h`.
fn ago_s(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    number.checked_mul(seconds)
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(ago) = ago_s(text) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let then = u64::try_from(now.as_millis()).ok();
            let then = then.and_then(|now| now.checked_sub(ago.checked_mul(1000)?));
            return then.map(Self).ok_or_else(|| "it is before 1970".into());
        }
        if let Ok(date) = Date::parse(text, format_description!("[year]-[month]-[day]")) {
            return Self::of(date.midnight().assume_offset(UtcOffset::UTC));
        }
        let moment = OffsetDateTime::parse(text, &Rfc3339);
        moment
            .map_err(|_| "write 2026-11-30 (UTC), 2026-11-30T08:00:00Z, or a time ago like 24h or 7d".into())
            .and_then(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_in_three_ways() {
        assert_eq!("1970-01-02".parse(), Ok(Moment(86_400_000)));
        assert_eq!("1970-01-01T01:00:00+01:00".parse(), Ok(Moment(0)));
        assert_eq!("1970-01-01T00:00:01.5Z".parse(), Ok(Moment(1500)));
        let day: Moment = "1d".parse().unwrap();
        let hours: Moment = "24h".parse().unwrap();
        assert!(day.0.abs_diff(hours.0) < 10_000 && day.0 > 1_600_000_000_000);
        for bad in ["", "d", "yesterday", "2026-13-01", "1969-12-31", "99999999999999999d"] {
            assert!(bad.parse::<Moment>().is_err(), "{bad:?}");
        }
    }
}
