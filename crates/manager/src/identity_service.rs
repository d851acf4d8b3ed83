//! gRPC service for callers that are not known yet: makes challenges, and opens sessions for credentials.

use crate::identity::{ConnectionPeer, GateConnection};
use crate::state::ManagerState;
use hotlease_net::StrangerInfo;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::identity_server::Identity;
use hotlease_wire::grpc::{AuthenticateRequest, Challenge, ChallengeRequest, Session};
use std::sync::Arc;
use std::time::SystemTime;
use tonic::{Request, Response, Status};

/// Longest message to this service, bytes: messages are empty so far.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024;

/// The gRPC service `Identity`: challenges and sessions.
#[derive(Clone)]
pub(crate) struct IdentityService(pub(crate) Arc<ManagerState>);

fn connection<T>(request: &Request<T>) -> Result<ConnectionPeer, Rejection> {
    let connection = request.extensions().get::<GateConnection>();
    connection
        .map(|connection| connection.0.clone())
        .ok_or_else(|| Rejection::NotPermitted {
            what: "a connection without a name".into(),
        })
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_challenge(&self, request: Request<ChallengeRequest>) -> Result<Response<Challenge>, Status> {
        let connection = connection(&request)?;
        let (nonce, ends_ms) = self.0.authenticator.challenge(&connection, SystemTime::now());
        let server = match connection {
            ConnectionPeer::Stranger { server, .. } => server.to_vec(),
            ConnectionPeer::Local { .. } | ConnectionPeer::Certified(_) => Vec::new(),
        };
        Ok(Response::new(Challenge {
            nonce: nonce.to_vec(),
            ends_ms,
            server,
            uid: nix::unistd::geteuid().as_raw(),
        }))
    }

    async fn authenticate(&self, request: Request<AuthenticateRequest>) -> Result<Response<Session>, Status> {
        let connection = connection(&request)?;
        let header = request.metadata().get("authorization");
        let header = header.and_then(|header| header.to_str().ok());
        let now = SystemTime::now();
        let header = header.ok_or_else(|| Rejection::NotAuthenticated {
            why: "the request has no authorization header".into(),
        })?;
        let caller = self
            .0
            .authenticator
            .authenticate(&connection, Some(header), now)
            .await?;
        let (token, ends_ms) = self.0.authenticator.session(&caller, &connection, now)?;
        if let Some(stranger) = request.extensions().get::<StrangerInfo>() {
            stranger.make_known(caller.payer())?;
        }
        tracing::debug!(who = %caller.name, role = %caller.role, "a session was opened");
        Ok(Response::new(Session {
            token,
            ends_ms,
            tenant: caller.tenant.unwrap_or_default(),
            role: caller.role.to_string(),
            lasts_ms: crate::identity::SESSION_MS,
        }))
    }
}
