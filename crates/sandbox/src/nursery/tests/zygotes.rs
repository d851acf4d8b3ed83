//! Workers that are forked from zygotes. The zygote is `hotlease-escape`, and its forks become the shell.

use super::*;

/// A zygote whose forks run this script.
fn zygote_of(script: &str) -> Program {
    let beside = nursery().with_file_name("hotlease-escape");
    let inside = "/opt/hotlease-escape";
    Program {
        path: inside.into(),
        arguments: ["zygote", "run", "/bin/sh", "-c", script].map(OsString::from).to_vec(),
        mounts: vec![Mount {
            source: beside,
            target: inside.into(),
            writable: false,
        }],
        ..shell("", Vec::new())
    }
}

fn begin(launcher: &Launcher, program: &Program) -> Process {
    let input = File::open("/dev/null").expect("it is there");
    launcher
        .start_zygote(Kind::Namespace, program, input.into())
        .expect("a zygote")
}

fn fork(launcher: &Launcher, zygote: &Process) -> Result<Process, SandboxError> {
    let input = File::open("/dev/null").expect("it is there");
    launcher.fork(zygote, input.into())
}

async fn forked_output(launcher: &Launcher, script: &str) -> String {
    let zygote = begin(launcher, &zygote_of(script));
    let exit = exit_of(&fork(launcher, &zygote).expect("forked")).await;
    assert_eq!(exit.end, ProcessEnd::Exited(0), "{script}: {}", exit.output);
    exit.output.clone()
}

#[tokio::test]
async fn a_fork_is_confined_as_what_is_started() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    // The only difference is a second filter, which removes what the first one allows to zygotes.
    let script = "id; hostname; echo $HOME $OWN; ls -A / /tmp /dev /dev/shm; echo /proc/*; ls /proc/self/fd; ulimit -a; \
                  grep -E '^(Cap|NoNew|Seccomp:|Groups|Uid|Gid)' /proc/self/status; grep -c : /proc/self/net/dev; \
                  for f in /usr/x /x /etc/x /opt/x; do touch $f 2>/dev/null && echo $f; done; echo x > /tmp/x && cat /tmp/x; \
                  echo x > /dev/shm/x && cat /dev/shm/x; cat /proc/1/environ 2>/dev/null || echo hidden; \
                  unshare -r true 2>/dev/null || echo none; kill -9 1 2>/dev/null; cut -d' ' -f5- /proc/self/mountinfo | grep -c ' /tmp '; true";
    let mounts = zygote_of("").mounts;
    let ordinary = exit_of(&start(&launcher, &shell(script, mounts)).expect("started")).await;
    let forked = forked_output(&launcher, script).await;
    assert_eq!(forked, ordinary.output);
    let zygote = begin(&launcher, &zygote_of("sleep 600"));
    let worker = fork(&launcher, &zygote).expect("forked");
    let other = fork(&launcher, &zygote).expect("forked");
    for name in ["user", "mnt", "pid", "ipc", "net", "uts", "cgroup"] {
        let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("a namespace");
        let all = [
            of(std::process::id()),
            of(zygote.pid()),
            of(worker.pid()),
            of(other.pid()),
        ];
        // Cgroup namespaces differ, too, although each is only rooted in the group of the process that made it.
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{name}: {all:?}");
    }
}

#[tokio::test]
async fn system_calls_for_forking_are_lost_by_forks() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: no perl to call the kernel with");
        return;
    }
    for call in hotlease_nursery::system_calls::lost_by_forks() {
        let allowed = call.rules.first().copied();
        let mut arguments = [0_u64; 5];
        if let Some(hotlease_nursery::system_calls::ArgumentRule::Is(at, value)) = allowed {
            arguments[usize::from(at)] = value;
        }
        let arguments: Vec<String> = arguments.iter().map(u64::to_string).collect();
        let script = format!(
            "perl -e 'exit(syscall({}, {}) == -1 && $!{{ENOSYS}} ? 0 : 1)'",
            call.number,
            arguments.join(", ")
        );
        assert_eq!(forked_output(&launcher, &script).await, "", "{} is left", call.name());
    }
}

