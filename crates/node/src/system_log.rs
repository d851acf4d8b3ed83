//! The system's log, and for people who try the program, standard error.

use nix::syslog::{Facility, LogFlags, Severity, openlog, syslog};
use std::io::{self, Write};

/// Notes what was done.
pub fn note(text: &str) {
    write(Severity::LOG_INFO, text);
}

/// Notes what was not done, or by force.
pub fn error(text: &str) {
    write(Severity::LOG_ERR, text);
}

fn write(severity: Severity, text: &str) {
    // A log that cannot be written to cannot say so. `eprintln!` would panic if the batch system reads no more.
    let _ = writeln!(io::stderr(), "hotlease-node: {text}");
    let _ = openlog(Some(c"hotlease-node"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
    let _ = syslog(severity, text);
}
