//! Benchmarks over libfabric, each compared with the least time between two libfabric endpoints of the same provider.
//! The raw peer runs as a function in the leased slot, in the same process and on the same core.
//!
//! * [`latency`] — hot round trips by size, and warm round trips compared with the variant that blocks.
//! * [`bandwidth`] — buffers to the function and back, compared with RMA writes and a copy through TCP.
//! * [`stage`] — a lease over a fabric, with its baseline.

pub(super) mod bandwidth;
mod fabric_lease;
pub(super) mod latency;
mod tcp;

pub(super) use fabric_lease::FabricLease;

use super::bench_platform::BenchPlatform;
use super::measured_lease::lease_options_on;
use clap::Args;
use hotlease_client::{Invoker, LeaseOptions};
use hotlease_terminal::functions::fabric_functions;

/// Payload sizes of hot invocations.
pub(super) const SIZES: [usize; 4] = [1, 64, 1 << 10, 4 << 10];

/// Transports to measure.
#[derive(Debug, Clone, Args)]
pub(super) struct TransportArgs {
    /// `shm`, `ofi` (the best provider here), or providers of libfabric, like `tcp;ofi_rxm`
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "shm",
        env = "HOTLEASE_TRANSPORT"
    )]
    transport: Vec<String>,
}

impl TransportArgs {
    pub(super) fn shm(&self) -> bool {
        self.transport.iter().any(|name| is_shm(name))
    }

    pub(super) fn fabrics(&self) -> impl Iterator<Item = &str> {
        self.transport.iter().map(String::as_str).filter(|name| !is_shm(name))
    }
}

/// A lease over any transport, with the functions of the fabric benchmarks.
pub(super) fn lease(host: &BenchPlatform, transport: &str, options: LeaseOptions) -> anyhow::Result<Invoker> {
    let options = LeaseOptions {
        transport: Some(transport.to_owned()),
        ..lease_options_on(host, options)
    };
    Ok(Invoker::allocate(&fabric_functions()?, options)?)
}

/// Whether a transport's name means shared memory; an empty environment variable counts as unset.
fn is_shm(name: &str) -> bool {
    name.is_empty() || name == "shm"
}
