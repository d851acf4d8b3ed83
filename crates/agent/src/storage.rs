//! Object storage that functions reach through the agent: with keys of their lease's own, never with the site's.
//!
//! ```text
//! function ── signed with the lease's keys ──► agent: whose keys, which object, may it? ── signed with the site's ──► store
//! ```
//!
//! A function in a network of its own finds the agent at a port of its loopback, whose listener the nursery has handed out; one on the
//! host's network at a port of the host's loopback, where all leases come in and are told apart by their keys. What a request asks for
//! is read and judged in [`hotlease_s3`]; here are files, sockets and leases.
//!
//! * `site` — the operator's file: stores, and who is granted what of them.
//! * `keys` — the site's keys of a store.
//! * `lease` — the keys and places of one lease, until it is over.
//! * `door` — connections: how many, for how long.
//! * `passing` — one request, and its answer.

mod door;
mod keys;
mod lease;
mod passing;
mod site;

pub(crate) use lease::LeaseStorage;

use crate::AgentError;
use hotlease_sandbox::Kind;
use hotlease_wire::Refusal;
use hotlease_wire::limits::STORAGE_MAX;
use hotlease_wire::storage::Place;
use site::Site;
use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// How long a store may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// See the module. Without a site's file it refuses whatever is asked for.
pub(crate) struct Storage {
    open: Option<Arc<Open>>,
    /// Of the host's loopback.
    door: Option<AbortHandle>,
}

/// What connections share.
pub(super) struct Open {
    site: Site,
    /// Where leases on the host's network come in.
    address: SocketAddr,
    client: reqwest::Client,
    /// Leases that are not over, by the ids of their keys.
    leases: Mutex<HashMap<String, Weak<LeaseStorage>>>,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open({})", self.address)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(door) = &self.door {
            door.abort();
        }
    }
}

impl Open {
    fn leases(&self) -> MutexGuard<'_, HashMap<String, Weak<LeaseStorage>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease whose keys are called so, if it is not over.
    pub(super) fn lease(&self, id: &str) -> Option<Arc<LeaseStorage>> {
        self.leases().get(id)?.upgrade()
    }
}

/// Who asks for storage, in which sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// Its tenant.
    pub tenant: &'a str,
    /// Whether that is the agent's own user.
    pub is_own: bool,
    /// The kind of its sandbox.
    pub kind: Kind,
    /// Whether that shares the host's network.
    pub network: bool,
    /// The machine's name, as operators say it.
    pub node: &'a str,
}

impl Storage {
    /// With what the file grants; none: nothing.
    pub async fn open(file: Option<&Path>) -> Result<Self, AgentError> {
        let Some(file) = file else {
            return Ok(Self {
                open: None,
                door: None,
            });
        };
        let failed = |why: String| AgentError::Config {
            what: format!("--sandbox-storage {}: {why}", file.display()),
        };
        let site = Site::load(file).map_err(failed)?;
        // Whoever was first in this process has chosen it for all.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = match site.has_tls() {
            true => reqwest::Client::builder(),
            // Which does without the system's certificates, where there may be none.
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
        let open = Arc::new(Open {
            site,
            address: listener.local_addr().map_err(unheard)?,
            client,
            leases: Mutex::default(),
        });
        let door = tokio::spawn(door::serve_host(Arc::clone(&open), listener));
        Ok(Self {
            open: Some(open),
            door: Some(door.abort_handle()),
        })
    }

    /// What a lease gets that asks for these places; none: it asks for nothing.
    pub fn of_lease(&self, asked: &[String], asker: Asker<'_>) -> Result<Option<Arc<LeaseStorage>>, Refusal> {
        if asked.is_empty() {
            return Ok(None);
        }
        if asked.len() > STORAGE_MAX {
            return Err(Refusal::TooMany {
                what: "places of object storage that a lease declares".into(),
                limit: STORAGE_MAX as u64,
            });
        }
        let places = asked.iter().map(|text| text.parse::<Place>());
        let places = places
            .collect::<Result<Vec<_>, _>>()
            .map_err(|bad| Refusal::BadRequest {
                what: bad.to_string(),
            })?;
        let refused = |what: String, why: String| Refusal::OutOfReach {
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
                let granted = match &*open.site.granted(asker.tenant) {
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
        Ok(Some(LeaseStorage::new(open, (places, stores), inside)))
    }

    /// Accepts at a listener of a sandbox's own network, for one lease, until that is over or `gone` resolves.
    pub fn serve(
        &self,
        listener: OwnedFd,
        lease: Arc<LeaseStorage>,
        gone: impl Future<Output = ()> + Send + 'static,
    ) {
        if let Some(open) = &self.open {
            tokio::spawn(door::serve_sandbox(Arc::clone(open), listener, lease, gone));
        }
    }
}

#[cfg(test)]
mod tests;
