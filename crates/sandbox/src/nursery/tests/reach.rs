//! Access of programs beyond their sandbox.

use super::{exit_of, launcher, output_of, shell, start};
use crate::{DeclaredDirectory, Kind, Launcher, Mount, Policy, Process, ProcessEnd, SandboxError, WorkerReach};
use std::fs::File;
use std::path::{Path, PathBuf};

fn reaching(launcher: &Launcher, script: &str, reach: &WorkerReach) -> Result<Process, SandboxError> {
    let input = File::open("/dev/null").expect("it is there");
    let program = shell(script, Vec::new());
    launcher.start(Kind::Namespace, Some(&program), reach, input.into())
}

/// Makes a folder that belongs to this user, if the test runs as root.
fn folder_of(owner: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("kept"), "kept").expect("written");
    if nix::unistd::geteuid().is_root() {
        for path in [folder.path().to_owned(), folder.path().join("kept")] {
            std::os::unix::fs::chown(path, Some(owner), Some(0)).expect("given");
        }
    }
    folder
}

fn declared(folder: &Path, writable: bool, as_owner: bool) -> WorkerReach {
    let declared = DeclaredDirectory {
        trusted: folder.to_owned(),
        own: PathBuf::new(),
        beneath: PathBuf::new(),
        target: "/data".into(),
        writable,
        as_owner,
    };
    WorkerReach {
        directories: vec![declared],
        ..WorkerReach::default()
    }
}

/// Owner of the folder if the tests run as root: not the user of any sandbox.
const OWNER: u32 = 54_321;

#[tokio::test]
async fn a_declared_directory_is_its_owner_s_and_what_is_made_there_too() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    let folder = folder_of(OWNER);
    let run = async |script: &str, reach: &WorkerReach| {
        let exit = exit_of(&reaching(&launcher, script, reach).expect("started")).await;
        (exit.end, exit.output.clone())
    };
    // A file of root belongs to root in the sandbox, too. A file whose group is not mapped still belongs to its owner.
    std::fs::write(folder.path().join("of-root"), "").expect("written");
    let script = "cat /data/kept && echo new > /data/new && echo more >> /data/kept && stat -c %U /data/kept && rm /data/kept; \
                  test $(stat -c %U /data/of-root) = user || echo > /data/of-root";
    let (end, said) = run(script, &declared(folder.path(), true, true)).await;
    assert!(said.starts_with("keptuser\n"), "{said}");
    let by_root = nix::unistd::geteuid().is_root();
    assert_eq!(
        matches!(end, ProcessEnd::Exited(1..)) && said.contains("Permission denied"),
        by_root,
        "{end:?}: {said}"
    );
    let made = std::fs::metadata(folder.path().join("new")).expect("made");
    let owner = std::os::unix::fs::MetadataExt::uid(&made);
    assert_eq!(owner == OWNER, by_root, "what was made is of user {owner}");
    let (end, said) = run("cat /data/new; touch /data/x", &declared(folder.path(), false, true)).await;
    assert!(
        matches!(end, ProcessEnd::Exited(1..)) && said.contains("new\n") && said.contains("Read-only"),
        "{said}"
    );
    if !by_root {
        eprintln!("skipped: only root has sandboxes of other users");
        return;
    }
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(folder.path(), closed).expect("closed");
    let (end, said) = run("ls /data", &declared(folder.path(), false, false)).await;
    assert!(
        matches!(end, ProcessEnd::Exited(1..)) && said.contains("Permission denied"),
        "as everybody: {said}"
    );
    let mut hidden = declared(folder.path(), false, false);
    std::fs::create_dir(folder.path().join("inner")).expect("made");
    hidden.directories[0].beneath = "inner".into();
    let error = reaching(&launcher, "true", &hidden)
        .expect_err("it is not let through")
        .to_string();
    assert!(error.contains("Permission denied"), "{error}");
    let of_root = folder_of(0);
    let error = reaching(&launcher, "true", &declared(of_root.path(), true, true))
        .expect_err("nothing in a sandbox writes as root")
        .to_string();
    assert!(error.contains("belongs to root"), "{error}");
}

