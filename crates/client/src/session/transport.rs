//! Choice of the transport to a worker.
//!
//! A worker on this host is reached through shared memory. For a worker on another host, the providers that this host
//! has are tried, best first: both ends open a port, and a provider is used only if bytes have passed over it in both
//! directions. All slots of a worker are then reached over the same provider.

use crate::Error;
use crate::options::{Completion, LeaseOptions};
use hotlease_fabric::ofi::providers::{find_provider, remote_providers};
use hotlease_fabric::ofi::{Libfabric, OfiError, Port, PortOptions, PortPeer, Provider};
use hotlease_wire::fabric::PortAddress;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// How long a probe may take: it may include a connection that is set up lazily, over a slow network.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// Environment variable with the transport, if the options name no transport.
const VARIABLE: &str = "HOTLEASE_TRANSPORT";

/// Route to a worker, as seen from this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerRoute {
    /// Address of the worker's host.
    pub(crate) host: IpAddr,
    /// Address of the local interface that leads to the worker's host.
    pub(crate) local: IpAddr,
}

impl WorkerRoute {
    /// Route to this host itself.
    pub(crate) const LOOPBACK: Self = Self {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        local: IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
}

/// Transport to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Shared memory.
    Shm,
    /// A fabric, with this provider or the best provider.
    Ofi {
        provider: Option<String>,
        route: WorkerRoute,
    },
}

impl Transport {
    /// Chooses the transport for a worker that `route` leads to; `None` means that the worker is on this host.
    pub(crate) fn choose(options: &LeaseOptions, route: Option<WorkerRoute>) -> Self {
        let variable = || std::env::var(VARIABLE).ok();
        let wanted = options.transport.clone().or_else(variable);
        let provider = |name: String| (name != "ofi" && name != "shm").then_some(name);
        match (wanted.filter(|wanted| !wanted.is_empty()), route) {
            (None, None) => Self::Shm,
            (Some(name), None) if name == "shm" => Self::Shm,
            (Some(name), None) => Self::Ofi {
                provider: provider(name),
                route: WorkerRoute::LOOPBACK,
            },
            (wanted, Some(route)) => Self::Ofi {
                provider: wanted.and_then(provider),
                route,
            },
        }
    }
}

/// Begins to load libfabric, if workers of this host will be reached over it. For workers of other hosts
/// `Session::attach` does that.
pub(crate) fn prepare(options: &LeaseOptions) {
    if Transport::choose(options, None) != Transport::Shm {
        drop(Libfabric::preload());
    }
}

/// The providers to try, best first.
pub(crate) fn candidates(provider: Option<&str>, local: IpAddr) -> Result<Vec<Provider>, OfiError> {
    let library = Libfabric::load()?;
    match provider {
        Some(name) => Ok(vec![find_provider(&library, name, Some(local))?]),
        None => Ok(remote_providers(&library, Some(local))),
    }
}

/// Options of a port for calls that wait as `completion` says. A thread that never sleeps needs no descriptor to sleep
/// on, and such a descriptor costs time: see the worker's `idle::needs_wait_descriptor`.
pub(crate) fn port_options(completion: Completion) -> PortOptions {
    PortOptions {
        sleep: completion != Completion::Spin,
        ..PortOptions::default()
    }
}

/// Connects this client's port to the worker's, with the link's key, and probes it. Blocks for up to
/// [`PROBE_LIMIT`].
pub(crate) fn connect_peer(port: &Arc<Port>, worker: &PortAddress, key: u64) -> Result<Arc<PortPeer>, OfiError> {
    let peer = Arc::new(port.peer(worker, key)?);
    port.probe(&peer, PROBE_LIMIT)?;
    Ok(peer)
}

/// The error when no provider was left to try.
pub(crate) fn no_transport(host: IpAddr, tried: &[String]) -> Error {
    Error::NoTransport {
        host: host.to_string(),
        why: match tried {
            [] => "libfabric has no provider here that leads to other hosts".into(),
            tried => tried.join("; "),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(transport: &str) -> LeaseOptions {
        LeaseOptions {
            transport: Some(transport.into()),
            ..LeaseOptions::default()
        }
    }

    #[test]
    fn workers_of_this_machine_are_reached_through_memory_unless_asked_otherwise() {
        assert_eq!(Transport::choose(&options("shm"), None), Transport::Shm);
        assert_eq!(Transport::choose(&options(""), None), Transport::Shm);
        for (wanted, provider) in [("ofi", None), ("tcp;ofi_rxm", Some("tcp;ofi_rxm".into()))] {
            let route = WorkerRoute::LOOPBACK;
            assert_eq!(
                Transport::choose(&options(wanted), None),
                Transport::Ofi { provider, route }
            );
        }
    }

    #[test]
    fn workers_of_other_hosts_are_never_reached_through_memory() {
        let route = WorkerRoute {
            host: "192.0.2.1".parse().unwrap(),
            local: "192.0.2.2".parse().unwrap(),
        };
        for wanted in ["shm", "ofi", ""] {
            let (provider, route) = (None, route.clone());
            let chosen = Transport::choose(&options(wanted), Some(route.clone()));
            assert_eq!(chosen, Transport::Ofi { provider, route }, "{wanted}");
        }
    }
}
