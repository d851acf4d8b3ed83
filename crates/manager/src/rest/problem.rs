//! Errors in the format of RFC 9457: `application/problem+json`.

use crate::agents::nodes::OrderRejection;
use crate::refusal_kind::{RefusalKind, UNKNOWN, kind};
use crate::trace::Trace;
use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hotlease_wire::{Rejection, RunCertainty};
use serde::Serialize;
use utoipa::ToSchema;

/// Content type of a problem.
pub(super) const CONTENT: &str = "application/problem+json";
/// Page that explains the kinds of problems.
const EXPLAINED: &str = "https://github.com/hotlease/hotlease/blob/main/docs/rest.md#";
/// Ways of authentication, for a caller that is not known.
const SCHEMES: &str = "Bearer realm=\"hotlease\"";

/// Error of a request that was not carried out.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// URL that names the kind of problem and explains it.
    #[serde(rename = "type")]
    #[schema(rename = "type")]
    kind: String,
    /// Kind of problem in words.
    title: &'static str,
    /// HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// Description of what happened, and what to do next.
    #[schema(value_type = String)]
    detail: Box<str>,
    /// Whether the request was carried out: `no`, or `unknown` if that cannot be told. Absent if the request would
    /// not have changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    ran: Option<&'static str>,
    /// Trace id of W3C Trace Context; finds the request in the logs of manager and agents.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    trace: String,
    #[serde(skip)]
    allow: Option<Box<str>>,
}

fn ran(refusal: &Rejection) -> RunCertainty {
    match refusal {
        // There was no answer: the request may have been carried out.
        Rejection::Timeout { .. } | Rejection::Unavailable { .. } | Rejection::WorkerDied { .. } => {
            RunCertainty::Unknown
        }
        // A refused request changed nothing.
        _ => RunCertainty::No,
    }
}

impl Problem {
    fn new((name, title, status): RefusalKind, detail: String) -> Self {
        Self {
            kind: format!("{EXPLAINED}{name}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            ran: None,
            trace: Trace::current().map(|trace| trace.to_string()).unwrap_or_default(),
            allow: None,
        }
    }

    /// The caller is not known.
    pub(super) fn unauthenticated(refusal: &Rejection) -> Self {
        Self::new(UNKNOWN, refusal.to_string())
    }

    /// There is nothing with this name.
    pub(super) fn not_found(what: impl Into<String>) -> Self {
        Self::new(("not-found", "No such thing", StatusCode::NOT_FOUND), what.into())
    }

    /// The path exists, but only with these methods.
    pub(super) fn method(allow: String) -> Self {
        let kind = ("method", "Not with this method", StatusCode::METHOD_NOT_ALLOWED);
        Self {
            allow: Some(allow.as_str().into()),
            ..Self::new(kind, format!("this path knows only {allow}"))
        }
    }

    /// The request is malformed.
    pub(super) fn bad(why: impl Into<String>) -> Self {
        Self::from(Rejection::BadRequest { what: why.into() })
    }

    /// The response is not available in any media type that the client accepts.
    pub(super) fn not_acceptable(offered: &str) -> Self {
        let kind = ("not-acceptable", "Not in this form", StatusCode::NOT_ACCEPTABLE);
        Self::new(kind, format!("the response is available as {offered}"))
    }

    /// The caller has used the token for another order.
    fn token_used(detail: String) -> Self {
        let kind = ("token-used", "The token stands for another order", StatusCode::CONFLICT);
        Self {
            ran: Some("no"),
            ..Self::new(kind, detail)
        }
    }

    /// Error of axum for a body or parameters that it could not read.
    pub(super) fn of_status(status: StatusCode, why: String) -> Self {
        let kind = match status {
            StatusCode::PAYLOAD_TOO_LARGE => ("too-large", "The body is too long", status),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ("media-type", "Not in this form", status),
            StatusCode::REQUEST_TIMEOUT => ("slow", "The request took too long to come", status),
            _ => ("bad-request", "The request is not valid", StatusCode::BAD_REQUEST),
        };
        Self::new(kind, why)
    }

    /// The limit of requests that are processed at a time is reached.
    pub(super) fn busy(limit: usize) -> Self {
        let kind = ("busy", "Too many requests at a time", StatusCode::SERVICE_UNAVAILABLE);
        let why = format!(
            "at most {limit} requests of one caller are processed at a time, and a few times as many of all; ask again in a second"
        );
        let busy = Self::new(kind, why);
        Self {
            ran: Some("no"),
            ..busy
        }
    }

    /// The request took longer than the time limit.
    pub(super) fn timeout() -> Self {
        let kind = ("timeout", "No answer in time", StatusCode::GATEWAY_TIMEOUT);
        Self {
            ran: Some("unknown"),
            ..Self::new(kind, "the request took too long and was given up".into())
        }
    }
}

impl From<Rejection> for Problem {
    fn from(refusal: Rejection) -> Self {
        Self {
            ran: Some(match ran(&refusal) {
                RunCertainty::Yes => "yes",
                RunCertainty::No => "no",
                RunCertainty::Unknown => "unknown",
            }),
            ..Self::new(kind(&refusal), refusal.to_string())
        }
    }
}

impl From<OrderRejection> for Problem {
    fn from(error: OrderRejection) -> Self {
        match error {
            OrderRejection::TokenUsed(detail) => Self::token_used(detail),
            OrderRejection::Refused(refusal) => Self::from(refusal),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // The struct contains only texts and numbers, so serialising it does not fail.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        if let Some(allow) = self.allow.and_then(|allow| allow.parse().ok()) {
            headers.insert(ALLOW, allow);
        }
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(SCHEMES));
                // An unknown caller must not keep its connection.
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
