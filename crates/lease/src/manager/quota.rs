//! Quotas of tenants, and the resources that tenants hold.
//!
//! ```text
//! acquire ──► reserve ──► granted, durable ──► hold ──► over ──► free
//!                │ refused, not durable
//!                └──► free
//! ```
//!
//! A request is counted from its arrival on, so requests that are under way at the same time never exceed a quota
//! together. Leases that agents report are counted too, even if the manager did not grant them.

use super::RequestId;
use crate::request::LeaseSpec;
use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;
use std::collections::BTreeMap;

/// Limits of the resources that a tenant may hold at a time, and of its use. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Cores of all the tenant's leases.
    pub cores: Option<u64>,
    /// Number of leases.
    pub leases: Option<u64>,
    /// Memory of all the tenant's leases, bytes. If this is set, a lease without a memory limit of its own is
    /// refused.
    pub memory_bytes: Option<u64>,
    /// GPUs of all the tenant's leases.
    pub gpus: Option<u64>,
    /// Core-seconds held, according to the ledger, in the manager's time window. A tenant that has used them up gets no
    /// new lease; its active leases continue.
    pub core_seconds: Option<u64>,
}

/// Resources of one lease, or of several leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Cores.
    pub cores: u64,
    /// Memory of all workers, bytes; 0 if no limit was requested.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u64,
}

impl From<LeaseSpec> for Amount {
    fn from(spec: LeaseSpec) -> Self {
        Self {
            cores: spec.all_slots().into(),
            memory_bytes: spec.all_memory_bytes(),
            gpus: spec.all_gpus().into(),
        }
    }
}

/// Limits of a tenant, and its use so far, at the time of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowance {
    /// The tenant's limits.
    pub quota: Quota,
    /// Core-seconds that the tenant has used in the window of its quota, according to the ledger.
    pub core_seconds_used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Holding {
    leases: u64,
    amount: Amount,
}

impl Holding {
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

/// Holdings of all tenants. The number of entries is bounded, because the numbers of leases and of requests are.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    tenants: BTreeMap<String, Holding>,
    leases: BTreeMap<LeaseId, (String, Amount)>,
    reserved: BTreeMap<RequestId, (String, Amount)>,
}

impl Holdings {
    /// Reserves the resources of a request, unless the tenant would then exceed its quota.
    pub fn reserve(
        &mut self,
        request: RequestId,
        tenant: &str,
        amount: Amount,
        allowance: &Allowance,
    ) -> Result<(), Rejection> {
        let held = self.tenants.get(tenant).copied().unwrap_or_default();
        let quota = &allowance.quota;
        let exceeded = |what: &str, limit, used| {
            Err(Rejection::QuotaExceeded {
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
            return Err(Rejection::BadRequest {
                what: format!("tenant {tenant} has a quota of memory: ask for a lease with a bound of memory"),
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

    /// Removes a request's reservation: the request has failed, or has become a lease that is held.
    pub fn unreserve(&mut self, request: RequestId) {
        if let Some((tenant, amount)) = self.reserved.remove(&request) {
            self.take_from(&tenant, amount);
        }
    }

    /// Counts an active lease. If the lease is counted already, its amount does not change.
    pub fn hold(&mut self, lease: LeaseId, tenant: &str, amount: Amount) {
        if self.leases.contains_key(&lease) {
            return;
        }
        self.tenants.entry(tenant.to_owned()).or_default().add(amount);
        self.leases.insert(lease, (tenant.to_owned(), amount));
    }

    /// Removes a lease that is over.
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

    /// Tenant that holds a lease.
    pub fn holder(&self, lease: LeaseId) -> Option<&str> {
        self.leases.get(&lease).map(|(tenant, _)| tenant.as_str())
    }

    /// Leases and amounts of a tenant, including requests under way.
    pub fn of(&self, tenant: &str) -> (u64, Amount) {
        let held = self.tenants.get(tenant).copied().unwrap_or_default();
        (held.leases, held.amount)
    }
}
