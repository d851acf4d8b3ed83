//! Checks of the platform: its directory, its programs, and whether it serves.

use super::Finding;
use crate::commands::up::lock::{LockHolder, UP_LOCK};
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::MANAGER_SOCKET;
use hotlease_sandbox::{Launcher, WORKER_BINARY};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::platform::Platform;
use hotlease_wire::grpc::ListRequest;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const CHECKS: &[fn() -> Vec<Finding>] = &[directory, worker, platform];

const VERSION: &str = env!("CARGO_PKG_VERSION");
const RESTART: &str = "install the same version everywhere, then `hotlease down` and `hotlease up`";

fn directory() -> Vec<Finding> {
    const CHECK: &str = "runtime directory";
    vec![match RuntimeDir::resolve() {
        Ok(dir) => Finding::ok(CHECK, dir.path().display().to_string()),
        Err(error) => {
            let advice = "set HOTLEASE_RUNTIME_DIR to a directory of yours that others cannot enter";
            Finding::fail(CHECK, error.to_string(), advice)
        }
    }]
}

fn worker() -> Vec<Finding> {
    const CHECK: &str = "worker program";
    let advice = "build it with `make build`, or name it in HOTLEASE_WORKER";
    let path = match Launcher::find() {
        Ok(path) => path,
        Err(_) => {
            let finding = format!("{WORKER_BINARY} is not beside this program");
            return vec![Finding::fail(CHECK, finding, advice)];
        }
    };
    // The worker accepts no arguments; its error message for an argument names its version.
    let told = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    vec![match told {
        Err(error) => Finding::fail(CHECK, format!("{} cannot be run: {error}", path.display()), advice),
        Ok(told) => {
            let said = String::from_utf8_lossy(&told.stderr);
            let same = said.split([' ', ':']).any(|word| word == VERSION);
            match same {
                true => Finding::ok(CHECK, format!("{} (version {VERSION})", path.display())),
                false => Finding::fail(
                    CHECK,
                    format!("{} is not a hotlease-worker of version {VERSION}", path.display()),
                    RESTART,
                ),
            }
        }
    }]
}

fn platform() -> Vec<Finding> {
    const CHECK: &str = "platform";
    let Ok(dir) = RuntimeDir::resolve() else {
        return Vec::new(); // The check of the directory reports it.
    };
    let mut platform = match Platform::connect(&dir) {
        Ok(platform) => platform,
        Err(error) => return vec![unreachable(CHECK, &dir, &error)],
    };
    let info = match platform.info() {
        Ok(info) => info,
        Err(error) => return vec![Finding::fail(CHECK, error.to_string(), RESTART)],
    };
    let running = format!("manager of version {} runs (pid {})", info.version, info.pid);
    let mut findings = vec![if info.version == VERSION {
        Finding::ok(CHECK, running)
    } else {
        Finding::fail(CHECK, format!("{running}, but this is {VERSION}"), RESTART)
    }];
    findings.extend(agents(&mut platform));
    findings
}

fn unreachable(check: &'static str, dir: &RuntimeDir, error: &anyhow::Error) -> Finding {
    if !matches!(error.downcast_ref(), Some(CommandError::NotRunning { .. })) {
        return Finding::fail(check, format!("{error:#}"), RESTART);
    }
    let free = LockHolder::of(dir, UP_LOCK).wait_until_gone(Duration::ZERO);
    match free {
        Ok(false) => Finding::fail(
            check,
            "`up` runs, but its manager does not answer",
            "`hotlease down` stops it; its log is log/up.log in the runtime directory if it was detached",
        ),
        _ if dir.join(MANAGER_SOCKET).exists() => Finding::warn(
            check,
            "not running; it was killed, and left its sockets",
            "`hotlease up` removes them and starts it",
        ),
        _ => Finding::warn(check, "not running", "start it with `hotlease up`"),
    }
}

pub(super) fn agents(platform: &mut Platform) -> Vec<Finding> {
    const CHECK: &str = "agents";
    let listed = platform.request(async |client| client.list_agents(ListRequest::default()).await);
    let agents = match listed {
        Ok(listed) => listed.agents,
        Err(error) => return vec![Finding::fail(CHECK, format!("{error:#}"), RESTART)],
    };
    if agents.is_empty() {
        let advice = "no lease can be granted; start one with `hotlease agent`";
        return vec![Finding::fail(CHECK, "none is registered", advice)];
    }
    let finding = |agent: hotlease_wire::grpc::AgentInfo| {
        let cores = agent.cores.len();
        let found = format!(
            "{} is {}: {} of {cores} cores free",
            agent.id, agent.state, agent.free_cores
        );
        match agent.state.as_str() {
            "serving" => Finding::ok(CHECK, found),
            _ => Finding::warn(CHECK, found, "check whether it runs, and read its log"),
        }
    };
    agents.into_iter().map(finding).collect()
}
