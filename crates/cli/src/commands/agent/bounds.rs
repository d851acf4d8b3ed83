//! Arguments of an operator's bounds of leases.

use clap::Args;
use hotlease_agent::LeaseBounds;
use hotlease_terminal::quantity;
use std::ffi::OsString;
use std::time::Duration;

/// Bounds of the leases that an agent grants.
#[derive(Debug, Clone, Args)]
pub(super) struct BoundArgs {
    /// Longest time to live of a lease, and so between two renewals, such as 10s; it replaces a longer time in a
    /// request
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    lease_ttl: Option<Duration>,
    /// Longest duration of a lease, however often it is renewed, such as 12h; then the lease ends, and its client may
    /// ask for another lease
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    lease_duration: Option<Duration>,
    /// Longest time for which nothing runs on a lease, such as 10min; then the lease ends, and its client gets another
    /// lease with the next call
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    lease_idle: Option<Duration>,
}

impl BoundArgs {
    pub(super) fn bounds(&self) -> LeaseBounds {
        LeaseBounds {
            ttl: self.lease_ttl,
            duration: self.lease_duration,
            idle: self.lease_idle,
        }
    }

    /// Adds the arguments for another process of this program.
    pub(super) fn add_to(&self, args: &mut Vec<OsString>) {
        for (name, bound) in [
            ("--lease-ttl", self.lease_ttl),
            ("--lease-duration", self.lease_duration),
            ("--lease-idle", self.lease_idle),
        ] {
            if let Some(bound) = bound {
                args.extend([name.into(), format!("{}us", bound.as_micros()).into()]);
            }
        }
    }
}
