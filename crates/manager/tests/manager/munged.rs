//! A real `munged` for a test.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Daemon with its own key and socket; it ends when this is dropped.
pub struct Munged {
    dir: TempDir,
    daemon: Child,
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let dirs = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/sbin",
        "/usr/local/bin",
    ];
    dirs.iter()
        .map(|dir| PathBuf::from(dir).join(name))
        .find(|path| path.exists())
}

impl Munged {
    /// Starts the daemon. Returns `None`, and prints a message, if MUNGE is not installed.
    pub fn start() -> Option<Self> {
        let (Some(munged), Some(_)) = (program("munged"), program("munge")) else {
            eprintln!("skipped: munge is not installed (scripts/setup installs it)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key)
            .unwrap();
        file.write_all(&rand::random::<[u8; 32]>().repeat(4)).unwrap();
        drop(file);
        let option = |name: &str, file: &str| format!("--{name}={}", dir.path().join(file).display());
        let daemon = Command::new(munged)
            .args(["--foreground", "--force"])
            .arg(option("socket", "munge.sock"))
            .arg(option("key-file", "key"))
            .arg(option("pid-file", "munged.pid"))
            .arg(option("log-file", "munged.log"))
            .arg(option("seed-file", "munged.seed"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let munged = Self { dir, daemon };
        let until = Instant::now() + Duration::from_secs(30);
        while munged.try_credential("", &[]).is_none() {
            assert!(
                Instant::now() < until,
                "munged does not serve: {:?}",
                fs::read_to_string(munged.dir.path().join("munged.log"))
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(munged)
    }

    /// Socket of the daemon.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("munge.sock")
    }

    /// Makes a credential with these options of `munge`; `None` if that fails.
    pub fn try_credential(&self, payload: &str, options: &[&str]) -> Option<String> {
        let mut munge = Command::new(program("munge")?)
            .arg("--socket")
            .arg(self.socket())
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        munge.stdin.take()?.write_all(payload.as_bytes()).ok()?;
        let output = munge.wait_with_output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).expect("ASCII").trim().to_owned())
    }

    /// Makes a credential for this payload, restricted to the manager's user, as a client does.
    pub fn credential(&self, payload: &str) -> String {
        let uid = format!("--restrict-uid={}", nix::unistd::geteuid());
        self.try_credential(payload, &[&uid, "--ttl=60"])
            .expect("munged serves")
    }
}
