//! Conversion between a refusal and a gRPC status that carries it.

use crate::Rejection;
use tonic::{Code, Status};

impl From<Rejection> for Status {
    fn from(refusal: Rejection) -> Self {
        let code = match &refusal {
            Rejection::NoCapacity { .. }
            | Rejection::NoPlaces { .. }
            | Rejection::NoGpus { .. }
            | Rejection::NotTogether { .. }
            | Rejection::NoAgent
            | Rejection::TooMany { .. }
            | Rejection::QuotaExceeded { .. } => Code::ResourceExhausted,
            Rejection::BadToken | Rejection::WrongTenant | Rejection::NotPermitted { .. } => Code::PermissionDenied,
            Rejection::NotAuthenticated { .. } => Code::Unauthenticated,
            Rejection::UnknownLease | Rejection::UnknownWorker { .. } | Rejection::UnknownSlot { .. } => Code::NotFound,
            Rejection::BadRequest { .. } | Rejection::CodeMismatch | Rejection::CodeRejected { .. } => {
                Code::InvalidArgument
            }
            Rejection::Timeout { .. } => Code::DeadlineExceeded,
            Rejection::Unavailable { .. } => Code::Unavailable,
            _ => Code::FailedPrecondition,
        };
        Status::with_details(code, refusal.to_string(), crate::encode(&refusal).into())
    }
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        crate::decode(status.details()).unwrap_or_else(|_| Rejection::Unavailable {
            what: format!("{}: {}", status.code(), status.message()),
        })
    }
}
