//! Refusals that come before any machine is booted.

use crate::Machines;
use hotlease_tests::platform::program;
use std::process::Command;

/// Error of `hotlease sandbox hand-over` with further arguments and, if given, another PATH.
fn refused(further: &[&str], path: Option<&str>) -> String {
    let mut command = Command::new(program("hotlease"));
    command.args(["sandbox", "hand-over", "--kind", "microvm", "--sandbox-emulated"]);
    command.args(further).current_dir("/");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("hotlease runs");
    assert!(!output.status.success(), "{further:?}: it makes some");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn missing_requirements_of_machines_are_named_before_any_start() {
    let why = refused(&[], Some("/no/such/folder"));
    // Some hosts have QEMU in a folder that no PATH names.
    assert!(
        why.contains("apt-get install") || why.contains("--sandbox-kernel"),
        "{why}"
    );
    if Machines::take().is_none() {
        return;
    }
    for (further, words) in [
        (
            ["--sandbox-kernel", "/no/such/vmlinuz-1"],
            ["/no/such/vmlinuz-1", "--sandbox-kernel"],
        ),
        (["--sandbox-kernel", "/dev/null"], ["/dev/null", "vmlinuz-VERSION"]),
        (
            ["--sandbox-machine-memory", "64M"],
            ["--sandbox-machine-memory", "192 MiB"],
        ),
    ] {
        let why = refused(&further, None);
        assert!(words.iter().all(|word| why.contains(word)), "{further:?}: {why}");
    }
}
