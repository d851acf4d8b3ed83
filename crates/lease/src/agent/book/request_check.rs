//! Checks of a request that do not depend on the node.

use crate::agent::{GrantRequest, TTL_MAX, TTL_MIN};
use hotlease_wire::Rejection;
use hotlease_wire::limits::{GPUS_PER_WORKER_MAX, LABEL_BYTES_MAX, SLOTS_MAX, TENANT_BYTES_MAX, WORKERS_MAX};

/// Refuses a request that no node could grant.
pub(super) fn check(request: &GrantRequest) -> Result<(), Rejection> {
    let bad = |what: String| Err(Rejection::BadRequest { what });
    if request.workers == 0 || request.slots_per_worker == 0 {
        return bad("a lease has at least one worker with one slot".into());
    }
    let too_many = |what: &str, limit: u32| {
        Err(Rejection::TooMany {
            what: what.into(),
            limit: limit.into(),
        })
    };
    if request.workers > WORKERS_MAX {
        return too_many("workers of one lease", WORKERS_MAX);
    }
    if request.slots_per_worker > SLOTS_MAX {
        return too_many("slots of one worker", SLOTS_MAX);
    }
    if request.gpus > GPUS_PER_WORKER_MAX {
        return too_many("GPUs of one worker", GPUS_PER_WORKER_MAX);
    }
    if request.ttl < TTL_MIN || request.ttl > TTL_MAX {
        return bad(format!(
            "a time to live of {} ms is not between {} ms and {} s",
            request.ttl.as_millis(),
            TTL_MIN.as_millis(),
            TTL_MAX.as_secs()
        ));
    }
    if request.tenant.is_empty() || request.tenant.len() > TENANT_BYTES_MAX {
        return bad(format!("a tenant's name has 1 to {TENANT_BYTES_MAX} bytes"));
    }
    if request.label.len() > LABEL_BYTES_MAX {
        return bad(format!("a label has at most {LABEL_BYTES_MAX} bytes"));
    }
    Ok(())
}
