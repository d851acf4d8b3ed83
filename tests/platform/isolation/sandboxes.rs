//! Leases whose workers are in sandboxes of kinds `namespace` and `container`. Where the machine cannot make such
//! sandboxes the tests print why, and pass.

use crate::leases::until_all_cores_can_be_leased;
use hotlease_tests::lease::{LONG, RawLease};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::process::Process;
use hotlease_tests::session::RawSession;
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::grpc::{AcquireRequest, Directory, Grant, Reach, WorkerInfo};
use hotlease_wire::session::SessionReply;
use hotlease_wire::{Cause, Rejection};
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;

fn asked(sandbox: &str) -> AcquireRequest {
    AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ttl_ms: LONG.as_millis() as u64,
        hot_budget_us: 1000,
        sandbox: sandbox.into(),
        ..AcquireRequest::default()
    }
}

fn granted(platform: &Platform, sandbox: &str) -> Option<Grant> {
    match platform.manager().acquire(asked(sandbox)) {
        Ok(grant) => Some(grant),
        Err(Rejection::NoSandbox { why, .. }) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(refusal) => panic!("no lease: {refusal}"),
    }
}

fn worker_of(platform: &Platform, grant: &Grant) -> u32 {
    listed(platform, grant).pid
}

fn listed(platform: &Platform, grant: &Grant) -> WorkerInfo {
    // A listing leaves out an agent that takes too long to answer.
    let find = || {
        let mut workers = platform.manager().workers().expect("listed").into_iter();
        workers.find(|worker| worker.lease == grant.lease)
    };
    until("it is listed", LIMIT, find).0
}

/// The nursery of this platform: the kernel keeps 15 letters of its name.
fn nursery(platform: &Platform) -> Option<Process> {
    let all = platform.process().descendants();
    all.into_iter()
        .find(|process| process.describe().contains("hotlease-nurs"))
}

/// Checks that functions run in a sandbox of this kind, and that a crash is reported as outside of it; `has` checks
/// more of the worker with this process number.
fn a_crash_is_told_as_outside(kind: &str, has: impl Fn(u32)) {
    let platform = Platform::start();
    let Some(grant) = granted(&platform, kind) else {
        return;
    };
    let mut lease = RawLease::of(grant, &library("echo"));
    lease.echo();
    let pid = worker_of(&platform, &lease.grant);
    assert_eq!(listed(&platform, &lease.grant).sandbox, kind);
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).expect("it lives");
        assert_ne!(of(&pid.to_string()), of("self"), "its {namespace} namespace is ours");
    }
    has(pid);

    Process::of(pid as i32).expect("it lives").signal(Signal::SIGSEGV);
    let (event, _) = lease.session.event(LIMIT);
    let SessionReply::WorkerDied { cause, .. } = event else {
        panic!("{event:?}")
    };
    assert!(matches!(cause, Cause::Signal { signal: 11, .. }), "{cause}");
    lease.reconnect();
    lease.echo();
    assert_ne!(
        worker_of(&platform, &lease.grant),
        pid,
        "another one, in a sandbox of its own"
    );
    lease.session.release();
    until_all_cores_can_be_leased(&platform, LIMIT);
}

#[test]
fn functions_run_in_a_namespace_and_a_crash_is_told_as_outside() {
    a_crash_is_told_as_outside("namespace", |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        assert!(
            status.contains("Seccomp:\t2") && status.contains("CapBnd:\t0000000000000000"),
            "{status}"
        );
    });
}

#[test]
fn functions_run_in_a_container_and_a_crash_is_told_as_outside() {
    a_crash_is_told_as_outside("container", |_| ());
}

#[test]
fn many_short_leases_in_namespaces_leave_nothing() {
    let platform = Platform::start();
    if granted(&platform, "namespace")
        .map(|grant| RawSession::attached(&grant).release())
        .is_none()
    {
        return;
    }
    let agent = platform.process();
    let mut before = None;
    for round in 0..60 {
        let grant = granted(&platform, "namespace").expect("as before");
        let mut lease = RawLease::of(grant, &library("echo"));
        lease.echo();
        lease.session.release();
        until_all_cores_can_be_leased(&platform, LIMIT);
        if round == 10 {
            before = Some((agent.descriptors(), nursery(&platform).expect("it runs").descriptors()));
        }
    }
    let (of_agent, of_nursery) = before.expect("it came to round 10");
    let nursery = nursery(&platform).expect("it runs");
    until_true("what was for sandboxes is closed", LIMIT, || {
        agent.descriptors() <= of_agent + 8 && nursery.descriptors() <= of_nursery + 8
    });
    // Two prepared sandboxes; the sandbox of the spare worker, and the spare worker; and a sandbox that is just ending.
    until_true("sandboxes are gone", LIMIT, || nursery.descendants().len() <= 5);
}

