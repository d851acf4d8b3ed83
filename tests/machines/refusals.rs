//! What no machine is booted for.

use crate::Machines;
use hotlease_tests::platform::program;
use std::process::Command;

/// Why `hotlease sandbox hand-over` makes no machines with this, and with this PATH, where it is another one.
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
fn what_machines_lack_is_said_before_any_is_made() {
    let why = refused(&[], Some("/no/such/folder"));
    // Some have it where no PATH leads to.
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
