//! Numbers for people: times and sizes with three digits and a unit.

/// A time, in nanoseconds.
pub(crate) fn nanoseconds(ns: u64) -> String {
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

/// A size, in bytes.
pub(crate) fn bytes(bytes: u64) -> String {
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

/// Core numbers, runs joined: `0-3,6`.
pub(crate) fn cores(cores: &[u32]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
