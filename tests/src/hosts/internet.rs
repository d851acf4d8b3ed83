//! A public network with hosts in it, and private networks behind NATs, on one machine.
//!
//! ```text
//!      public hosts                  10.0.0.2, 10.0.0.3 in every private network
//!   203.0.113.x │                      │
//!        ───────┴── hub ── 203.0.113.y ┴ router: nftables
//! ```
//!
//! Linux tracks every connection by both of its ends, so `masquerade` alone makes a port-restricted NAT (RFC 3489):
//! where possible it keeps the host's port, for every destination, and it lets in only answers. The other kinds are
//! variations of it (see [`Nat`]). One kind is missing: a NAT with one mapping for all destinations, but another port
//! than the host's; it differs from these kinds only in the port number. Packets that come in and belong to no
//! connection are dropped, as home routers do; a router that answers them with a reset delays the next attempt.

use super::namespace::{Namespace, remove_stale, run};
use nix::sched::{CloneFlags, setns};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Kind of NAT: the packets that a router lets in, and the ports that it gives to outgoing connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nat {
    /// Every packet to the router's address is passed to the only host behind it, from any sender.
    FullCone,
    /// A packet is passed to the only host if the host has sent something to the packet's address before, from any
    /// port.
    RestrictedCone,
    /// Only answers are let in.
    PortRestricted,
    /// Only answers are let in, and each connection has a random port outside (`masquerade fully-random`).
    Symmetric,
}

/// A public network with private networks behind NATs, as drawn above.
pub struct Internet {
    prefix: String,
    hub: Namespace,
    /// Routers, and the namespaces in which their private networks meet.
    routers: Vec<Namespace>,
    next: u8,
}

/// A host on the public network or on a private one.
pub struct Point {
    namespace: Namespace,
    /// Address of the host itself.
    pub address: Ipv4Addr,
    /// Address at which other hosts see the host: the router's, or the host's own.
    pub public: Ipv4Addr,
}

impl Internet {
    /// An internet without hosts; prints a message and returns `None` if the test is not root or a program is missing.
    ///
    /// # Panics
    /// If the test is root, and making the internet fails half-way.
    pub fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: hosts behind NATs need root");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("hlt-{}-net{number}", std::process::id());
        let probe = format!("{prefix}-probe");
        let in_it = [
            "netns",
            "exec",
            &probe,
            "nft",
            "add table ip probe { chain nat { type nat hook postrouting priority 100; masquerade; }; }",
        ];
        let steps: [&[&str]; 3] = [&["netns", "add", &probe], &in_it, &["netns", "del", &probe]];
        let tried = steps.map(|step| run("ip", step));
        if let Some(error) = tried.into_iter().find_map(Result::err) {
            eprintln!("skipped: hosts behind NATs need network namespaces, iproute2 and nftables: {error}");
            return None;
        }
        remove_stale();
        let hub = Namespace::new(&format!("{prefix}-hub"));
        hub.ip(&["link", "add", "hub", "type", "bridge", "stp_state", "0"]);
        hub.ip(&["link", "set", "hub", "up"]);
        Some(Self {
            prefix,
            hub,
            routers: Vec::new(),
            next: 1,
        })
    }

    fn number(&mut self) -> u8 {
        self.next += 1;
        self.next - 1
    }

    /// A host that all hosts can reach.
    pub fn public(&mut self) -> Point {
        let number = self.number();
        let namespace = Namespace::new(&format!("{}-{number}", self.prefix));
        let address = Ipv4Addr::new(203, 0, 113, number);
        namespace.cable(&self.hub, &format!("to-{number}"));
        self.hub
            .ip(&["link", "set", &format!("to-{number}"), "master", "hub", "up"]);
        namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        namespace.ip(&["link", "set", "eth0", "up"]);
        Point {
            namespace,
            address,
            public: address,
        }
    }

    /// A host with a public address, and a firewall that lets in only answers.
    pub fn firewalled(&mut self) -> Point {
        let host = self.public();
        let rules = [
            "table ip test {",
            "chain arriving { type filter hook input priority 0; policy drop;",
            "iifname lo accept",
            "ct state established,related accept",
            "}",
            "}",
            "",
        ];
        host.nft(&rules.join("\n"));
        host
    }

    /// Hosts of one private network; other private networks use the same addresses.
    ///
    /// # Panics
    /// If there are several hosts behind a NAT that allows only one.
    pub fn private<const HOSTS: usize>(&mut self, nat: Nat) -> [Point; HOSTS] {
        let router = self.public();
        let lan = Namespace::new(&format!("{}-lan{}", self.prefix, self.next));
        lan.ip(&["link", "add", "hub", "type", "bridge", "stp_state", "0"]);
        lan.ip(&["link", "set", "hub", "up"]);
        let inside = ["link", "add", "lan", "type", "veth", "peer", "name", "router", "netns"];
        router.namespace.ip(&[&inside[..], &[lan.name()]].concat());
        lan.ip(&["link", "set", "router", "master", "hub", "up"]);
        router.namespace.ip(&["addr", "add", "10.0.0.1/24", "dev", "lan"]);
        router.namespace.ip(&["link", "set", "lan", "up"]);
        router.inside(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a router"));
        let is_one = matches!(nat, Nat::PortRestricted | Nat::Symmetric) || HOSTS == 1;
        assert!(is_one, "{nat:?} sends all that comes to one host");
        router.nft(&rules(nat));
        let mut number = 1;
        let hosts = [(); HOSTS].map(|()| {
            number += 1;
            let address = Ipv4Addr::new(10, 0, 0, number);
            let namespace = Namespace::new(&format!("{}-{number}", lan.name()));
            let port = format!("to-{number}");
            namespace.cable(&lan, &port);
            lan.ip(&["link", "set", &port, "master", "hub", "up"]);
            namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
            namespace.ip(&["link", "set", "eth0", "up"]);
            namespace.ip(&["route", "add", "default", "via", "10.0.0.1"]);
            Point {
                namespace,
                address,
                public: router.address,
            }
        });
        self.routers.extend([router.namespace, lan]);
        hosts
    }
}

