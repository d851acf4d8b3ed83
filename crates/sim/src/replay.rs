//! Replay of a site's idle nodes: how much of their time each policy gets for tasks.
//!
//! A site is a set of idle periods of nodes: inferred from samples of a real site ([`samples`], [`periods`]), or known
//! exactly from generated jobs ([`jobs`]). Each [`parameters::Policy`] uses the same periods ([`outcome`]). A policy
//! does not influence the jobs, except for delays, which are counted. docs/replay.md has the results.

mod jobs;
mod outcome;
mod parameters;
mod periods;
mod report;
mod samples;

pub use samples::Error;

use parameters::{MEDIAN_IDLE, Micros, POLICIES, SITE, VARIANTS};
use periods::{Matching, Period};
use report::{Report, Source};
use samples::Sample;
use std::io::Write;
use std::path::Path;

/// Replays the samples of a file, or a generated site if there is no file, and prints how the idle time is used.
pub fn print(samples: Option<&Path>, seed: u64, json: bool, out: &mut impl Write) -> Result<(), Error> {
    let mut report = Report::new(json, out);
    match samples {
        Some(path) => {
            let trace = samples::read(path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            report.source(&Source::new(&name, trace.nodes, &trace.samples))?;
            print_inferred(&trace.samples, MEDIAN_IDLE, seed, &mut report)
        }
        None => {
            let periods = generated(seed);
            let samples = periods::sampled(&periods, SITE.length, SITE.sample_step);
            report.source(&Source::new("generated", SITE.nodes, &samples))?;
            print_outcomes("known", &periods, seed, &mut report)?;
            let median = periods::quantile(&periods::lengths(&periods), 50);
            print_inferred(&samples, median, seed, &mut report)
        }
    }
}

/// Idle periods of the generated site, after the time in which it fills.
fn generated(seed: u64) -> Vec<Period> {
    let jobs = jobs::generate(&SITE, seed);
    let all = jobs::schedule(&jobs, SITE.nodes, SITE.backfill_depth, SITE.filling + SITE.length);
    let full = |at: Micros| at.saturating_sub(SITE.filling);
    all.into_iter()
        .map(|period| Period {
            begin: full(period.begin),
            end: full(period.end),
        })
        .filter(|period| period.length() > 0)
        .collect()
}

fn print_inferred(
    samples: &[Sample],
    median: Micros,
    seed: u64,
    report: &mut Report<'_, impl Write>,
) -> Result<(), Error> {
    for matching in [
        Matching::Exchanging { median },
        Matching::OldestFirst,
        Matching::NewestFirst,
    ] {
        let periods = periods::infer(samples, matching, seed);
        print_outcomes(matching.name(), &periods, seed, report)?;
    }
    Ok(())
}

fn print_outcomes(name: &str, periods: &[Period], seed: u64, report: &mut Report<'_, impl Write>) -> Result<(), Error> {
    report.periods(name, periods)?;
    for policy in POLICIES.iter().chain(&VARIANTS) {
        report.outcome(name, policy.name, &outcome::play(periods, policy, seed))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "replay/tests.rs"]
mod tests;
