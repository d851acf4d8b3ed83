//! Printed results of a benchmark: one JSON object per line, or a table with the targets below it.

use super::host_info::HostInfo;
use super::samples::{Pair, Samples};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;
use serde_json::{Map, Value};

/// Result of one measurement, a line of JSON.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    pub(super) bench: &'static str,
    pub(super) params: Map<String, Value>,
    pub(super) unit: &'static str,
    pub(super) samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) baseline: Option<Baseline>,
    pub(super) measured: Figures,
    /// Median or rate of the measurement, divided by the baseline's median or rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_p50: Option<f64>,
    /// Median of the differences of neighbouring blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) difference_p50: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) targets: Vec<Target>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) details: Map<String, Value>,
    pub(super) machine: HostInfo,
}

/// Figures with which the measured figures are compared.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Baseline {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// Percentiles of times, a rate, or a change.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Figures {
    /// Nanoseconds.
    Times { p50: u64, p99: u64 },
    /// Units per second.
    Rate { per_second: f64 },
    /// A number before and after the measurement.
    Change { before: u64, after: u64 },
}

/// A promised limit, and the measured value.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Target {
    /// Description of the value.
    pub(super) what: String,
    pub(super) limit: f64,
    pub(super) value: f64,
    pub(super) met: bool,
}

impl Target {
    /// Met if the value is at most the limit.
    pub(super) fn at_most(what: impl Into<String>, value: f64, limit: f64) -> Self {
        let value = round(value);
        Self {
            what: what.into(),
            limit,
            value,
            met: value <= limit,
        }
    }

    /// Met if the value is at least the limit.
    pub(super) fn at_least(what: impl Into<String>, value: f64, limit: f64) -> Self {
        let value = round(value);
        Self {
            what: what.into(),
            limit,
            value,
            met: value >= limit,
        }
    }
}

impl Figures {
    pub(super) fn of(samples: &Samples) -> Self {
        Self::Times {
            p50: samples.quantile(0.5),
            p99: samples.quantile(0.99),
        }
    }

    /// Bytes per second, from the times of transfers of `bytes` bytes.
    pub(super) fn of_transfers(bytes: usize, samples: &Samples) -> Self {
        Self::Rate {
            per_second: bytes as f64 * 1e9 / samples.quantile(0.5).max(1) as f64,
        }
    }

    /// Median, if the figures are times.
    pub(super) fn median(self) -> Option<u64> {
        match self {
            Self::Times { p50, .. } => Some(p50),
            Self::Rate { .. } | Self::Change { .. } => None,
        }
    }

    fn main(self) -> f64 {
        match self {
            Self::Times { p50, .. } => p50 as f64,
            Self::Rate { per_second } => per_second,
            Self::Change { after, .. } => after as f64,
        }
    }

    fn cells(self, unit: &str) -> [String; 2] {
        match self {
            Self::Times { p50, p99 } => {
                let shown = if unit == "bytes" {
                    quantity::bytes
                } else {
                    quantity::nanoseconds
                };
                [shown(p50), shown(p99)]
            }
            Self::Rate { per_second } => [rate(per_second, unit), String::new()],
            Self::Change { before, after } if unit == "bytes" => [quantity::bytes(before), quantity::bytes(after)],
            Self::Change { before, after } => [before.to_string(), after.to_string()],
        }
    }
}

impl Record {
    /// Record of two series whose blocks alternated.
    pub(super) fn of_pair(
        bench: &'static str,
        params: Map<String, Value>,
        baseline: impl Into<String>,
        pair: &Pair,
        machine: &HostInfo,
    ) -> Self {
        let figures = Figures::of(&pair.baseline);
        let mut record = Self::new(bench, params, "ns", Figures::of(&pair.measured), machine);
        record.samples = pair.measured.len();
        record.compare(baseline, figures);
        record.difference_p50 = Some(round(pair.difference()));
        // Uses the ratio of neighbouring blocks, because the host's speed may change between pairs of blocks.
        record.ratio_p50 = Some(round(pair.ratio()));
        record
    }

    /// Record without a baseline.
    pub(super) fn new(
        bench: &'static str,
        params: Map<String, Value>,
        unit: &'static str,
        measured: Figures,
        machine: &HostInfo,
    ) -> Self {
        Self {
            bench,
            params,
            unit,
            samples: 1,
            baseline: None,
            measured,
            ratio_p50: None,
            difference_p50: None,
            targets: Vec::new(),
            details: Map::new(),
            machine: machine.clone(),
        }
    }

    /// Sets the baseline.
    pub(super) fn compare(&mut self, name: impl Into<String>, figures: Figures) {
        self.ratio_p50 = (figures.main() > 0.0).then(|| round(self.measured.main() / figures.main()));
        self.baseline = Some(Baseline {
            name: name.into(),
            figures,
        });
    }
}

/// Rounds to three digits after the point, which exceeds the accuracy of all figures here.
pub(super) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn rate(per_second: f64, unit: &str) -> String {
    let (scale, prefix) = match per_second {
        giga if giga >= 1e9 => (1e9, "G"),
        mega if mega >= 1e6 => (1e6, "M"),
        kilo if kilo >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{:.2} {prefix}{unit}/s", per_second / scale)
}

/// Prints records: JSON lines, or a table in which `what` names each record, and the targets.
pub(super) fn print(
    output: &mut Printer,
    title: &str,
    records: &[Record],
    what: impl Fn(&Record) -> String,
) -> anyhow::Result<()> {
    if output.is_json() {
        return records.iter().try_for_each(|record| output.object(record));
    }
    output.line(title)?;
    let columns = ", >measured, >p99, >baseline, >p99, >ratio, >difference, compared with";
    output.list(records, columns, "nothing was measured", |record| {
        let [measured, measured_p99] = record.measured.cells(record.unit);
        let [base, base_p99, name] = match &record.baseline {
            Some(Baseline { name, figures }) => {
                let [p50, p99] = figures.cells(record.unit);
                [p50, p99, name.clone()]
            }
            None => Default::default(),
        };
        let ratio = record.ratio_p50.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let difference = record
            .difference_p50
            .map(|ns| format!("{ns:+.0} ns"))
            .unwrap_or_default();
        vec![
            what(record),
            measured,
            measured_p99,
            base,
            base_p99,
            ratio,
            difference,
            name,
        ]
    })?;
    print_targets(output, records)?;
    output.line("")
}

/// Prints promised limits and measured values as lines of text.
pub(super) fn print_targets(output: &mut Printer, records: &[Record]) -> anyhow::Result<()> {
    for target in records.iter().flat_map(|record| &record.targets) {
        let verdict = if target.met { "met   " } else { "MISSED" };
        output.line(&format!(
            "  {verdict} {}: {} (limit {})",
            target.what, target.value, target.limit
        ))?;
    }
    Ok(())
}

/// Parameters of a record.
macro_rules! params {
    ($($name:literal: $value:expr),* $(,)?) => {{
        let mut params = serde_json::Map::new();
        $(params.insert($name.to_owned(), serde_json::json!($value));)*
        params
    }};
}
pub(super) use params;
