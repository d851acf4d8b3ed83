//! Functions on one host, called from another. Tests print that they are skipped where hosts cannot be made, and for
//! providers that this machine's libfabric does not have.

use hotlease_tests::hosts::Hosts;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, RemoteClient, agent};
use hotlease_tests::wait::until_true;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Providers that libfabric may have for two hosts that share a network.
pub const PROVIDERS: [&str; 4] = ["net", "tcp;ofi_rxm", "tcp", "udp;ofi_rxd"];
/// Time from a worker's death to the error that its client gets, milliseconds.
const PROMISED_MS: u64 = 250;
/// Delay that a busy machine may add to a bound, milliseconds: less than the time after which a lease, or TCP, gives up
/// a silent peer.
pub const GRACE_MS: u64 = 2500;

/// A manager on `m`, an agent on `a`, a caller on `c`.
pub struct Site {
    pub client: RemoteClient,
    pub agent: Daemon,
    pub manager: ManagerDaemon,
    pub authority: Authority,
    identity: PathBuf,
    pub hosts: Hosts,
}

impl Site {
    pub fn new() -> Option<Self> {
        Some(Self::on(Hosts::new(&["m", "a", "c"])?, &[]))
    }

    /// The site on these hosts, with further arguments for the agent.
    pub fn on(hosts: Hosts, further: &[&str]) -> Self {
        let authority = Authority::new();
        let manager = ManagerDaemon::start(hosts.host("m"), &authority);
        let agent = agent(hosts.host("a"), &authority, &manager.address, &["alice"], further);
        let client = RemoteClient::new(hosts.host("c"), &authority.client("alice"), &manager.address);
        let site = Self {
            client,
            agent,
            manager,
            identity: authority.client("alice"),
            authority,
            hosts,
        };
        until_true("the agent registers", LIMIT, || site.free_cores() == Some(1));
        site
    }

    pub fn free_cores(&self) -> Option<u32> {
        let agents = self.client.agents().ok()?;
        agents.first().map(|agent| agent.free_cores)
    }

    fn command(&self, program: &Path, transport: &str) -> Command {
        let mut command = self.hosts.host("c").command(program);
        command
            .env("HOTLEASE_MANAGER", self.manager.address.to_string())
            .env("HOTLEASE_IDENTITY", &self.identity)
            .env("HOTLEASE_TRANSPORT", transport);
        command
    }

    pub fn caller(&self, transport: &str, library_name: &str, arguments: &[&str]) -> Command {
        let caller = Path::new(env!("CARGO_BIN_EXE_hotlease-test-caller"));
        let mut command = self.command(caller, transport);
        command.arg(library(library_name)).args(arguments);
        command
    }

    /// Output of the caller; `None` if this transport is not available.
    pub fn call(&self, transport: &str, library_name: &str, arguments: &[&str]) -> Option<String> {
        let output = self.caller(transport, library_name, arguments).output();
        let output = output.expect("the caller runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said.contains("no way to the worker") && transport != "ofi" {
            eprintln!("skipped {transport}: {said}");
            return None;
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && said.ends_with("ok\n"),
            "{transport} {arguments:?}: {said}{errors}"
        );
        Some(said)
    }

    /// A file with this text.
    fn client_file(&self, words: &str) -> PathBuf {
        let path = self.identity.join("input");
        std::fs::write(&path, words).expect("a file");
        path
    }

    pub fn until_free(&self) {
        until_true("the core is free", LIMIT, || self.free_cores() == Some(1));
    }
}

#[test]
fn everything_works_over_every_provider() {
    let Some(site) = Site::new() else { return };
    for provider in PROVIDERS {
        let start = Instant::now();
        if site.call(provider, "behaved", &["everything"]).is_some() {
            eprintln!("{provider}: {:?}", start.elapsed());
        }
        site.until_free();
    }
    site.call("ofi", "behaved", &["everything"])
        .expect("the best transport works");
}

#[test]
fn everything_works_where_both_ends_sleep() {
    let Some(site) = Site::new() else { return };
    site.call("ofi", "behaved", &["warm"]).expect("a provider");
}

#[test]
fn large_data_arrives_whole() {
    let Some(site) = Site::new() else { return };
    for provider in PROVIDERS {
        site.call(provider, "behaved", &["large", "33554433"]);
        site.until_free();
    }
}

#[test]
fn death_of_a_worker_is_told_across_hosts_in_time_and_with_its_cause() {
    let Some(site) = Site::new() else { return };
    let said = site
        .call("ofi", "misbehaved", &["dies", "segfault"])
        .expect("a provider");
    let times: Vec<u64> = said
        .lines()
        .filter_map(|line| line.strip_prefix("died after ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(times.len(), 3, "{said}");
    assert_eq!(said.matches("signal 11").count(), 3, "{said}");
    assert!(
        times.iter().all(|ms| *ms < PROMISED_MS + GRACE_MS),
        "told after {times:?} ms"
    );
}

/// A caller that goes on, and the lines that it prints.
pub struct Talker {
    pub child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Talker {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the caller runs");
        let out = child.stdout.take().expect("piped");
        Self {
            child,
            lines: BufReader::new(out).lines(),
        }
    }

    pub fn until(&mut self, words: &str) -> String {
        self.until_one_of(&[words])
    }

    pub fn until_one_of(&mut self, words: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let line = self.lines.next().expect("the caller goes on").expect("text");
            if words.iter().any(|words| line.contains(words)) {
                return line;
            }
            assert!(
                start.elapsed() < LIMIT,
                "waiting for {words:?}, the last line was {line:?}"
            );
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // Fails only if the caller has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn call_to_a_host_that_vanishes_ends_with_its_lease_and_later_calls_go_on() {
    let Some(site) = Site::new() else { return };
    let mut caller = Talker::start(site.caller("ofi", "behaved", &["cut"]));
    caller.until("called");
    site.hosts.host("a").link(false);
    let start = Instant::now();
    let line = caller.until("failed after");
    let took = start.elapsed();
    eprintln!("{took:?}: {line}");
    // The time to live is 2 s.
    let bound = Duration::from_secs(3) + Duration::from_millis(GRACE_MS);
    assert!(took < bound, "told after {took:?}: {line}");
    site.hosts.host("a").link(true);
    caller.until("called");
}

#[test]
fn leases_over_a_fabric_leave_nothing_behind() {
    let Some(site) = Site::new() else { return };
    site.call("ofi", "behaved", &["connections", "20"]).expect("a provider");
    site.until_free();
}

#[test]
fn without_libfabric_the_error_says_what_is_missing() {
    let Some(site) = Site::new() else { return };
    let mut command = site.caller("ofi", "behaved", &["allocate"]);
    let output = command
        .env("HOTLEASE_LIBFABRIC", "/nowhere/libfabric.so.1")
        .output()
        .expect("the caller runs");
    let said = String::from_utf8_lossy(&output.stdout);
    for words in ["no way to the worker", "/nowhere/libfabric.so.1", "libfabric1"] {
        assert!(said.contains(words), "{said}");
    }
    site.until_free();
}

#[test]
fn run_calls_a_function_on_another_host() {
    let Some(site) = Site::new() else { return };
    let words = site.client_file("hello over there");
    let mut command = site.command(&program("hotlease"), "");
    let arguments = ["echo", "--input", &words.display().to_string()].map(str::to_owned);
    let output = command.arg("run").arg(library("echo")).args(arguments).output();
    let output = output.expect("hotlease runs");
    assert!(
        output.status.success() && output.stdout == b"hello over there",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
