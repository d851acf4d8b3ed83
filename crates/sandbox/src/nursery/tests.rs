//! Tests with the shell as the program. If this host cannot make these sandboxes, the tests print the reason and pass.

use super::*;
use crate::{Exit, Kind, Launcher, Process, ProcessEnd};
use nix::sys::stat::{Mode, umask};
use std::sync::Arc;
use std::time::Duration;

mod reach;
pub(crate) mod residue;
mod zygotes;

/// Uses 300 MB, because the shell stores everything that it reads.
pub(crate) const HOG: &str = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}";

/// Path of the nursery that was built with these tests.
pub(crate) fn nursery() -> PathBuf {
    let tests = std::env::current_exe().expect("it runs");
    let built = tests.ancestors().nth(2).expect("a folder").join(NURSERY_BINARY);
    assert!(built.is_file(), "{} is not built", built.display());
    built
}

fn launcher(policy: Policy) -> Option<Launcher> {
    let launcher = Launcher::new(Path::new("/bin/sh")).expect("a shell");
    let launcher = launcher.with_policy(policy).with_nursery(nursery());
    match launcher.check_available(Kind::Namespace) {
        Ok(()) => Some(launcher),
        Err(why) => {
            eprintln!("skipped: no namespaces here: {why}");
            None
        }
    }
}

pub(crate) fn shell(script: &str, mounts: Vec<Mount>) -> Program {
    Program {
        path: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("OWN".into(), "its".into())],
        directory: "/tmp".into(),
        mounts,
        held: crate::KeepAlive::default(),
    }
}

fn run(launcher: &Launcher, script: &str) -> Process {
    start(launcher, &shell(script, Vec::new())).expect("started")
}

fn start(launcher: &Launcher, program: &Program) -> Result<Process, SandboxError> {
    let input = File::open("/dev/null").expect("it is there");
    launcher.start(Kind::Namespace, Some(program), &WorkerReach::default(), input.into())
}

pub(crate) async fn exit_of(process: &Process) -> Arc<Exit> {
    tokio::time::timeout(Duration::from_secs(30), process.exited())
        .await
        .expect("it ends")
}

async fn output_of(launcher: &Launcher, script: &str) -> String {
    let exit = exit_of(&run(launcher, script)).await;
    assert_eq!(exit.end, ProcessEnd::Exited(0), "{script}: {}", exit.output);
    exit.output.clone()
}

#[tokio::test]
async fn a_sandbox_sees_only_its_own_root_processes_and_devices() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let seen = |script: &'static str| output_of(&launcher, script);
    assert_eq!(
        seen("id -u; id -g; id -un; hostname; pwd; echo $HOME $OWN").await,
        "1000\n1000\nuser\nsandbox\n/tmp\n/tmp its\n"
    );
    let root = seen("ls -A /").await;
    for name in root.lines() {
        let known = [
            "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr",
        ];
        assert!(known.contains(&name), "/{name} is in the root");
    }
    let devices = "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\nurandom\nzero\n";
    assert_eq!(seen("ls /dev").await, devices);
    assert_eq!(seen("ls -A /tmp /dev/shm").await, "/dev/shm:\n\n/tmp:\n");
    // Pid 1 is hidden, too; the shell has pid 2.
    assert_eq!(seen("echo /proc/*").await, "/proc/2 /proc/self /proc/thread-self\n");
    assert_eq!(seen("ls /proc/self/fd").await, "0\n1\n2\n3\n", "3 is ls's own");
    assert_eq!(
        seen("cat /proc/1/environ 2>/dev/null; echo $?").await,
        "1\n",
        "pid 1 is hidden"
    );
    assert_eq!(seen("grep -c : /proc/self/net/dev").await, "1\n", "loopback alone");
    let secrets = "for f in /etc/shadow /etc/ssh /var /sys /run /mnt /host; do test -e $f && echo $f; done; true";
    assert_eq!(seen(secrets).await, "");
}

#[tokio::test]
async fn a_sandbox_does_not_depend_on_the_umask_of_its_agent() {
    if launcher(Policy::default()).is_none() {
        return;
    }
    let own = umask(Mode::from_bits_truncate(0o077));
    let launcher = launcher(Policy::default());
    umask(own);
    let launcher = launcher.expect("a sandbox can be made with any umask");
    assert_eq!(
        output_of(&launcher, "ls /usr/bin /tmp > /dev/null && umask").await,
        "0022\n"
    );
}