#[tokio::test]
async fn forks_share_nothing_that_is_written_and_end_one_by_one() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let script = "ls -A /tmp /dev/shm | grep -c [a-z]$ ; echo $$ > /tmp/own$$; touch /dev/shm/a; read word; exit $word";
    let zygote = begin(&launcher, &zygote_of(script));
    let mut workers = Vec::new();
    for status in [7, 8, 9] {
        let (input, tell) = io::pipe().expect("a pipe");
        let worker = launcher.fork(&zygote, input.into()).expect("forked");
        workers.push((worker, tell, status));
    }
    for (worker, mut tell, status) in workers {
        writeln!(tell, "{status}").expect("it listens");
        let exit = exit_of(&worker).await;
        assert_eq!(exit.end, ProcessEnd::Exited(status), "{}", exit.output);
        assert!(!exit.output.contains("own"), "{}", exit.output);
    }
}

#[tokio::test]
async fn the_end_of_a_fork_is_told_as_that_of_what_is_started() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    for (script, end) in [
        ("exit 7", ProcessEnd::Exited(7)),
        ("kill -SEGV $$", ProcessEnd::Signalled(11)),
    ] {
        let zygote = begin(&launcher, &zygote_of(&format!("sleep 0.05; {script}")));
        let worker = fork(&launcher, &zygote).expect("forked");
        assert_eq!(exit_of(&worker).await.end, end, "{script}");
    }
    let zygote = begin(&launcher, &zygote_of("sleep 600 & sleep 600"));
    let worker = fork(&launcher, &zygote).expect("forked");
    let namespace = residue::namespace_of(worker.pid());
    worker.kill();
    assert_eq!(exit_of(&worker).await.end, ProcessEnd::Signalled(9));
    assert_eq!(residue::processes_in(&namespace), Vec::<u32>::new(), "they outlived it");
    assert!(fork(&launcher, &zygote).is_ok(), "the zygote goes on");
}

#[tokio::test]
async fn limits_of_a_fork_are_its_own() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let lacking = launcher.find_lacking(Kind::Namespace).expect("as before");
    if lacking
        .iter()
        .any(|lacking| lacking.starts_with("memory") || lacking.starts_with("cores"))
    {
        eprintln!("skipped: not enforced here: {lacking:?}");
        return;
    }
    let script = "read go; taskset -pc 0-1023 $$ >/dev/null; grep Cpus_allowed_list /proc/self/status";
    let zygote = begin(&launcher, &zygote_of(&format!("{script}; {HOG}")));
    let (input, mut tell) = io::pipe().expect("a pipe");
    let limited = launcher.fork(&zygote, input.into()).expect("forked");
    let other = fork(&launcher, &zygote).expect("forked");
    limited.limit(64 << 20, &[0]).expect("limited");
    tell.write_all(b"go\n").expect("it listens");
    let exit = exit_of(&limited).await;
    assert_eq!(
        exit.output.lines().next(),
        Some("Cpus_allowed_list:\t0"),
        "it left its core"
    );
    assert_eq!(exit.end, ProcessEnd::OutOfMemory, "{}", exit.output);
    let exit = exit_of(&other).await;
    assert_eq!(
        exit.end,
        ProcessEnd::Exited(0),
        "the limit of another worker applied: {}",
        exit.output
    );
}

#[tokio::test]
async fn a_dead_zygote_leaves_its_workers_and_nothing_else() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let zygote = begin(&launcher, &zygote_of("read word; exit 5"));
    let (input, mut tell) = io::pipe().expect("a pipe");
    let worker = launcher.fork(&zygote, input.into()).expect("forked");
    zygote.kill();
    let refused = loop {
        match fork(&launcher, &zygote) {
            Err(error) => break error.to_string(),
            // The zygote was not dead yet.
            Ok(another) => another.kill(),
        }
    };
    assert!(refused.contains("zygote"), "{refused}");
    tell.write_all(b"go\n").expect("it listens");
    assert_eq!(exit_of(&worker).await.end, ProcessEnd::Exited(5));
    assert_eq!(exit_of(&zygote).await.end, ProcessEnd::Signalled(9));
    tokio::time::timeout(Duration::from_secs(10), launcher.all_gone())
        .await
        .expect("nothing is left");
}

