//! One host: its link, its files, and programs and threads on it.

use super::namespace::{Addresses, Namespace, ip, run};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, setrlimit};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// Number of the capability to lock memory beyond the limit, in linux/capability.h.
const CAP_IPC_LOCK: libc::c_ulong = 14;

/// A host, or with [`Host::here`] this machine as it is.
pub struct Host {
    name: String,
    network: Option<Network>,
    /// Files of the host, as the test sees them.
    directory: PathBuf,
    /// Directory of these files, as the host's programs see it: every host has its own directory at the same path, as
    /// real hosts do.
    run: PathBuf,
    addresses: Addresses,
    /// Variables of the host's programs, in addition to the variables that all programs have.
    environment: Mutex<Vec<(String, OsString)>>,
    /// Whether the host's programs may lock no memory.
    unlocked: AtomicBool,
    _own: Option<TempDir>,
}

struct Network {
    namespace: Namespace,
    port: String,
    hub: String,
}

/// Prepared steps by which a thread or process enters a host.
struct Entry {
    namespace: File,
    directory: PathBuf,
    run: PathBuf,
}

impl Entry {
    /// Enters the host. Makes only system calls on prepared data, so it may run between fork and exec.
    fn enter(&self) -> nix::Result<()> {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        const NONE: Option<&str> = None;
        // Otherwise the mount below would be visible in all namespaces.
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
        mount(Some(&self.directory), &self.run, NONE, MsFlags::MS_BIND, NONE)
    }
}

impl Host {
    pub(super) fn new(
        name: &str,
        namespace: Namespace,
        port: String,
        hub: &str,
        addresses: Addresses,
        files: &Path,
    ) -> Self {
        let (directory, run) = (files.join(name), files.join("run"));
        for made in [&directory, &run] {
            fs::create_dir_all(made).expect("a directory");
            fs::set_permissions(made, Permissions::from_mode(0o700)).expect("made private");
        }
        Self {
            name: name.to_owned(),
            network: Some(Network {
                namespace,
                port,
                hub: hub.to_owned(),
            }),
            directory,
            run,
            addresses,
            environment: Mutex::default(),
            unlocked: AtomicBool::new(false),
            _own: None,
        }
    }

    /// This machine, with a separate directory.
    pub fn here() -> Self {
        let own = crate::platform::private_directory();
        Self {
            name: "here".into(),
            network: None,
            directory: own.path().to_owned(),
            run: own.path().to_owned(),
            addresses: Addresses {
                v4: Some(Ipv4Addr::LOCALHOST),
                v6: Ipv6Addr::LOCALHOST,
            },
            environment: Mutex::default(),
            unlocked: AtomicBool::new(false),
            _own: Some(own),
        }
    }

    /// Name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address of the host; its IPv6 address only if it has no IPv4 address.
    pub fn address(&self) -> IpAddr {
        self.addresses.v4.map_or(self.address_v6(), IpAddr::V4)
    }

    /// IPv6 address of the host.
    pub fn address_v6(&self) -> IpAddr {
        self.addresses.v6.into()
    }

    /// Directory of the host's files, as the test sees it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runtime directory, as the host's programs see it.
    pub fn runtime_dir(&self) -> &Path {
        &self.run
    }

