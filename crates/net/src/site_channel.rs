//! Channel to a manager. A client without a certificate signs in first, and again when its session ends.
//!
//! A session token is valid for five minutes, on one connection. The gRPC channel may replace its connection at any
//! time without notice. The manager then does not recognise the session, and refuses a request without carrying it out.
//! So the client signs in again, and sends the request once more.

use crate::NetError;
use crate::address::Address;
use crate::credential::{Credential, munge};
use crate::grpc::{ServerFingerprint, channel_without_certificate_to_first};
use crate::peer::CertificateRole;
use crate::trust::Trust;
use hotlease_wire::grpc::identity_client::IdentityClient;
use hotlease_wire::grpc::{AuthenticateRequest, ChallengeRequest};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::Service;

/// Limit for signing in.
const SIGN_IN_WITHIN: Duration = Duration::from_secs(10);
/// Least duration of a session: assumed if the manager reports less, or none.
const LASTS_MIN: Duration = Duration::from_secs(1);

type BoxError = Box<dyn Error + Send + Sync>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

/// Channel to a manager. Clones share its connection and its session.
#[derive(Debug, Clone)]
pub struct SiteChannel {
    channel: Channel,
    session: Option<Arc<Session>>,
}

impl From<Channel> for SiteChannel {
    /// Makes the channel of a client whose connection already proves who it is (a certificate, or a Unix socket).
    fn from(channel: Channel) -> Self {
        Self { channel, session: None }
    }
}

impl SiteChannel {
    /// Makes the channel of a client that signs in with `credential`. It leads to the first manager of the list that
    /// serves.
    pub(crate) fn with_sign_in(managers: Vec<Address>, credential: Credential, trust: Trust) -> Self {
        let seen = ServerFingerprint::default();
        let channel =
            channel_without_certificate_to_first(managers, trust, CertificateRole::Manager, Arc::clone(&seen));
        Self {
            channel,
            session: Some(Arc::new(Session {
                credential,
                seen,
                held: Mutex::new(None),
            })),
        }
    }
}

impl Service<Request<Body>> for SiteChannel {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        // Use the clone that was polled ready, and put a fresh clone in its place.
        let other = self.channel.clone();
        let mut ready = std::mem::replace(&mut self.channel, other.clone());
        match &self.session {
            None => {
                let answer = ready.call(request);
                Box::pin(async { Ok(answer.await?) })
            }
            Some(session) => Box::pin(Arc::clone(session).send(ready, other, request)),
        }
    }
}

/// Session of a client that signs in with this credential.
struct Session {
    credential: Credential,
    /// Fingerprint of the certificate that the manager showed on the present connection.
    seen: ServerFingerprint,
    held: Mutex<Option<SessionToken>>,
}

impl std::fmt::Debug for Session {
    /// Shows the credential without the session's token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.credential)
    }
}

struct SessionToken {
    header: HeaderValue,
    renew_at: Instant,
}

impl Session {
    /// Sends a request whose body is one message. If the manager does not recognise the session, signs in and sends it
    /// again once.
    async fn send(
        self: Arc<Self>,
        mut ready: Channel,
        other: Channel,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let with = |header: HeaderValue| {
            let mut request = Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())));
            request.headers_mut().insert(AUTHORIZATION, header);
            request
        };
        let header = self.header(&other, None).await?;
        let answer = ready.call(with(header.clone())).await?;
        if !is_unknown(answer.headers()) {
            return Ok(answer);
        }
        tracing::debug!("the manager does not know this connection any more");
        let header = self.header(&other, Some(&header)).await?;
        let mut again = other;
        std::future::poll_fn(|context| again.poll_ready(context)).await?;
        Ok(again.call(with(header)).await?)
    }

    /// Returns the session's header. Signs in first if there is no session, if the session is due for renewal, or if
    /// `spent` is the session's header.
    async fn header(&self, channel: &Channel, spent: Option<&HeaderValue>) -> Result<HeaderValue, BoxError> {
        let mut held = self.held.lock().await;
        if let Some(held) = held.as_ref()
            && Some(&held.header) != spent
            && Instant::now() < held.renew_at
        {
            return Ok(held.header.clone());
        }
        *held = None;
        let signed_in = timeout(SIGN_IN_WITHIN, self.sign_in(channel)).await;
        let new = signed_in.map_err(|_| NetError::Silent {
            peer: "the manager".into(),
            after: SIGN_IN_WITHIN,
        })??;
        Ok(held.insert(new).header.clone())
    }

    /// Exchanges the credential for a session token.
    async fn sign_in(&self, channel: &Channel) -> Result<SessionToken, BoxError> {
        let mut identity = IdentityClient::new(channel.clone());
        let authorization = match self.credential.bearer()? {
            Some(bearer) => bearer,
            None => self.munge(&mut identity).await?,
        };
        let mut request = tonic::Request::new(AuthenticateRequest {});
        let mut value = MetadataValue::try_from(authorization)?;
        value.set_sensitive(true);
        request.metadata_mut().insert(AUTHORIZATION.as_str(), value);
        let asked = Instant::now();
        let session = identity
            .authenticate(request)
            .await
            .map_err(|status| self.name_credential(status))?;
        let session = session.into_inner();
        let lasts = Duration::from_millis(session.lasts_ms).max(LASTS_MIN);
        tracing::debug!(tenant = session.tenant, role = session.role, "signed in");
        Ok(SessionToken {
            header: sensitive(&format!("Bearer {}", session.token))?,
            // Renewed after three quarters of the session, so that a slow answer still arrives before the session ends.
            renew_at: asked + lasts / 4 * 3,
        })
    }

    /// Answers a challenge of the manager with a MUNGE credential.
    async fn munge(&self, identity: &mut IdentityClient<Channel>) -> Result<String, BoxError> {
        let Credential::Munge { socket } = &self.credential else {
            return Err(Status::internal("a credential without a challenge").into());
        };
        let challenge = identity.get_challenge(ChallengeRequest {}).await?.into_inner();
        // Sign the certificate that we saw, not a certificate named in the challenge: a man in the middle shows another
        // certificate.
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.unwrap_or_default();
        let payload = hotlease_wire::munge::payload(&challenge.nonce, &seen);
        let credential = munge(socket.as_deref(), &payload, challenge.uid).await?;
        Ok(format!("MUNGE {credential}"))
    }

    /// Adds the name of the credential to a rejection of the credential; returns other errors unchanged.
    fn name_credential(&self, status: Status) -> Status {
        if status.code() != Code::Unauthenticated {
            return status;
        }
        let why = match hotlease_wire::Rejection::from(status) {
            hotlease_wire::Rejection::NotAuthenticated { why } => why,
            other => other.to_string(),
        };
        hotlease_wire::Rejection::NotAuthenticated {
            why: format!("{} was not accepted: {why}", self.credential),
        }
        .into()
    }
}

fn sensitive(text: &str) -> Result<HeaderValue, BoxError> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether the response says that the caller is not authenticated. Such a response has no body.
fn is_unknown(headers: &HeaderMap) -> bool {
    let status = headers.get("grpc-status").and_then(|status| status.to_str().ok());
    status.and_then(|status| status.parse().ok()) == Some(Code::Unauthenticated as i32)
}
