//! The system's log, and for people who try the program, standard error.

use nix::syslog::{Facility, LogFlags, Severity, openlog, syslog};
use std::io::{self, Write};

/// Logs an action.
pub fn note(text: &str) {
    write(Severity::LOG_INFO, text);
}

/// Logs a failure, or an action by force.
pub fn error(text: &str) {
    write(Severity::LOG_ERR, text);
}

fn write(severity: Severity, text: &str) {
    // Errors are ignored, because a log cannot report that it cannot be written. `eprintln!` would panic if the batch
    // system has closed stderr.
    let _ = writeln!(io::stderr(), "hotlease-node: {text}");
    let _ = openlog(Some(c"hotlease-node"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
    let _ = syslog(severity, text);
}
