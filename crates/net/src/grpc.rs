//! gRPC over the connections of this crate: client and server ends.

use crate::NetError;
use crate::address::Address;
use crate::dial::{DialedConnection, dial_as};
use crate::identity::{ConnectionProtocol, Identity};
use crate::listener::PeerConnection;
use crate::listener::places::ConnectionPlace;
use crate::listener::stranger::{KNOWN_WITHIN, Stranger, StrangerInfo};
use crate::peer::{CertificateRole, Peer};
pub use crate::server_connection::ServerConnection;
use crate::trust::Trust;
use hotlease_wire::Rejection;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Interval of keep-alive pings while requests are under way, and limit for the answer to a ping.
const PING: Duration = Duration::from_secs(2);
/// Limit for each daemon of a list, except the last, to accept the connection before the next is tried.
const OTHERS_AFTER: Duration = Duration::from_secs(1);

/// Makes a channel to a daemon. It connects when first used, and again when the connection breaks. Fails with a
/// status that [`refusal`] understands.
pub fn channel(address: Address, identity: Arc<Identity>, needed: CertificateRole) -> Channel {
    channel_to_first(vec![address], identity, needed)
}

/// Makes a channel to the one daemon of a list that serves; the other daemons stand by. Each time that the channel
/// connects, it tries the addresses in this order.
pub fn channel_to_first(addresses: Vec<Address>, identity: Arc<Identity>, needed: CertificateRole) -> Channel {
    // Name of the peer for HTTP/2 only: the connector connects to the address, and TLS checks the peer itself.
    let endpoint = Endpoint::from_static("http://hotlease")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (addresses, identity) = (addresses.clone(), Arc::clone(&identity));
        async move {
            let client = identity.credentials().client(ConnectionProtocol::Grpc);
            let dialled = dial_first(&addresses, client, needed).await?;
            Ok::<_, NetError>(TokioIo::new(dialled.stream))
        }
    }))
}

/// Makes a channel to a daemon of this host, over its Unix socket. It connects when first used, and again when the
/// connection breaks.
pub fn channel_to_socket(socket: PathBuf) -> Channel {
    let endpoint = Endpoint::from_static("http://hotlease");
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}

/// BLAKE3 hash of the certificate that the daemon showed at the last connection.
pub type ServerFingerprint = Arc<Mutex<Option<[u8; 32]>>>;

/// Makes a channel like [`channel`] for a client without a certificate; its requests carry another credential. The
/// hash of the daemon's certificate is put into `seen`.
pub fn channel_without_certificate(
    address: Address,
    trust: Trust,
    needed: CertificateRole,
    seen: ServerFingerprint,
) -> Channel {
    channel_without_certificate_to_first(vec![address], trust, needed, seen)
}

/// Makes a channel like [`channel_without_certificate`] to the daemon that serves, as [`channel_to_first`] does.
pub(crate) fn channel_without_certificate_to_first(
    addresses: Vec<Address>,
    trust: Trust,
    needed: CertificateRole,
    seen: ServerFingerprint,
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

/// Connects to the first daemon that accepts. A silent daemon costs at most [`OTHERS_AFTER`], unless it is the last.
async fn dial_first(
    addresses: &[Address],
    client: Arc<ClientConfig>,
    needed: CertificateRole,
) -> Result<DialedConnection, NetError> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(NetError::local("find a daemon")(io::ErrorKind::NotFound.into()));
    };
    for address in others {
        let dialled = timeout(
            OTHERS_AFTER,
            dial_as(address, Arc::clone(&client), ConnectionProtocol::Grpc, needed),
        )
        .await;
        match dialled {
            Ok(Ok(dialled)) => return Ok(dialled),
            Ok(Err(error)) => tracing::debug!(%address, %error, "trying the next {needed}"),
            Err(_) => tracing::debug!(%address, "it is silent; trying the next {needed}"),
        }
    }
    dial_as(last, client, ConnectionProtocol::Grpc, needed).await
}

/// Returns the network error that kept a request from the daemon, if there was one.
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

/// Translates a failed request's status into a refusal for the user.
pub fn refusal(status: Status) -> Rejection {
    match cause(&status) {
        Some(error) => error.clone().into(),
        None => status.into(),
    }
}

/// Connection of a verified peer, for a gRPC server.
pub type PeerStream = ServerConnection<TlsStream<TcpStream>, PeerInfo, ConnectionPlace>;

impl From<PeerConnection> for PeerStream {
    fn from(admitted: PeerConnection) -> Self {
        let info = PeerInfo(Arc::new(admitted.peer));
        Self::new(admitted.stream, info, admitted.place)
    }
}

/// Connection of a stranger, for a gRPC server that asks strangers to sign in.
pub type StrangerStream = ServerConnection<TlsStream<TcpStream>, StrangerInfo, ConnectionPlace>;

impl From<Stranger> for StrangerStream {
    fn from(stranger: Stranger) -> Self {
        let info = stranger.info.clone();
        Self::new(stranger.stream, stranger.info, stranger.place).with_probation(KNOWN_WITHIN, move || info.is_known())
    }
}

/// Sender of a request; stored in the request's extensions.
#[derive(Debug, Clone)]
pub struct PeerInfo(pub Arc<Peer>);
