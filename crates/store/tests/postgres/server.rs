//! PostgreSQL server of the tests: in a directory of its own, on a Unix socket, as a user without privileges; it ends
//! with the tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// User that runs the server if the tests run as root, which PostgreSQL refuses: `nobody`.
pub(crate) const UNPRIVILEGED: u32 = 65_534;
/// Port of a server without TCP.
const PORT: u16 = 5432;
/// Time limit for its start, on a loaded node.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) directory: TempDir,
}

fn program(name: &str) -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = debian.chain(std::env::split_paths(&path).collect::<Vec<_>>());
    places.map(|place| place.join(name)).find(|program| program.is_file())
}

/// Command as a user that may run a server; it is killed when the thread that starts it ends.
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

/// Starts a server with these settings; `prepare` gets its folder and its data before it starts. `None`: PostgreSQL is not
/// installed. The port is also in the name of its Unix socket.
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
    let mut init = command(&initdb, directory.path());
    init.args([
        "--no-sync",
        "--auth=trust",
        "--username=hotlease",
        "--encoding=UTF8",
        "--locale=C",
        "-D",
    ]);
    let output = init.arg(&data).output().expect("initdb runs");
    assert!(
        output.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&output.stderr)
    );
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
    // The parent-death signal is tied to the thread that starts the process, so this thread must stay.
    thread::spawn(move || {
        let mut child = server.spawn().expect("postgres starts");
        let status = child.wait();
        eprintln!("the tests' PostgreSQL ended: {status:?}");
    });
    let socket = directory.path().join(format!(".s.PGSQL.{port}"));
    let begun = Instant::now();
    let parameters = parameters(directory.path(), port, "postgres");
    while !socket.exists() || postgres::Client::connect(&parameters, postgres::NoTls).is_err() {
        assert!(
            begun.elapsed() < STARTS_WITHIN,
            "PostgreSQL does not start: {}",
            fs::read_to_string(directory.path().join("log")).unwrap_or_default()
        );
        thread::sleep(Duration::from_millis(20));
    }
    Some(Server { directory })
}

/// Parameters of a connection over the Unix socket.
pub(crate) fn parameters(directory: &Path, port: u16, database: &str) -> String {
    format!(
        "host={} port={port} user=hotlease dbname={database}",
        directory.display()
    )
}

/// Parameters of a new, empty database; `None`, with a message, if PostgreSQL is not installed.
pub(crate) fn new_database() -> Option<String> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    static DATABASES: AtomicU64 = AtomicU64::new(0);
    let Some(server) = SERVER.get_or_init(|| start(PORT, &[], |_, _| {})) else {
        eprintln!("skipped for PostgreSQL: it is not installed (Debian: postgresql)");
        return None;
    };
    let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let connected = postgres::Client::connect(&parameters(server.directory.path(), PORT, "postgres"), postgres::NoTls);
    connected
        .and_then(|mut client| client.batch_execute(&format!("CREATE DATABASE {name}")))
        .expect("a database");
    Some(parameters(server.directory.path(), PORT, &name))
}