#[tokio::test]
async fn a_program_that_is_no_zygote_is_reported() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    // One program ends at once; the other reads its orders and ignores them.
    for script in ["exit 3", "exec cat <&3 >/dev/null"] {
        let zygote = begin(&launcher, &shell(script, Vec::new()));
        let why = fork(&launcher, &zygote)
            .expect_err("the zygote does not fork")
            .to_string();
        assert!(
            why.contains("zygote") || why.contains("did not start within"),
            "{script}: {why}"
        );
        zygote.kill();
    }
    tokio::time::timeout(Duration::from_secs(10), launcher.all_gone())
        .await
        .expect("nothing is left");
}

/// The namespaces of a worker are made below the namespaces of its zygote. This test kills their processes at various
/// steps: the fork fails with an error or works, nursery and zygote continue, and nothing is left behind.
#[test]
fn a_fork_whose_namespaces_are_killed_at_any_moment_of_their_making_leaves_nothing() {
    let policy = Policy {
        prepared: 0,
        ..Policy::default()
    };
    let Some(launcher) = launcher(policy) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let nursery = residue::nursery_of(&launcher);
    let zygote = begin(&launcher, &zygote_of("echo well"));
    // Namespaces for its forks are prepared only after the first fork. If prepared namespaces were killed and the
    // nursery has not noticed, it assigns them to one more fork, which fails. So a second attempt is made.
    let well = || {
        let forked = fork(&launcher, &zygote).or_else(|_| fork(&launcher, &zygote));
        let exit = runtime.block_on(exit_of(&forked.expect("it forks")));
        assert_eq!((exit.end, exit.output.as_str()), (ProcessEnd::Exited(0), "well\n"));
    };
    well();
    let (mut failed, mut forked) = (0, 0);
    for round in 0..6_u32 {
        // Two children: the zygote, and the sandbox that waits for its next fork. The first fork uses up this sandbox,
        // so the second fork needs a sandbox that is made while the killer watches.
        residue::until("a sandbox waits for a fork", || residue::children(nursery).len() == 2);
        let before = residue::children(nursery);
        let first = fork(&launcher, &zygote).expect("one waits for it");
        let killer = std::thread::spawn(move || {
            let is_new = |pid: &u32| !before.contains(pid);
            let until = std::time::Instant::now() + Duration::from_secs(100);
            while std::time::Instant::now() < until {
                // The helper comes first, then the first process of the new namespaces.
                if let Some(pid) = residue::children(nursery).into_iter().rfind(is_new) {
                    // Each round kills at a different step. All steps together take some milliseconds.
                    std::thread::sleep(Duration::from_millis(u64::from(round)));
                    let last = residue::children(nursery).into_iter().rfind(is_new);
                    residue::kill(last.unwrap_or(pid));
                    return;
                }
            }
            panic!("nothing was made for the next fork");
        });
        match fork(&launcher, &zygote) {
            Ok(worker) => {
                forked += 1;
                worker.kill();
                runtime.block_on(exit_of(&worker));
            }
            Err(error) => {
                failed += 1;
                assert!(matches!(error, SandboxError::Sandbox { .. }), "{error}");
            }
        }
        killer.join().expect("it kills");
        runtime.block_on(exit_of(&first));
        assert_eq!(residue::nursery_of(&launcher), nursery, "the nursery goes on");
        well();
    }
    eprintln!("{failed} were killed before they had forked, {forked} after");
    assert!(failed > 0, "none was killed while it was made");
    zygote.kill();
    runtime.block_on(exit_of(&zygote));
    residue::until("all are reaped", || residue::children(nursery).is_empty());
    drop((zygote, launcher));
    residue::until("the nursery ends", || residue::is_gone(nursery));
    assert_eq!(residue::groups(nursery), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_zygote_that_hangs_before_it_takes_orders_delays_no_start_and_leaves_nothing() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let hanging = begin(&launcher, &shell("sleep 600", Vec::new()));
    let namespace = residue::namespace_of(hanging.pid());
    let why = fork(&launcher, &hanging)
        .expect_err("the zygote does not fork")
        .to_string();
    assert!(why.contains("did not start within"), "{why}");
    // Meanwhile other zygotes can fork, and this zygote can be killed.
    assert_eq!(forked_output(&launcher, "echo well").await, "well\n");
    hanging.kill();
    assert_eq!(exit_of(&hanging).await.end, ProcessEnd::Signalled(9));
    assert_eq!(residue::processes_in(&namespace), Vec::<u32>::new());
    tokio::time::timeout(Duration::from_secs(10), launcher.all_gone())
        .await
        .expect("nothing is left");
}
