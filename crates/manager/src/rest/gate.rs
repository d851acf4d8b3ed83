//! Gate of the REST interface: refuses unknown callers, and routes without an operation.

use super::problem::Problem;
use super::routes;
use crate::identity::{Caller, CallerGroup, ManagerOperation, connection_of};
use crate::state::ManagerState as Shared;
use crate::trace::Trace;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hotlease_net::StrangerInfo;
use hotlease_wire::Rejection;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// Time limit for any request.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Header of a response with its trace id, which finds the request in the logs.
const TRACE_HEADER: HeaderName = HeaderName::from_static("x-trace-id");

/// Names, times and counts every request.
pub(super) async fn observe(State(state): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let trace = Trace::of(request.headers());
    let path = request.extensions().get::<MatchedPath>();
    let route = path.map_or("unknown", MatchedPath::as_str).to_owned();
    let work = async {
        match timeout(REQUEST_WITHIN, admit(&state, request, next)).await {
            Ok(response) => response,
            Err(_) => Problem::timeout().into_response(),
        }
    };
    let mut response = trace.scope(&route, work).await;
    if let Ok(value) = HeaderValue::from_str(&trace.to_string()) {
        response.headers_mut().insert(TRACE_HEADER, value);
    }
    state.metrics.count_request("rest", route, status(response.status()));
    response
}

/// Status as a label of a metric. The number of labels is limited, as metrics require.
fn status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        410 => "410",
        429 => "429",
        503 => "503",
        504 => "504",
        201..=399 => "2xx",
        402..=499 => "4xx",
        _ => "5xx",
    }
}

async fn admit(state: &Arc<Shared>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match identify(state, &parts).await {
        Ok(caller) => {
            if let Some(caller) = caller {
                parts.extensions.insert(caller);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Identifies the caller and checks its operation. Returns `None` if the operation is open to all peers. Errors end the
/// request.
async fn identify(state: &Arc<Shared>, request: &Parts) -> Result<Option<Caller>, Problem> {
    let path = request.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    let operation = path.and_then(|path| routes::operation(&request.method, path));
    if operation.map(ManagerOperation::allowed_callers) == Some(CallerGroup::AllPeers) {
        return Ok(None);
    }
    let caller = authenticate(state, request).await.map_err(|refusal| {
        // The request's headers are not logged: they may contain a secret.
        tracing::debug!(%refusal, "refused a request");
        match refusal {
            Rejection::Timeout { .. } | Rejection::Unavailable { .. } => Problem::from(refusal),
            refusal => Problem::unauthenticated(&refusal),
        }
    })?;
    // Checked only after authentication: strangers learn nothing about the routes.
    well_formed(request)?;
    let Some(path) = path else {
        return Err(Problem::not_found("there is no such path; see /v1/openapi.json"));
    };
    let Some(operation) = operation else {
        return Err(Problem::method(routes::allowed(path)));
    };
    caller.check(operation)?;
    Ok(Some(caller))
}

async fn authenticate(state: &Arc<Shared>, request: &Parts) -> Result<Caller, Rejection> {
    let refused = |what: &str| Rejection::NotPermitted { what: what.into() };
    let mut headers = request.headers.get_all(AUTHORIZATION).iter();
    let authorization = headers.next().map(HeaderValue::to_str).transpose();
    let authorization = authorization.map_err(|_| refused("the authorization header is not text"))?;
    if headers.next().is_some() {
        return Err(refused("there are two authorization headers"));
    }
    let connection = connection_of(&request.extensions)?;
    let authenticator = &state.authenticator;
    let caller = authenticator
        .authenticate(&connection, authorization, SystemTime::now())
        .await?;
    if let Some(stranger) = request.extensions.get::<StrangerInfo>() {
        stranger.make_known(caller.payer())?;
    }
    Ok(caller)
}

/// Checks what HTTP requires of a request and hyper does not check. Also refuses changes by a page of another site,
/// which could use the certificate in a user's browser.
fn well_formed(request: &Parts) -> Result<(), Problem> {
    let host = host(&request.headers);
    if request.version == Version::HTTP_11 && host.is_none() {
        return Err(Problem::bad("there is no usable Host header"));
    }
    let is_safe = matches!(request.method, Method::GET | Method::HEAD);
    let origin = request.headers.get(ORIGIN);
    if let (false, Some(origin)) = (is_safe, origin) {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if origin.map(|(_, site)| site) != host.as_ref().map(Authority::as_str) {
            return Err(Problem::from(Rejection::NotPermitted {
                what: "a page of another site may change nothing here".into(),
            }));
        }
    }
    Ok(())
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next()?;
    if hosts.next().is_some() {
        return None;
    }
    host.to_str().ok()?.parse().ok()
}
