//! Clients that vanish with a thousand leases.

use hotlease_tests::faults::ledger;
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, seed, times};
use hotlease_tests::faults::system::System;
use hotlease_tests::library::library;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::platform::program;
use hotlease_tests::wait::until_true;
use nix::sys::resource::{Resource, setrlimit};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of leases.
const LEASES: u32 = 1000;
/// Number of clients that share these leases.
const CLIENTS: u32 = 10;
/// Time until all cores are free. The cores of a single client are free in 250 ms, see `clients` of `platform`; here a
/// thousand worker processes have to be killed and reaped first, one after the other on two cores.
const ALL_FREE: Duration = Duration::from_secs(3);
/// Limit that only a broken platform exceeds.
const LONG: Duration = Duration::from_secs(30);

/// An agent that offers as many cores as there are leases; each real core stands for many.
fn platform() -> Parts {
    let mut parts = Parts::new();
    let system = System::new(&parts.directory().join("orders"), &parts.directory().join("nowhere"));
    system.pretend_cores(LEASES);
    // Workers get a new environment, and must see the pretended cores as well.
    let wrapper = parts.directory().join("worker");
    let lines = [
        "#!/bin/sh".to_owned(),
        format!("export LD_PRELOAD='{}'", System::library().display()),
        format!("export HOTLEASE_TEST_SYSTEM='{}'", system.orders().display()),
        format!("exec '{}' \"$@\"\n", program("hotlease-worker").display()),
    ];
    fs::write(&wrapper, lines.join("\n")).expect("a program");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700)).expect("it can be run");
    let wrapper = wrapper.display().to_string();
    *parts.arguments(Part::Agent) = ["--cores", "all", "--pool", "0", "--worker", &wrapper]
        .map(String::from)
        .to_vec();
    parts.start_part(Part::Manager, None);
    parts.start_part(Part::Agent, Some(&system));
    parts.until_serving(Duration::from_secs(20));
    parts
}

/// Starts a client that holds its share of the leases until it is killed.
fn client(parts: &Parts) -> (Child, impl Iterator<Item = String> + Send) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotlease-test-client"));
    command
        .arg(parts.directory())
        .arg(library("behaved"))
        .args(["60000", "hold-many"])
        .env("LEASES", (LEASES / CLIENTS).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(setrlimit(Resource::RLIMIT_NOFILE, 16 << 10, 16 << 10)?)
        });
    }
    let mut child = command.spawn().expect("the client starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines.map_while(Result::ok))
}

#[test]
fn thousand_leases_of_clients_that_vanish_are_free_again() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let mut row = Row::new(
        "ten clients vanish (kill -9) with 1,000 leases",
        "all cores are free when a thousand workers are killed and reaped, in 3 s; every lease is in the ledger",
        "clients::thousand_leases_of_clients_that_vanish_are_free_again",
        seed,
    );
    let parts = platform();
    let agent = parts.process(Part::Agent);
    let before = (agent.descriptors(), agent.descendants().len());
    for run in 1..=times(COUNTS.clients) {
        let began = Instant::now();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(&parts)).collect();
        for (_, lines) in &mut clients {
            assert_eq!(lines.next().as_deref(), Some("ready"), "a client has all of its leases");
        }
        row.took("leases taken in", None, began.elapsed());
        let manager = parts.manager();
        assert_eq!(manager.free_cores(), 0);
        let vanished = Instant::now();
        for (child, _) in &mut clients {
            child.kill().expect("our own child");
        }
        until_true("a core is free", LONG, || manager.free_cores() > 0);
        row.took("first free in", None, vanished.elapsed());
        until_true("all cores are free", LONG, || manager.free_cores() == LEASES);
        row.took("all free in", Some(ALL_FREE), vanished.elapsed());
        for (mut child, _) in clients {
            child.wait().expect("our own child");
        }
        let bill = ledger::until_settled(&parts);
        assert_eq!(bill.len() as u32, LEASES * run, "every lease is in the ledger");
        until_true("nothing of them is left in the agent", LONG, || {
            agent.descriptors() <= before.0 + 8 && agent.descendants().len() <= before.1
        });
        row.ran();
    }
    row.finish();
}
