//! Numbers for people: times and sizes with three digits and a unit.

use std::time::Duration;

/// Text of a time in nanoseconds.
pub fn nanoseconds(ns: u64) -> String {
    scaled(
        ns as f64,
        &[
            (1.0, "ns"),
            (1e3, "us"),
            (1e6, "ms"),
            (1e9, "s"),
            (60e9, "min"),
            (3600e9, "h"),
        ],
    )
}

/// Text of a size in bytes.
pub fn bytes(bytes: u64) -> String {
    const KI: f64 = 1024.0;
    scaled(
        bytes as f64,
        &[(1.0, "B"), (KI, "KiB"), (KI * KI, "MiB"), (KI * KI * KI, "GiB")],
    )
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let (scale, unit) = units
        .iter()
        .rev()
        .find(|(scale, _)| value >= *scale)
        .unwrap_or(&units[0]);
    let scaled = value / scale;
    let digits = match scaled {
        _ if *scale == 1.0 => 0,
        small if small < 9.995 => 2,
        medium if medium < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {unit}")
}

/// Text of core numbers, with consecutive numbers joined: `0-3,6`.
pub fn cores(cores: &[u32]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for core in sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(core) => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let shown = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// Reads a time from the command line: `100ms`, `1s`, `250us`, `2min`, `12h`, `30d`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    match number.checked_mul(unit_ns(unit)?) {
        Some(0) => Err("it must be more than nothing".to_owned()),
        Some(ns) => Ok(Duration::from_nanos(ns)),
        None => Err("it is longer than can be counted".to_owned()),
    }
}

/// Reads a time like [`parse_time`], and also accepts `0`, with a unit or without.
pub fn parse_notice(text: &str) -> Result<Duration, String> {
    match split(text)? {
        (0, "") => Ok(Duration::ZERO),
        (0, unit) => unit_ns(unit).map(|_| Duration::ZERO),
        _ => parse_time(text),
    }
}

fn unit_ns(unit: &str) -> Result<u64, String> {
    Ok(match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" | "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" => return Err("a time needs a unit, like 30s or 10min".to_owned()),
        other => {
            return Err(format!("`{other}` is no unit of time; us, ms, s, min, h and d are"));
        }
    })
}

/// Reads a size from the command line: `4096`, `64K`, `10M`, `2GiB`, `1MB`. Units are powers of 1024, but KB, MB, GB
/// and TB are powers of 1000.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text)?;
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1_u64 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "`{unit}` is no unit of size; K, M, G and T are (powers of 1024), and KB, MB, GB and TB (of 1000)"
            ));
        }
    };
    let bytes = number.checked_mul(bytes).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| "it is more than can be counted".to_owned())
}

/// Divides a text into number and unit.
fn split(text: &str) -> Result<(u64, &str), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if digits == 0 {
        return Err("it begins with no whole number".to_owned());
    }
    let number = number
        .parse()
        .map_err(|_| "it is more than can be counted".to_owned())?;
    Ok((number, unit.trim()))
}

/// Text `free/all` for a column of a table; `-` if `all` is 0.
pub fn free_of(free: u32, all: u32) -> String {
    match all {
        0 => "-".into(),
        all => format!("{free}/{all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(parse_time("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_time("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_time("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_time("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_time("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for bad in [
            "",
            "s",
            "100",
            "0",
            "-1",
            "1h2",
            "99999999999999999999",
            "999999999999d",
            "1.5s",
            "1\u{fc}",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(
            [parse_notice("0s"), parse_notice("0")],
            [Ok(Duration::ZERO), Ok(Duration::ZERO)]
        );
        assert!(parse_notice("30").is_err());
        assert_eq!(parse_notice("30s"), Ok(Duration::from_secs(30)));
        assert!(parse_notice("0y").is_err());
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("10G"), Ok(10 << 30));
        assert_eq!(parse_bytes("64 KiB"), Ok(64 << 10));
        assert_eq!(parse_bytes("1MB"), Ok(1_000_000));
        assert_eq!(parse_bytes("2T"), Ok(2 << 40));
        for bad in ["", "G", "1T5", "17179869184G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn three_digits_and_a_unit() {
        let shown = [
            0,
            999,
            1_000,
            12_345,
            999_999,
            5_000_000_000,
            90_000_000_000,
            7_200_000_000_000,
        ];
        let expected = [
            "0 ns", "999 ns", "1.00 us", "12.3 us", "1000 us", "5.00 s", "1.50 min", "2.00 h",
        ];
        for (ns, text) in shown.into_iter().zip(expected) {
            assert_eq!(nanoseconds(ns), text);
        }
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(100 << 20), "100 MiB");
    }

    #[test]
    fn core_runs_are_joined() {
        assert_eq!(cores(&[]), "");
        assert_eq!(cores(&[6, 0, 1, 2, 3, 3]), "0-3,6");
        assert_eq!(cores(&[u32::MAX, 4, 5]), "4,5,4294967295");
    }
}