#[test]
fn a_kind_that_the_node_cannot_make_or_does_not_know_is_refused_with_the_reason() {
    let platform = Platform::start_with(PlatformOptions {
        further: [
            ["--sandbox-container", "/no/such/crun"],
            ["--sandbox-kernel", "/no/such/vmlinuz-1"],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect(),
        ..PlatformOptions::default()
    });
    for kind in ["container", "microvm"] {
        let refusal = platform
            .manager()
            .acquire(asked(kind))
            .expect_err("neither a runtime nor machines");
        assert!(
            matches!(&refusal, Rejection::NoSandbox { kind: named, why } if named == kind && !why.is_empty()),
            "{refusal}"
        );
    }
    let refusal = platform.manager().acquire(asked("jail")).expect_err("nothing of ours");
    assert!(matches!(refusal, Rejection::BadRequest { .. }), "{refusal}");
    assert_eq!(platform.free_cores(), 2);
}

#[test]
fn a_site_s_kind_is_that_of_leases_which_name_none() {
    let platform = Platform::start();
    // Skips the test first: if the sandbox cannot be made, the agent below does not start.
    if granted(&platform, "namespace").is_none() {
        return;
    }
    drop(platform);
    let platform = Platform::start_with(PlatformOptions {
        further: vec!["--sandbox".into(), "namespace".into()],
        ..PlatformOptions::default()
    });
    for (kind, is_own) in [("", true), ("process", false)] {
        // The agent's own user may ask for weaker isolation.
        let grant = granted(&platform, kind).expect("as the agent's own user");
        let mut lease = RawLease::of(grant, &library("echo"));
        lease.echo();
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).expect("it lives");
        let pid = worker_of(&platform, &lease.grant);
        assert_eq!(of(&pid.to_string()) != of("self"), is_own, "{kind:?}");
        lease.session.release();
        until_all_cores_can_be_leased(&platform, LIMIT);
    }
}

/// Takes a lease in a namespace that asks for a directory, mounted at /data; `network`: also for the network.
fn reaching(platform: &Platform, path: &Path, network: bool) -> Result<Grant, Rejection> {
    let directory = Directory {
        path: path.display().to_string(),
        inside: "/data".into(),
        writable: true,
    };
    let reach = Reach {
        directories: vec![directory],
        network,
        ..Reach::default()
    };
    platform.manager().acquire(AcquireRequest {
        reach: Some(reach),
        ..asked("namespace")
    })
}

/// A folder whose owner is not root, because nothing in a sandbox writes root's files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(folder.path(), Some(54_321), Some(54_321)).expect("given");
    }
    folder
}

fn mounts_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("it lives")
}

#[test]
fn a_lease_reaches_what_it_declares_and_is_granted() {
    let platform = Platform::start();
    if granted(&platform, "namespace")
        .map(|grant| RawSession::attached(&grant).release())
        .is_none()
    {
        return;
    }
    let folder = folder();
    let grant = reaching(&platform, folder.path(), false).expect("its own user asks");
    let stated = grant.reach.clone().expect("stated");
    assert_eq!(stated.directories[0].path, folder.path().display().to_string());
    assert!(!stated.network, "the lease did not ask for it");
    let id = grant.lease.clone();
    let mut lease = RawLease::of(grant, &library("echo"));
    lease.echo();
    assert!(
        mounts_of(worker_of(&platform, &lease.grant)).contains(" /data rw"),
        "it is not there"
    );
    let listed = platform.manager().lease_info(&id).expect("listed");
    assert_eq!(listed.start.and_then(|start| start.reach), Some(stated));
    let explained = platform.json(&["explain", &id]);
    let reaches = explained[0]["reaches"].to_string();
    assert!(reaches.contains("to read and write"), "{reaches}");
    lease.session.release();
    until_all_cores_can_be_leased(&platform, LIMIT);

    let mut next = RawLease::of(granted(&platform, "namespace").expect("as before"), &library("echo"));
    next.echo();
    assert!(
        !mounts_of(worker_of(&platform, &next.grant)).contains(" /data "),
        "who has not asked sees it"
    );
    next.session.release();
    until_all_cores_can_be_leased(&platform, LIMIT);

    let missing = folder.path().join("missing");
    let refusal = reaching(&platform, &missing, false).expect_err("it is not there");
    let Rejection::OutOfReach { what, node, .. } = &refusal else {
        panic!("{refusal}")
    };
    assert!(what.contains("missing") && !node.is_empty(), "{refusal}");
    let refusal = reaching(&platform, folder.path(), true).expect_err("the site grants none");
    assert!(refusal.to_string().contains("--sandbox-network"), "{refusal}");
}

#[test]
fn a_network_is_for_leases_that_ask_for_it() {
    let platform = Platform::start_with(PlatformOptions {
        further: vec!["--sandbox-network".into()],
        ..PlatformOptions::default()
    });
    if granted(&platform, "namespace")
        .map(|grant| RawSession::attached(&grant).release())
        .is_none()
    {
        return;
    }
    until_all_cores_can_be_leased(&platform, LIMIT);
    let folder = folder();
    for (asks, grant) in [
        (true, reaching(&platform, folder.path(), true)),
        (false, reaching(&platform, folder.path(), false)),
    ] {
        let mut lease = RawLease::of(grant.expect("granted"), &library("echo"));
        lease.echo();
        let pid = worker_of(&platform, &lease.grant).to_string();
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).expect("it lives");
        assert_eq!(of(&pid) == of("self"), asks, "it asks for a network: {asks}");
        lease.session.release();
    }
}
