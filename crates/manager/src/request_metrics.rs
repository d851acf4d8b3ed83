//! Layer before the gRPC gate: names, times and counts each request, including refused requests.

use crate::identity::ManagerOperation;
use crate::metrics::Metrics;
use crate::trace::Trace;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Code;
use tower::{Layer, Service};

/// Service that names and counts each request of the service inside.
#[derive(Clone)]
pub(crate) struct RequestMetrics<S> {
    metrics: Arc<Metrics>,
    inner: S,
}

impl RequestMetrics<()> {
    /// Layer that puts the counting before a service.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, inner: () }
    }
}

impl<S> Layer<S> for RequestMetrics<()> {
    type Service = RequestMetrics<S>;

    fn layer(&self, inner: S) -> RequestMetrics<S> {
        RequestMetrics {
            metrics: Arc::clone(&self.metrics),
            inner,
        }
    }
}

impl<S, Sent, Answered> Service<http::Request<Sent>> for RequestMetrics<S>
where
    S: Service<http::Request<Sent>, Response = http::Response<Answered>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Answered: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Sent>) -> Self::Future {
        let path = request.uri().path();
        // Only the protocol's names of routes become labels, so the number of labels is bounded.
        let route = match ManagerOperation::of_grpc(path) {
            Some(_) => path.rsplit('/').next().unwrap_or_default().to_owned(),
            None => "unknown".to_owned(),
        };
        let trace = Trace::of(request.headers());
        let metrics = Arc::clone(&self.metrics);
        let answered = self.inner.call(request);
        Box::pin(async move {
            let answered = trace.scope(&route, answered).await;
            let status = match &answered {
                Ok(response) => code(response.headers()),
                Err(_) => "Broken",
            };
            metrics.count_request("grpc", route, status);
            answered
        })
    }
}

/// Status of a response. The status is in the headers if the request was refused, and in the trailers if the request
/// was carried out.
fn code(headers: &http::HeaderMap) -> &'static str {
    let status = headers.get("grpc-status").map(|value| value.as_bytes());
    match status.map_or(Code::Ok, Code::from_bytes) {
        Code::Ok => "Ok",
        Code::Cancelled => "Cancelled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
