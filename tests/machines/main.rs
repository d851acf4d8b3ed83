//! Workers in virtual machines (kind `microvm`). The machines are emulated, even if the processor can run
//! them: the platform's part, which is tested, is the same.
//!
//! A machine takes seconds to boot, and a minute where other programs compile, so each test checks much in few
//! machines, and one test runs at a time. Without QEMU or a kernel the tests print so and pass. The kernel is
//! `$HOTLEASE_TEST_KERNEL`, else `target/kernel/boot/vmlinuz-*`, else what hotlease finds in `/boot`.

mod corpus;
mod refusals;
mod workers;

use hotlease_tests::platform::program;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit for a step that may include a boot.
const BOOT: Duration = Duration::from_secs(180);

/// The right to run machines. Prints the reason and returns `None` if machines cannot be made.
struct Machines {
    arguments: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Machines {
    fn take() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arguments = vec!["--sandbox-emulated".to_owned()];
        arguments.extend(["--sandbox-machine-memory", "512M"].map(str::to_owned));
        if let Some(kernel) = kernel() {
            arguments.extend(["--sandbox-kernel".to_owned(), kernel.display().to_string()]);
        }
        let machines = Self { arguments, _turn: turn };
        // No attempt has this name, so nothing is booted, but everything that machines need is looked for.
        let looked = machines.command(&["sandbox", "test", "--kind", "microvm", "--only", "no such attempt"]);
        if looked.status.success() {
            return Some(machines);
        }
        eprintln!("skipped: {}", String::from_utf8_lossy(&looked.stderr));
        None
    }

    /// Runs a `hotlease` command with the options for these machines.
    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("hotlease"));
        command.args(arguments).args(&self.arguments).current_dir("/");
        command.output().expect("hotlease runs")
    }
}

fn kernel() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("HOTLEASE_TEST_KERNEL").filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernel/boot");
    let mut names = std::fs::read_dir(fetched).ok()?.flatten().map(|entry| entry.path());
    names.find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    })
}
