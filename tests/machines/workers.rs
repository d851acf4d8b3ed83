//! Leases whose worker is in a machine.

use crate::{BOOT, Machines};
use hotlease_client::{Code, Directory, Error, Invoker, LeaseOptions, Reach, RunCertainty};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use hotlease_wire::Cause;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

/// A private folder with two folders that are shown to functions. Their owner is not root, because nothing in a sandbox
/// writes root's files.
struct Folders(tempfile::TempDir);

/// Owner of the folders where the tests run as root.
const OWNER: u32 = 54_321;

impl Folders {
    fn new() -> Self {
        let folders = Self(tempfile::tempdir().expect("a folder"));
        fs::set_permissions(folders.0.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        for name in ["written", "read"] {
            fs::create_dir(folders.path(name)).expect("a folder");
        }
        fs::write(folders.path("read").join("word"), "from outside").expect("written");
        if nix::unistd::geteuid().is_root() {
            chown(folders.path("written"), Some(OWNER), Some(OWNER)).expect("given");
        }
        folders
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn reach(&self) -> Reach {
        let directory = |name: &str, inside: &str, writable| Directory {
            path: self.path(name),
            inside: Some(inside.into()),
            writable,
        };
        Reach {
            // Inside, one of these folders is shown at a path where the machine has a folder of its own.
            directories: vec![
                directory("written", "/data", true),
                directory("read", "/tmp/shown", false),
            ],
            ..Reach::default()
        }
    }
}

/// QEMU and monitor processes below this process.
fn machines_of(process: &Process) -> Vec<Process> {
    let all = process.descendants().into_iter();
    all.filter(|process| {
        let described = process.describe();
        described.contains("qemu") || described.contains("hotlease-machin")
    })
    .collect()
}

fn leased(platform: &Platform, code: &Code, reach: Reach) -> Result<Invoker, Error> {
    let options = LeaseOptions {
        sandbox: "microvm".into(),
        reach,
        retries: 0,
        move_within: BOOT,
        ..platform.lease_options()
    };
    Invoker::allocate(code, options)
}

fn number_of(error: &Error) -> i32 {
    match error {
        Error::Function { code, .. } => *code,
        error => panic!("no error of the function's: {error}"),
    }
}

#[test]
fn functions_run_in_a_machine_of_their_own_and_die_there() {
    let Some(machines) = Machines::take() else {
        return;
    };
    let mut platform = Platform::start_with(PlatformOptions {
        pool: 0,
        alone: true,
        further: machines.arguments.clone(),
        ..PlatformOptions::default()
    });
    let code = Code::open(library("inside")).expect("a library");
    let folders = Folders::new();
    let invoker = leased(&platform, &code, folders.reach()).unwrap_or_else(|error| panic!("no lease: {error}"));
    carries_any_size(&invoker);
    tells_errors(&invoker);
    is_a_machine(&invoker);
    reaches_what_it_declares(&invoker, &folders);
    is_explained(&platform, &invoker);
    dies_as_elsewhere(&invoker);

    let usage = invoker.usage().expect("told");
    assert!(usage.compute_ns > 0 && usage.invocations >= 12, "{usage:?}");
    let agent = platform.process();
    until_true("the next machine begins", LIMIT, || !machines_of(&agent).is_empty());
    let running = machines_of(&agent);
    invoker.deallocate().expect("given back");
    until_true("machines end with their lease", LIMIT, || {
        running.iter().all(|process| !process.is_alive())
    });

    // A machine that is only beginning to boot.
    let request = hotlease_wire::grpc::AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ttl_ms: 600_000,
        sandbox: "microvm".into(),
        ..Default::default()
    };
    let grant = platform.manager().acquire(request).expect("granted");
    let session = hotlease_tests::session::RawSession::attached(&grant);
    until_true("a machine begins", LIMIT, || {
        machines_of(&agent)
            .iter()
            .any(|process| process.describe().contains("qemu"))
    });
    let running = machines_of(&agent);
    platform.kill();
    drop(session);
    platform.nothing_runs(LIMIT);
    until_true("machines end with their agent", LIMIT, || {
        running.iter().all(|process| !process.is_alive())
    });
}

#[test]
fn variables_of_a_lease_act_on_its_worker_alone_once_it_is_confined() {
    let Some(machines) = Machines::take() else {
        return;
    };
    let platform = Platform::start_with(PlatformOptions {
        pool: 0,
        alone: true,
        further: machines.arguments.clone(),
        ..PlatformOptions::default()
    });
    let code = Code::open(library("inside")).expect("a library");
    let folders = Folders::new();
    // Monitor and machine see it at the same path.
    fs::copy(library("preloaded"), folders.path("written").join("preloaded.so")).expect("copied");
    let variables = [("LD_PRELOAD", "/data/preloaded.so"), ("PRELOADED_MARK", "/data/mark")];
    let options = LeaseOptions {
        sandbox: "microvm".into(),
        reach: folders.reach(),
        variables: variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        retries: 0,
        move_within: BOOT,
        ..platform.lease_options()
    };
    let invoker = Invoker::allocate(&code, options).unwrap_or_else(|error| panic!("no lease: {error}"));
    assert_eq!(
        invoker.function("echo").expect("found").call(b"x").expect("it runs"),
        b"x"
    );
    let marks = fs::read_to_string(folders.path("written").join("mark")).expect("the worker has loaded it");
    assert_eq!(
        marks, "hotlease-worker limited\n",
        "programs that obeyed the lease's variables"
    );
    invoker.deallocate().expect("given back");
}

fn carries_any_size(invoker: &Invoker) {
    for size in [0usize, 1, 4097, (1 << 20) - 32, (1 << 20) + 5, 64 << 20] {
        let input: Vec<u8> = (0..size).map(|at| (at * 31 + size) as u8).collect();
        let mut output = vec![0; size];
        let echo = invoker.function("echo").expect("it is there");
        let begin = Instant::now();
        assert_eq!(echo.invoke(&input, &mut output).expect("it runs"), size);
        assert!(output == input, "{size} bytes are others");
        eprintln!("{size} bytes to and fro: {:?}", begin.elapsed());
    }
}

fn tells_errors(invoker: &Invoker) {
    let function = |name: &str| invoker.function(name).expect("it is there");
    let Error::Function { code: 7, output } = function("fails").call(b"").expect_err("it fails") else {
        panic!("another error");
    };
    assert_eq!(output, b"no luck today");
    let error = function("echo").invoke(&[1; 100], &mut [0; 10]).expect_err("no room");
    assert!(
        matches!(
            error,
            Error::OutputTooLarge {
                produced: 100,
                capacity: 10
            }
        ),
        "{error}"
    );
    let timeout = Duration::from_secs(2);
    let begin = Instant::now();
    let error = function("until_cancelled")
        .timeout(Some(timeout))
        .call(b"")
        .expect_err("it has a deadline");
    assert!(
        matches!(
            error,
            Error::Deadline {
                ran: RunCertainty::Yes,
                ..
            }
        ),
        "{error}"
    );
    assert!(begin.elapsed() >= timeout, "told after {:?}", begin.elapsed());
    assert_eq!(
        function("echo").call(b"still there").expect("the same worker"),
        b"still there"
    );
}

fn is_a_machine(invoker: &Invoker) {
    let around = invoker
        .function("around")
        .expect("it is there")
        .call(b"")
        .expect("it runs");
    let around = String::from_utf8(around).expect("text");
    let lines: Vec<&str> = around.lines().collect();
    let [user, slot, slots, tenant, devices, release] = lines[..] else {
        panic!("{around}")
    };
    assert_eq!((user, slot, slots, devices), ("1000", "0", "1", "0"));
    assert_eq!(tenant, format!("uid:{}", nix::unistd::geteuid()));
    let ours = nix::sys::utsname::uname().expect("uname");
    assert_ne!(release, ours.release().to_string_lossy(), "its kernel is ours");
}

fn reaches_what_it_declares(invoker: &Invoker, folders: &Folders) {
    let call = |name: &str, path: &str| {
        let function = invoker.function(name).expect("it is there");
        function.call(path.as_bytes())
    };
    call("writes", "/data/made").expect("it may");
    let made = folders.path("written").join("made");
    assert_eq!(fs::read(&made).expect("it is there"), b"written");
    let owner = fs::metadata(folders.path("written")).expect("it is there").uid();
    assert_eq!(fs::metadata(&made).expect("it is there").uid(), owner);
    assert_eq!(call("reads", "/data/made").expect("it may"), b"written");
    assert_eq!(call("reads", "/tmp/shown/word").expect("it is seen"), b"from outside");
    let refused = [
        ("writes", "/tmp/shown/made"),
        ("writes", "/made"),
        ("reads", folders.path("read").join("word").to_str().expect("text")),
    ]
    .map(|(name, path)| number_of(&call(name, path).expect_err(path)));
    let errors = [nix::libc::EROFS, nix::libc::EACCES, nix::libc::ENOENT];
    assert!(refused.iter().all(|number| errors.contains(number)), "{refused:?}");
    assert!(!folders.path("read").join("made").exists());
    call("writes", "/tmp/own").expect("a folder of its own");
    assert!(!Path::new("/tmp/own").exists());
}

fn is_explained(platform: &Platform, invoker: &Invoker) {
    let told = platform.json(&["explain", &invoker.lease().to_string()]);
    let boot = told[0]["phases"]["boot"].as_u64();
    assert!(boot.is_some_and(|ns| ns > 100_000_000), "{}", told[0]);
    assert_eq!(told[0]["sandbox"], "microvm");
}

/// Checks that the worker's death is reported as outside of a machine; each call after a death runs in another machine.
fn dies_as_elsewhere(invoker: &Invoker) {
    let dies = |name: &str| {
        let function = invoker.function(name).expect("it is there");
        let error = function.call(b"").expect_err("it dies");
        let Error::WorkerDied {
            cause,
            function,
            output,
            ran,
        } = error
        else {
            panic!("{name}: {error}")
        };
        assert_ne!(ran, RunCertainty::No, "{name}");
        eprintln!("{name}: {cause}");
        (cause, function, output)
    };
    let (cause, function, output) = dies("segfaults");
    assert!(matches!(cause, Cause::Signal { signal: 11, .. }), "{cause}");
    assert_eq!(function.as_deref(), Some("segfaults"));
    assert!(output.contains("the last words"), "{output}");
    let (cause, _, output) = dies("allocates");
    assert_eq!(cause, Cause::OutOfMemory, "{output}");
    assert!(output.contains("--sandbox-machine-memory"), "{output}");
    let (cause, ..) = dies("exits");
    assert!(matches!(cause, Cause::Exit { status: 3, .. }), "{cause}");
    let begin = Instant::now();
    let echo = invoker.function("echo").expect("it is there");
    assert_eq!(echo.call(b"again").expect("another machine"), b"again");
    eprintln!("another machine after {:?}", begin.elapsed());
}
