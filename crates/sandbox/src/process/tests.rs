//! Tests with the shell in place of a worker. The shell reads its script from the standard input.

use super::*;
use crate::{Kind, Launcher, WorkerReach};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn shell() -> Launcher {
    Launcher::new(Path::new("/bin/sh")).expect("a shell")
}

fn run(launcher: &Launcher, script: &str) -> Process {
    let (input, mut script_end) = io::pipe().expect("a pipe");
    script_end.write_all(script.as_bytes()).expect("fits into the pipe");
    launcher
        .start(Kind::Process, None, &WorkerReach::default(), input.into())
        .expect("started")
}

async fn exit_of(script: &str) -> Arc<Exit> {
    let process = run(&shell(), script);
    tokio::time::timeout(Duration::from_secs(20), process.exited())
        .await
        .expect("the process ends")
}

#[tokio::test]
async fn exit_status_and_signal_are_told_apart() {
    assert_eq!(exit_of("exit 7").await.end, ProcessEnd::Exited(7));
    assert_eq!(exit_of("kill -SEGV $$").await.end, ProcessEnd::Signalled(11));
}

#[tokio::test]
async fn the_last_output_of_both_streams_is_kept() {
    let exit = exit_of("echo to stdout; echo to stderr >&2; exit 1").await;
    assert_eq!(exit.output, "to stdout\nto stderr\n");
}

#[tokio::test]
async fn a_flood_of_output_is_read_slowly_and_not_kept() {
    let start = Instant::now();
    let exit = exit_of("head -c 20000000 /dev/zero | tr '\\0' x; echo the end").await;
    // 10 MiB are read in a second. The least time leaves out the last 100 ms, and the bytes that are still in the pipe.
    let least = Duration::from_millis(1700);
    assert!(start.elapsed() > least, "20 MB were read in {:?}", start.elapsed());
    assert_eq!(exit.end, ProcessEnd::Exited(0));
    assert!(exit.output.len() <= 4096, "{} bytes kept", exit.output.len());
    assert!(exit.output.ends_with("xthe end\n"));
}

/// A program that prints `passed` if it can hold 200 MiB in a memory file.
const MEMORY_FILE: &str = "import os
file = os.memfd_create('x')
for _ in range(200):
    os.write(file, bytes(1 << 20))
print('passed', flush=True)
os.read(0, 1)
";
/// A program that prints `passed` if five children can hold 30 MiB each. It waits for ever if a child is killed.
const CHILDREN: &str = "import os, time
there, ready = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1 << 20)) * 30
        os.write(ready, b'x')
        time.sleep(60)
        os._exit(0)
held = 0
while held < 5:
    held += len(os.read(there, 5))
print('passed', flush=True)
os.read(0, 1)
";

const LIMIT_BYTES: u64 = 96 << 20;

/// A shell that waits for its script, and the pipe for it.
fn start_shell(launcher: &Launcher) -> (Arc<Process>, io::PipeWriter) {
    let (input, end) = io::pipe().expect("a pipe");
    let started = launcher.start(Kind::Process, None, &WorkerReach::default(), input.into());
    (Arc::new(started.expect("started")), end)
}

async fn limit(process: &Arc<Process>, bytes: u64) -> io::Result<bool> {
    let process = Arc::clone(process);
    let limited = tokio::task::spawn_blocking(move || process.limit(bytes, &[])).await;
    limited.expect("no panic")
}

