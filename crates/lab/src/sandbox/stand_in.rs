//! Stand-in for an agent, as the target of attempts to escape: this process, made vulnerable on purpose, so that only
//! the sandbox protects it.

use anyhow::Context;
use hotlease_escape::allow_tracing;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

/// Contents of the shared image's only module.
const MODULE: &str = "answer = 42\n";
/// Files of the image: the module, and two links.
const FILES: usize = 3;

/// The resources of an agent, with a secret in them.
pub(super) struct StandIn {
    secret: Arc<String>,
    folder: TempDir,
    signals: Arc<AtomicUsize>,
    descriptors: usize,
    // Not closed on exec, so a started program inherits these files if its sandbox does not close descriptors.
    _leaked: [File; 2],
}

impl StandIn {
    /// Must be called in a tokio runtime, and before any other process starts that could inherit descriptors from this
    /// process.
    pub(super) fn new(secret: Arc<String>) -> anyhow::Result<Self> {
        allow_tracing();
        let folder = tempfile::Builder::new()
            .prefix("hotlease-escape-agent-")
            .tempdir()
            .context("cannot make a folder for temporary files")?;
        let socket = UnixListener::bind(folder.path().join("agent.sock")).context("cannot make a socket")?;
        let told = Arc::clone(&secret);
        tokio::spawn(async move {
            while let Ok((stranger, _)) = socket.accept().await {
                // The text is small enough for the buffer of any socket.
                let _ = stranger.try_write(told.as_bytes());
            }
        });
        let signals = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&signals);
        let mut urgent = signal(SignalKind::from_raw(Signal::SIGURG as i32))?;
        tokio::spawn(async move {
            while urgent.recv().await.is_some() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let leaked = folder.path().join("leaked");
        File::create(&leaked)?.write_all(secret.as_bytes())?;
        let leaked = [File::open(leaked)?, File::open(folder.path())?];
        for file in &leaked {
            fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let mut stand_in = Self {
            secret,
            folder,
            signals,
            descriptors: 0,
            _leaked: leaked,
        };
        fs::create_dir(stand_in.image())?;
        stand_in.restore()?;
        Ok(stand_in)
    }

    /// Folder that stands for an image that many sandboxes share.
    pub(super) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Environment variables that tell attempts where the secrets of this process are. The names are without their
    /// prefix.
    pub(super) fn secret_places(&self) -> Vec<(String, String)> {
        let shown = |path: &Path| path.display().to_string();
        let mut given = vec![
            ("AGENT", std::process::id().to_string()),
            ("AGENT_ADDRESS", (self.secret.as_ptr() as usize).to_string()),
            ("AGENT_SOCKET", shown(&self.folder.path().join("agent.sock"))),
            ("IMAGE", shown(&self.image())),
        ];
        if let Some(home) = std::env::home_dir() {
            given.push(("AGENT_HOME", shown(&home)));
        }
        given
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// Restores the initial state before an attempt.
    pub(super) fn restore(&mut self) -> anyhow::Result<()> {
        let image = self.image();
        for entry in fs::read_dir(&image)?.flatten() {
            fs::remove_file(entry.path())?;
        }
        fs::write(image.join("module.py"), MODULE)?;
        fs::set_permissions(image.join("module.py"), fs::Permissions::from_mode(0o644))?;
        // Links that lead out of the image.
        symlink("../leaked", image.join("relative"))?;
        symlink(self.folder.path().join("leaked"), image.join("absolute"))?;
        self.signals.store(0, Ordering::Relaxed);
        self.descriptors = descriptors();
        Ok(())
    }

    /// Changes by the attempt since the last [`restore`](Self::restore).
    pub(super) fn harm(&self) -> Vec<String> {
        let image = self.image();
        let module = image.join("module.py");
        let files = fs::read_dir(&image).map(|entries| entries.count()).unwrap_or(0);
        let mode = fs::metadata(&module).map(|about| about.permissions().mode() & 0o777);
        let text = fs::read_to_string(&module);
        let mut harm = Vec::new();
        if files != FILES || !text.is_ok_and(|text| text == MODULE) || !mode.is_ok_and(|mode| mode == 0o644) {
            harm.push("the shared image was changed".to_owned());
        }
        let signals = self.signals.load(Ordering::Relaxed);
        if signals > 0 {
            harm.push(format!("the agent got {signals} signals"));
        }
        let more = descriptors().saturating_sub(self.descriptors);
        // Up to 64 more are no harm: some descriptors come and go with the runtime and the events that it waits for.
        if more > 64 {
            harm.push(format!("the agent has {more} descriptors more than before the attempt"));
        }
        harm
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd")
        .map(|entries| entries.count())
        .unwrap_or(0)
}

/// Resident memory of this process, bytes; 0 if unknown.
pub(super) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
