//! Network namespaces, by the program `ip`.

use crate::process::Process;
use nix::sched::{CloneFlags, setns};
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::process::Command;

/// Addresses of a host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    /// IPv4 address, unless the host has none.
    pub v4: Option<Ipv4Addr>,
    pub v6: Ipv6Addr,
}

/// Runs `ip`; the error is its output.
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
        let namespace = Self { name: name.to_owned() };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the namespace, to enter it.
    pub fn open(&self) -> File {
        File::open(format!("/run/netns/{}", self.name)).expect("the namespace's file")
    }

    /// Runs `ip` in this namespace.
    pub fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat()).expect("configured");
    }

    /// Makes a link `eth0` here, whose other end is `port` at the hub.
    pub fn cable(&self, hub: &Self, port: &str) {
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
    }

    /// Makes a network interface here whose cable ends in a descriptor: reading it returns what was sent, and what is
    /// written to it arrives.
    pub fn tap(&self, name: &str) -> File {
        let namespace = self.open();
        let open = move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            let tap = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
            // SAFETY: all zero is a request of no name and no flags.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
                *to = from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
            // SAFETY: a descriptor of the device, and a request that outlives the call.
            match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &request) } {
                0 => Ok(tap),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // A separate thread, so that only this thread enters the namespace.
        let opened = std::thread::scope(|scope| scope.spawn(open).join());
        let opened: io::Result<File> = opened.expect("no panic");
        opened.unwrap_or_else(|error| panic!("/dev/net/tun: {error}"))
    }

    /// Configures both ends of a cable: the hub's end joins its bridge, `eth0` here gets addresses.
    pub fn join(&self, hub: &Self, port: &str, Addresses { v4, v6 }: Addresses) {
        hub.ip(&["link", "set", port, "master", "hub", "up"]);
        if let Some(v4) = v4 {
            self.ip(&["addr", "add", &format!("{v4}/24"), "dev", "eth0"]);
        }
        // No detection of duplicate addresses: there are none, and it takes seconds.
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

/// Removes the namespaces of test programs that were killed.
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