/// Makes a shell run a program, and kills the program, as an agent does, when it uses too much memory. Returns its
/// output.
async fn within_a_limit((process, mut end): (Arc<Process>, io::PipeWriter), program: &str) -> String {
    let script = format!("exec python3 -c \"{program}\"\n");
    end.write_all(script.as_bytes()).expect("fits into the pipe");
    let until = Instant::now() + Duration::from_secs(30);
    while !process.is_gone() {
        // The program may pass its limit and print its last word between two checks, so one more check follows the
        // word.
        let has_passed = process.output().contains("passed");
        if process.check_memory_limit().is_err() {
            process.kill();
            return "killed by the agent".into();
        }
        assert!(Instant::now() < until, "it goes on: {}", process.output());
        if has_passed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(end);
    process.exited().await.output.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_memory_bounds_memory_files_and_children_too() {
    for launcher in [shell(), shell().without_groups()] {
        for program in [MEMORY_FILE, CHILDREN] {
            let started = start_shell(&launcher);
            limit(&started.0, LIMIT_BYTES).await.expect("limited");
            let output = within_a_limit(started, program).await;
            assert!(
                !output.contains("passed"),
                "{:?}: {output}",
                launcher.find_lacking(Kind::Process)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_the_control_group_refuses_is_enforced_by_checks() {
    let launcher = shell();
    if let Some(why) = launcher.find_lacking(Kind::Process).expect("known").first() {
        eprintln!("skipped: {why}");
        return;
    }
    let started = start_shell(&launcher);
    assert_eq!(started.0.check_memory_limit(), Ok(0), "it may get a limit at any time");
    limit(&started.0, 0).await.expect("it has joined its group");
    let folder = memory_group(started.0.pid());
    std::fs::write(
        folder.parent().expect("a parent").join("cgroup.procs"),
        started.0.pid().to_string(),
    )
    .expect("moved");
    std::fs::remove_dir(&folder).expect("the group is empty");
    limit(&started.0, LIMIT_BYTES).await.expect_err("it has no group");
    let output = within_a_limit(started, MEMORY_FILE).await;
    assert!(!output.contains("passed"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_watched_counts_no_memory_of_the_client() {
    // Buffers of clients have this name.
    let buffer = nix::sys::memfd::memfd_create(c"hotlease", nix::sys::memfd::MFdFlags::empty()).expect("a file");
    let buffer = std::fs::File::from(buffer);
    buffer.set_len(4 * LIMIT_BYTES).expect("long");
    let result = format!(
        "import mmap, os
memory = mmap.mmap(os.open('/proc/{}/fd/{}', os.O_RDWR), 0)
for at in range(0, len(memory), 4096):
    memory[at] = 1
print('passed', flush=True)
os.read(0, 1)
",
        std::process::id(),
        buffer.as_raw_fd()
    );
    for (program, passes) in [(result.as_str(), true), (MEMORY_FILE, false)] {
        let started = start_shell(&shell());
        started.0.watch_memory(LIMIT_BYTES);
        let output = within_a_limit(started, program).await;
        assert_eq!(output.contains("passed"), passes, "{output}");
    }
}

/// Folder of the control group that limits a process's memory.
fn memory_group(pid: u32) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let folder = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let mount = match controllers {
            "memory" => "/sys/fs/cgroup/memory",
            _ => "/sys/fs/cgroup",
        };
        let folder = Path::new(mount).join(path.trim_start_matches('/'));
        folder
            .join("cgroup.procs")
            .exists()
            .then_some(folder)
            .filter(|folder| folder.to_string_lossy().contains("hotlease-"))
    });
    folder.expect("it is in a group")
}

#[tokio::test]
async fn the_environment_holds_only_the_short_list() {
    let exit = exit_of("cd /; pwd; tr '\\0' '\\n' < /proc/$$/environ").await;
    let mut lines = exit.output.lines();
    assert_eq!(lines.next(), Some("/"), "the working directory");
    let allowed = [
        "HOME",
        "HOTLEASE_LOG",
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "PATH",
        "RUST_BACKTRACE",
        "TMPDIR",
        "TZ",
    ];
    for line in lines {
        let name = line.split('=').next().unwrap_or(line);
        let is_team = name.ends_with("_THREADS");
        assert!(is_team || allowed.contains(&name), "{name} was inherited");
    }
}

#[tokio::test]
async fn a_killed_process_takes_its_group_along() {
    let launcher = shell();
    let process = run(&launcher, "sleep 600 & echo $!; wait");
    let child = loop {
        if let Ok(pid) = process.output().trim().parse::<i32>() {
            break pid;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let before = Instant::now();
    process.kill();
    assert_eq!(process.exited().await.end, ProcessEnd::Signalled(9));
    assert!(
        before.elapsed() < Duration::from_secs(10),
        "took {:?}",
        before.elapsed()
    );
    launcher.all_gone().await;
    // Init reaps the grandchild at some later time; until then it must at least not run.
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_running(child) {
        assert!(Instant::now() < deadline, "the grandchild {child} goes on");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim().starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_dropped_process_is_killed_and_reaped() {
    let launcher = shell();
    let process = run(&launcher, "sleep 600");
    assert_eq!(launcher.living(), 1);
    drop(process);
    tokio::time::timeout(Duration::from_secs(10), launcher.all_gone())
        .await
        .expect("it is reaped");
}

#[tokio::test]
async fn no_descriptor_is_left_after_many_processes() {
    let launcher = shell();
    let open = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    run(&launcher, "exit 0").exited().await;
    launcher.all_gone().await;
    let before = open();
    for _ in 0..50 {
        let process = run(&launcher, "echo done");
        assert_eq!(process.exited().await.output, "done\n");
        assert_eq!(process.resident_bytes(), 0);
    }
    // Other tests of this program open some descriptors meanwhile, but fewer than one for each process here.
    assert!(open() < before + 40, "{before} descriptors before, {} after", open());
}

#[test]
fn a_program_that_cannot_be_run_is_refused_with_its_name() {
    let text = tempfile::NamedTempFile::new().expect("a file");
    for path in [Path::new("/nonexistent/worker"), Path::new("/usr"), text.path()] {
        let error = Launcher::new(path).expect_err("no program");
        assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
    }
}