#[tokio::test]
async fn a_sandbox_has_namespaces_of_its_own_and_no_rights() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    for name in ["user", "mnt", "pid", "ipc", "net", "uts", "cgroup"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).expect("a namespace");
        let theirs = output_of(&launcher, &format!("readlink /proc/self/ns/{name}")).await;
        assert_ne!(theirs.trim(), own.to_string_lossy(), "the {name} namespace is ours");
    }
    let status = output_of(&launcher, "cat /proc/self/status").await;
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(value(set), "0000000000000000", "{set}\n{status}");
    }
    assert_eq!(
        (value("NoNewPrivs:"), value("Seccomp:")),
        ("1".into(), "2".into()),
        "{status}"
    );
    if nix::unistd::geteuid().is_root() {
        assert_eq!(value("Groups:"), "", "{status}");
        let process = run(&launcher, "sleep 600");
        let outside = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it lives");
        let user = outside
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .expect("a user");
        let user: u32 = user
            .split_whitespace()
            .next()
            .and_then(|user| user.parse().ok())
            .expect("a number");
        let users = Policy::default().users;
        assert!(
            (users.first..users.first + users.count).contains(&user),
            "it runs as {user} outside"
        );
    }
}

#[tokio::test]
async fn system_calls_outside_the_table_fail_and_read_only_mounts_stay() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    for script in [
        "unshare -r true",
        "unshare -m true",
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /usr",
        "umount /proc",
        "mknod /tmp/sda b 8 0",
        "chroot /tmp true",
        "nsenter -t 1 -m true",
        "kill -9 1 && sleep 0.2 && exit 1; false",
        "touch /usr/x",
        "touch /x",
        "mkdir /etc/x",
        "echo x > /dev/x",
        "echo 1 > /proc/self/oom_score_adj",
        "chown 0:0 /tmp",
        "ulimit -c 1000 && exit 0; false",
        "ulimit -n 100000",
    ] {
        let exit = exit_of(&run(&launcher, script)).await;
        assert!(
            matches!(exit.end, ProcessEnd::Exited(1..)),
            "{script}: {}, {}",
            exit,
            exit.output
        );
    }
    assert_eq!(
        output_of(&launcher, "echo x > /tmp/x && echo y > /dev/null && cat /tmp/x").await,
        "x\n"
    );
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn dangerous_system_calls_do_not_exist() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: no perl to call the kernel with");
        return;
    }
    for (name, number) in [
        ("ptrace", libc::SYS_ptrace),
        ("bpf", libc::SYS_bpf),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("keyctl", libc::SYS_keyctl),
        ("clone3", libc::SYS_clone3),
        ("setuid", libc::SYS_setuid),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("getpid of x32", libc::SYS_getpid | 0x4000_0000),
    ] {
        let script = format!("perl -e 'exit(syscall({number}, 0, 0, 0, 0, 0) == -1 && $!{{ENOSYS}} ? 0 : 1)'");
        assert_eq!(output_of(&launcher, &script).await, "", "{name} exists");
    }
    // AF_INET, AF_NETLINK, AF_ALG, AF_VSOCK; and AF_UNIX, which exists.
    for (family, exists) in [(2, false), (16, false), (38, false), (40, false), (1, true)] {
        let script = format!("perl -e 'exit(syscall(41, {family}, 1, 0) == -1 ? 1 : 0)'");
        let exit = exit_of(&run(&launcher, &script)).await;
        assert_eq!(
            exit.end == ProcessEnd::Exited(0),
            exists,
            "a socket of family {family}: {}",
            exit.output
        );
    }
}

#[tokio::test]
async fn ends_are_told_as_outside() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    for (script, end) in [
        ("exit 7", ProcessEnd::Exited(7)),
        ("kill -SEGV $$", ProcessEnd::Signalled(11)),
        ("kill -ABRT $$", ProcessEnd::Signalled(6)),
        ("kill -KILL $$", ProcessEnd::Signalled(9)),
    ] {
        assert_eq!(exit_of(&run(&launcher, script)).await.end, end, "{script}");
    }
    let exit = exit_of(&run(&launcher, "echo to stdout; echo to stderr >&2; exit 1")).await;
    assert_eq!(exit.output, "to stdout\nto stderr\n");
    let flood = exit_of(&run(&launcher, "head -c 3000000 /dev/zero | tr '\\0' x; echo the end")).await;
    assert!(
        flood.output.len() <= 4096 && flood.output.ends_with("xthe end\n"),
        "{flood}"
    );
    let bad = Program {
        path: "/nothing/here".into(),
        ..shell("", Vec::new())
    };
    let error = start(&launcher, &bad).expect_err("no program");
    let told = error.to_string();
    assert!(
        told.contains("/nothing/here cannot be run") && told.contains("No such file"),
        "{told}"
    );
    assert!(error.is_lasting(), "no waiting puts it there: {told}");
}

