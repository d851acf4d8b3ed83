//! What is logged: to stderr, chosen by `HOTLEASE_LOG`.

use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Starts logging from `level` on, unless `HOTLEASE_LOG` says otherwise.
pub(crate) fn start(level: &str) {
    let wished = std::env::var("HOTLEASE_LOG").ok().filter(|wish| !wish.is_empty());
    let parsed = wished.as_deref().map(EnvFilter::try_new);
    let (filter, complaint) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level), Some(error)),
        None => (EnvFilter::new(level), None),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    if let Some(error) = complaint {
        tracing::warn!(%error, "HOTLEASE_LOG is not a filter; logging from `{level}` on");
    }
}
