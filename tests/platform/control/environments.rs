//! Tests of `hotlease env`: results, exit statuses and texts as documented. Images themselves are tested in
//! `crates/image`.

use hotlease_tests::platform::program;
use hotlease_tests::wait::until_true;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// `hotlease env ...` with a store and a cache in this folder; no platform runs.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hotlease"));
    command
        .arg("env")
        .args(arguments)
        .env("HOTLEASE_ENV_STORE", folder.join("store"))
        .env("HOTLEASE_ENV_CACHE", folder.join("cache"));
    command
}

fn env(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("hotlease runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn an_environment_is_packed_run_listed_verified_and_removed() {
    if Command::new("mksquashfs").arg("-version").output().is_err() {
        eprintln!("skipped: no mksquashfs here (package squashfs-tools)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    symlink("/bin/sh", tree.join("bin/python3")).unwrap();
    fs::write(tree.join("pyvenv.cfg"), "home = /bin\n").unwrap();
    fs::write(tree.join("data"), "packed\n").unwrap();
    let tree = tree.to_str().unwrap();
    let packed = env(folder.path(), &["pack", tree]);
    assert_eq!(code(&packed), Some(0), "{}", words(&packed));
    let hash = String::from_utf8(packed.stdout).unwrap().trim().to_owned();
    assert_eq!(hash.len(), 64, "{hash}");
    let again = env(folder.path(), &["pack", tree, "--json"]);
    let row = &rows(&again)[0];
    assert_eq!(
        (&row["hash"], &row["kind"]),
        (&Value::from(hash.as_str()), &Value::from("venv"))
    );

    let ran = env(
        folder.path(),
        &["run", &hash, "--", "python3", "-c", "cat $VIRTUAL_ENV/data; exit 7"],
    );
    if words(&ran).contains("cannot be mounted here") {
        eprintln!("skipped: {}", words(&ran));
    } else {
        assert_eq!(
            (code(&ran), ran.stdout.as_slice()),
            (Some(7), &b"packed\n"[..]),
            "{}",
            words(&ran)
        );
        let killed = env(folder.path(), &["run", &hash, "--", "sh", "-c", "kill -KILL $$"]);
        assert_eq!(code(&killed), Some(137), "{}", words(&killed));
        let missing = env(folder.path(), &["run", &hash, "--", "no-such-program"]);
        assert_eq!(code(&missing), Some(1));
        assert!(words(&missing).contains("no-such-program"), "{}", words(&missing));
    }
    let is_mounted = || {
        let listed = rows(&env(folder.path(), &["ls", "--json"]));
        listed.iter().any(|row| row["mounted"] == true)
    };
    if code(&ran) == Some(7) {
        // `hotlease` dies, and the command that it ran continues with its files until it ends, too.
        let mut run = command(
            folder.path(),
            &["run", &hash, "--", "sh", "-c", "echo $$; exec sleep 600"],
        )
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        run.kill().unwrap();
        run.wait().unwrap();
        assert!(is_mounted(), "it was taken away from a command that runs");
        kill(Pid::from_raw(line.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
        until_true("it is unmounted", Duration::from_secs(60), || !is_mounted());
    }
    let listed = rows(&env(folder.path(), &["ls", "--json"]));
    let places: Vec<_> = listed.iter().map(|row| row["place"].as_str().unwrap()).collect();
    assert!(places.contains(&"cache") && places.len() == 2, "{listed:?}");
    assert!(listed.iter().all(|row| row["mounted"] == false), "{listed:?}");

    let file = folder.path().join(format!("store/{hash}.squashfs"));
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::remove_file(&file).unwrap();
    fs::write(&file, bytes).unwrap();
    let verified = env(folder.path(), &["verify", "--json"]);
    assert_eq!(code(&verified), Some(1));
    let right: Vec<_> = rows(&verified).iter().map(|row| row["ok"] == true).collect();
    assert_eq!(right, [true, false], "{verified:?}");
    let removed = rows(&env(folder.path(), &["gc", "--json"]));
    assert_eq!(removed.len(), 1, "{removed:?}");
    let damaged = env(folder.path(), &["run", &hash, "--", "true"]);
    assert_eq!(code(&damaged), Some(1));
    assert!(words(&damaged).contains("is damaged"), "{}", words(&damaged));
    assert_eq!(code(&env(folder.path(), &["run", "abc", "--", "true"])), Some(2));
}