/// nftables rules of a router, between `lan` and `eth0`.
fn rules(nat: Nat) -> String {
    let (set, leaves, arrives, numbers) = match nat {
        Nat::FullCone => ("", "", "dnat to 10.0.0.2", ""),
        Nat::RestrictedCone => (
            "set asked { type ipv4_addr; flags dynamic,timeout; }",
            "update @asked { ip daddr timeout 1m }",
            "ip saddr @asked dnat to 10.0.0.2",
            "",
        ),
        Nat::PortRestricted => ("", "", "", ""),
        Nat::Symmetric => ("", "", "", "fully-random"),
    };
    let arriving = match arrives {
        "" => String::new(),
        arrives => format!("iifname eth0 {arrives}"),
    };
    [
        "table ip test {",
        set,
        "chain arriving { type nat hook prerouting priority -100;",
        &arriving,
        "}",
        "chain mine { type filter hook input priority 0; policy drop; ct state established,related accept; }",
        "chain passing { type filter hook forward priority 0; policy drop;",
        &format!("iifname lan oifname eth0 {leaves} accept"),
        "iifname eth0 ct state established,related accept",
        "iifname eth0 ct status dnat accept",
        "}",
        "chain leaving { type nat hook postrouting priority 100;",
        &format!("oifname eth0 masquerade {numbers}"),
        "}",
        "}",
        "",
    ]
    .join("\n")
}

impl Point {
    fn nft(&self, rules: &str) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        std::io::Write::write_all(&mut file, rules.as_bytes()).expect("written");
        let path = file.path().display().to_string();
        run("ip", &["netns", "exec", self.namespace.name(), "nft", "-f", &path]).expect("rules");
    }

    /// A program on this host. The started process becomes the program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name()]).arg(program);
        command
    }

    /// Runs `work` in a thread on this host; threads that it starts are on this host, too.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = self.namespace.open();
        let work = move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).expect("the host is there");
            work()
        };
        let ended = std::thread::scope(|scope| scope.spawn(work).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
