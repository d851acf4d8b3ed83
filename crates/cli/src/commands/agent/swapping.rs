//! Arguments of saving states of workers.

use clap::Args;
use hotlease_agent::SwapOptions;
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::quantity;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of swapping: functions may leave a state for the tenant's next lease.
#[derive(Debug, Clone, Args)]
pub(super) struct SwapArgs {
    /// Directory for the states that functions leave in their workers, on a file system that the nodes share. If a
    /// lease requests that, its state is saved there, and restored from there
    #[arg(long, value_name = "DIR")]
    swap_directory: Option<PathBuf>,
    /// Swap out a worker with a state after this idle time, such as 30s or 10min [default: only when memory is
    /// short, or the node is given back]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time, requires = "swap_directory")]
    swap_after: Option<Duration>,
    /// Longest time for a worker to save its state; 100 ms to 60 s
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time, default_value = "2s")]
    swap_limit: Duration,
    /// Largest size of one state
    #[arg(long, value_name = "BYTES", value_parser = quantity::parse_bytes, default_value = "1G")]
    swap_state_bytes: usize,
    /// Largest size of all states of one tenant
    #[arg(long, value_name = "BYTES", value_parser = quantity::parse_bytes, default_value = "16G")]
    swap_tenant_bytes: usize,
    /// How long an unused state is kept
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time, default_value = "7d")]
    swap_keep: Duration,
}

impl SwapArgs {
    /// Swapping options of the agent, if a directory is given.
    pub(super) fn options(&self) -> Option<SwapOptions> {
        let directory = self.swap_directory.as_deref()?;
        Some(SwapOptions {
            directory: absolute(directory),
            after: self.swap_after,
            limit: self.swap_limit,
            state_bytes: self.swap_state_bytes as u64,
            tenant_bytes: self.swap_tenant_bytes as u64,
            keep: self.swap_keep,
        })
    }

    /// Adds arguments for another process of this program.
    pub(super) fn add_to(&self, args: &mut Vec<OsString>) {
        let mut add = |name: &str, value: OsString| args.extend([name.into(), value]);
        let time = |time: Duration| OsString::from(format!("{}us", time.as_micros()));
        if let Some(directory) = &self.swap_directory {
            add("--swap-directory", absolute(directory).into());
        }
        if let Some(after) = self.swap_after {
            add("--swap-after", time(after));
        }
        add("--swap-limit", time(self.swap_limit));
        add("--swap-state-bytes", self.swap_state_bytes.to_string().into());
        add("--swap-tenant-bytes", self.swap_tenant_bytes.to_string().into());
        add("--swap-keep", time(self.swap_keep));
    }
}
