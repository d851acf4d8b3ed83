//! PostgreSQL server of the tests. It has a directory of its own and a Unix socket, runs as a user without privileges,
//! and ends with the tests.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// User that runs the server if the tests run as root, which PostgreSQL refuses: `nobody`.
pub(crate) const UNPRIVILEGED: u32 = 65_534;
/// Port of a server without TCP.
const PORT: u16 = 5432;
/// Time limit for the server's start, on a loaded node.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A server. When it is dropped, it ends, and its directory is removed.
pub(crate) struct Server {
    pub(crate) directory: TempDir,
    pid: Pid,
    /// Waits for the server's end.
    waiter: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // On this signal the server ends at once, with all its processes. It may have ended already.
        let _ = kill(self.pid, Signal::SIGQUIT);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// An empty database. Dereferences to the parameters of a connection to it.
pub(crate) struct Database {
    parameters: String,
    _server: Arc<Server>,
}

impl Deref for Database {
    type Target = str;

    fn deref(&self) -> &str {
        &self.parameters
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = debian.chain(std::env::split_paths(&path).collect::<Vec<_>>());
    places.map(|place| place.join(name)).find(|program| program.is_file())
}

/// Command that runs `program` as a user who may run a server. The process is killed when the thread that starts it
/// ends.
fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if nix::unistd::Uid::effective().is_root() {
        let user = UNPRIVILEGED.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    command.arg(program).current_dir(directory).stdin(Stdio::null());
    command
}

/// Makes the data of a server. initdb takes a second or two, and its result is the same each time. So the result is
/// kept in Cargo's folder for files of tests, and copied from there.
fn make_data(initdb: &Path, directory: &Path, data: &Path) {
    let version = Command::new(initdb).arg("--version").output().expect("initdb runs");
    let version =
        String::from_utf8_lossy(&version.stdout).replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
    let user = nix::unistd::Uid::effective();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-of-{user}", version.trim_matches('-')));
    if kept.exists() {
        return copy(&kept, data);
    }
    let mut init = command(initdb, directory);
    init.args([
        "--no-sync",
        "--auth=trust",
        "--username=hotlease",
        "--encoding=UTF8",
        "--locale=C",
        "-D",
    ]);
    let output = init.arg(data).output().expect("initdb runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "initdb: {text}");
    let new = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    copy(data, &new.path().join("data"));
    // If another test was faster, the rename fails, and this test's data is removed.
    let _ = fs::rename(new.path().join("data"), &kept);
}

/// Copies a folder with its owners and permissions.
fn copy(from: &Path, to: &Path) {
    let output = Command::new("cp").arg("-a").args([from, to]).output().expect("cp runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cp: {text}");
}

/// Starts a server with these settings; `prepare` gets the server's folder and its data before the start. Returns
/// `None` if PostgreSQL is not installed. The port is also in the name of the Unix socket.
pub(crate) fn start(port: u16, settings: &[&str], prepare: impl FnOnce(&Path, &Path)) -> Option<Server> {
    let (initdb, postgres) = (program("initdb")?, program("postgres")?);
    program("setpriv")?;
    let made = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir();
    let directory = made.expect("a directory");
    if nix::unistd::Uid::effective().is_root() {
        chown(directory.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may");
    }
    let data = directory.path().join("data");
    make_data(&initdb, directory.path(), &data);
    prepare(directory.path(), &data);
    let mut server = command(&postgres, directory.path());
    server.arg("-D").arg(&data).arg("-k").arg(directory.path());
    server.args([
        "-c",
        "listen_addresses=",
        "-c",
        "max_connections=200",
        "-c",
        "log_min_messages=fatal",
    ]);
    server.args(settings.iter().flat_map(|setting| ["-c", setting]));
    server.args(["-p", &port.to_string()]);
    let log = fs::File::create(directory.path().join("log")).expect("a log");
    server.stdout(Stdio::null()).stderr(log);
    let (sender, started) = mpsc::channel();
    // The parent-death signal is tied to the thread that starts the process, so this thread must stay.
    let waiter = thread::spawn(move || {
        let mut child = server.spawn().expect("postgres starts");
        let _ = sender.send(child.id());
        let status = child.wait();
        eprintln!("the tests' PostgreSQL ended: {status:?}");
    });
    let pid = started.recv().expect("postgres starts");
    let server = Server {
        directory,
        pid: Pid::from_raw(pid.cast_signed()),
        waiter: Some(waiter),
    };
    let directory = server.directory.path();
    let socket = directory.join(format!(".s.PGSQL.{port}"));
    let begun = Instant::now();
    let parameters = parameters(directory, port, "postgres");
    while !socket.exists() || postgres::Client::connect(&parameters, postgres::NoTls).is_err() {
        assert!(
            begun.elapsed() < STARTS_WITHIN,
            "PostgreSQL does not start: {}",
            fs::read_to_string(directory.join("log")).unwrap_or_default()
        );
        thread::sleep(Duration::from_millis(20));
    }
    Some(server)
}

/// Parameters of a connection over the Unix socket.
pub(crate) fn parameters(directory: &Path, port: u16, database: &str) -> String {
    format!(
        "host={} port={port} user=hotlease dbname={database}",
        directory.display()
    )
}

/// Makes a new, empty database. Prints a message and returns `None` if PostgreSQL is not installed. All databases that
/// a process has at the same time are on one server.
pub(crate) fn new_database() -> Option<Database> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    static DATABASES: AtomicU64 = AtomicU64::new(0);
    let mut running = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = match running.upgrade() {
        Some(server) => server,
        None => {
            let Some(server) = start(PORT, &[], |_, _| {}) else {
                eprintln!("skipped for PostgreSQL: it is not installed (Debian: postgresql)");
                return None;
            };
            let server = Arc::new(server);
            *running = Arc::downgrade(&server);
            server
        }
    };
    drop(running);
    let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let connected = postgres::Client::connect(&parameters(server.directory.path(), PORT, "postgres"), postgres::NoTls);
    connected
        .and_then(|mut client| client.batch_execute(&format!("CREATE DATABASE {name}")))
        .expect("a database");
    Some(Database {
        parameters: parameters(server.directory.path(), PORT, &name),
        _server: server,
    })
}
