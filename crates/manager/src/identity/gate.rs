//! Gate of the gRPC service: refuses unknown callers, and routes without an operation.

use super::places::{RequestPlace, RequestPlaces};
use super::{Authenticator, Caller, CallerGroup, ConnectionPeer, ManagerOperation};
use crate::listener::LocalPeerInfo as LocalPeer;
use hotlease_net::StrangerInfo;
use hotlease_net::grpc::PeerInfo as RemotePeer;
use hotlease_wire::Rejection;
use http::header::AUTHORIZATION;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

/// Authenticates each request and checks its operation. Puts the [`Caller`] into the request's extensions. The request
/// then waits for one of the caller's places.
#[derive(Clone)]
pub(crate) struct Gate<S> {
    authenticator: Arc<Authenticator>,
    places: Arc<RequestPlaces>,
    inner: S,
}

impl Gate<()> {
    /// Layer that puts the gate before a service.
    pub(crate) fn new(authenticator: Arc<Authenticator>, places: Arc<RequestPlaces>) -> Self {
        Self {
            authenticator,
            places,
            inner: (),
        }
    }
}

impl<S> Layer<S> for Gate<()> {
    type Service = Gate<S>;

    fn layer(&self, inner: S) -> Gate<S> {
        Gate {
            authenticator: Arc::clone(&self.authenticator),
            places: Arc::clone(&self.places),
            inner,
        }
    }
}

type GateFuture<E> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, E>> + Send>>;

impl<S> Service<http::Request<Body>> for Gate<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = GateFuture<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // Use the clone that was polled ready, and put a fresh one in its place.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let (authenticator, places) = (Arc::clone(&self.authenticator), Arc::clone(&self.places));
        let asked = RequestIdentity::by(&request);
        Box::pin(async move {
            let admitted = match asked {
                Ok(asked) => asked.admit(&authenticator, &places).await,
                Err(refusal) => Err(refusal),
            };
            match admitted {
                Ok(Admission {
                    connection,
                    caller,
                    place: _place,
                }) => {
                    request.extensions_mut().insert(GateConnection(connection));
                    if let Some(caller) = caller {
                        if let Some(stranger) = request.extensions().get::<StrangerInfo>()
                            && let Err(refusal) = stranger.make_known(caller.payer())
                        {
                            return Ok(Status::from(refusal).into_http());
                        }
                        request.extensions_mut().insert(caller);
                    }
                    inner.call(request).await
                }
                Err(refusal) => {
                    // The request's headers are not logged: they may contain a secret.
                    tracing::debug!(path = request.uri().path(), %refusal, "refused a request");
                    Ok(Status::from(refusal).into_http())
                }
            }
        })
    }
}

/// Operation, connection and credential of a request.
struct RequestIdentity {
    operation: ManagerOperation,
    connection: ConnectionPeer,
    authorization: Option<String>,
}

impl RequestIdentity {
    fn by(request: &http::Request<Body>) -> Result<Self, Rejection> {
        let refused = |what: &str| Rejection::NotPermitted { what: what.into() };
        let operation = ManagerOperation::of_grpc(request.uri().path());
        let authorization = request.headers().get(AUTHORIZATION).map(|value| value.to_str());
        Ok(Self {
            operation: operation.ok_or_else(|| refused("this manager has no such route"))?,
            connection: connection_of(request.extensions())?,
            authorization: authorization
                .transpose()
                .map_err(|_| refused("the authorization header is not text"))?
                .map(str::to_owned),
        })
    }

    async fn admit(self, authenticator: &Authenticator, places: &RequestPlaces) -> Result<Admission, Rejection> {
        let Self {
            operation,
            connection,
            authorization,
        } = self;
        // A stranger waits for one of its connection's few places already before it is authenticated.
        let unknown = places.take(&connection, None).await;
        if operation.allowed_callers() == CallerGroup::AllPeers {
            return Ok(Admission {
                connection,
                caller: None,
                place: unknown,
            });
        }
        let caller = authenticator
            .authenticate(&connection, authorization.as_deref(), SystemTime::now())
            .await?;
        caller.check(operation)?;
        drop(unknown);
        Ok(Admission {
            place: places.take(&connection, Some(&caller)).await,
            connection,
            caller: Some(caller),
        })
    }
}

/// Connection and caller of an admitted request.
struct Admission {
    connection: ConnectionPeer,
    /// `None` if the operation is open to all peers.
    caller: Option<Caller>,
    /// Held until the response.
    place: RequestPlace,
}

/// Connection of a request that passed the gate; stored in its extensions.
#[derive(Clone)]
pub(crate) struct GateConnection(pub ConnectionPeer);

/// Identity of the peer on whose connection a request arrived.
pub(crate) fn connection_of(extensions: &http::Extensions) -> Result<ConnectionPeer, Rejection> {
    if let Some(peer) = extensions.get::<RemotePeer>() {
        return Ok(ConnectionPeer::Certified(Arc::clone(&peer.0)));
    }
    if let Some(stranger) = extensions.get::<StrangerInfo>() {
        return Ok(ConnectionPeer::Stranger {
            channel: stranger.channel(),
            server: stranger.server(),
            payer: stranger.peer().map(str::to_owned),
        });
    }
    let local = extensions.get::<LocalPeer>();
    let local = local.map(|peer| ConnectionPeer::Local { uid: peer.uid });
    local.ok_or_else(|| Rejection::NotPermitted {
        what: "a connection without credentials".into(),
    })
}

/// Caller of a request that passed the gate.
pub(crate) fn caller_of<T>(request: &tonic::Request<T>) -> Result<Caller, Rejection> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Rejection::NotPermitted {
        what: "a request whose caller was not identified".into(),
    })
}
