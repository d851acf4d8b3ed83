//! Tests of the installed runtimes; of other runtimes only the arguments are tested. If this host has no runtime, the
//! tests print the reason and pass.

use super::*;
use crate::nursery::tests::residue::{
    an_agent_is_killed, groups, is_gone, kill, namespace_of_started, processes_in, running, until,
};
use crate::nursery::tests::{HOG, exit_of, nursery, shell};
use crate::{Kind, Launcher, Mount, Policy, Process, ProcessEnd, Program, SandboxError, WorkerReach};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::Command;

mod arguments;

fn of(runtime: impl Into<OsString>) -> Container {
    Container {
        runtime: runtime.into(),
        image: None,
    }
}

fn launcher(container: Container, policy: Policy) -> Launcher {
    let launcher = Launcher::new(Path::new("/bin/sh")).expect("a shell");
    launcher
        .with_policy(policy)
        .with_nursery(nursery())
        .with_container(container)
}

/// Launchers for the runtimes that this host has.
fn launchers(policy: &Policy) -> Vec<(&'static str, Launcher)> {
    let all = ["crun", "ch-run"].map(|runtime| (runtime, launcher(of(runtime), policy.clone())));
    let can = |(runtime, launcher): &(&str, Launcher)| {
        let found = launcher.check_available(Kind::Container);
        if let Err(why) = &found {
            eprintln!("skipped: no containers of {runtime} here: {why}");
        }
        found.is_ok()
    };
    all.into_iter().filter(can).collect()
}

fn start(launcher: &Launcher, program: &Program) -> Result<Process, SandboxError> {
    let input = File::open("/dev/null").expect("it is there");
    launcher.start(Kind::Container, Some(program), &WorkerReach::default(), input.into())
}

fn run(launcher: &Launcher, script: &str) -> Process {
    start(launcher, &shell(script, Vec::new())).expect("started")
}

async fn output_of(launcher: &Launcher, script: &str) -> String {
    let exit = exit_of(&run(launcher, script)).await;
    assert_eq!(exit.end, ProcessEnd::Exited(0), "{script}: {}", exit.output);
    exit.output.clone()
}

#[tokio::test]
async fn a_program_sees_its_own_root_and_its_ends_are_told_as_outside() {
    for (runtime, launcher) in launchers(&Policy::default()) {
        let seen = |script: &'static str| output_of(&launcher, script);
        assert_eq!(
            seen("id -u; id -un; hostname; pwd; echo $HOME $OWN").await,
            "1000\nuser\nsandbox\n/tmp\n/tmp its\n",
            "{runtime}"
        );
        let hidden = "for f in /etc/shadow /etc/ssh /var /sys/kernel /run /mnt /host /media; do \
                      test -e $f && echo $f; done; ls -A /tmp /dev/shm /sys/fs 2>/dev/null | grep -v :; true";
        let outside = seen(hidden).await;
        assert!(
            outside.trim().is_empty() || outside.trim() == "cgroup",
            "{runtime}: {outside}"
        );
        let devices = "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\nurandom\nzero\n";
        assert_eq!(seen("ls /dev").await, devices, "{runtime}");
        assert_eq!(
            seen("ls /proc/self/fd").await,
            "0\n1\n2\n3\n",
            "{runtime}: 3 is ls's own"
        );
        assert_eq!(
            seen("test -e /proc/1; echo $?; grep -c : /proc/self/net/dev").await,
            "1\n1\n",
            "{runtime}"
        );
        let status = seen("cat /proc/self/status").await;
        for held in [
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
        ] {
            assert!(status.contains(held), "{runtime}: not {held}\n{status}");
        }
        for name in ["user", "mnt", "pid", "ipc", "net", "uts", "cgroup"] {
            let own = fs::read_link(format!("/proc/self/ns/{name}")).expect("a namespace");
            let theirs = output_of(&launcher, &format!("readlink /proc/self/ns/{name}")).await;
            assert_ne!(
                theirs.trim(),
                own.to_string_lossy(),
                "{runtime}: the {name} namespace is ours"
            );
        }
        for script in [
            "touch /usr/x",
            "touch /x",
            "touch /etc/x",
            "echo x > /etc/passwd",
            "unshare -Ur true",
            "mount -t tmpfs none /tmp",
            "umount /proc",
            "chroot /tmp true",
            "kill -9 1 && sleep 0.2 && exit 1; false",
            "ulimit -n 100000",
        ] {
            let exit = exit_of(&run(&launcher, script)).await;
            assert!(
                matches!(exit.end, ProcessEnd::Exited(1..)),
                "{runtime}: {script}: {exit}, {}",
                exit.output
            );
        }
        for (script, end) in [
            ("exit 7", ProcessEnd::Exited(7)),
            ("exit 139", ProcessEnd::Exited(139)),
            ("kill -SEGV $$", ProcessEnd::Signalled(11)),
            ("kill -KILL $$", ProcessEnd::Signalled(9)),
        ] {
            assert_eq!(exit_of(&run(&launcher, script)).await.end, end, "{runtime}: {script}");
        }
        let exit = exit_of(&run(&launcher, "echo to stdout; echo to stderr >&2; exit 1")).await;
        assert_eq!(exit.output, "to stdout\nto stderr\n", "{runtime}");
    }
}

