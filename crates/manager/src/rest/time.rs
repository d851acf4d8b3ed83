//! Times in the format of RFC 3339.

use super::problem::Problem;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses a time into milliseconds since 1970. Returns at least 1, because 0 means that no time is given.
pub(super) fn unix_ms(name: &str, text: &str) -> Result<u64, Problem> {
    // The standard allows `t` and `z` in lower case.
    let moment = OffsetDateTime::parse(&text.to_ascii_uppercase(), &Rfc3339);
    let moment =
        moment.map_err(|error| Problem::bad(format!("{name} is no moment such as 2026-11-30T08:00:00Z: {error}")))?;
    let ms = moment.unix_timestamp_nanos() / 1_000_000;
    Ok(u64::try_from(ms).unwrap_or(0).max(1))
}

#[cfg(test)]
mod tests {
    use super::unix_ms;

    #[test]
    fn moments_are_read_with_their_offsets() {
        let ms = |text| unix_ms("since", text).ok();
        assert_eq!(ms("1970-01-01T00:00:01.5Z"), Some(1_500));
        assert_eq!(ms("1970-01-01t01:00:01+01:00"), Some(1_000));
        assert_eq!(
            ms("1969-12-31T23:59:59Z"),
            Some(1),
            "what is before 1970 is from the beginning"
        );
        for bad in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-30",
            "2026-11-30T08:00:00",
        ] {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
    }
}
