//! Connections of the REST interface, and their limits of number, time and size.

use super::problem::Problem;
use super::{gate, routes};
use crate::identity::{Caller, ConnectionPeer, PlaceLimits, RequestPlaces, connection_of};
use crate::listener::LocalListener;
use crate::state::ManagerState;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hotlease_net::TlsListener;
use hotlease_net::grpc::{PeerStream, StrangerStream};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::server::Connected;
use tower::Service;

/// Longest line and headers of a request, bytes.
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Limit of headers of a request.
const HEADERS_MAX: usize = 64;
/// Longest body, bytes: our longest request is a tenant with its members.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Time limit for a request's line and headers, and for the pause between two requests of a connection.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Longest life of a connection, so that a client that reads an answer byte by byte does not occupy it for long.
const LIFE: Duration = Duration::from_secs(300);
/// Time limit for a connection to finish its request when its life ends or the manager stops.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// Numbers of requests that are processed at a time, over all connections; further ones are refused.
const PLACES: PlaceLimits = PlaceLimits { group: 64, caller: 16 };
/// Limit of accepted connections that wait for the server.
const ACCEPTED_MAX: usize = 16;

/// Router with all routes, behind the gate.
fn service(state: &Arc<ManagerState>) -> Router {
    let (router, _) = routes::router().split_for_parts();
    let places = Arc::new(RequestPlaces::new(PLACES));
    router
        .fallback(async || Problem::not_found("there is no such path; see /v1/openapi.json"))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(move |request: Request, next: Next| {
            let places = Arc::clone(&places);
            async move { in_place(&places, request, next).await }
        }))
        .layer(from_fn_with_state(Arc::clone(state), gate::observe))
        .with_state(Arc::clone(state))
}

/// Refuses a request if its caller, or the callers of its group (members, strangers), have too many that are being
/// processed. Runs behind the gate, which has identified the caller.
async fn in_place(places: &RequestPlaces, request: Request, next: Next) -> Response {
    // A connection without credentials counts as a stranger's; the gate has let it ask only what strangers may.
    let connection = connection_of(request.extensions()).unwrap_or(ConnectionPeer::Stranger {
        channel: [0; 32],
        server: [0; 32],
        payer: None,
    });
    match places.try_take(&connection, request.extensions().get::<Caller>()) {
        Some(_place) => next.run(request).await,
        None => Problem::busy(PLACES.caller).into_response(),
    }
}

/// Serves the socket, and the TLS port if there is one, until told to stop; then lets requests finish.
pub(crate) async fn serve(
    state: Arc<ManagerState>,
    local: LocalListener,
    tls: Option<TlsListener>,
    stopping: watch::Receiver<bool>,
) {
    let router = service(&state);
    let (accepted, mut connections) = mpsc::channel(ACCEPTED_MAX);
    let accepting = tokio::spawn(local.accept_into(accepted));
    let (admitted, mut peers) = mpsc::channel(ACCEPTED_MAX);
    let (known_later, mut strangers) = mpsc::channel(ACCEPTED_MAX);
    let port = tls.map(|tls| tokio::spawn(tls.for_http().accept_all_into(admitted, known_later)));
    let mut served = JoinSet::new();
    loop {
        let mut stop = stopping.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = served.join_next() => {}
            connection = connections.recv() => match connection {
                Some(Ok(connection)) => {
                    served.spawn(carry(connection, router.clone(), stopping.clone()));
                }
                Some(Err(error)) => tracing::warn!(%error, "a connection failed"),
                None => break,
            },
            Some(peer) = peers.recv() => {
                served.spawn(carry(PeerStream::from(peer), router.clone(), stopping.clone()));
            }
            Some(stranger) = strangers.recv() => {
                served.spawn(carry(StrangerStream::from(stranger), router.clone(), stopping.clone()));
            }
        }
    }
    drop((connections, peers, strangers));
    if let Some(port) = port {
        port.abort();
    }
    let finished = async { while served.join_next().await.is_some() {} };
    if timeout(FINISH_WITHIN, finished).await.is_err() {
        tracing::warn!("stopped with connections of the REST interface open");
    }
    match accepting.await {
        Ok(listener) => drop(listener),
        Err(error) => tracing::error!(%error, "the accepting task failed"),
    }
}