#[tokio::test]
async fn processes_started_in_a_sandbox_end_with_it() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    // Neither a session of its own nor a handler for every signal helps a descendant.
    let script = "setsid sh -c 'trap \"\" HUP TERM; sleep 600' & setsid sleep 600 & echo started; wait";
    let process = run(&launcher, script);
    while process.output().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let namespace = std::fs::read_link(format!("/proc/{}/ns/pid", process.pid())).expect("it lives");
    let inside = residue::processes_in(&namespace);
    // Pid 1 is hidden from an ordinary user.
    assert!(inside.len() >= 3, "{inside:?}");
    process.kill();
    assert_eq!(exit_of(&process).await.end, ProcessEnd::Signalled(9));
    assert_eq!(residue::processes_in(&namespace), Vec::<u32>::new(), "they outlived it");
}

#[tokio::test]
async fn limits_hold() {
    let policy = Policy {
        tmp_bytes: 1 << 20,
        processes: 16,
        file_bytes: 1 << 20,
        memory_bytes: 64 << 20,
        ..Policy::default()
    };
    let Some(launcher) = launcher(policy) else { return };
    let full = exit_of(&run(
        &launcher,
        "head -c 900000 /dev/zero > /tmp/a && head -c 900000 /dev/zero > /tmp/b",
    ))
    .await;
    assert!(matches!(full.end, ProcessEnd::Exited(1..)), "2 MB in 1 MiB: {full}");
    let bomb = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 & done; echo all";
    let exit = exit_of(&run(&launcher, bomb)).await;
    assert!(!exit.output.contains("all"), "20 processes of 16: {}", exit.output);
    let lacking = launcher.find_lacking(Kind::Namespace).expect("as before");
    if let Some(why) = lacking.iter().find(|lacking| lacking.starts_with("memory")) {
        eprintln!("skipped: not enforced here: {why}");
        return;
    }
    // The kernel kills the largest process, which may be a child for which the program waits.
    for script in [HOG.into(), format!("({HOG}); sleep 600")] {
        let exit = exit_of(&run(&launcher, &script)).await;
        assert_eq!(exit.end, ProcessEnd::OutOfMemory, "{script}: {}", exit.output);
    }
}

#[tokio::test]
async fn limits_of_a_lease_apply_to_its_sandbox() {
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
    let (input, mut tell) = io::pipe().expect("a pipe");
    let script = "read go; taskset -pc 0-1023 $$ >/dev/null; grep Cpus_allowed_list /proc/self/status";
    let program = shell(&format!("{script}; {HOG}"), Vec::new());
    let process = launcher
        .start(Kind::Namespace, Some(&program), &WorkerReach::default(), input.into())
        .expect("started");
    process.limit(64 << 20, &[0]).expect("limited");
    tell.write_all(b"go\n").expect("it listens");
    let exit = exit_of(&process).await;
    // The lines after the first are messages about the shell's death, from the commands of the pipe.
    let said = exit.output.lines().next();
    assert_eq!(said, Some("Cpus_allowed_list:\t0"), "it left its core");
    assert_eq!(exit.end, ProcessEnd::OutOfMemory);
    process.limit(0, &[]).expect("one that is gone needs no limits");
}

#[tokio::test]
async fn mounts_show_what_they_say_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    for name in ["shown", "kept", "given"] {
        std::fs::create_dir(folder.path().join(name)).expect("made");
        std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::clone(&open)).expect("set");
        std::fs::write(folder.path().join(name).join("text"), name).expect("written");
    }
    let policy = Policy {
        mounts: vec![Mount {
            source: folder.path().join("shown"),
            target: "/opt/site/shown".into(),
            writable: false,
        }],
        ..Policy::default()
    };
    let Some(launcher) = launcher(policy) else { return };
    let given = Mount {
        source: folder.path().join("given"),
        target: "/tmp/given".into(),
        writable: true,
    };
    let script = "cat /opt/site/shown/text /tmp/given/text; echo; ls -d /opt/site/* /tmp/*; touch /opt/site/shown/x 2>/dev/null \
                  && exit 3; mkdir /opt/other 2>/dev/null && exit 4; echo new > /tmp/given/new";
    let process = start(&launcher, &shell(script, vec![given])).expect("started");
    let exit = exit_of(&process).await;
    assert_eq!(
        (exit.end, exit.output.as_str()),
        (ProcessEnd::Exited(0), "showngiven\n/opt/site/shown\n/tmp/given\n")
    );
    assert_eq!(
        std::fs::read_to_string(folder.path().join("given/new")).expect("written"),
        "new\n"
    );
    assert_eq!(
        output_of(&launcher, "ls -A /tmp").await,
        "",
        "another sandbox sees nothing of it"
    );
    let missing = start(&launcher, &shell("", vec![Mount::read_only("/no/such/folder")]));
    let error = missing.expect_err("nothing to mount").to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
    let covering = Mount {
        source: "/usr".into(),
        target: "/proc/1".into(),
        writable: false,
    };
    let error = start(&launcher, &shell("", vec![covering]))
        .expect_err("its own")
        .to_string();
    assert!(error.contains("own"), "{error}");
}