#[tokio::test]
async fn variables_reach_the_program_as_they_are_and_never_the_runtime() {
    let value = "a, $b:$HOME\n'c' \"d\" = %";
    for (runtime, launcher) in launchers(&Policy::default()) {
        let program = |script: &str, variables: &[(&str, &str)]| Program {
            environment: variables
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..shell(script, Vec::new())
        };
        let script = "printf '%s|' \"$VALUE\" \"${EMPTY-unset}\"; env | grep -c HOTLEASE_INSIDE";
        let plain = program(script, &[("VALUE", value), ("EMPTY", "")]);
        let exit = exit_of(&start(&launcher, &plain).expect("started")).await;
        assert_eq!(exit.output, format!("{value}||0\n"), "{runtime}");
        // The loader of each program that has this variable prints the program's path.
        let loaded = program("echo ran", &[("LD_SHOW_AUXV", "1")]);
        let exit = exit_of(&start(&launcher, &loaded).expect("started")).await;
        let paths = exit.output.lines().filter_map(|line| line.strip_prefix("AT_EXECFN:"));
        let paths: Vec<&str> = paths.map(str::trim).collect();
        assert_eq!(paths, ["/bin/sh"], "{runtime}: {}", exit.output);
    }
}

#[tokio::test]
async fn a_worker_takes_orders_over_its_standard_input() {
    let worker = nursery().with_file_name(crate::WORKER_BINARY);
    for (runtime, _) in launchers(&Policy::default()) {
        let launcher = Launcher::new(&worker)
            .expect("a worker is built")
            .with_nursery(nursery())
            .with_container(of(runtime));
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a socket");
        let process = launcher
            .start(Kind::Container, None, &WorkerReach::default(), theirs)
            .expect("started");
        let said = tokio::task::spawn_blocking(move || {
            let said = recv(ours.as_raw_fd(), &mut [0; 256], MsgFlags::empty());
            (said, ours)
        });
        let (said, ours) = said.await.expect("it is waited for");
        assert!(said.expect("received") > 0, "{runtime}: it ended: {}", process.output());
        assert!(process.resident_bytes() > 0, "{runtime}");
        drop(ours);
        exit_of(&process).await;
    }
}

