//! Conversion between a refusal and a gRPC status that carries it.

use crate::Refusal;
use tonic::{Code, Status};

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NoCapacity { .. }
            | Refusal::NoPlaces { .. }
            | Refusal::NoGpus { .. }
            | Refusal::NotTogether { .. }
            | Refusal::NoAgent
            | Refusal::TooMany { .. }
            | Refusal::QuotaExceeded { .. } => Code::ResourceExhausted,
            Refusal::BadToken | Refusal::WrongTenant | Refusal::NotPermitted { .. } => Code::PermissionDenied,
            Refusal::NotAuthenticated { .. } => Code::Unauthenticated,
            Refusal::UnknownLease | Refusal::UnknownWorker { .. } | Refusal::UnknownSlot { .. } => {
                Code::NotFound
            }
            Refusal::BadRequest { .. } | Refusal::CodeMismatch | Refusal::CodeRejected { .. } => {
                Code::InvalidArgument
            }
            Refusal::Timeout { .. } => Code::DeadlineExceeded,
            Refusal::Unavailable { .. } => Code::Unavailable,
            _ => Code::FailedPrecondition,
        };
        Status::with_details(code, refusal.to_string(), crate::encode(&refusal).into())
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        crate::decode(status.details()).unwrap_or_else(|_| Refusal::Unavailable {
            what: format!("{}: {}", status.code(), status.message()),
        })
    }
}
