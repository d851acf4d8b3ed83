//! The measured platform: a running one, or a private one.

use anyhow::{Context, bail, ensure};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_terminal::platform::Platform;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time for a private platform to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// File name of the program that runs platforms.
const HOTLEASE: &str = "hotlease";

/// A platform to measure.
pub(super) struct BenchPlatform {
    dir: RuntimeDir,
    /// The private platform, if one was started; it stops when the value is dropped.
    own: Option<PrivatePlatform>,
}

struct PrivatePlatform {
    child: Child,
    /// Parent of the platform's runtime directory; removed after the platform has stopped.
    _parent: TempDir,
}

impl BenchPlatform {
    /// Finds the running platform, or starts a private one.
    pub(super) fn find_or_start() -> anyhow::Result<Self> {
        let dir = RuntimeDir::resolve()?;
        match Platform::connect(&dir) {
            Ok(_) => Ok(Self { dir, own: None }),
            Err(_) => Self::private(None, &[]),
        }
    }

    /// Starts a private platform with this many workers in its warm pool, or with the default of `up` if `pool` is
    /// `None`, and with further arguments.
    pub(super) fn private(pool: Option<usize>, further: &[OsString]) -> anyhow::Result<Self> {
        let parent = TempDir::with_prefix("hotlease-bench-").context("cannot make a directory")?;
        let path = parent.path().join("run");
        let mut command = Command::new(hotlease()?);
        command
            .args(["--json", "up"])
            .env("HOTLEASE_RUNTIME_DIR", &path)
            .env("HOTLEASE_LOG", "warn");
        if let Some(pool) = pool {
            command.args(["--pool", &pool.to_string()]);
        }
        command.args(further);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a platform for the benchmark")?;
        let stdout = child.stdout.take();
        let own = PrivatePlatform { child, _parent: parent };
        // The platform prints one line when it serves. If it fails, it prints no line, and writes the reason to stderr.
        let mut ready = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout)
                .read_line(&mut ready)
                .context("cannot read from the platform")?;
        }
        ensure!(!ready.is_empty(), "the platform for the benchmark did not start");
        Ok(Self {
            dir: RuntimeDir::at(&path)?,
            own: Some(own),
        })
    }

    /// Runtime directory, which contains the platform's sockets.
    pub(super) fn runtime_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Whether no other client uses the platform.
    pub(super) fn is_private(&self) -> bool {
        self.own.is_some()
    }

    /// Process id of the platform's manager. With `up`, this process is the agent, too.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        Ok(Platform::connect(&self.dir)?.info()?.pid)
    }
}

impl Drop for PrivatePlatform {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let start = Instant::now();
        while start.elapsed() < STOP_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program `hotlease`, which runs platforms and managers. It is in the folder of this program, or in `bin` if this
/// program is in `libexec/hotlease`.
pub(super) fn hotlease() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find this program")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(HOTLEASE), folder.join("../../bin").join(HOTLEASE)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "the program {HOTLEASE} is missing ({} and {}); build it with `make build`",
            places[0].display(),
            places[1].display()
        ),
    }
}
