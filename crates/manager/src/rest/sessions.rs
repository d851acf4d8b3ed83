//! Challenges for credentials that are good once, and sessions.

use super::problem::Problem;
use crate::identity::{Caller, ConnectionPeer, connection_of};
use crate::state::ManagerState as Shared;
use axum::extract::{Request, State};
use axum::{Extension, Json};
use hotlease_wire::munge;
use serde::Serialize;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa::ToSchema;

/// Challenge that a MUNGE credential must answer on this connection.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Challenge {
    /// Nonce for one credential; hexadecimal.
    nonce: String,
    /// BLAKE3 hash of the certificate that the manager showed; hexadecimal.
    server: String,
    /// Payload that the credential must carry.
    payload: String,
    /// Uid of the manager; the credential must be restricted to it (`munge --restrict-uid`).
    uid: u32,
    /// End of the nonce's validity, milliseconds since 1970.
    ends_ms: u64,
}

/// Session token for further requests on this connection.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Session {
    /// Token for the header `Authorization: Bearer TOKEN`; valid on this connection only.
    token: String,
    tenant: String,
    /// Role of the caller: `user`, `operator` or `hook`.
    role: String,
    /// End of the session, milliseconds since 1970.
    ends_ms: u64,
}

/// Makes a nonce for a MUNGE credential, which must be shown on the same connection.
#[utoipa::path(get, path = "/v1/challenge", operation_id = "get_challenge", tag = "manager", security(()),
    responses((status = 200, description = "The challenge", body = Challenge)))]
pub(super) async fn challenge(State(state): State<Arc<Shared>>, request: Request) -> Result<Json<Challenge>, Problem> {
    let connection = connection_of(request.extensions());
    let connection = connection.map_err(|refusal| Problem::unauthenticated(&refusal))?;
    let (nonce, ends_ms) = state.authenticator.challenge(&connection, SystemTime::now());
    let server = match &connection {
        ConnectionPeer::Stranger { server, .. } => server.as_slice(),
        ConnectionPeer::Local { .. } | ConnectionPeer::Certified(_) => &[],
    };
    Ok(Json(Challenge {
        nonce: hex::encode(nonce),
        server: hex::encode(server),
        payload: munge::payload(&nonce, server),
        uid: nix::unistd::geteuid().as_raw(),
        ends_ms,
    }))
}

/// Opens a session for this request's credential, which then need not be shown again on this connection.
#[utoipa::path(post, path = "/v1/session", operation_id = "open_session", tag = "manager",
    responses((status = 200, description = "A token that is valid for five minutes", body = Session)))]
pub(super) async fn open(
    State(state): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Session>, Problem> {
    let connection = connection_of(request.extensions())?;
    let opened = state.authenticator.session(&caller, &connection, SystemTime::now())?;
    let (token, ends_ms) = opened;
    Ok(Json(Session {
        token,
        tenant: caller.tenant()?.to_owned(),
        role: caller.role.to_string(),
        ends_ms,
    }))
}