#[tokio::test]
async fn limits_hold_and_want_of_memory_is_told() {
    let policy = Policy {
        tmp_bytes: 1 << 20,
        processes: 16,
        memory_bytes: 64 << 20,
        ..Policy::default()
    };
    for (runtime, launcher) in launchers(&policy) {
        let full = exit_of(&run(&launcher, "head -c 2000000 /dev/zero > /tmp/a")).await;
        assert!(
            matches!(full.end, ProcessEnd::Exited(1..)),
            "{runtime}: 2 MB in 1 MiB: {full}"
        );
        let bomb = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 & done; echo all";
        let exit = exit_of(&run(&launcher, bomb)).await;
        assert!(
            !exit.output.contains("all"),
            "{runtime}: 20 processes of 16: {}",
            exit.output
        );
        let lacking = launcher.find_lacking(Kind::Container).expect("as before");
        if let Some(why) = lacking.iter().find(|lacking| lacking.starts_with("memory")) {
            eprintln!("skipped: not enforced here: {why}");
            continue;
        }
        let exit = exit_of(&run(&launcher, HOG)).await;
        assert_eq!(exit.end, ProcessEnd::OutOfMemory, "{runtime}: {}", exit.output);
    }
}

#[tokio::test]
async fn mounts_show_what_they_say_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["shown", "given"] {
        fs::create_dir(folder.path().join(name)).expect("made");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path().join(name), open).expect("set");
        fs::write(folder.path().join(name).join("text"), name).expect("written");
    }
    let mount = |name: &str, target: &str, writable| Mount {
        source: folder.path().join(name),
        target: target.into(),
        writable,
    };
    let policy = Policy {
        mounts: vec![mount("shown", "/opt/site/shown", false)],
        ..Policy::default()
    };
    for (runtime, launcher) in launchers(&policy) {
        let given = vec![mount("given", "/tmp/given", true), mount("given", "/data/given", true)];
        let script = "pwd; cat /opt/site/shown/text text; echo; ls -d /opt/site/* /data/*; touch /opt/site/shown/x 2>/dev/null && \
                      exit 3; mkdir /opt/other 2>/dev/null && exit 4; cat /data/given/text && echo new > /data/given/new";
        let program = Program {
            directory: "/tmp/given".into(),
            ..shell(script, given)
        };
        let exit = exit_of(&start(&launcher, &program).expect("started")).await;
        assert_eq!(
            (exit.end, exit.output.as_str()),
            (
                ProcessEnd::Exited(0),
                "/tmp/given\nshowngiven\n/data/given\n/opt/site/shown\ngiven"
            ),
            "{runtime}"
        );
        let new = folder.path().join("given/new");
        assert_eq!(fs::read_to_string(&new).expect("written"), "new\n", "{runtime}");
        fs::remove_file(new).expect("removed");
        let missing = start(&launcher, &shell("", vec![Mount::read_only("/no/such/folder")]));
        let error = missing.expect_err("nothing to mount").to_string();
        assert!(error.contains("/no/such/folder"), "{runtime}: {error}");
    }
}

/// Makes an image: a folder with a shell and nothing else.
fn image() -> Option<tempfile::TempDir> {
    let image = tempfile::tempdir().expect("a folder");
    let needed = Command::new("ldd").arg("/bin/sh").output().ok()?;
    let needed = String::from_utf8_lossy(&needed.stdout).into_owned();
    let files = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in files.chain(["/bin/sh"]) {
        let to = image.path().join(&file[1..]);
        fs::create_dir_all(to.parent()?).expect("made");
        fs::copy(file, to).expect("copied");
    }
    for name in ["etc", "opt"] {
        fs::create_dir(image.path().join(name)).expect("made");
    }
    for name in ["passwd", "group", "hosts"] {
        fs::write(image.path().join("etc").join(name), "").expect("written");
    }
    fs::write(image.path().join("etc/mark"), "of the image\n").expect("written");
    Some(image)
}

