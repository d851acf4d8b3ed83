//! gRPC over connections of this crate: both ends.

use crate::NetError;
use crate::address::Address;
use crate::dial::dial;
use crate::identity::{Identity, Protocol};
use crate::listener::{Admitted, Place};
use crate::peer::{Peer, Role};
use hotlease_wire::Refusal;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// While requests are under way, how often the other side is asked whether it is there, and how long its
/// answer may take.
const PING: Duration = Duration::from_secs(2);
/// A verified peer that has not sent a byte by then is closed: it would hold a place for nothing.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(5);

/// A channel to a daemon: it connects when first used, and again when the connection breaks. Fails with a
/// status that [`refusal`] understands.
pub fn channel(address: Address, identity: Arc<Identity>, needed: Role) -> Channel {
    // What HTTP/2 calls the peer; the connector goes to the address, and TLS is its own.
    let endpoint = Endpoint::from_static("http://hotlease")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (address, identity) = (address.clone(), Arc::clone(&identity));
        async move {
            let dialled = dial(&address, &identity, Protocol::Grpc, needed).await?;
            Ok::<_, NetError>(TokioIo::new(dialled.stream))
        }
    }))
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
pub struct PeerStream {
    stream: TlsStream<TcpStream>,
    peer: Arc<Peer>,
    silent: Option<Pin<Box<Sleep>>>,
    _place: Place,
}

impl PeerStream {
    /// Of an admitted connection.
    pub fn new(admitted: Admitted) -> Self {
        Self {
            stream: admitted.stream,
            peer: Arc::new(admitted.peer),
            silent: Some(Box::pin(sleep(FIRST_BYTE_WITHIN))),
            _place: admitted.place,
        }
    }
}

/// Who sent a request: in its extensions.
#[derive(Debug, Clone)]
pub struct PeerInfo(pub Arc<Peer>);

impl Connected for PeerStream {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        PeerInfo(Arc::clone(&self.peer))
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent
            && silent.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
