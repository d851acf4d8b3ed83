//! Log to stderr: filtered by `HOTLEASE_LOG`, as text for people or (`HOTLEASE_LOG_FORMAT=json`) as JSON for
//! programs.

use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Starts logging from `level` on, unless `HOTLEASE_LOG` sets another filter.
pub fn start(level: &str) {
    let wished = std::env::var("HOTLEASE_LOG").ok().filter(|wish| !wish.is_empty());
    let parsed = wished.as_deref().map(EnvFilter::try_new);
    let (filter, complaint) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level), Some(error)),
        None => (EnvFilter::new(level), None),
    };
    let format = std::env::var("HOTLEASE_LOG_FORMAT").unwrap_or_default();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format.as_str() {
        "json" => log.json().flatten_event(true).init(),
        _ => log.with_ansi(io::stderr().is_terminal()).init(),
    }
    if !["", "json", "text"].contains(&format.as_str()) {
        tracing::warn!("HOTLEASE_LOG_FORMAT is neither `text` nor `json`; logging text");
    }
    if let Some(error) = complaint {
        tracing::warn!(%error, "HOTLEASE_LOG is not a filter; logging from `{level}` on");
    }
}
