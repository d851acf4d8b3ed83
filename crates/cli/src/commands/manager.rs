//! `hotlease manager`

use crate::commands::up::signals::Signals;
use crate::output::Output;
use clap::Args;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::{MANAGER_SOCKET, Manager, ManagerConfig};
use serde::Serialize;
use std::path::PathBuf;

/// Run only the manager, in the foreground
///
/// Serves until SIGINT, SIGTERM or `hotlease down`. Running leases survive it: agents keep them, and
/// register again with the next manager. With `--json`, an object when it serves: pid and socket.
#[derive(Debug, Args)]
pub(crate) struct ManagerArgs {}

#[derive(Serialize)]
struct Serving {
    pid: u32,
    socket: PathBuf,
}

pub(crate) fn carry_out(_: ManagerArgs, output: &mut Output) -> anyhow::Result<()> {
    let dir = RuntimeDir::resolve()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let manager = Manager::start(ManagerConfig::new(dir.path())).await?;
        let serving = Serving {
            pid: std::process::id(),
            socket: dir.join(MANAGER_SOCKET),
        };
        output.answer(&serving, || {
            format!(
                "the manager serves {} (pid {})",
                serving.socket.display(),
                serving.pid
            )
        })?;
        output.flush()?;
        tokio::select! {
            () = signals.next() => {}
            () = manager.shutdown_requested() => {}
            () = manager.stopped() => anyhow::bail!("the manager stopped by itself; its log says why"),
        }
        tokio::select! {
            () = manager.shutdown() => Ok(()),
            () = signals.next() => anyhow::bail!("interrupted while stopping"),
        }
    })
}
