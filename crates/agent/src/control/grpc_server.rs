//! The agent's gRPC server: its limits, and its end.

use crate::control::listener::{GrpcListener, SocketFile};
use crate::control::service::Service;
use hotlease_wire::grpc::agent_server::AgentServer;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// Longest request, bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest response, bytes: a listing of every lease, worker and library.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Largest number of requests of one connection at a time, and longest headers of each, bytes.
const STREAMS_MAX: u32 = 128;
const HEADER_BYTES_MAX: u32 = 8 << 10;
/// Largest number of accepted connections that wait for the server.
pub(crate) const ACCEPTED_MAX: usize = 16;
/// Time limit for the response to a request, also if the request is still on its way.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Interval of the probes that detect dead peers of the TLS port.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Time in which requests under way must finish when the agent stops.
pub(crate) const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Serves the connections of a Unix socket, and removes the socket's file at the end.
pub(crate) async fn serve_grpc(service: Service, listener: GrpcListener, closing: watch::Receiver<bool>) {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    let accepting = tokio::spawn(listener.accept_into(accepted));
    serve_on(service, connections, closing).await;
    match accepting.await {
        Ok(file) => drop::<SocketFile>(file),
        Err(error) => tracing::error!(%error, "the accepting task failed"),
    }
}

/// Serves connections until `closing` is true, and then for at most [`FINISH_LIMIT`].
pub(crate) async fn serve_on<C>(
    service: Service,
    connections: mpsc::Receiver<io::Result<C>>,
    closing: watch::Receiver<bool>,
) where
    C: AsyncRead + AsyncWrite + Connected<ConnectInfo: Clone + Send + Sync> + Send + Unpin + 'static,
{
    let service = AgentServer::new(service)
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX);
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .timeout(REQUEST_LIMIT)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), until_true(closing.clone()));
    tokio::pin!(server);
    let served = tokio::select! {
        served = &mut server => Ok(served),
        () = until_true(closing) => timeout(FINISH_LIMIT, server).await,
    };
    match served {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "the agent's gRPC service failed"),
        Err(_) => tracing::debug!("cut connections that did not close"),
    }
}

/// Waits until the value is true or its sender is gone.
pub(crate) async fn until_true(mut watched: watch::Receiver<bool>) {
    // An error means that the sender is gone. This has the same effect as true.
    let _ = watched.wait_for(|value| *value).await;
}
