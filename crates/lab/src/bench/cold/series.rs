//! Samples of one way to start one program, and their record.

use super::super::host_info::HostInfo;
use super::super::record::{Record, Target, params};
use super::super::samples::{Block, Pair};
use super::leases::{SHM, StartKind};
use super::program::Program;
use hotlease_sandbox::Kind;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Times of starts in the paper about rFaaS, for a bare process and for Docker, milliseconds.
const RFAAS_PROCESS_MS: f64 = 25.0;
const RFAAS_DOCKER_MS: f64 = 2700.0;

/// Promised maximum of starts: program, sandbox, start, milliseconds.
const LIMITS: [(&str, Kind, StartKind, f64); 8] = [
    ("C", Kind::Process, StartKind::Warm, 2.0),
    ("C", Kind::Process, StartKind::First, 10.0),
    ("C", Kind::Namespace, StartKind::First, 3.0),
    ("C", Kind::Namespace, StartKind::Warm, 3.0),
    ("Python with", Kind::Namespace, StartKind::Zygote, 10.0),
    ("Python with", Kind::Namespace, StartKind::Fork, 10.0),
    ("C", Kind::MicroVm, StartKind::First, 300.0),
    ("Python with", Kind::MicroVm, StartKind::Fork, 50.0),
];
/// Promised maximum of starts whose functions are called over a fabric, once client and waiting workers have loaded the
/// fabric's library.
const FABRIC_LIMITS: [(&str, Kind, StartKind, f64); 2] = [
    ("C", Kind::Process, StartKind::Warm, 10.0),
    ("C", Kind::Process, StartKind::First, 60.0),
];
/// Promised maximum of the private memory of a worker that was forked from a zygote, with packages.
const PRIVATE_BYTES_MAX: f64 = 5e6;

/// One start.
pub(super) struct Sample {
    pub total: Duration,
    /// Steps with their durations; they do not overlap.
    pub phases: Vec<(&'static str, Duration)>,
    /// Reason why no worker was waiting.
    pub why: String,
    /// Private memory of the worker after its first call.
    pub private_bytes: Option<u64>,
}

impl Sample {
    /// Makes a sample with a time and nothing else.
    pub(super) fn of_time(total: Duration) -> Self {
        Self {
            total,
            phases: Vec::new(),
            why: String::new(),
            private_bytes: None,
        }
    }
}

/// A row that was left out, with the reason.
#[derive(Serialize)]
pub(super) struct SkippedRow {
    bench: &'static str,
    params: Map<String, Value>,
    skipped: String,
}

impl SkippedRow {
    pub(super) fn new(what: &str, why: String) -> Self {
        Self {
            bench: "cold",
            params: params! { "what": what },
            skipped: why,
        }
    }

    pub(super) fn sandbox(kind: Kind, why: String) -> Self {
        Self {
            bench: "cold",
            params: params! { "in": kind.name() },
            skipped: why,
        }
    }

    pub(super) fn what(&self) -> String {
        let words: Vec<&str> = self.params.values().filter_map(Value::as_str).collect();
        words.join(", ")
    }

    pub(super) fn why(&self) -> &str {
        &self.skipped
    }
}

/// Samples of one way to start one program.
pub(super) struct Series {
    params: Map<String, Value>,
    start: Option<StartKind>,
    dropped: bool,
    pair: Pair,
    samples: Vec<Sample>,
    failed: Option<String>,
}

impl Series {
    pub(super) fn new(
        program: &Program,
        (who, transport): (&str, &str),
        start: Option<StartKind>,
        dropped: bool,
    ) -> anyhow::Result<Self> {
        let how = match (start, dropped) {
            (_, true) => "caches dropped",
            (Some(StartKind::Warm), _) => "warm",
            (Some(StartKind::Zygote), _) => "zygote",
            (Some(StartKind::Fork), _) => "fork",
            (Some(StartKind::First) | None, _) => "first",
        };
        Ok(Self {
            params: params! { "program": program.name, "in": who, "start": how, "transport": transport },
            start,
            dropped,
            pair: Pair::new()?,
            samples: Vec::new(),
            failed: None,
        })
    }

