//! Several hosts on one machine: network namespaces, joined by veth pairs and a bridge.
//!
//! Every host has an address of each family, separate files, and a link that can be cut, slowed down, or made to lose
//! packets. Unlike real hosts they share processes, processors and the kernel.
//!
//! The bridge is in a separate namespace, so nothing is visible or changed outside. All namespaces of a test program
//! begin with `hlt-PID-`; the next test program removes the namespaces of killed test programs. Needs root.

mod host;
mod internet;
mod meddler;
mod namespace;
mod proxy;
pub mod slurm;

pub use host::Host;
pub use internet::{Internet, Nat, Point};
pub use meddler::Meddling;
pub use proxy::{Mischief, Proxy};

use meddler::Meddler;
use namespace::{Addresses, Namespace, remove_stale};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Hosts that can all reach each other.
pub struct Hosts {
    hosts: Vec<Host>,
    meddlers: Vec<(String, Meddler)>,
    /// Namespace in which the links meet.
    _hub: Namespace,
    _files: TempDir,
}

impl Hosts {
    /// Makes hosts with the given names. Prints a message and returns `None` if the test is not root, or the system
    /// cannot make hosts.
    ///
    /// # Panics
    /// If the test is root, and making the hosts fails half-way.
    pub fn new(names: &[&str]) -> Option<Self> {
        Self::make(names, true, &[])
    }

    /// Makes hosts with the given names, without IPv4 addresses.
    ///
    /// # Panics
    /// As [`Hosts::new`].
    pub fn of_ipv6(names: &[&str]) -> Option<Self> {
        Self::make(names, false, &[])
    }

    /// Makes hosts with the given names, and a meddler on the cable of each host of `meddled`; the meddlers change
    /// nothing yet.
    ///
    /// # Panics
    /// As [`Hosts::new`].
    pub fn with_meddlers(names: &[&str], meddled: &[&str]) -> Option<Self> {
        Self::make(names, true, meddled)
    }

    fn make(names: &[&str], ipv4: bool, meddled: &[&str]) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: several hosts on one machine need root");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("hlt-{}-{number}", std::process::id());
        // Root in a container may not be allowed to make namespaces.
        let probe = format!("{prefix}-probe");
        let probed = ["add", "del"].map(|step| namespace::ip(&["netns", step, &probe]));
        if let Some(error) = probed.into_iter().find_map(Result::err) {
            eprintln!("skipped: several hosts on one machine need network namespaces and iproute2: {error}");
            return None;
        }
        remove_stale();
        let hub = Namespace::new(&format!("{prefix}-hub"));
        hub.ip(&["link", "add", "hub", "type", "bridge", "stp_state", "0"]);
        hub.ip(&["link", "set", "hub", "up"]);
        let files = crate::platform::private_directory();
        let mut meddlers = Vec::new();
        let hosts = names.iter().zip(1..).map(|(name, position)| {
            let namespace = Namespace::new(&format!("{prefix}-{name}"));
            // At most 15 bytes. Equal names do not collide, because each is in its own namespace.
            let port = format!("to-{name}");
            let addresses = Addresses {
                v4: ipv4.then_some(Ipv4Addr::new(10, 77, 0, position)),
                v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, position.into()),
            };
            if meddled.contains(name) {
                let ends = [namespace.tap("eth0"), hub.tap(&port)];
                meddlers.push(((*name).to_owned(), Meddler::between(ends)));
            } else {
                namespace.cable(&hub, &port);
            }
            namespace.join(&hub, &port, addresses);
            Host::new(name, namespace, port, hub.name(), addresses, files.path())
        });
        Some(Self {
            hosts: hosts.collect(),
            meddlers,
            _hub: hub,
            _files: files,
        })
    }

    /// The host with the name `name`.
    ///
    /// # Panics
    /// If there is no host of this name.
    pub fn host(&self, name: &str) -> &Host {
        let found = self.hosts.iter().find(|host| host.name() == name);
        found.unwrap_or_else(|| panic!("no host {name}"))
    }

    /// Tells the meddler on a host's cable what to do from now on; returns counts of what the meddler has done so far.
    ///
    /// # Panics
    /// If there is no meddler on the host's cable.
    pub fn meddle(&self, name: &str, meddling: Meddling) -> meddler::MeddlerDone {
        let found = self.meddlers.iter().find(|(host, _)| host == name);
        let (_, meddler) = found.unwrap_or_else(|| panic!("there is no meddler at {name}"));
        meddler.set(meddling)
    }
}
