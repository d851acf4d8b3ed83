//! Keys and prefixes of one lease. They are valid as long as the lease is active.

use super::StorageState;
use super::site_file::Store;
use hotlease_s3::SigningKeys;
use hotlease_sandbox::{STORAGE_PORT, WorkerStorage as Way};
use hotlease_wire::storage::StoragePlace;
use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use tokio::sync::{Semaphore, watch};

/// Largest number of connections of one lease at a time, at the host's loopback, which all leases share.
const CONNECTIONS_MAX: usize = 256;

/// Access of one lease to object storage.
pub(crate) struct LeaseStorage {
    /// Registry from which the lease is removed at its end.
    open: Weak<StorageState>,
    pub(super) tenant: String,
    pub(super) keys: SigningKeys,
    pub(super) places: Vec<StoragePlace>,
    /// Number of the store for each place.
    pub(super) stores: Vec<usize>,
    pub(super) connections: Arc<Semaphore>,
    way: Way,
    is_over: watch::Sender<bool>,
}

impl fmt::Debug for LeaseStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.places).finish()
    }
}

impl LeaseStorage {
    /// Makes new keys, and registers them.
    pub(super) fn new(
        open: &Arc<StorageState>,
        tenant: &str,
        (places, stores): (Vec<StoragePlace>, Vec<usize>),
        inside: bool,
    ) -> Arc<Self> {
        let keys = SigningKeys {
            id: format!("HL{:018X}", rand::random::<u128>() >> 56),
            secret: format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()),
            token: None,
        };
        let address = match inside {
            true => SocketAddr::from((Ipv4Addr::LOCALHOST, STORAGE_PORT)),
            false => open.address,
        };
        let first = stores.first().and_then(|store| open.site.store(*store));
        let way = Way {
            environment: environment(&keys, address, first),
            inside,
        };
        let lease = Arc::new(Self {
            open: Arc::downgrade(open),
            tenant: tenant.to_owned(),
            keys,
            places,
            stores,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            way,
            is_over: watch::Sender::new(false),
        });
        open.leases().insert(lease.keys.id.clone(), Arc::downgrade(&lease));
        lease
    }

    /// Access of the lease's workers: address and keys.
    pub fn access(&self) -> Way {
        self.way.clone()
    }

    /// The lease's places, in the form that its client receives.
    pub fn client_places(&self) -> Vec<String> {
        self.places.iter().map(StoragePlace::to_string).collect()
    }

    /// Ends the access, because the lease has ended or is ending: its connections are closed, and its keys are not
    /// valid any more.
    pub fn end(&self) {
        self.is_over.send_replace(true);
        self.forget();
    }

    /// Whether the access has ended.
    pub(super) fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }

    /// Waits until the access has ended.
    pub(super) async fn wait_for_end(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.is_over.subscribe().wait_for(|over| *over).await;
    }

    fn forget(&self) {
        if let Some(open) = self.open.upgrade() {
            open.leases().remove(&self.keys.id);
        }
    }
}

impl Drop for LeaseStorage {
    // Also removes the keys of a lease that was not granted.
    fn drop(&mut self) {
        self.forget();
    }
}

/// Environment variables that all SDKs understand. The keys are in the environment and not at an address that serves
/// keys: the workers of a lease with storage are started for this lease, and end with it, as its keys do.
fn environment(keys: &SigningKeys, address: SocketAddr, store: Option<&Store>) -> Vec<(OsString, OsString)> {
    let region = store.map_or("us-east-1", |store| &store.region);
    let endpoint = format!("http://{address}");
    [
        ("AWS_ACCESS_KEY_ID", &*keys.id),
        ("AWS_SECRET_ACCESS_KEY", &*keys.secret),
        ("AWS_ENDPOINT_URL_S3", &*endpoint),
        ("AWS_REGION", region),
        ("AWS_DEFAULT_REGION", region),
        // Chunks with separate signatures are not supported.
        ("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required"),
        ("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required"),
        // SDKs must not ask any other service for keys.
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .to_vec()
}
