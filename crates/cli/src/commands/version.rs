//! `hotlease version`: versions of this program and of the running platform.

use clap::Args;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::Platform;
use hotlease_wire::limits::PROTOCOL_VERSION;
use serde::Serialize;

/// Print versions
///
/// With `--json`: version, protocol, running (the running platform's version, or null).
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {}

#[derive(Serialize)]
struct Versions {
    version: &'static str,
    protocol: u32,
    running: Option<String>,
}

pub(crate) fn carry_out(_: VersionArgs, output: &mut Printer) -> anyhow::Result<()> {
    let versions = Versions {
        version: env!("CARGO_PKG_VERSION"),
        protocol: PROTOCOL_VERSION,
        running: running()?,
    };
    output.answer(&versions, || {
        let running = match &versions.running {
            Some(running) if running == versions.version => "the running platform is the same".to_owned(),
            Some(running) => {
                format!("the running platform is {running}: restart it with `hotlease down`, `hotlease up`")
            }
            None => "no platform is running".to_owned(),
        };
        format!(
            "hotlease {} (protocol {}); {running}",
            versions.version, versions.protocol
        )
    })
}

/// Version of the running platform, if there is one.
fn running() -> anyhow::Result<Option<String>> {
    let connected = RuntimeDir::resolve()
        .map_err(Into::into)
        .and_then(|dir| Platform::connect(&dir));
    match connected {
        Ok(mut platform) => Ok(Some(platform.info()?.version)),
        Err(error) if matches!(error.downcast_ref(), Some(CommandError::NotRunning { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}
