//! Start times of workers in each kind of sandbox, until they are ready for orders: medians, in milliseconds.
//!
//! ```sh
//! cargo run --release --package hotlease-sandbox --example start_times [ROUNDS]
//! ```
//!
//! `prepared`: the nursery had a sandbox ready, which is usual unless leases begin faster than it makes sandboxes.
//! `fresh`: the nursery had to make the sandbox.

#![allow(clippy::print_stdout, reason = "its result")]

use hotlease_sandbox::{Kind, Launcher, Policy, WorkerReach};
use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?;
    let worker = match Launcher::find() {
        Ok(found) => found,
        // Examples lie one folder deeper than programs.
        Err(_) => std::env::current_exe()?.with_file_name("../hotlease-worker"),
    };
    let launcher = Launcher::new(&worker)?;
    let unprepared = launcher.clone().with_policy(Policy {
        prepared: 0,
        ..Policy::default()
    });
    for lacking in launcher.find_lacking(Kind::Namespace)? {
        println!("not enforced here: {lacking}");
    }
    unprepared.check_available(Kind::Namespace)?;
    println!(
        "{:<22} {:>9} {:>9} {:>9}   fastest:",
        "medians, ms", "started", "ready", "gone"
    );
    for (name, launcher, kind) in [
        ("process", &launcher, Kind::Process),
        ("namespace, prepared", &launcher, Kind::Namespace),
        ("namespace, fresh", &unprepared, Kind::Namespace),
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(once(launcher, kind).await?);
            // Gives the nursery time to prepare the next sandbox.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let sorted = |of: usize| {
            let mut all: Vec<_> = times.iter().map(|times| times[of].as_secs_f64() * 1e3).collect();
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[0])
        };
        let [started, ready, gone] = [0, 1, 2].map(sorted);
        println!(
            "{name:<22} {:>9.3} {:>9.3} {:>9.3}   {:>9.3} {:>9.3} {:>9.3}",
            started.0, ready.0, gone.0, started.1, ready.1, gone.1
        );
    }
    Ok(())
}

/// Times until a worker is started, until it is ready, and from the kill until nothing of it is left.
async fn once(launcher: &Launcher, kind: Kind) -> Result<[Duration; 3], Box<dyn Error>> {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let begin = Instant::now();
    let process = launcher.start(kind, None, &WorkerReach::default(), theirs)?;
    let started = begin.elapsed();
    let mut answer = [0; 256];
    if recv(ours.as_raw_fd(), &mut answer, MsgFlags::empty())? == 0 {
        return Err(format!("the worker ended: {}, {}", process.exited().await, process.output()).into());
    }
    let ready = begin.elapsed();
    let begin = Instant::now();
    process.kill();
    process.exited().await;
    Ok([started, ready, begin.elapsed()])
}
