//! What a tenant may hold, and what it holds.
//!
//! ```text
//! acquire ──► reserve ──► granted, durable ──► hold ──► over ──► free
//!                │ refused, not durable
//!                └──► free
//! ```
//!
//! What is asked for counts from the moment of the question: requests that are under way at the same time never
//! pass a quota together. What agents report counts, too, whoever granted it.

use super::RequestId;
use hotlease_wire::Refusal;
use hotlease_wire::ids::LeaseId;
use std::collections::BTreeMap;

/// The most that a tenant may hold at a time, and use. `None`: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Cores of all its leases.
    pub cores: Option<u64>,
    /// Leases.
    pub leases: Option<u64>,
    /// Memory that its leases asked for, bytes. A lease without a bound of its own is refused where this is set.
    pub memory_bytes: Option<u64>,
    /// GPUs of all its leases.
    pub gpus: Option<u64>,
    /// Core-seconds held, by the ledger, in the window that the manager looks at. Who has used them gets no new
    /// lease; leases that go on are not cut.
    pub core_seconds: Option<u64>,
}

/// What a lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Cores.
    pub cores: u64,
    /// Memory of all its workers, bytes; 0: no bound was asked for.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u64,
}

/// What a tenant may hold, as of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowance {
    /// Its bounds.
    pub quota: Quota,
    /// Memory asked for, all workers together, bytes; 0: no bound.
    pub memory_bytes: u64,
    /// GPUs asked for.
    pub gpus: u64,
    /// What the ledger says it has used, in the window of its quota.
    pub core_seconds_used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    leases: u64,
    amount: Amount,
}

impl Held {
    fn add(&mut self, amount: Amount) {
        self.leases += 1;
        self.amount.cores += amount.cores;
        self.amount.memory_bytes = self.amount.memory_bytes.saturating_add(amount.memory_bytes);
        self.amount.gpus += amount.gpus;
    }

    fn remove(&mut self, amount: Amount) {
        self.leases = self.leases.saturating_sub(1);
        self.amount.cores = self.amount.cores.saturating_sub(amount.cores);
        self.amount.memory_bytes = self.amount.memory_bytes.saturating_sub(amount.memory_bytes);
        self.amount.gpus = self.amount.gpus.saturating_sub(amount.gpus);
    }
}

/// What everybody holds: as many entries as there are leases and requests, which are bounded.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    tenants: BTreeMap<String, Held>,
    leases: BTreeMap<LeaseId, (String, Amount)>,
    reserved: BTreeMap<RequestId, (String, Amount)>,
}

impl Holdings {
    /// Counts a request as held, unless that passes the quota.
    pub fn reserve(
        &mut self,
        request: RequestId,
        tenant: &str,
        cores: u32,
        allowance: &Allowance,
    ) -> Result<(), Refusal> {
        let amount = Amount {
            cores: cores.into(),
            memory_bytes: allowance.memory_bytes,
            gpus: allowance.gpus,
        };
        let held = self.tenants.get(tenant).copied().unwrap_or_default();
        let quota = &allowance.quota;
        let exceeded = |what: &str, limit, used| {
            Err(Refusal::QuotaExceeded {
                tenant: tenant.to_owned(),
                what: what.to_owned(),
                limit,
                used,
            })
        };
        if let Some(limit) = quota.core_seconds
            && allowance.core_seconds_used >= limit
        {
            return exceeded("core-seconds", limit, allowance.core_seconds_used);
        }
        if quota.memory_bytes.is_some() && amount.memory_bytes == 0 {
            return Err(Refusal::BadRequest {
                what: format!(
                    "tenant {tenant} has a quota of memory: ask for a lease with a bound of memory"
                ),
            });
        }
        for (what, limit, used, asked) in [
            ("leases", quota.leases, held.leases, 1),
            ("cores", quota.cores, held.amount.cores, amount.cores),
            (
                "bytes of memory",
                quota.memory_bytes,
                held.amount.memory_bytes,
                amount.memory_bytes,
            ),
            ("GPUs", quota.gpus, held.amount.gpus, amount.gpus),
        ] {
            if let Some(limit) = limit
                && used.saturating_add(asked) > limit
            {
                return exceeded(what, limit, used);
            }
        }
        self.tenants.entry(tenant.to_owned()).or_default().add(amount);
        self.reserved.insert(request, (tenant.to_owned(), amount));
        Ok(())
    }

    /// What a request was counted as.
    pub fn reserved(&self, request: RequestId) -> Amount {
        let reserved = self.reserved.get(&request);
        reserved.map(|(_, amount)| *amount).unwrap_or_default()
    }

    /// The request came to nothing, or became a lease that is held.
    pub fn unreserve(&mut self, request: RequestId) {
        if let Some((tenant, amount)) = self.reserved.remove(&request) {
            self.take_from(&tenant, amount);
        }
    }

    /// A lease goes on. What was known of it before stays.
    pub fn hold(&mut self, lease: LeaseId, tenant: &str, amount: Amount) {
        if self.leases.contains_key(&lease) {
            return;
        }
        self.tenants.entry(tenant.to_owned()).or_default().add(amount);
        self.leases.insert(lease, (tenant.to_owned(), amount));
    }

    /// A lease is over.
    pub fn free(&mut self, lease: LeaseId) {
        if let Some((tenant, amount)) = self.leases.remove(&lease) {
            self.take_from(&tenant, amount);
        }
    }

    fn take_from(&mut self, tenant: &str, amount: Amount) {
        if let Some(held) = self.tenants.get_mut(tenant) {
            held.remove(amount);
            if held.leases == 0 {
                self.tenants.remove(tenant);
            }
        }
    }

    /// Who holds a lease.
    pub fn holder(&self, lease: LeaseId) -> Option<&str> {
        self.leases.get(&lease).map(|(tenant, _)| tenant.as_str())
    }

    /// Leases and amounts of a tenant, requests under way included.
    pub fn of(&self, tenant: &str) -> (u64, Amount) {
        let held = self.tenants.get(tenant).copied().unwrap_or_default();
        (held.leases, held.amount)
    }
}
