//! Hosts, workers, providers and networks that fail while functions are called over them. docs/faults.md says which
//! test proves which fault. Tests print that they are skipped where hosts cannot be made.

use crate::calls::{GRACE_MS, PROVIDERS, Site, Talker};
use hotlease_net::Address;
use hotlease_tests::hosts::{Hosts, Meddling};
use hotlease_tests::library::compile;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::Process;
use hotlease_tests::site::{agent, agent_in};
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::grpc::ListRequest;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time from a death to the error.
const TOLD: Duration = Duration::from_millis(250 + GRACE_MS);
/// Longest time that 32 MiB take, at 160 Mbit/s and beside other tests.
const TRANSFER: Duration = Duration::from_secs(4);
/// Time from the silence of a host to the error: the caller's time to live and a second.
const SILENT: Duration = Duration::from_millis(2000 + 1000 + GRACE_MS);

/// The worker that serves a lease.
fn worker_of(site: &Site) -> Process {
    let leased = || {
        let list = site
            .client
            .ask(|mut manager| async move { manager.list_workers(ListRequest::default()).await });
        let workers = list.ok()?.workers;
        let worker = workers.iter().find(|worker| !worker.lease.is_empty())?;
        Process::of(worker.pid as i32)
    };
    until("a leased worker", LIMIT, leased).0
}

/// Builds a libfabric in which one provider, or each provider, does not start.
fn failing_libfabric() -> PathBuf {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/failing_fabric.map");
    let script = format!("-Wl,--version-script={}", map.display());
    compile("failing_fabric", &[&script])
}

