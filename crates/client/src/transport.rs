//! Choosing how bytes reach a worker, and opening channels that way.
//!
//! A worker on this machine is reached through shared memory. For another one, the providers that this machine
//! has are tried, best first: both ends make a port, and only a provider over which bytes went there and back
//! is taken. All slots of a worker are then reached over the same one.

use crate::Error;
use crate::options::{Completion, LeaseOptions};
use hotlease_fabric::ofi::providers::{leading_away, named};
use hotlease_fabric::ofi::{Libfabric, OfiError, Peer, Port, PortOptions, Provider};
use hotlease_wire::fabric::PortAddress;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// How long a probe may take: a connection that is set up lazily, over a slow network.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// Names the transport where the options do not.
const VARIABLE: &str = "HOTLEASE_TRANSPORT";

/// Where a worker is, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// Of the worker's host.
    pub(crate) host: IpAddr,
    /// Of the interface that leads there.
    pub(crate) local: IpAddr,
}

impl Route {
    /// To this machine itself.
    pub(crate) const LOOPBACK: Self = Self {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        local: IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
}

/// What to use for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Shared memory.
    Shm,
    /// A fabric: this provider, or the best.
    Ofi { provider: Option<String>, route: Route },
}

impl Transport {
    /// For a worker that `route` leads to; `None`: it is on this machine.
    pub(crate) fn choose(options: &LeaseOptions, route: Option<Route>) -> Self {
        let variable = || std::env::var(VARIABLE).ok();
        let wanted = options.transport.clone().or_else(variable);
        let provider = |name: String| (name != "ofi" && name != "shm").then_some(name);
        match (wanted.filter(|wanted| !wanted.is_empty()), route) {
            (None, None) => Self::Shm,
            (Some(name), None) if name == "shm" => Self::Shm,
            (Some(name), None) => Self::Ofi {
                provider: provider(name),
                route: Route::LOOPBACK,
            },
            (wanted, Some(route)) => Self::Ofi {
                provider: wanted.and_then(provider),
                route,
            },
        }
    }
}

/// Begins to load libfabric, if workers of this machine will be reached over it; see also
/// `Session::attach`, which does it for those of others.
pub(crate) fn prepare(options: &LeaseOptions) {
    if Transport::choose(options, None) != Transport::Shm {
        Libfabric::preload();
    }
}

/// What to try, best first.
pub(crate) fn candidates(provider: Option<&str>, local: IpAddr) -> Result<Vec<Provider>, OfiError> {
    let library = Libfabric::load()?;
    match provider {
        Some(name) => Ok(vec![named(&library, name, Some(local))?]),
        None => Ok(leading_away(&library, Some(local))),
    }
}

/// Of a port for calls that wait like this. Who never sleeps needs nothing to sleep on, which costs time: see
/// the worker's `idle::sleeps`.
pub(crate) fn port_options(completion: Completion) -> PortOptions {
    PortOptions {
        sleep: completion != Completion::Spin,
        ..PortOptions::default()
    }
}

/// The worker's port, as ours knows it; its key is the link's. Blocks for up to [`PROBE_LIMIT`].
pub(crate) fn reach(port: &Arc<Port>, worker: &PortAddress, key: u64) -> Result<Arc<Peer>, OfiError> {
    let peer = Arc::new(port.peer(worker, key)?);
    port.probe(&peer, PROBE_LIMIT)?;
    Ok(peer)
}

/// The error when nothing was left to try.
pub(crate) fn no_way(host: IpAddr, tried: &[String]) -> Error {
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
            let route = Route::LOOPBACK;
            assert_eq!(
                Transport::choose(&options(wanted), None),
                Transport::Ofi { provider, route }
            );
        }
    }

    #[test]
    fn workers_of_other_hosts_are_never_reached_through_memory() {
        let route = Route {
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
