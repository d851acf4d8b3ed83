//! Tests that sandboxes leave nothing behind, however they end.

use super::*;
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

/// Processes in this pid namespace.
pub fn processes_in(namespace: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("it is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|of| of == namespace))
        .collect()
}

pub fn nursery_of(launcher: &Launcher) -> u32 {
    running(launcher.namespaces())
}

/// Pid of the running nursery.
pub fn running(sandboxes: &NurseryHandle) -> u32 {
    let running = sandboxes.current();
    let nursery = running.as_ref().expect("it runs");
    nursery.child.as_ref().expect("it is there").id()
}

/// Pids of the sandboxes of this nursery.
pub fn children(nursery: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{nursery}/task/{nursery}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Control groups of this nursery: the groups of its sandboxes, and the folders that contain these groups.
pub fn groups(nursery: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
    let name = format!("hotlease-{nursery}-");
    while let Some(folder) = look.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        let folders = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for path in folders.map(|entry| entry.path()) {
            if path.to_string_lossy().contains(&name) {
                found.push(path.clone());
            }
            look.push(path);
        }
    }
    found
}

/// Waits until the condition holds. After the death of a spare sandbox, the nursery waits ten seconds before it makes
/// another sandbox.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(100);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within 100 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Pid namespace of a living process.
pub fn namespace_of(pid: u32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).expect("it lives")
}

/// Pid namespace of a process that prints something once it has started all its children.
pub async fn namespace_of_started(process: &Process) -> PathBuf {
    while process.output().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    namespace_of(process.pid())
}

/// Kills with SIGKILL, which cannot be caught; returns whether the process existed.
pub fn kill(pid: u32) -> bool {
    let pid = nix::unistd::Pid::from_raw(pid as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).is_ok()
}

pub fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}/fd/0")).exists()
}

#[tokio::test]
async fn many_short_ones_leave_nothing() {
    let policy = Policy {
        prepared: 1,
        ..Policy::default()
    };
    let Some(launcher) = launcher(policy) else { return };
    let nursery = nursery_of(&launcher);
    let open = || {
        std::fs::read_dir(format!("/proc/{nursery}/fd"))
            .expect("it lives")
            .count()
    };
    output_of(&launcher, "true").await;
    until("a prepared sandbox waits", || children(nursery).len() == 1);
    let before = open();
    for round in 0..40 {
        let script = "test -e /tmp/left && exit 1; echo x > /tmp/left; echo x > /dev/shm/left; echo it";
        assert_eq!(output_of(&launcher, script).await, "it\n", "round {round}");
    }
    launcher.all_gone().await;
    until("only the next prepared sandbox is left", || {
        children(nursery).len() == 1
    });
    until("groups go", || groups(nursery).len() <= 2 * groups_of_its_own(nursery));
    // Descriptors of the waiting sandbox may have been opened after the first count. A leak of one for each round would
    // be 40.
    assert!(open() <= before + 10, "{before} descriptors before, {} now", open());
    drop(launcher);
    until("the nursery ends", || is_gone(nursery));
    assert_eq!(groups(nursery), Vec::<PathBuf>::new());
}

/// A sandbox that is killed at any step of its start leaves nothing behind, and the next sandbox works.
#[test]
fn a_sandbox_that_is_killed_at_any_moment_of_its_start_leaves_nothing() {
    let policy = Policy {
        prepared: 0,
        ..Policy::default()
    };
    let Some(launcher) = launcher(policy) else { return };
    let nursery = nursery_of(&launcher);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    until("the first one ends or waits", || children(nursery).len() <= 1);
    let (mut failed, mut started) = (0, 0);
    for round in 0..30_u32 {
        let killer = std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(20);
            while Instant::now() < until {
                if let Some(pid) = children(nursery).last() {
                    // Each round kills at a different step. A whole start takes some milliseconds.
                    std::thread::sleep(Duration::from_micros(u64::from(round) * 250));
                    // Fails if the process has ended already.
                    kill(*pid);
                    return;
                }
            }
        });
        match start(&launcher, &shell("sleep 600", Vec::new())) {
            Ok(process) => {
                started += 1;
                process.kill();
                runtime.block_on(exit_of(&process));
            }
            Err(error) => {
                failed += 1;
                assert!(matches!(error, SandboxError::Sandbox { .. }), "{error}");
            }
        }
        killer.join().expect("it kills");
        assert_eq!(nursery_of(&launcher), nursery, "the nursery goes on");
        until("it is reaped", || children(nursery).is_empty());
    }
    eprintln!("{failed} were killed before they had started, {started} after");
    assert!(failed > 0, "none was killed while it started");
    assert_eq!(runtime.block_on(output_of(&launcher, "echo well")), "well\n");
    until("groups go", || groups(nursery).len() <= groups_of_its_own(nursery));
    drop(launcher);
    until("the nursery ends", || is_gone(nursery));
    assert_eq!(groups(nursery), Vec::<PathBuf>::new());
}

