//! A client that tests can kill: takes a lease, prints `ready`, and does what its last argument names.
//!
//! `hotlease-test-client RUNTIME_DIR LIBRARY TTL_MS ACTION`, where ACTION is `join` (uses slots that a peer lends; the
//! input is the invitation; then does the same as `keep-calling`), `find` (as `join`, with the slots that the manager
//! has for `$HOTLEASE_JOB`), `hold` (holds a lease), `hold-many` (holds as many leases as the variable LEASES says),
//! `compute` (makes a call that never ends), `keep-calling` (prints a line `called PID` for each call).

use hotlease_client::{Code, Error, Invitation, Invoker, LeaseOptions};
use std::io::Write;
use std::time::Duration;

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Errors are ignored: a test that has ended no longer reads, and kills this process anyway.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Uses several leases once, and holds them until the process is killed.
fn hold_many(code: &Code, options: &LeaseOptions, leases: usize) -> Result<(), Error> {
    let mut held = Vec::new();
    for _ in 0..leases {
        let invoker = Invoker::allocate(code, options.clone())?;
        invoker.function("echo")?.call(b"hold")?;
        held.push(invoker);
    }
    say("ready");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, library, ttl_ms, action] = &arguments[..] else {
        say("four arguments: RUNTIME_DIR LIBRARY TTL_MS ACTION");
        std::process::exit(2);
    };
    let options = LeaseOptions {
        runtime_dir: Some(directory.into()),
        ttl: Duration::from_millis(ttl_ms.parse().unwrap_or(5000)),
        ..LeaseOptions::default()
    };
    let code = Code::open(library)?;
    if action == "hold-many" {
        let leases = std::env::var("LEASES").ok().and_then(|text| text.parse().ok());
        return hold_many(&code, &options, leases.unwrap_or(1));
    }
    let invoker = match action.as_str() {
        "join" => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap_or_default();
            Invoker::join(&code, &line.parse()?, options)?
        }
        "find" => {
            let found = Invitation::find(&options)?;
            say(&format!("found {}", found.len()));
            let first = found.first().ok_or(Error::Options {
                what: "no peer offers slots".into(),
            })?;
            Invoker::join(&code, first, options)?
        }
        _ => Invoker::allocate(&code, options)?,
    };
    match action.as_str() {
        "hold" => say("ready"),
        "compute" => {
            let call = invoker.function("compute")?.submit(&u32::MAX.to_le_bytes())?;
            say("ready");
            call.wait()?;
        }
        _ => {
            say("ready");
            let process = invoker.function("process")?;
            loop {
                match process.call(b"") {
                    Ok(pid) => say(&format!(
                        "called {}",
                        u32::from_le_bytes(pid[..4].try_into().unwrap_or_default())
                    )),
                    Err(error) => say(&format!("failed {error}")),
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
