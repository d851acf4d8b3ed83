//! Tests of mounts, their sharing, and their removal after crashes.

use crate::scene::{TestImages, can_pack, is_root, mounted};
use hotlease_image::{ImageError, MountMethod};
use std::fs;
use std::process::Command;

#[test]
fn a_mount_is_shared_and_goes_with_the_last() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(1);
    let cache = scene.cache();
    let Some(first) = mounted(&cache, &packed.id) else {
        return;
    };
    let second = scene.cache().mount(&packed.id).expect("it is shared");
    assert_eq!(first.path(), second.path());
    drop(first);
    assert!(second.path().join("bin/hello").exists(), "it went with the first");
    let at = second.path().to_owned();
    drop(second);
    assert!(!at.join("bin/hello").exists(), "it is still mounted");
    assert!(cache.list().unwrap().iter().all(|image| !image.mounted));
}

#[test]
fn many_at_once_share_one_mount() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(2);
    let cache = scene.cache();
    if mounted(&cache, &packed.id).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let mounted = cache.mount(&packed.id).expect("it is mounted");
                    assert!(mounted.path().join("bin/hello").exists(), "it was unmounted below");
                }
            });
        }
    });
    assert!(cache.list().unwrap().iter().all(|image| !image.mounted));
}

/// Tries each way of mounting: by the kernel, which works for root, and by FUSE, which works for any user.
#[test]
fn each_way_works_or_says_why_not() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(3);
    for way in [MountMethod::Kernel, MountMethod::Fuse] {
        let cache = scene.cache_with(1 << 30, way);
        match cache.mount(&packed.id) {
            Ok(mounted) => {
                let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
                let id = packed.id.to_string();
                let line = table
                    .lines()
                    .find(|line| line.contains(&id))
                    .expect("it is in the table");
                let is_fuse = line.contains(" - fuse");
                assert_eq!(is_fuse, way == MountMethod::Fuse, "{line}");
                for option in ["ro", "nosuid", "nodev"] {
                    assert!(line.contains(option), "{option} is missing: {line}");
                }
                let data = fs::read(mounted.path().join("lib/site/data")).unwrap();
                assert_eq!(data, crate::scene::noise(3, 300_000));
            }
            Err(ImageError::CannotMount { why, .. }) => {
                assert!(!(way == MountMethod::Kernel && is_root()), "{why}");
                assert!(why.len() > 20, "{why}");
                eprintln!("skipped, {way:?}: {why}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(cache.list().unwrap().iter().all(|image| !image.mounted), "{way:?}");
    }
}

/// The server of a FUSE mount may be killed: the next mount starts a new one.
#[test]
fn a_dead_server_is_replaced() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(4);
    let cache = scene.cache_with(1 << 30, MountMethod::Fuse);
    let Some(first) = mounted(&cache, &packed.id) else {
        return;
    };
    let id = packed.id.to_string();
    let image = scene.cached(&packed.id);
    let servers: Vec<i32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // A server of root has the image's name in its arguments, and the file open.
            let has = fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|file| file == image);
            let line = String::from_utf8_lossy(&line);
            line.starts_with("squashfuse")
                && line.contains(&id)
                && (has || line.contains(&*scene.dir.path().to_string_lossy()))
        })
        .collect();
    assert_eq!(servers.len(), 1, "{servers:?}");
    if is_root() {
        let status = fs::read_to_string(format!("/proc/{}/status", servers[0])).unwrap();
        let ids = |what: &str| {
            let line = status.lines().find(|line| line.starts_with(what));
            line.unwrap().split_whitespace().skip(1).collect::<Vec<_>>()
        };
        // The server reads bytes that any user may have packed.
        assert!(
            ids("Uid:").iter().chain(&ids("Gid:")).all(|id| id.len() == 10),
            "{status}"
        );
        assert!(
            ids("Groups:").is_empty() && ids("CapEff:") == ["0000000000000000"],
            "{status}"
        );
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(servers[0]),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    // Waits until the mount notices that its server is gone.
    while nix::sys::statvfs::statvfs(first.path()).is_ok() {
        std::thread::yield_now();
    }
    let second = cache.mount(&packed.id).expect("it is mounted again");
    assert!(second.path().join("bin/hello").exists());
    drop((first, second));
    assert!(cache.list().unwrap().iter().all(|image| !image.mounted));
}

#[test]
fn files_opened_by_a_run_are_recorded_for_the_next_run() {
    if !can_pack() || !is_root() {
        eprintln!("skipped: only root may watch a mount");
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(5);
    let cache = scene.cache();
    let mounted = cache.mount(&packed.id).expect("it is mounted");
    let Some(recorder) = mounted.record() else {
        eprintln!("skipped: no fanotify here");
        return;
    };
    let read = Command::new("cat")
        .arg("lib/site/a.py")
        .current_dir(mounted.path())
        .output();
    assert!(read.unwrap().status.success());
    // Like a sandbox: another mount of the image, at the tree's original path.
    let read = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$1\" \"$2\" && cat \"$2\"/bin/hello",
            "sh",
        ])
        .args([mounted.path(), &mounted.manifest().prefix()])
        .output();
    assert!(read.unwrap().status.success());
    drop(recorder);
    let trace = fs::read(scene.path("cache/traces").join(packed.id.to_string())).expect("a trace");
    let names: Vec<_> = trace.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let at = |name: &str| names.iter().position(|known| known == name);
    assert!(
        at("lib/site/a.py").is_some() && at("lib/site/a.py") < at("bin/hello"),
        "{names:?}"
    );
    assert!(mounted.record().is_none(), "it is recorded once");
    drop(mounted);
    // The next mount reads ahead by the trace, and works however damaged the trace is.
    fs::write(
        scene.path("cache/traces").join(packed.id.to_string()),
        b"../../etc\0\xff\0/dev/zero\0no",
    )
    .unwrap();
    let again = cache.mount(&packed.id).expect("it is mounted");
    assert!(again.path().join("bin/hello").exists());
}