#[tokio::test]
async fn an_image_is_all_that_is_seen_and_is_not_changed() {
    let Some(image) = image() else {
        return eprintln!("skipped: no ldd to make an image with");
    };
    for (runtime, _) in launchers(&Policy::default()) {
        let container = Container {
            image: Some(image.path().into()),
            ..of(runtime)
        };
        let launcher = launcher(container, Policy::default());
        let script = "read mark < /etc/mark; echo $mark; for f in /usr/bin /bin/ls /var; do test -e $f && echo $f; done; \
                      echo x > /tmp/x && echo y > /dev/null && { echo x > /opt/x || echo kept; } 2>/dev/null";
        assert_eq!(output_of(&launcher, script).await, "of the image\nkept\n", "{runtime}");
        // A mount whose target the image lacks must not create that target in the image.
        let mount = Mount {
            source: "/usr".into(),
            target: "/opt/usr".into(),
            writable: false,
        };
        let error = start(&launcher, &shell("true", vec![mount])).expect_err("no place for it");
        assert!(error.to_string().contains("/opt/usr"), "{runtime}: {error}");
        assert_eq!(fs::read_dir(image.path().join("opt")).expect("listed").count(), 0);
    }
}

#[tokio::test]
async fn a_container_that_is_killed_leaves_nothing() {
    for (runtime, launcher) in launchers(&Policy::default()) {
        let nursery = running(launcher.containers());
        let script = "setsid sh -c 'trap \"\" HUP TERM; sleep 600' & setsid sleep 600 & echo started; wait";
        let ways: [&dyn Fn(&Process); 2] = [&|process| process.kill(), &|_| assert!(kill(nursery))];
        for way in ways {
            let process = run(&launcher, script);
            let namespace = namespace_of_started(&process).await;
            let inside = processes_in(&namespace);
            assert!(inside.len() >= 3, "{runtime}: {inside:?}");
            way(&process);
            assert_eq!(exit_of(&process).await.end, ProcessEnd::Signalled(9), "{runtime}");
            until("all in it ends", || processes_in(&namespace).is_empty());
        }
        // The next start notices, and sweeps.
        assert_eq!(output_of(&launcher, "echo again").await, "again\n", "{runtime}");
        assert_ne!(running(launcher.containers()), nursery, "{runtime}");
        let last = running(launcher.containers());
        drop(launcher);
        until("the nursery ends", || is_gone(last));
        until("groups go", || {
            super::tests::launcher(of(runtime), Policy::default())
                .check_available(Kind::Container)
                .is_err()
                || groups(nursery).is_empty()
        });
        assert_eq!(groups(last), Vec::<PathBuf>::new(), "{runtime}");
        nothing_is_on_disk(runtime);
    }
}

/// Checks that a runtime has left no files where other processes could see them.
fn nothing_is_on_disk(runtime: &str) {
    for file in [
        "/media/config.json",
        "/media/image",
        "/media/state",
        "/run/crun/hotlease",
    ] {
        assert!(!Path::new(file).exists(), "{runtime}: {file} was left");
    }
}

#[test]
fn an_agent_that_is_killed_leaves_nothing() {
    let name = concat!(module_path!(), "::an_agent_that_is_killed_leaves_nothing");
    an_agent_is_killed(name, async || {
        let start = |(_, launcher): (_, Launcher)| {
            let process = run(&launcher, "setsid sleep 600 & sleep 600");
            let nursery = running(launcher.containers());
            // Dropping the launcher here would end the nurseries before the agent is killed.
            std::mem::forget(launcher);
            (process, nursery)
        };
        launchers(&Policy::default()).into_iter().map(start).collect()
    });
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    for (runtime, launcher) in launchers(&Policy::default()) {
        let bad = Program {
            path: "/nothing/here".into(),
            ..shell("", Vec::new())
        };
        let said = match start(&launcher, &bad) {
            Err(error) => error.to_string(),
            // A runtime that execs the program reports this as the program's output.
            Ok(process) => {
                let exit = exit_of(&process).await;
                assert_ne!(exit.end, ProcessEnd::Exited(0), "{runtime}");
                exit.output.clone()
            }
        };
        assert!(said.contains("/nothing/here"), "{runtime}: {said}");
    }
}