#[tokio::test]
async fn a_nursery_that_is_stopped_goes_on_when_it_is_needed() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let nursery = residue::nursery_of(&launcher);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(nursery).expect("a pid"));
    nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped");
    let begin = Instant::now();
    // If the stopped nursery is not woken, this fails after 15 s.
    assert_eq!(output_of(&launcher, "echo started").await, "started\n");
    let took = begin.elapsed();
    assert!(took < ANSWER_LIMIT / 2, "it took {took:?}");
    assert_eq!(
        residue::nursery_of(&launcher),
        nursery,
        "another nursery has none of its sandboxes"
    );
}

#[tokio::test]
async fn a_machine_that_cannot_make_them_says_what_is_missing() {
    let launcher = Launcher::new(Path::new("/bin/sh")).expect("a shell");
    let missing = launcher.clone().with_nursery("/no/such/nursery");
    let why = missing.check_available(Kind::Namespace).expect_err("no program");
    assert!(
        why.contains("/no/such/nursery") && why.contains("HOTLEASE_NURSERY"),
        "{why}"
    );
    let other = launcher.clone().with_nursery("/bin/true");
    let why = other.check_available(Kind::Namespace).expect_err("not ours");
    assert!(why.contains("does not answer"), "{why}");
    let policy = Policy {
        mounts: vec![Mount::read_only("/no/such/folder")],
        ..Policy::default()
    };
    let unshown = launcher.with_policy(policy).with_nursery(nursery());
    let why = unshown.check_available(Kind::Namespace).expect_err("nothing to show");
    // On a host without namespaces, their absence is reported first.
    assert!(why.contains("/no/such/folder") || why.contains("namespace"), "{why}");
    let input = File::open("/dev/null").expect("it is there");
    let error = unshown
        .start(Kind::MicroVm, None, &WorkerReach::default(), input.into())
        .expect_err("not in this version");
    assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
}

#[test]
fn a_monitor_has_no_variable_of_the_lease_and_hands_all_of_them_on() {
    let variables = |names: &[&str]| -> Vec<(OsString, OsString)> {
        let names = names.iter();
        names.map(|name| (name.into(), "the lease's".into())).collect()
    };
    let chosen = ["LD_PRELOAD", "PATH", "HOTLEASE_LIBFABRIC", "OMP_NUM_THREADS"];
    let program = Program {
        environment: variables(&chosen),
        ..shell("true", Vec::new())
    };
    let reach = WorkerReach {
        storage: Some(crate::WorkerStorage {
            environment: variables(&["AWS_SECRET_ACCESS_KEY"]),
            inside: true,
        }),
        ..WorkerReach::default()
    };
    let inherited = [("PATH".into(), "/usr/bin".into()), ("HOME".into(), "/elsewhere".into())];
    let of = |monitor: Option<&Program>| {
        let own = (Some(&program), false);
        let mut file = described(own, monitor, (&reach, Path::new("/bin/worker")), &inherited).expect("described");
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).expect("a file");
        io::Read::read_to_end(&mut file, &mut bytes).expect("read");
        hotlease_wire::decode::<ProgramDescription>(&bytes).expect("a program")
    };
    let without = of(None);
    let monitor = Program {
        path: "/monitor".into(),
        environment: Vec::new(),
        ..shell("", Vec::new())
    };
    let with = of(Some(&monitor));
    assert_eq!(with.path, "/monitor");
    let sorted = |mut all: Vec<(OsString, OsString)>| {
        all.sort();
        all
    };
    let inside = inner_environment::unwrap(with.environment.clone());
    assert_eq!(sorted(inside), sorted(without.environment), "what the worker gets");
    let own = with.environment.iter().filter(|(name, _)| {
        let name = name.to_string_lossy();
        !name.starts_with("HOTLEASE_INSIDE_")
    });
    let own = sorted(own.cloned().collect());
    let expected = [("HOME", "/tmp"), ("PATH", "/usr/bin"), ("TMPDIR", "/tmp")];
    let expected: [(OsString, OsString); 3] = expected.map(|(name, value)| (name.into(), value.into()));
    assert_eq!(own, expected);
}