/// Serves a connection from its first request to its end.
async fn carry(
    stream: impl AsyncRead + AsyncWrite + Connected<ConnectInfo: Clone + Send + Sync> + Unpin + Send + 'static,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let info = stream.connect_info();
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(info.clone());
        // The router itself is always ready, because the limit of requests applies inside it.
        router.clone().call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = &mut connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of the REST interface ended");
            }
            return;
        }
        () = sleep(LIFE) => {}
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    if timeout(FINISH_WITHIN, connection).await.is_err() {
        tracing::debug!("cut a connection of the REST interface");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{CallerGroup, ManagerOperation};
    use crate::listener::LocalPeerInfo;
    use crate::{Manager, ManagerConfig};
    use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
    use axum::http::{HeaderMap, Method, StatusCode};

    struct TestRouter {
        _dir: tempfile::TempDir,
        _manager: Manager,
        router: Router,
    }

    impl TestRouter {
        async fn start() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let manager = Manager::start(ManagerConfig::new(dir.path())).await.expect("a manager");
            Self {
                router: service(&manager.state),
                _dir: dir,
                _manager: manager,
            }
        }

        async fn ask(&self, method: &Method, path: &str, uid: Option<u32>) -> (StatusCode, HeaderMap) {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(HOST, "localhost")
                .header(CONTENT_TYPE, "application/json");
            let mut request = request.body(Body::from("{}")).expect("a request");
            if let Some(uid) = uid {
                request.extensions_mut().insert(LocalPeerInfo { uid });
            }
            let answer = self.router.clone().call(request).await.expect("infallible");
            (answer.status(), answer.headers().clone())
        }
    }

    /// Routes of the document with their operations; an id is filled in where a path needs one.
    fn routes_of_the_document() -> Vec<(Method, String, ManagerOperation)> {
        let document: serde_json::Value = serde_json::from_str(&super::super::openapi()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths").iter();
        let routes = paths.flat_map(|(path, item)| {
            let methods = item.as_object().expect("an object").keys();
            methods.map(move |method| {
                let method: Method = method.to_uppercase().parse().expect("a method");
                let operation = routes::operation(&method, path).expect("named");
                let parts = path.split('/').map(|part| match part.starts_with('{') {
                    true => "0123456789abcdef",
                    false => part,
                });
                (method, parts.collect::<Vec<_>>().join("/"), operation)
            })
        });
        routes.collect()
    }

    #[tokio::test]
    async fn a_stranger_learns_only_that_the_manager_lives() {
        let scene = TestRouter::start().await;
        let mut routes = routes_of_the_document();
        for elsewhere in ["/", "/v1", "/v1/secrets", "/metrics/"] {
            routes.push((Method::GET, elsewhere.into(), ManagerOperation::GetInfo));
            routes.push((Method::TRACE, elsewhere.into(), ManagerOperation::GetInfo));
        }
        for (method, path, operation) in routes {
            let (status, headers) = scene.ask(&method, &path, None).await;
            // A nonce belongs to a connection, and there is none here.
            if operation.allowed_callers() == CallerGroup::AllPeers && path != "/v1/challenge" {
                assert_eq!((status, path.as_str()), (StatusCode::OK, "/healthz"));
                continue;
            }
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
            assert!(
                headers.contains_key(WWW_AUTHENTICATE),
                "{method} {path} does not say how"
            );
            assert_eq!(headers.get(CONNECTION).expect("said"), "close", "{method} {path}");
        }
    }

    #[tokio::test]
    async fn a_user_gets_no_further_than_a_users_part() {
        let scene = TestRouter::start().await;
        let own = nix::unistd::geteuid().as_raw();
        for (method, path, operation) in routes_of_the_document() {
            let of_user = matches!(
                operation.allowed_callers(),
                CallerGroup::AllPeers | CallerGroup::Members | CallerGroup::MembersAndHooks
            );
            let (status, _) = scene.ask(&method, &path, Some(own + 1)).await;
            assert_eq!(
                status == StatusCode::FORBIDDEN,
                !of_user,
                "{method} {path} answered a user with {status}"
            );
            let (status, _) = scene.ask(&method, &path, Some(own)).await;
            let refused = [StatusCode::FORBIDDEN, StatusCode::UNAUTHORIZED].contains(&status);
            assert!(!refused, "{method} {path} answered an operator with {status}");
        }
    }
}
