//! Memory of function libraries that clients on other hosts send: bounded for all tenants together, and for each.
//!
//! A library is counted from its announcement until the agent has answered the request that it arrived with. Until then
//! it is in the agent's memory, however long the agent waits for a worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Unit of the bound.
const KIB: u64 = 1024;

/// Bound on the memory of libraries that have arrived or are arriving.
pub(super) struct Arrivals {
    all: Arc<Semaphore>,
    of_tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
    of_tenant_kib: usize,
}

/// Memory of one library; free when this is dropped.
#[derive(Debug)]
pub(super) struct Arrival {
    _all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl Arrivals {
    /// Allows libraries of `bytes` for all tenants together, and of `of_tenant_bytes` for each tenant; both are rounded
    /// down to whole KiB.
    pub fn new(bytes: u64, of_tenant_bytes: u64) -> Self {
        let kib = |bytes: u64| (bytes / KIB) as usize;
        Self {
            all: Arc::new(Semaphore::new(kib(bytes))),
            of_tenants: Mutex::default(),
            of_tenant_kib: kib(of_tenant_bytes),
        }
    }

    /// Waits until there is room for a library of a tenant; for ever if the library can never fit.
    pub async fn make_room(&self, tenant: &str, bytes: u64) -> Result<Arrival, AcquireError> {
        let kib = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        // The tenant's share first: a library that waits for it takes nothing from other tenants.
        let of_tenant = self.of_tenant(tenant).acquire_many_owned(kib).await?;
        Ok(Arrival {
            _all: Arc::clone(&self.all).acquire_many_owned(kib).await?,
            _of_tenant: of_tenant,
        })
    }

    fn of_tenant(&self, tenant: &str) -> Arc<Semaphore> {
        let mut table = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        table.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.of_tenant_kib));
        table.insert(tenant.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    async fn made(arrivals: &Arrivals, tenant: &str, bytes: u64) -> Option<Arrival> {
        let made = timeout(Duration::from_millis(20), arrivals.make_room(tenant, bytes)).await;
        made.ok().map(|made| made.expect("never closed"))
    }

    #[tokio::test]
    async fn a_tenant_leaves_room_for_others_and_regains_freed_room() {
        let arrivals = Arrivals::new(4 * KIB, 2 * KIB);
        let first = made(&arrivals, "alice", 2 * KIB).await.expect("free");
        assert!(made(&arrivals, "alice", 1).await.is_none(), "more than its part");
        let second = made(&arrivals, "bob", KIB + 1).await.expect("its part is free");
        assert!(made(&arrivals, "carol", 1).await.is_none(), "more than there is");
        drop(first);
        let third = made(&arrivals, "carol", 1).await.expect("free again");
        assert!(made(&arrivals, "alice", KIB).await.is_some());
        drop((second, third));
        drop(made(&arrivals, "dave", 1).await);
        assert!(
            arrivals.of_tenants.lock().unwrap().len() <= 1,
            "tenants without a library are forgotten"
        );
    }
}
