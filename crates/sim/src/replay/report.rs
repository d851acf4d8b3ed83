//! Results of a replay, as tables or as JSON with one object per line.

use super::outcome::{Load, Outcome};
use super::parameters::{CORES, HOUR, MILLISECOND, MINUTE, Micros, SECOND, TASKS};
use super::periods::{Period, lengths, quantile};
use super::samples::{Error, Sample};
use serde::Serialize;
use std::io::Write;

/// Site that is replayed.
#[derive(Serialize)]
pub struct Source<'a> {
    name: &'a str,
    nodes: u32,
    samples: usize,
    length_us: Micros,
    /// Median over the samples.
    idle_nodes_median: u32,
    /// Means over hours.
    idle_nodes_by_hour: Vec<f64>,
}

impl<'a> Source<'a> {
    pub fn new(name: &'a str, nodes: u32, samples: &[Sample]) -> Self {
        let mut idle: Vec<_> = samples.iter().map(|sample| sample.idle).collect();
        idle.sort_unstable();
        let by_hour = samples.chunk_by(|one, next| one.at / HOUR == next.at / HOUR);
        let mean = |hour: &[Sample]| hour.iter().map(|sample| f64::from(sample.idle)).sum::<f64>() / hour.len() as f64;
        Self {
            name,
            nodes,
            samples: samples.len(),
            length_us: samples.last().map_or(0, |last| last.at),
            idle_nodes_median: idle.get(idle.len() / 2).copied().unwrap_or(0),
            idle_nodes_by_hour: by_hour.map(|hour| (10.0 * mean(hour)).round() / 10.0).collect(),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Source(&'a Source<'a>),
    Periods {
        periods: &'a str,
        count: usize,
        mean_us: Micros,
        /// Percentiles from 0 to 100.
        percentiles_us: Vec<Micros>,
    },
    /// Times of one core of each node.
    Outcome {
        periods: &'a str,
        policy: &'a str,
        task_us: Micros,
        idle_us: Micros,
        offered_us: Micros,
        used_us: Micros,
        starts_us: Micros,
        calls_us: Micros,
        interrupted_us: Micros,
        not_begun_us: Micros,
        tasks: u64,
        tasks_interrupted: u64,
        grants: u64,
        preemptions: u64,
        delay_us: Micros,
    },
}

/// Writer of results.
pub struct Report<'a, W> {
    json: bool,
    out: &'a mut W,
    /// Time of the trace.
    length: Micros,
    nodes: u32,
}

impl<'a, W: Write> Report<'a, W> {
    pub fn new(json: bool, out: &'a mut W) -> Self {
        Self {
            json,
            out,
            length: 0,
            nodes: 0,
        }
    }

    pub fn source(&mut self, source: &Source<'_>) -> Result<(), Error> {
        (self.length, self.nodes) = (source.length_us, source.nodes);
        if self.json {
            return self.write(&Record::Source(source));
        }
        let days = source.length_us as f64 / (24 * HOUR) as f64;
        writeln!(
            self.out,
            "{}: {days:.1} days, {} nodes, of which {} are idle in the median",
            source.name, source.nodes, source.idle_nodes_median
        )?;
        Ok(())
    }

    pub fn periods(&mut self, name: &str, periods: &[Period]) -> Result<(), Error> {
        let lengths = lengths(periods);
        let idle: Micros = lengths.iter().sum();
        let count = lengths.len();
        let mean_us = idle / (count as u64).max(1);
        if self.json {
            let percentiles_us = (0..=100).map(|percent| quantile(&lengths, percent)).collect();
            return self.write(&Record::Periods {
                periods: name,
                count,
                mean_us,
                percentiles_us,
            });
        }
        writeln!(
            self.out,
            "\nIdle periods, {name}: {count}, {:.1} min in the median, {:.1} min in the mean; {:.0} core hours, {:.2} % of the site",
            minutes(quantile(&lengths, 50)),
            minutes(mean_us),
            core_hours(idle),
            percent(idle, self.length * u64::from(self.nodes)),
        )?;
        let lengths: String = TASKS.iter().map(|task| format!("{:>8}", length_text(*task))).collect();
        writeln!(
            self.out,
            "{:31} | {:<40} | {:<40} | {:<40} |",
            "% of the idle time:", "used by tasks of", "interrupted", "not begun"
        )?;
        writeln!(
            self.out,
            "{:<23}{:>8} | {lengths} | {lengths} | {lengths} | {:>8}{:>11}{:>15}",
            "policy", "offered", "grants", "preempted", "jobs wait"
        )?;
        Ok(())
    }

    pub fn outcome(&mut self, periods: &str, policy: &str, outcome: &Outcome) -> Result<(), Error> {
        if self.json {
            return outcome
                .loads
                .iter()
                .try_for_each(|load| self.write(&record(periods, policy, outcome, load)));
        }
        let share = |time| format!("{:>8.2}", percent(time, outcome.idle));
        let shares = |time: fn(&Load) -> Micros| outcome.loads.iter().map(time).map(share).collect::<String>();
        writeln!(
            self.out,
            "{policy:<23}{} | {} | {} | {} | {:>7.0}k{:>10.1}%{:>8.1} node h",
            share(outcome.offered()),
            shares(|load| load.used),
            shares(|load| load.interrupted),
            shares(|load| load.not_begun),
            outcome.grants as f64 / 1e3,
            percent(outcome.preemptions, outcome.grants),
            outcome.delay as f64 / HOUR as f64,
        )?;
        Ok(())
    }

    fn write(&mut self, record: &Record<'_>) -> Result<(), Error> {
        serde_json::to_writer(&mut *self.out, record).map_err(std::io::Error::from)?;
        writeln!(self.out)?;
        Ok(())
    }
}

fn record<'a>(periods: &'a str, policy: &'a str, outcome: &Outcome, load: &Load) -> Record<'a> {
    Record::Outcome {
        periods,
        policy,
        task_us: load.task,
        idle_us: outcome.idle,
        offered_us: outcome.offered(),
        used_us: load.used,
        starts_us: outcome.starts,
        calls_us: load.calls,
        interrupted_us: load.interrupted,
        not_begun_us: load.not_begun,
        tasks: load.tasks,
        tasks_interrupted: load.tasks_interrupted,
        grants: outcome.grants,
        preemptions: outcome.preemptions,
        delay_us: outcome.delay,
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn minutes(time: Micros) -> f64 {
    time as f64 / MINUTE as f64
}

fn core_hours(time: Micros) -> f64 {
    (time * CORES) as f64 / HOUR as f64
}

fn length_text(time: Micros) -> String {
    match time {
        MINUTE.. => format!("{} min", time / MINUTE),
        SECOND.. => format!("{} s", time / SECOND),
        _ => format!("{} ms", time / MILLISECOND),
    }
}
