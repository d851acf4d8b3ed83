//! Start times of workers in containers until they are ready for orders, compared with the same program started by the
//! container runtime itself. Medians in milliseconds; the rounds of the variants alternate.
//!
//! ```sh
//! cargo run --release --package hotlease-sandbox --example container_times [ROUNDS]
//! ```
//!
//! `prepared`: the nursery had a sandbox ready, which is usual unless leases begin faster than it makes sandboxes.
//! `fresh`: the nursery had to make the sandbox. `alone`: the runtime, started by hand with the same folders,
//! namespaces, limits and list of system calls, as far as the runtime supports these.

#![allow(clippy::print_stdout, reason = "its result")]

use hotlease_nursery::container::bundle;
use hotlease_sandbox::{Container, Kind, Launcher, Policy, Process, WorkerReach};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use serde_json::json;
use std::error::Error;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Folders of the system's own programs and libraries.
const SYSTEM: [&str; 5] = ["usr", "bin", "sbin", "lib", "lib64"];
const INSIDE: &str = "/hotlease-worker";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(50), |text| text.parse())?;
    let worker = match Launcher::find() {
        Ok(found) => found,
        // Examples lie one folder deeper than programs.
        Err(_) => std::env::current_exe()?.with_file_name("../hotlease-worker"),
    };
    let worker = worker.canonicalize()?;
    println!(
        "{:<10} {:>9} {:>9} {:>9} {:>10} {:>10}",
        "ready, ms", "prepared", "fresh", "alone", "prepared %", "fresh %"
    );
    for runtime in ["crun", "ch-run"] {
        let launcher = Launcher::new(&worker)?.with_container(Container {
            runtime: runtime.into(),
            image: None,
        });
        let unprepared = launcher.clone().with_policy(Policy {
            prepared: 0,
            ..Policy::default()
        });
        if let Err(why) = launcher
            .check_available(Kind::Container)
            .and_then(|()| unprepared.check_available(Kind::Container))
        {
            println!("{runtime:<10} skipped: {why}");
            continue;
        }
        let alone = Alone::new(runtime, &worker)?;
        if let Err(why) = alone.once(rounds) {
            println!("{runtime:<10} skipped: it does not start by hand: {why}");
            continue;
        }
        let mut times = [const { Vec::new() }; 3];
        for round in 0..rounds {
            times[0].push(ours(&launcher).await?);
            times[1].push(ours(&unprepared).await?);
            times[2].push(alone.once(round)?);
            // Gives the nursery time to prepare the next sandbox.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let [prepared, fresh, alone] = times.map(median);
        let over = |of: f64| (of / alone - 1.0) * 100.0;
        println!(
            "{runtime:<10} {prepared:>9.3} {fresh:>9.3} {alone:>9.3} {:>+10.1} {:>+10.1}",
            over(prepared),
            over(fresh)
        );
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn control() -> Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Waits for the worker's first message.
fn await_ready(ours: &OwnedFd) -> Result<bool> {
    Ok(recv(ours.as_raw_fd(), &mut [0; 256], MsgFlags::empty())? > 0)
}

async fn ours(launcher: &Launcher) -> Result<Duration> {
    let (ours, theirs) = control()?;
    let begin = Instant::now();
    let process: Process = launcher.start(Kind::Container, None, &WorkerReach::default(), theirs)?;
    if !await_ready(&ours)? {
        return Err(format!("the worker ended: {}", process.exited().await.output).into());
    }
    let ready = begin.elapsed();
    process.kill();
    process.exited().await;
    Ok(ready)
}

/// A container runtime that is started by hand.
struct Alone {
    runtime: &'static str,
    worker: PathBuf,
    folder: tempfile::TempDir,
}

impl Alone {
    fn new(runtime: &'static str, worker: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path().join("root");
        for name in ["dev", "etc", "home", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(name))?;
        }
        fs::write(root.join(&INSIDE[1..]), "")?;
        let mut mounts = Vec::new();
        for name in SYSTEM {
            let path = Path::new("/").join(name);
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => symlink(fs::read_link(&path)?, root.join(name))?,
                Ok(_) => {
                    fs::create_dir(root.join(name))?;
                    mounts.push(bind(&path, &path)?);
                }
                Err(_) => {}
            }
        }
        mounts.push(bind(worker, Path::new(INSIDE))?);
        for (kind, at) in [
            ("proc", "/proc"),
            ("tmpfs", "/tmp"),
            ("tmpfs", "/dev"),
            ("tmpfs", "/dev/shm"),
        ] {
            mounts.push(json!({ "type": kind, "source": kind, "destination": at }));
        }
        let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let mapped = |outside| json!([{ "containerID": 0, "hostID": outside, "size": 1 }]);
        let namespaces: Vec<_> = ["pid", "mount", "ipc", "uts", "network", "cgroup", "user"]
            .map(|name| json!({ "type": name }))
            .into();
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": [INSIDE],
                "env": ["HOME=/tmp"],
                "cwd": "/",
                "capabilities": {},
                "noNewPrivileges": true,
            },
            "root": { "path": root.to_str().ok_or("a folder's name is no text")?, "readonly": true },
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                "uidMappings": mapped(user),
                "gidMappings": mapped(group),
                "seccomp": bundle::system_calls(false),
            },
        });
        fs::write(folder.path().join("config.json"), config.to_string())?;
        Ok(Self {
            runtime,
            worker: worker.to_owned(),
            folder,
        })
    }

    fn start(&self, round: usize, control: OwnedFd) -> Result<Child> {
        let folder = self.folder.path();
        let mut command = Command::new(self.runtime);
        match self.runtime {
            "crun" => {
                command.arg("--root").arg(folder.join("state"));
                command
                    .args(["--cgroup-manager=disabled", "run", "--bundle"])
                    .arg(folder);
                command.arg(format!("alone-{round}"));
            }
            _ => {
                command.env("USER", "user").arg("--no-passwd");
                for name in SYSTEM.map(|name| Path::new("/").join(name)) {
                    if fs::symlink_metadata(&name)?.is_dir() {
                        command.arg("--bind").arg(name);
                    }
                }
                command.arg("--bind").arg(format!("{}:{INSIDE}", self.worker.display()));
                command.arg(folder.join("root")).args(["--", INSIDE]);
            }
        }
        Ok(command.stdin(Stdio::from(control)).spawn()?)
    }

    fn once(&self, round: usize) -> Result<Duration> {
        let (ours, theirs) = control()?;
        let begin = Instant::now();
        let mut child = self.start(round, theirs)?;
        if !await_ready(&ours)? {
            return Err(format!("{} ended: {}", self.runtime, child.wait()?).into());
        }
        let ready = begin.elapsed();
        // This ends the worker, and then the runtime.
        drop(ours);
        child.wait()?;
        Ok(ready)
    }
}

fn bind(source: &Path, target: &Path) -> Result<serde_json::Value> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path is no text");
    Ok(json!({
        "type": "bind",
        "source": text(source)?,
        "destination": text(target)?,
        "options": ["rbind", "ro"],
    }))
}
