//! Network namespaces, by the program `ip`.

use crate::process::Process;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

/// Runs `ip`; its words if it fails.
pub(super) fn ip(arguments: &[&str]) -> Result<String, String> {
    run("ip", arguments)
}

pub(super) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {words}", arguments.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A namespace; removed on drop.
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new(name: &str) -> Self {
        ip(&["netns", "add", name]).expect("a network namespace");
        let namespace = Self {
            name: name.to_owned(),
        };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// To enter it.
    pub fn open(&self) -> File {
        File::open(format!("/run/netns/{}", self.name)).expect("the namespace's file")
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat()).expect("configured");
    }

    /// A link `eth0` here, which ends at the hub's bridge as `port`.
    pub fn join(&self, hub: &Self, port: &str, (v4, v6): (Ipv4Addr, Ipv6Addr)) {
        self.ip(&[
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            hub.name(),
        ]);
        hub.ip(&["link", "set", port, "master", "hub", "up"]);
        self.ip(&["addr", "add", &format!("{v4}/24"), "dev", "eth0"]);
        // No detection of duplicates: there are none, and it takes seconds.
        self.ip(&["addr", "add", &format!("{v6}/64"), "dev", "eth0", "nodad"]);
        self.ip(&["link", "set", "eth0", "up"]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            eprintln!("left behind: {error}");
        }
    }
}

/// Removes those of test programs that were killed.
pub(super) fn remove_stale() {
    let list = ip(&["netns", "list"]).unwrap_or_default();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    for name in names {
        let pid = name.strip_prefix("hlt-").and_then(|rest| rest.split('-').next());
        let gone = pid
            .and_then(|pid| pid.parse().ok())
            .is_some_and(|pid| Process::of(pid).is_none());
        if gone {
            // Another test program may be removing it as well.
            let _ = ip(&["netns", "del", name]);
        }
    }
}
