//! Kinds of refusals: their names in the URLs of problems and in metrics, with their titles and statuses over HTTP.

use axum::http::StatusCode;
use hotlease_wire::Rejection;

/// Kind of problem: its name in URLs and metrics, its title, its status.
pub(crate) type RefusalKind = (&'static str, &'static str, StatusCode);

/// The caller is not known.
pub(crate) const UNKNOWN: RefusalKind = ("not-authenticated", "The caller is not known", StatusCode::UNAUTHORIZED);

/// Kind of problem of a refusal. No wildcard: each new refusal must be added here.
pub(crate) fn kind(refusal: &Rejection) -> RefusalKind {
    match refusal {
        Rejection::NoCapacity { .. } => ("no-capacity", "Not enough free cores", StatusCode::CONFLICT),
        Rejection::NoPlaces { .. } => (
            "no-places",
            "Not enough places beside shared cores",
            StatusCode::CONFLICT,
        ),
        Rejection::NoGpus { .. } => ("no-gpus", "Not enough free GPUs", StatusCode::CONFLICT),
        Rejection::NotTogether { .. } => (
            "not-together",
            "Not enough free cores on all agents together",
            StatusCode::CONFLICT,
        ),
        Rejection::NoAgent => ("no-agent", "No agent is registered", StatusCode::SERVICE_UNAVAILABLE),
        Rejection::BadToken => ("bad-token", "The token is not valid", StatusCode::FORBIDDEN),
        Rejection::StaleEpoch { .. } => ("stale-epoch", "The token is of an earlier epoch", StatusCode::CONFLICT),
        Rejection::LeaseEnded(_) => ("lease-ended", "The lease has ended", StatusCode::GONE),
        Rejection::UnknownLease => ("unknown-lease", "No such lease", StatusCode::NOT_FOUND),
        Rejection::WrongTenant => (
            "wrong-tenant",
            "The lease belongs to another tenant",
            StatusCode::FORBIDDEN,
        ),
        Rejection::NotPermitted { .. } => ("not-permitted", "Not permitted", StatusCode::FORBIDDEN),
        Rejection::UnknownWorker { .. } => ("unknown-worker", "No such worker", StatusCode::NOT_FOUND),
        Rejection::UnknownSlot { .. } => ("unknown-slot", "No such slot", StatusCode::NOT_FOUND),
        Rejection::TooMany { .. } => ("too-many", "A limit was reached", StatusCode::TOO_MANY_REQUESTS),
        Rejection::BadRequest { .. } => ("bad-request", "The request is not valid", StatusCode::BAD_REQUEST),
        Rejection::NeedCode(_) => ("need-code", "The library must be sent first", StatusCode::CONFLICT),
        Rejection::CodeMismatch => ("code-mismatch", "The library has another hash", StatusCode::BAD_REQUEST),
        Rejection::CodeRejected { .. } => ("code-rejected", "The library cannot be loaded", StatusCode::BAD_REQUEST),
        Rejection::WorkerDied { .. } => ("worker-died", "The worker has died", StatusCode::CONFLICT),
        Rejection::Version { .. } => ("version", "Another protocol version", StatusCode::BAD_REQUEST),
        Rejection::Timeout { .. } => ("timeout", "No answer in time", StatusCode::GATEWAY_TIMEOUT),
        Rejection::Unavailable { .. } => ("unavailable", "Unavailable", StatusCode::SERVICE_UNAVAILABLE),
        Rejection::TenantNotServed { .. } => (
            "tenant-not-served",
            "The agent serves other tenants",
            StatusCode::FORBIDDEN,
        ),
        Rejection::QuotaExceeded { .. } => ("quota", "The tenant's quota is used up", StatusCode::CONFLICT),
        Rejection::NotAuthenticated { .. } => UNKNOWN,
        Rejection::NoSandbox { .. } => ("no-sandbox", "No such sandbox can be made", StatusCode::CONFLICT),
        Rejection::NoEnvironment { .. } => ("no-environment", "The environment cannot be used", StatusCode::CONFLICT),
        Rejection::OutOfReach { .. } => (
            "out-of-reach",
            "The site does not let functions reach this",
            StatusCode::FORBIDDEN,
        ),
        Rejection::NoSuitableAgent { .. } => ("nowhere", "No agent serves the lease", StatusCode::CONFLICT),
        Rejection::NeedsSharedMemory { .. } => (
            "needs-shared-memory",
            "The worker is on another host",
            StatusCode::CONFLICT,
        ),
    }
}

/// Name of a refusal's kind, for metrics.
pub(crate) fn kind_of(refusal: &Rejection) -> &'static str {
    kind(refusal).0
}