/// Output of a caller that finds no way to the worker.
fn refusal(site: &Site, transport: &str, environment: &[(&str, &str)]) -> String {
    let mut command = site.caller(transport, "behaved", &["allocate"]);
    let output = command.envs(environment.iter().copied()).output();
    let output = output.expect("the caller runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "it went well: {said}");
    said
}

fn says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[test]
fn host_that_comes_back_as_another_boot_serves_the_same_invoker() {
    let Some(mut site) = Site::new() else { return };
    let before = boot_of(&site);
    let mut caller = Talker::start(site.caller("ofi", "behaved", &["cut"]));
    caller.until("called");
    // The power fails: no process says goodbye, and all processes of the host are gone.
    site.hosts.host("a").link(false);
    let start = Instant::now();
    site.agent.kill();
    let line = caller.until("failed after");
    assert!(start.elapsed() < SILENT, "told after {:?}: {line}", start.elapsed());
    let host = site.hosts.host("a");
    site.agent = agent(host, &site.authority, &site.manager.address, &["alice"], &[]);
    host.link(true);
    caller.until("called");
    assert_ne!(boot_of(&site), before, "the agent is of another boot");
}

fn boot_of(site: &Site) -> String {
    site.client.agents().expect("listed")[0].boot.clone()
}

#[test]
fn death_of_either_end_during_a_transfer_is_noticed_in_time_and_frees_everything() {
    let Some(site) = Site::new() else { return };
    let (client, host) = (site.hosts.host("c"), site.hosts.host("a"));
    for provider in ["net", "tcp;ofi_rxm"] {
        for direction in ["in", "out"] {
            let mut caller = Talker::start(site.caller(provider, "behaved", &["transfers", direction]));
            let line = caller.until_one_of(&["ready", "failed"]);
            if line.contains("no way to the worker") {
                eprintln!("skipped {provider}: {line}");
                continue;
            }
            caller.until("called");
            let sender = if direction == "in" { client } else { host };
            // At this rate 32 MiB take a second and a half: see `TRANSFER`.
            sender.limit(Some(160));
            let worker = worker_of(&site);
            let under_way = || {
                let sent = sender.sent_bytes();
                until_true("a transfer", LIMIT, || sender.sent_bytes() > sent + (4 << 20));
            };
            under_way();
            worker.signal(Signal::SIGKILL);
            let start = Instant::now();
            if direction == "in" {
                // The function had not run: another worker reads all of the input, and runs it. Calls before the limit
                // were quick.
                let is_quick = |line: &str| line.starts_with("called") && millis(line) < 1000;
                let mut line = caller.until_one_of(&["called", "failed after"]);
                while is_quick(&line) {
                    line = caller.until_one_of(&["called", "failed after"]);
                }
                let took = start.elapsed();
                assert!(
                    line.starts_with("called"),
                    "{provider}: it had not run, and moves: {line}"
                );
                assert!(took < TOLD + TRANSFER, "{provider}: run elsewhere after {took:?}");
                assert!(!worker.is_alive(), "{provider}: by another worker");
            } else {
                let line = caller.until("failed after");
                let took = start.elapsed();
                eprintln!("{provider} {direction}: told after {took:?}: {line}");
                assert!(took < TOLD, "{provider} {direction}: told after {took:?}: {line}");
                says(&line, &["signal 9"]);
            }
            // The caller goes on with another worker; then this worker dies, too.
            sender.limit(None);
            caller.until("called");
            sender.limit(Some(160));
            let worker = worker_of(&site);
            under_way();
            caller.child.kill().expect("our own child");
            let start = Instant::now();
            until_true("the worker is gone", LIMIT, || !worker.is_alive());
            site.until_free();
            let took = start.elapsed();
            sender.limit(None);
            eprintln!("{provider} {direction}: free after {took:?}");
            assert!(took < SILENT, "{provider} {direction}: free after {took:?}");
        }
    }
}

/// Milliseconds in a caller's line.
fn millis(line: &str) -> u64 {
    let number = line.split(' ').rev().nth(1).and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no milliseconds in {line:?}"))
}

#[test]
fn buffers_dropped_while_in_flight_live_until_the_worker_is_done() {
    let Some(site) = Site::new() else { return };
    for provider in ["ofi", "tcp;ofi_rxm"] {
        site.call(provider, "behaved", &["drops"]);
        site.until_free();
    }
}

#[test]
fn hosts_without_ipv4_call_over_every_provider() {
    let Some(hosts) = Hosts::of_ipv6(&["m", "a", "c"]) else {
        return;
    };
    let site = Site::on(hosts, &[]);
    let addresses = site.hosts.host("a").run(|| {
        let routes = std::fs::read_to_string("/proc/thread-self/net/fib_trie").expect("routes");
        routes.contains("10.77.")
    });
    assert!(!addresses, "the host has an address of IPv4");
    for provider in PROVIDERS {
        site.call(provider, "behaved", &["few"]);
        site.until_free();
    }
    site.call("ofi", "behaved", &["few"]).expect("the best transport works");
}

#[test]
fn neither_locked_memory_nor_huge_pages_are_needed() {
    let Some(hosts) = Hosts::new(&["m", "a", "c"]) else {
        return;
    };
    for name in ["a", "c"] {
        hosts.host(name).forbid_locked_memory();
    }
    let site = Site::on(hosts, &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", site.agent.process().pid)).expect("limits");
    let limit = limits.lines().find(|line| line.starts_with("Max locked memory"));
    let limit: Vec<&str> = limit.expect("its line").split_whitespace().collect();
    assert_eq!(limit[3..5], ["0", "0"], "the agent may lock memory");
    let memory = std::fs::read_to_string("/proc/meminfo").expect("memory");
    let huge = memory.lines().find(|line| line.starts_with("HugePages_Total"));
    if !huge.is_none_or(|line| line.ends_with(" 0")) {
        eprintln!("this machine has huge pages: that none are needed is not tested");
    }
    for provider in PROVIDERS {
        site.call(provider, "behaved", &["few"]);
        site.until_free();
    }
}

#[test]
fn providers_that_are_missing_or_do_not_start_are_named_and_others_are_taken() {
    let Some(site) = Site::new() else { return };
    let failing = failing_libfabric().display().to_string();
    let said = refusal(&site, "verbs;ofi_rxm", &[]);
    says(&said, &["no way to the worker", "verbs;ofi_rxm"]);
    let said = refusal(&site, "pigeons", &[]);
    says(&said, &["no way to the worker", "pigeons", "table of providers"]);
    let libfabric = ("HOTLEASE_LIBFABRIC", failing.as_str());
    let said = refusal(&site, "ofi", &[libfabric]);
    says(&said, &["no way to the worker", "fi_fabric", "No such device"]);
    site.until_free();
    // Only one provider fails to start: the next one is used.
    let mut command = site.caller("ofi", "behaved", &["few"]);
    command
        .env("HOTLEASE_LIBFABRIC", &failing)
        .env("FAILING_PROVIDER", "net");
    let output = command.output().expect("the caller runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.ends_with("ok\n"), "{said}");
}

#[test]
fn worker_without_a_provider_says_so_to_its_client() {
    let Some(hosts) = Hosts::new(&["m", "a", "c"]) else {
        return;
    };
    // Only the agent's host has the failing libfabric.
    let failing = failing_libfabric();
    hosts.host("a").set_variable("HOTLEASE_LIBFABRIC", failing);
    let site = Site::on(hosts, &[]);
    let said = refusal(&site, "ofi", &[]);
    says(&said, &["no way to the worker", "fi_fabric", "No such device"]);
    site.until_free();
}

#[test]
fn host_names_that_do_not_resolve_are_named_and_no_core_stays_taken() {
    let Some(hosts) = Hosts::new(&["m", "a", "c"]) else {
        return;
    };
    let advertised = ["--advertise", "https://a.invalid:7071"];
    let site = Site::on(hosts, &advertised);
    let start = Instant::now();
    let said = refusal(&site, "ofi", &[]);
    says(&said, &["a.invalid", "resolve"]);
    assert!(start.elapsed() < LIMIT, "said after {:?}", start.elapsed());
    // No client came for the lease.
    site.until_free();
    // An agent that cannot resolve its manager's address waits for it, and logs why.
    let nowhere = Address::new("no-such-manager.invalid", 7070);
    let lost = agent_in(site.hosts.host("a"), "lost", &site.authority, &nowhere, &["alice"], &[]);
    until_true("it says why it does not register", LIMIT, || {
        let log = lost.log();
        log.contains("no-such-manager.invalid") && log.contains("resolve")
    });
}

#[test]
fn two_agents_of_a_node_serve_calls_at_the_same_time() {
    let Some(site) = Site::new() else { return };
    let host = site.hosts.host("a");
    let second = agent_in(host, "second", &site.authority, &site.manager.address, &["alice"], &[]);
    until_true("both serve", LIMIT, || {
        site.client.agents().is_ok_and(|agents| agents.len() == 2)
    });
    let mut callers = [(); 2].map(|()| Talker::start(site.caller("ofi", "behaved", &["cut"])));
    for caller in &mut callers {
        caller.until("called");
    }
    // A listing shows the last report of an agent that takes too long to answer.
    until_true("both cores are taken", LIMIT, || {
        let agents = site.client.agents().expect("listed");
        agents.iter().all(|agent| agent.free_cores == 0)
    });
    drop((callers, second));
}

#[test]
fn calls_are_right_over_a_link_that_loses_packets_and_is_slow() {
    let Some(site) = Site::new() else { return };
    if !["a", "c"].iter().all(|host| site.hosts.host(host).lose(1)) {
        return;
    }
    site.hosts.host("c").limit(Some(100));
    for provider in PROVIDERS {
        let start = Instant::now();
        if site.call(provider, "behaved", &["few"]).is_some() {
            eprintln!("{provider}: {:?}", start.elapsed());
        }
        site.until_free();
    }
}

#[test]
fn calls_are_right_where_packets_are_late_overtaken_and_repeated() {
    let Some(hosts) = Hosts::with_meddlers(&["m", "a", "c"], &["c"]) else {
        return;
    };
    let site = Site::on(hosts, &[]);
    let meddling = Meddling {
        delay: Duration::from_millis(1),
        reorder_one_of: 7,
        repeat_one_of: 11,
        lose_one_of: 0,
    };
    site.hosts.meddle("c", meddling);
    for provider in PROVIDERS {
        let start = Instant::now();
        if site.call(provider, "behaved", &["few"]).is_some() {
            eprintln!("{provider}: {:?}", start.elapsed());
        }
        site.until_free();
    }
    let done = site.hosts.meddle("c", Meddling::default());
    eprintln!("{done:?}");
    assert!(
        done.overtaken > 10 && done.repeated > 10,
        "no packet was changed: {done:?}"
    );
}
