//! A Redis server for one test: it listens on loopback, keeps its data in memory, and ends after the test.

use hotlease_comm::LinkChoice;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum time that the server takes to start on a loaded host.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

pub struct Redis {
    pub port: u16,
    server: Child,
    directory: TempDir,
}

impl Redis {
    /// Starts a server. Returns `None`, with a message, if Redis is not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with these settings.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            eprintln!("skipped for Redis: it is not installed (Debian: redis-server)");
            return None;
        }
        // A port that was free a moment ago may be in use by now; then another port is tried.
        let mut servers = (0..5).filter_map(|_| Self::try_start(settings));
        Some(servers.next().expect("Redis starts"))
    }

    fn try_start(settings: &[&str]) -> Option<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(directory.path()).args(settings);
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut redis = Self {
            port,
            server: server.expect("it starts"),
            directory,
        };
        let begun = Instant::now();
        while redis.try_ask("PING").is_none() {
            if redis.server.try_wait().expect("it is ours").is_some() {
                return None;
            }
            assert!(begun.elapsed() < STARTS_WITHIN, "{:?}", redis.directory);
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }

    pub fn link(&self) -> LinkChoice {
        format!("redis://127.0.0.1:{}", self.port).parse().expect("a link")
    }

    fn try_ask(&self, command: &str) -> Option<String> {
        self.try_ask_all(command)?.into_iter().next()
    }

    fn try_ask_all(&self, command: &str) -> Option<Vec<String>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.lines().map(str::to_owned).collect())
    }

    /// First line of the server's answer.
    pub fn ask(&self, command: &str) -> String {
        self.try_ask(command).expect("it answers")
    }

    /// All lines of the server's answer.
    pub fn ask_all(&self, command: &str) -> Vec<String> {
        self.try_ask_all(command).expect("it answers")
    }

    /// Number in the server's answer.
    pub fn number(&self, command: &str) -> u64 {
        let answer = self.ask(command);
        answer.trim_start_matches(':').parse().expect("a number")
    }

    /// Number of keys in the server.
    pub fn keys(&self) -> u64 {
        self.number("DBSIZE")
    }

    pub fn pid(&self) -> u32 {
        self.server.id()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