#[tokio::test]
async fn a_way_to_storage_is_one_port_of_a_network_of_its_own() {
    let Some(launcher) = launcher(Policy::default()) else {
        return;
    };
    if !Path::new("/bin/bash").exists() {
        eprintln!("skipped: there is no bash, which can talk TCP");
        return;
    }
    let start = |script: &str, reach: &WorkerReach| {
        let input = File::open("/dev/null").expect("it is there");
        let mut program = shell(script, Vec::new());
        program.path = "/bin/bash".into();
        launcher.start(Kind::Namespace, Some(&program), reach, input.into())
    };
    let reach = WorkerReach {
        storage: Some(crate::WorkerStorage {
            environment: vec![("OWN".into(), "the lease's".into())],
            inside: true,
        }),
        ..WorkerReach::default()
    };
    let script = "echo $OWN; cat /dev/tcp/127.0.0.1/9000; readlink /proc/self/ns/net
                  for there in 127.0.0.1/9001 127.0.0.2/80 192.0.2.1/9000; do
                      (exec 3<>/dev/tcp/$there) 2>/dev/null && echo reached $there
                  done; true";
    let script = script.replace(
        "cat /dev/tcp/127.0.0.1/9000",
        "exec 3<>/dev/tcp/127.0.0.1/9000; cat <&3",
    );
    // The first rounds use prepared sandboxes; later rounds may get new sandboxes.
    for _ in 0..4 {
        let mut process = start(&script, &reach).expect("started");
        let listener = process.take_listener().expect("it was asked for");
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(false).expect("set");
        let accepted = tokio::task::spawn_blocking(move || {
            use std::io::Write;
            let (mut stream, from) = listener.accept().expect("it connects");
            stream.write_all(b"from outside\n").expect("written");
            from
        });
        assert!(accepted.await.expect("accepted").ip().is_loopback());
        let exit = exit_of(&process).await;
        let mut lines = exit.output.lines();
        assert_eq!(
            (lines.next(), lines.next()),
            (Some("the lease's"), Some("from outside")),
            "{exit:?}"
        );
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        assert_ne!(lines.next(), own.to_str(), "it is in our network");
        assert_eq!(lines.next(), None, "it reaches more: {exit:?}");
    }
    let without = start(&script, &WorkerReach::default()).expect("started");
    let exit = exit_of(&without).await;
    assert!(
        !exit.output.contains("from outside") && exit.output.starts_with("its\n"),
        "{exit:?}"
    );
    let asking = WorkerReach { network: true, ..reach };
    assert!(start("true", &asking).is_err(), "the site grants no network");
}

#[tokio::test]
async fn a_hidden_folder_is_empty_where_the_folder_around_it_is_shown() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let run = folder.path().join("run");
    std::fs::create_dir(&run).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(run.join("manager.sock")).expect("a socket");
    std::fs::write(folder.path().join("beside"), "seen\n").expect("written");
    open_to_all(folder.path());
    open_to_all(&run);
    let script = format!(
        "cat {0}/beside; ls {0}/run/manager.sock {0}/run/.. > /dev/null 2>&1; test -e {0}/run/manager.sock; echo $?",
        folder.path().display()
    );
    let shown = |hidden: &[&Path]| {
        launcher(Policy {
            mounts: vec![Mount::read_only(folder.path())],
            hidden: hidden.iter().map(|path| path.as_os_str().to_owned()).collect(),
            ..Policy::default()
        })
    };
    let Some(open) = shown(&[]) else { return };
    assert_eq!(output_of(&open, &script).await, "seen\n0\n", "it is shown");
    let missing = folder.path().join("missing");
    let hiding = shown(&[&run, &missing]).expect("as before");
    assert_eq!(output_of(&hiding, &script).await, "seen\n1\n");
    let socket = run.join("manager.sock");
    let is_socket = format!("test -S {0}; echo $?", socket.display());
    assert_eq!(output_of(&open, &is_socket).await, "0\n");
    let hiding = shown(&[&socket]).expect("as before");
    assert_eq!(output_of(&hiding, &is_socket).await, "1\n");
    // Also in a folder that a program needs.
    let program = shell(&script, vec![Mount::read_only(folder.path())]);
    let hiding = launcher(Policy {
        hidden: vec![run.into()],
        ..Policy::default()
    });
    let exit = exit_of(&start(&hiding.expect("as before"), &program).expect("started")).await;
    assert_eq!(exit.output, "seen\n1\n");
}

/// Lets every user enter a folder and read it.
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("opened");
}

#[tokio::test]
async fn a_sandbox_has_a_network_only_if_requested_and_permitted() {
    let asking = WorkerReach {
        network: true,
        ..WorkerReach::default()
    };
    let Some(strict) = launcher(Policy::default()) else {
        return;
    };
    let error = reaching(&strict, "true", &asking).expect_err("none").to_string();
    assert!(error.contains("no network"), "{error}");
    let open = launcher(Policy {
        network: true,
        ..Policy::default()
    });
    let open = open.expect("as before");
    let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
    let own = own.to_string_lossy();
    for _ in 0..3 {
        for (reach, has) in [(&asking, true), (&WorkerReach::default(), false)] {
            let process = reaching(&open, "readlink /proc/self/ns/net", reach).expect("started");
            let exit = exit_of(&process).await;
            assert_eq!(exit.output.trim() == own, has, "{reach:?}: {}", exit.output);
        }
    }
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("skipped: no perl to make sockets with");
        return;
    }
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    for (name, [family, kind, protocol], exists) in [
        (
            "TCP",
            [libc::AF_INET, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP],
            true,
        ),
        ("UDP", [libc::AF_INET, libc::SOCK_DGRAM, 0], true),
        (
            "interfaces",
            [libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE],
            true,
        ),
        ("MPTCP", [libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP], false),
        (
            "UDP-Lite",
            [libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE],
            false,
        ),
        ("audit", [libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT], false),
        (
            "generic",
            [libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC],
            false,
        ),
    ] {
        let script = format!(
            "perl -e 'exit(syscall({}, {family}, {kind}, {protocol}) == -1 ? $!{{ENOSYS}} ? 7 : 8 : 0)'",
            libc::SYS_socket
        );
        let exit = exit_of(&reaching(&open, &script, &asking).expect("started")).await;
        let expected = if exists { 0 } else { 7 };
        assert_eq!(exit.end, ProcessEnd::Exited(expected), "{name}: {}", exit.output);
    }
}
