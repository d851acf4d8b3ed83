//! gRPC over connections of this crate: both ends.

use crate::NetError;
use crate::address::Address;
use crate::dial::{Dialled, dial_as};
use crate::identity::{Identity, Protocol};
use crate::listener::{Admitted, Place};
use crate::peer::{Peer, Role};
pub use crate::served::Served;
use crate::stranger::{KNOWN_WITHIN, Stranger, StrangerInfo};
use crate::trust::Trust;
use hotlease_wire::Refusal;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// While requests are under way, how often the other side is asked whether it is there, and how long its
/// answer may take.
const PING: Duration = Duration::from_secs(2);
/// Of several daemons, how long one may take to let us in before the next is tried.
const OTHERS_AFTER: Duration = Duration::from_secs(1);

/// A channel to a daemon: it connects when first used, and again when the connection breaks. Fails with a
/// status that [`refusal`] understands.
pub fn channel(address: Address, identity: Arc<Identity>, needed: Role) -> Channel {
    channel_to_first(vec![address], identity, needed)
}

/// A channel to whichever of several daemons serves, of which all but one only wait to: each time that it connects
/// it tries them in this order.
pub fn channel_to_first(addresses: Vec<Address>, identity: Arc<Identity>, needed: Role) -> Channel {
    // What HTTP/2 calls the peer; the connector goes to the address, and TLS is its own.
    let endpoint = Endpoint::from_static("http://hotlease")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (addresses, identity) = (addresses.clone(), Arc::clone(&identity));
        async move {
            let client = identity.credentials().client(Protocol::Grpc);
            let dialled = dial_first(&addresses, client, needed).await?;
            Ok::<_, NetError>(TokioIo::new(dialled.stream))
        }
    }))
}

/// BLAKE3 of the certificate that a daemon showed when it was last connected to.
pub type Seen = Arc<Mutex<Option<[u8; 32]>>>;

/// As [`channel`], for somebody without a certificate: requests carry another credential. What was shown to us
/// goes to `seen`.
pub fn channel_without_certificate(address: Address, trust: Trust, needed: Role, seen: Seen) -> Channel {
    channel_without_certificate_to_first(vec![address], trust, needed, seen)
}

/// The same, as [`channel_to_first`].
pub(crate) fn channel_without_certificate_to_first(
    addresses: Vec<Address>,
    trust: Trust,
    needed: Role,
    seen: Seen,
) -> Channel {
    let endpoint = Endpoint::from_static("http://hotlease")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (addresses, client, seen) = (addresses.clone(), trust.grpc(), Arc::clone(&seen));
        async move {
            let dialled = dial_first(&addresses, client, needed).await?;
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(dialled.peer.fingerprint);
            Ok::<_, NetError>(TokioIo::new(dialled.stream))
        }
    }))
}

/// The first that lets us in. Of several, one that is silent costs a moment only.
async fn dial_first(
    addresses: &[Address],
    client: Arc<ClientConfig>,
    needed: Role,
) -> Result<Dialled, NetError> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(NetError::local("find a daemon")(io::ErrorKind::NotFound.into()));
    };
    for address in others {
        let dialled = timeout(
            OTHERS_AFTER,
            dial_as(address, Arc::clone(&client), Protocol::Grpc, needed),
        )
        .await;
        match dialled {
            Ok(Ok(dialled)) => return Ok(dialled),
            Ok(Err(error)) => tracing::debug!(%address, %error, "trying the next {needed}"),
            Err(_) => tracing::debug!(%address, "it is silent; trying the next {needed}"),
        }
    }
    dial_as(last, client, Protocol::Grpc, needed).await
}

/// Why a request did not reach a daemon, if that is why it failed.
pub fn cause(status: &Status) -> Option<&NetError> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<NetError>() {
            return Some(error);
        }
        source = error.source();
    }
    None
}

/// What a failed request says to a user.
pub fn refusal(status: Status) -> Refusal {
    match cause(&status) {
        Some(error) => error.clone().into(),
        None => status.into(),
    }
}

/// A connection of a verified peer, for a gRPC server.
pub type PeerStream = Served<TlsStream<TcpStream>, PeerInfo, Place>;

impl From<Admitted> for PeerStream {
    fn from(admitted: Admitted) -> Self {
        let info = PeerInfo(Arc::new(admitted.peer));
        Self::new(admitted.stream, info, admitted.place)
    }
}

/// A connection of a stranger, for a gRPC server that asks who it is.
pub type StrangerStream = Served<TlsStream<TcpStream>, StrangerInfo, Place>;

impl From<Stranger> for StrangerStream {
    fn from(stranger: Stranger) -> Self {
        let info = stranger.info.clone();
        Self::new(stranger.stream, stranger.info, stranger.place)
            .only_if(KNOWN_WITHIN, move || info.is_known())
    }
}

/// Who sent a request: in its extensions.
#[derive(Debug, Clone)]
pub struct PeerInfo(pub Arc<Peer>);