    /// Whether the series has failed, so that no more samples are measured.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn add(&mut self, baseline: &Block, sample: Sample) {
        let measured = Block(vec![sample.total.as_nanos() as u64]);
        self.pair.add(baseline, &measured);
        self.samples.push(sample);
    }

    /// Records that a start could not be measured. Ends the series if it has no sample yet.
    pub(super) fn fail(&mut self, error: anyhow::Error) {
        let why = format!("{error:#}");
        if self.samples.is_empty() {
            self.failed = Some(why);
        } else {
            tracing::warn!(params = ?self.params, why, "a start was left out");
        }
    }

    /// Returns the record of the series, or the reason why there is none.
    pub(super) fn record(mut self, machine: &HostInfo) -> Result<Record, SkippedRow> {
        if let Some(why) = self.failed {
            return Err(SkippedRow {
                bench: "cold",
                params: self.params,
                skipped: why,
            });
        }
        let name = "the same program by posix_spawn";
        let mut record = Record::of_pair("cold", self.params, name, &self.pair, machine);
        self.samples.sort_by_key(|sample| sample.total);
        let quantile = |part: f64| self.pair.measured.quantile(part);
        record.details = params! { "p25": quantile(0.25), "p75": quantile(0.75) };
        let Some(median) = self.samples.get((self.samples.len() - 1) / 2) else {
            return Ok(record);
        };
        let median_ms = median.total.as_secs_f64() * 1e3;
        if self.start.is_some() {
            let phases: Map<String, Value> = median
                .phases
                .iter()
                .map(|(name, took)| ((*name).to_owned(), json!(took.as_secs_f64() * 1e6)))
                .collect();
            // All steps come from the same start, so that they add up to its total.
            record.details.insert("phases_us".into(), json!(phases));
            record
                .details
                .insert("total_us".into(), json!(median.total.as_secs_f64() * 1e6));
            record.details.insert("why".into(), json!(median.why));
            let papers = json!({
                "rfaas_bare_process": RFAAS_PROCESS_MS / median_ms,
                "rfaas_docker": RFAAS_DOCKER_MS / median_ms,
            });
            record.details.insert("papers".into(), papers);
        }
        let mut private: Vec<u64> = self.samples.iter().filter_map(|sample| sample.private_bytes).collect();
        private.sort_unstable();
        if let Some(bytes) = private.get(private.len() / 2) {
            record.details.insert("private_bytes".into(), json!(bytes));
        }
        record.targets = targets(&record, (self.start, self.dropped), median_ms);
        Ok(record)
    }
}

/// Promised limits of this start.
fn targets(record: &Record, (kept, dropped): (Option<StartKind>, bool), median_ms: f64) -> Vec<Target> {
    let text = |name: &str| record.params.get(name).and_then(Value::as_str).unwrap_or("");
    let (program, who) = (text("program"), text("in"));
    let limits: &[_] = if text("transport") == SHM {
        &LIMITS
    } else {
        &FABRIC_LIMITS
    };
    let limit = limits.iter().find(|(named, kind, start, _)| {
        program.starts_with(named) && who == kind.name() && kept == Some(*start) && !dropped
    });
    let Some((.., start, limit)) = limit else {
        return Vec::new();
    };
    let what = format!("{program} in {who}, {}, ms", text("start"));
    let mut targets = vec![Target::at_most(what, median_ms, *limit)];
    let private = record.details.get("private_bytes").and_then(Value::as_f64);
    if let (Some(bytes), StartKind::Zygote) = (private, start) {
        let what = format!("private memory of {program} in {who}, bytes");
        targets.push(Target::at_most(what, bytes, PRIVATE_BYTES_MAX));
    }
    targets
}
