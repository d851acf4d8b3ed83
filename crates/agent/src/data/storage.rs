//! Object storage that functions reach through the agent: with keys of their lease, never with the site's keys.
//!
//! ```text
//! function ── signed with the lease's keys ──► agent: checks keys, object, permission ── the site's keys ──► store
//! ```
//!
//! A function with its own network connects to the agent at a port of its loopback. The nursery has made the listener
//! there, and passed it to the agent. A function on the host's network connects to a port of the host's loopback, which
//! all leases share; the keys show which lease it is. [`hotlease_s3`] parses and judges requests; this module has
//! files, sockets and leases.
//!
//! * `site_file` — the operator's file: stores, and grants to tenants.
//! * `keys` — the site's keys of a store.
//! * `lease` — keys and prefixes of one lease, until it ends.
//! * `connections` — connections: the lease that each belongs to, and limits on their time.
//! * `host_places` — places for connections at the host's loopback, which all leases and strangers share.
//! * `request` — one request, and its answer.

mod connections;
mod host_places;
mod keys;
mod lease;
mod request;
mod site_file;

pub(crate) use lease::LeaseStorage;

use crate::AgentError;
use host_places::HostLimits;
use hotlease_sandbox::Kind;
use hotlease_wire::Rejection;
use hotlease_wire::limits::STORAGE_MAX;
use hotlease_wire::storage::StoragePlace;
use site_file::SiteStores;
use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// Time in which a store must accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Access to object storage. Without a site's file it refuses every request.
pub(crate) struct Storage {
    open: Option<Arc<StorageState>>,
    /// Acceptor on the host's loopback.
    server: Option<AbortHandle>,
}

/// State that connections share.
pub(super) struct StorageState {
    site: SiteStores,
    /// Address for leases on the host's network.
    address: SocketAddr,
    client: reqwest::Client,
    /// Leases that have not ended, by the ids of their keys.
    leases: Mutex<HashMap<String, Weak<LeaseStorage>>>,
}

impl fmt::Debug for StorageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open({})", self.address)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

impl StorageState {
    fn leases(&self) -> MutexGuard<'_, HashMap<String, Weak<LeaseStorage>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease that owns these keys, if it has not ended.
    pub(super) fn lease(&self, id: &str) -> Option<Arc<LeaseStorage>> {
        self.leases().get(id)?.upgrade()
    }
}

/// Party that asks for storage, and its sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageRequester<'a> {
    /// Its tenant.
    pub tenant: &'a str,
    /// Whether its tenant is the agent's own user.
    pub is_own: bool,
    /// Kind of its sandbox.
    pub kind: Kind,
    /// Whether its sandbox shares the host's network.
    pub network: bool,
    /// Name of the host, as its operator has set it.
    pub node: &'a str,
}

impl Storage {
    /// Opens the access that the file grants. Without a file there is no access.
    pub async fn open(file: Option<&Path>) -> Result<Self, AgentError> {
        let Some(file) = file else {
            return Ok(Self {
                open: None,
                server: None,
            });
        };
        let failed = |why: String| AgentError::Config {
            what: format!("--sandbox-storage {}: {why}", file.display()),
        };
        let site = SiteStores::load(file).map_err(failed)?;
        // Fails if another part of this process has set the provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = match site.has_tls() {
            true => reqwest::Client::builder(),
            // Does without the system's certificates, which may be missing.
            false => reqwest::Client::builder().tls_certs_only([]),
        };
        let client = client
            .connect_timeout(CONNECT_LIMIT)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .http1_only()
            .build()
            .map_err(|error| failed(format!("no client for stores can be made: {error}")))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let unheard = |source| AgentError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(unheard)?;
        let open = Arc::new(StorageState {
            site,
            address: listener.local_addr().map_err(unheard)?,
            client,
            leases: Mutex::default(),
        });
        let server = tokio::spawn(connections::serve_host(
            Arc::clone(&open),
            listener,
            HostLimits::default(),
        ));
        Ok(Self {
            open: Some(open),
            server: Some(server.abort_handle()),
        })
    }

    /// Storage for a lease that asks for these prefixes; `None` if it asks for no prefix.
    pub fn of_lease(
        &self,
        asked: &[String],
        asker: StorageRequester<'_>,
    ) -> Result<Option<Arc<LeaseStorage>>, Rejection> {
        if asked.is_empty() {
            return Ok(None);
        }
        if asked.len() > STORAGE_MAX {
            return Err(Rejection::TooMany {
                what: "places of object storage that a lease declares".into(),
                limit: STORAGE_MAX as u64,
            });
        }
        let places = asked.iter().map(|text| text.parse::<StoragePlace>());
        let places = places
            .collect::<Result<Vec<_>, _>>()
            .map_err(|bad| Rejection::BadRequest { what: bad.to_string() })?;
        let refused = |what: String, why: String| Rejection::OutOfReach {
            what,
            node: asker.node.to_owned(),
            why,
        };
        let Some(open) = &self.open else {
            let why = "this site grants no object storage; have its operator grant it with `hotlease agent --sandbox-storage FILE`";
            return Err(refused(places[0].to_string(), why.into()));
        };
        let why = match asker.kind {
            Kind::Namespace => None,
            Kind::Process if asker.is_own => None,
            Kind::Process => Some(
                "in a sandbox of kind process functions are the agent's user, who can read the site's keys; ask for a sandbox of \
                 kind namespace",
            ),
            Kind::Container | Kind::MicroVm => {
                Some("this version gives storage to sandboxes of kind namespace; ask for one")
            }
        };
        if let Some(why) = why {
            return Err(refused(places[0].to_string(), why.into()));
        }
        let mut stores = Vec::new();
        for place in &places {
            let store = open.site.store_of(asker.tenant, place);
            stores.push(store.ok_or_else(|| {
                let granted = match &*open.site.places_of(asker.tenant) {
                    [] => "none".to_owned(),
                    granted => granted.join(", "),
                };
                let why = format!(
                    "this site grants tenant {} of object storage: {granted}; ask for what is granted, or have its operator grant it in \
                     the file of `hotlease agent --sandbox-storage`",
                    asker.tenant
                );
                refused(place.to_string(), why)
            })?);
        }
        let inside = asker.kind == Kind::Namespace && !asker.network;
        Ok(Some(LeaseStorage::new(open, asker.tenant, (places, stores), inside)))
    }

    /// Accepts connections of one lease at a listener in a sandbox's network, until the lease ends or `gone` resolves.
    pub fn serve(&self, listener: OwnedFd, lease: Arc<LeaseStorage>, gone: impl Future<Output = ()> + Send + 'static) {
        if let Some(open) = &self.open {
            tokio::spawn(connections::serve_sandbox(Arc::clone(open), listener, lease, gone));
        }
    }
}

#[cfg(test)]
mod tests;