    /// Puts a variable into the environment of programs that are started from now on.
    pub fn set_variable(&self, name: &str, value: impl Into<OsString>) {
        let mut environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner);
        environment.push((name.to_owned(), value.into()));
    }

    /// Forbids programs that are started from now on to lock memory, root or not.
    pub fn forbid_locked_memory(&self) {
        self.unlocked.store(true, Ordering::Relaxed);
    }

    fn entry(&self) -> Option<Entry> {
        self.network.as_ref().map(|network| Entry {
            namespace: network.namespace.open(),
            directory: self.directory.clone(),
            run: self.run.clone(),
        })
    }

    /// A program on this host, with its runtime directory; it ends with the test program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOTLEASE_RUNTIME_DIR", &self.run)
            .env_remove("HOTLEASE_MANAGER")
            .env_remove("HOTLEASE_IDENTITY")
            .env_remove("HOTLEASE_KEY_FILE")
            .env_remove("HOTLEASE_TOKEN_FILE")
            .env_remove("HOTLEASE_MUNGE")
            .stdin(Stdio::null());
        let environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let entry = self.entry();
        let unlocked = self.unlocked.load(Ordering::Relaxed);
        // SAFETY: system calls only, on data that this closure owns; prctl is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if unlocked {
                    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?;
                    // Root also lacks a capability after the exec if it is not in the bounding set.
                    libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
                }
                match &entry {
                    Some(entry) => entry.enter().map_err(io::Error::from),
                    None => Ok(()),
                }
            });
        }
        command
    }

    /// Runs `work` in a thread on this host; threads that it starts are on this host, too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let entry = self.entry();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if let Some(entry) = entry {
                    entry.enter().expect("the host is there");
                }
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn network(&self) -> &Network {
        self.network.as_ref().expect("this machine's own link stays as it is")
    }

    /// Plugs the host's cable in, or pulls it out. Addresses and routes stay.
    pub fn link(&self, up: bool) {
        let network = self.network();
        let state = if up { "up" } else { "down" };
        ip(&["-n", &network.hub, "link", "set", &network.port, state]).expect("its link");
    }

    /// Bytes that the host has sent over its link.
    pub fn sent_bytes(&self) -> u64 {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let text = text.expect("its interfaces");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:"));
        let sent = line.and_then(|line| line.split_whitespace().nth(8));
        sent.and_then(|sent| sent.parse().ok()).expect("a number of bytes")
    }

    fn nft(&self, arguments: &[&str]) -> Result<String, String> {
        let inside = ["netns", "exec", self.network().namespace.name(), "nft"];
        run("ip", &[&inside, arguments].concat())
    }

    /// Loses this percentage of the packets that arrive, of all kinds; 0 for none. Prints a message and returns false
    /// if the program `nft` is missing.
    pub fn lose(&self, percent: u32) -> bool {
        if let Err(error) = run("nft", &["--version"]) {
            eprintln!("skipped: losing packets needs nftables: {error}");
            return false;
        }
        self.filter(&match percent {
            0 => "accept".to_owned(),
            1..100 => format!("numgen random mod 100 < {percent} drop"),
            _ => "drop".to_owned(),
        });
        true
    }

    /// Loses every packet that arrives, while packets that leave pass: a fault in one direction.
    pub fn deaf(&self, deaf: bool) -> bool {
        self.lose(if deaf { 100 } else { 0 })
    }

    /// Loses every packet that arrives from another host; `None`: loses no packets.
    pub fn deaf_to(&self, other: Option<&Host>) -> bool {
        let can = self.lose(0);
        if let Some(other) = other.filter(|_| can) {
            let (v4, v6) = (other.address(), other.address_v6());
            let mut rule = format!("ip6 saddr {v6} drop");
            if v4.is_ipv4() {
                rule = format!("ip saddr {v4} drop\niifname != \"lo\" {rule}");
            }
            self.filter(&rule);
        }
        can
    }

    fn filter(&self, rule: &str) {
        // Packets of the loopback interface are not filtered.
        let text = [
            "table inet test",
            "delete table inet test",
            "table inet test {",
            "chain arriving {",
            "type filter hook input priority 0;",
            &format!("iifname != \"lo\" {rule}"),
            "}",
            "}",
            "",
        ]
        .join("\n");
        let file = self.directory.join("rules.nft");
        fs::write(&file, text).expect("a file of rules");
        self.nft(&["-f", &file.display().to_string()]).expect("rules");
    }

    /// Limits the rate at which the host sends; `None`: no limit.
    pub fn limit(&self, megabit_per_second: Option<u32>) {
        let name = self.network().namespace.name();
        let tc = |arguments: &[&str]| run("tc", &[&["-n", name, "qdisc"], arguments].concat());
        // There may be no limit yet.
        let _ = tc(&["del", "dev", "eth0", "root"]);
        if let Some(rate) = megabit_per_second {
            let rate = format!("{rate}mbit");
            let bucket = ["burst", "128kb", "latency", "100ms"];
            let add = ["add", "dev", "eth0", "root", "tbf", "rate", &rate];
            tc(&[&add[..], &bucket].concat()).expect("a token bucket");
        }
    }
}
