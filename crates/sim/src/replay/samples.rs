//! Samples of the number of idle nodes, in the format of the Piz Daint trace.

use super::parameters::{DAY, HOUR, MINUTE, Micros, SECOND, STEP_MAX};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use time::{Date, Month};

/// Number of idle nodes at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Time since the first sample.
    pub at: Micros,
    pub idle: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}: {1}; give the path of a file of samples, as CSV or compressed by gzip")]
    Unreadable(String, std::io::Error),
    #[error("{0}: gzip cannot decompress it ({1}); is the file whole?")]
    Compressed(String, String),
    #[error(
        "{file}, row {row}: {reason}; a file of samples has the columns date (18-03-22 17:35:39), idle_nodes and total_nodes"
    )]
    Row { file: String, row: usize, reason: String },
    #[error("{0}: it has fewer than two samples, so no time passes in it")]
    Empty(String),
    #[error("the results cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// Samples of a file in order of time, and the number of the site's nodes that most samples give.
#[derive(Debug)]
pub struct Trace {
    pub samples: Vec<Sample>,
    pub nodes: u32,
}

/// Reads a file of samples in any order of time.
pub fn read(path: &Path) -> Result<Trace, Error> {
    let name = path.display().to_string();
    let unreadable = |error| Error::Unreadable(name.clone(), error);
    if path.extension().is_none_or(|extension| extension != "gz") {
        return parse(&name, std::fs::File::open(path).map_err(unreadable)?);
    }
    let output = Command::new("gzip")
        .arg("-dc")
        .stdin(std::fs::File::open(path).map_err(unreadable)?)
        .stderr(Stdio::piped())
        .output()
        .map_err(unreadable)?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Compressed(name, reason));
    }
    parse(&name, output.stdout.as_slice())
}

/// Reads samples as CSV.
pub fn parse(name: &str, text: impl Read) -> Result<Trace, Error> {
    let mut rows = csv::Reader::from_reader(text);
    // Row 1 is the header.
    let bad = |row: usize, reason: String| Error::Row {
        file: name.to_owned(),
        row: row + 1,
        reason,
    };
    let headers = rows.headers().map_err(|error| bad(0, error.to_string()))?;
    let column = |column: &str| {
        let place = headers.iter().position(|header| header == column);
        place.ok_or_else(|| bad(0, format!("no column {column}")))
    };
    let (date, idle, total) = (column("date")?, column("idle_nodes")?, column("total_nodes")?);

    let mut dated = Vec::new();
    let mut totals = std::collections::BTreeMap::<u32, usize>::new();
    for (index, row) in rows.records().enumerate() {
        let row = row.map_err(|error| bad(index + 1, error.to_string()))?;
        let number = |place: usize| {
            let number = row[place].parse::<u32>();
            number.map_err(|_| bad(index + 1, format!("\"{}\" is no number of nodes", &row[place])))
        };
        let at = moment(&row[date]).ok_or_else(|| bad(index + 1, format!("\"{}\" is no date", &row[date])))?;
        let (idle, total) = (number(idle)?, number(total)?);
        if idle > total {
            return Err(bad(index + 1, format!("{idle} of {total} nodes are idle")));
        }
        dated.push((at, idle));
        *totals.entry(total).or_default() += 1;
    }
    dated.sort_unstable();
    dated.dedup_by_key(|(at, _)| *at);
    if dated.len() < 2 {
        return Err(Error::Empty(name.to_owned()));
    }
    let nodes = totals
        .into_iter()
        .max_by_key(|(_, rows)| *rows)
        .map_or(0, |(nodes, _)| nodes);
    Ok(Trace {
        samples: closed(&dated),
        nodes,
    })
}

/// Returns the samples with times since the first sample. A step that is too long is shortened to the median step.
fn closed(dated: &[(Micros, u32)]) -> Vec<Sample> {
    let mut steps: Vec<_> = dated.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let steps_in_order = steps.clone();
    steps.sort_unstable();
    let median = steps[steps.len() / 2];
    let mut at = 0;
    let mut samples = vec![Sample { at, idle: dated[0].1 }];
    for (step, (_, idle)) in steps_in_order.into_iter().zip(&dated[1..]) {
        at += if step > STEP_MAX { median } else { step };
        samples.push(Sample { at, idle: *idle });
    }
    samples
}

/// Time of a date such as "18-03-22 17:35:39", since the year 0.
fn moment(date: &str) -> Option<Micros> {
    let (date, time) = date.split_once(' ')?;
    let [day, month, year] = three(date, '-')?;
    let [hour, minute, second] = three(time, ':')?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let month = Month::try_from(month).ok()?;
    let date = Date::from_calendar_date(2000 + i32::from(year), month, day).ok()?;
    let days = u64::try_from(date.to_julian_day()).ok()?;
    Some(days * DAY + u64::from(hour) * HOUR + u64::from(minute) * MINUTE + u64::from(second) * SECOND)
}

fn three(text: &str, between: char) -> Option<[u8; 3]> {
    let numbers: Result<Vec<u8>, _> = text.split(between).map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