/// Number of folders that contain the groups of the nursery's sandboxes.
fn groups_of_its_own(nursery: u32) -> usize {
    let name = format!("hotlease-{nursery}-");
    let own = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|last| last.to_string_lossy().starts_with(&name))
    };
    groups(nursery).iter().filter(own).count()
}

#[tokio::test]
async fn a_nursery_that_is_killed_takes_all_along_and_the_next_one_cleans_up() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let nursery = nursery_of(&launcher);
    let process = run(&launcher, "setsid sleep 600 & echo started; wait");
    let namespace = namespace_of_started(&process).await;
    assert!(kill(nursery), "it is gone");
    assert_eq!(exit_of(&process).await.end, ProcessEnd::Signalled(9));
    until("its sandboxes die", || processes_in(&namespace).is_empty());
    // The next start notices, and starts another nursery.
    assert_eq!(output_of(&launcher, "echo again").await, "again\n");
    assert_ne!(nursery_of(&launcher), nursery);
    drop((process, launcher));
    // The next nursery to start sweeps the groups that have become empty.
    until("its groups are swept", || {
        let policy = Policy::default();
        super::launcher(policy).is_none() || groups(nursery).is_empty()
    });
}

/// Runs this test's program again as the agent: it starts sandboxes (`begin` returns each with the pid of its nursery)
/// and waits to be killed. Then kills that agent, and checks that nothing of the sandboxes is left.
pub fn an_agent_is_killed(test: &str, begin: impl AsyncFnOnce() -> Vec<(Process, u32)>) {
    const TELL: &str = "HOTLEASE_TEST_AGENT";
    if std::env::var_os(TELL).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let begun = begin().await;
            let told = begun
                .iter()
                .map(|(process, nursery)| format!(" {} {nursery}", process.pid()));
            eprintln!("AGENT{}", told.collect::<String>());
            std::future::pending::<()>().await;
        });
        return;
    }
    // `--exact` wants the path of the test without the crate.
    let (_crate, test) = test.split_once("::").expect("the path of a test");
    let mut agent = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", test, "--nocapture"])
        .env(TELL, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let said = io::BufRead::lines(io::BufReader::new(agent.stderr.take().expect("piped")));
    let told = said
        .map_while(Result::ok)
        .find_map(|line| Some(line.strip_prefix("AGENT")?.to_owned()));
    let told = told.expect("it says what it has started");
    let pids: Vec<u32> = told.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let started: Vec<(PathBuf, u32)> = pids
        .chunks_exact(2)
        .map(|pair| (namespace_of(pair[0]), pair[1]))
        .collect();
    agent.kill().expect("killed");
    assert_eq!(agent.wait().expect("reaped").signal(), Some(9));
    for (namespace, nursery) in started {
        until("its sandboxes die", || processes_in(&namespace).is_empty());
        until("its nursery ends", || is_gone(nursery));
        until("its groups go", || groups(nursery).is_empty());
    }
}

#[test]
fn an_agent_that_is_killed_leaves_nothing() {
    let name = concat!(module_path!(), "::an_agent_that_is_killed_leaves_nothing");
    an_agent_is_killed(name, async || {
        let Some(launcher) = launcher(Policy::default()) else {
            return Vec::new();
        };
        let process = run(&launcher, "setsid sleep 600 & sleep 600");
        let nursery = nursery_of(&launcher);
        // Dropping the launcher here would end the nursery before the agent is killed.
        std::mem::forget(launcher);
        vec![(process, nursery)]
    });
}
