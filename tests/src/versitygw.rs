//! A store that speaks S3: versitygw, which serves a folder. The module uses no other module, because tests of
//! `crates/comm` use this file, too.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Access key that may do everything in the store.
pub const ACCESS: &str = "member";
/// Secret of this access key.
pub const SECRET: &str = "right-secret";

/// A running store; the store and its content are removed when it is dropped.
pub struct Versitygw {
    port: u16,
    server: Child,
    directory: TempDir,
}

/// Path at which scripts/setup puts the program: in the folder in which this program was built.
fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    let target = tests.ancestors().nth(3).expect("a folder of cargo's");
    target.join("versitygw/versitygw")
}

impl Versitygw {
    /// Starts a store with these buckets. If the program is missing, prints that and returns `None`.
    ///
    /// # Panics
    /// If the store does not start.
    pub fn start(buckets: &[&str]) -> Option<Self> {
        if !program().is_file() {
            eprintln!(
                "skipped for S3: there is no versitygw (`make setup-tests` builds it where there is Go; target/versitygw/log says how far that is)"
            );
            return None;
        }
        let mut servers = (0..5).filter_map(|_| Self::try_start(buckets));
        Some(servers.next().expect("versitygw starts"))
    }

    fn try_start(buckets: &[&str]) -> Option<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| {
            let place = directory.path().join(name);
            std::fs::create_dir_all(&place).expect("a folder");
            place
        };
        for bucket in buckets {
            place(&format!("data/{bucket}"));
        }
        let mut command = Command::new(program());
        command.args(["--access", ACCESS, "--secret", SECRET]);
        command.arg("--port").arg(format!("127.0.0.1:{port}")).arg("posix");
        command.arg("--sidecar").arg(place("attributes")).arg(place("data"));
        let server = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut started = Self {
            port,
            server,
            directory,
        };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if started.server.try_wait().expect("it is ours").is_some() {
                return None;
            }
            assert!(begun.elapsed() < STARTS_WITHIN, "versitygw does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(started)
    }

    /// Address of the store.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Process number of the store.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// The folder of a bucket.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        // The store has files of its own beside the buckets.
        self.directory.path().join("data").join(bucket)
    }

    /// Objects of a bucket.
    pub fn objects(&self, bucket: &str) -> Vec<PathBuf> {
        fn files(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => files(&path, found),
                    path => found.push(path),
                }
            }
        }
        let mut found = Vec::new();
        files(&self.bucket(bucket), &mut found);
        found
    }
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
