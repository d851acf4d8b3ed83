//! Echo by a unary gRPC call.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use proto::Payload;
use proto::echo_client::EchoClient;
use proto::echo_server::{Echo, EchoServer};
use std::io;
use std::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("hotlease.bench.v1");
}

struct Service;

#[tonic::async_trait]
impl Echo for Service {
    async fn call(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let payload = request.into_inner();
        if payload.data.len() > crate::BYTES_MAX {
            return Err(Status::invalid_argument("longer than a benchmark's message"));
        }
        Ok(Response::new(payload))
    }
}

/// Serves until the client hangs up. The HTTP/2 connection is hyper's, as inside tonic's own server; that server would
/// go on waiting for the next client.
pub(crate) fn serve(runtime: &Runtime, stream: TcpStream) -> io::Result<()> {
    runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
        let service = TowerToHyperService::new(EchoServer::new(Service));
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(stream, service)
            .await
            .map_err(io::Error::other)
    })
}

/// Client's side of the gRPC peer.
pub(crate) struct GrpcClient {
    client: EchoClient<Channel>,
}

impl GrpcClient {
    pub(crate) fn connect(runtime: &Runtime, port: u16) -> io::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))
            .map_err(io::Error::other)?
            .tcp_nodelay(true);
        let channel = runtime.block_on(endpoint.connect()).map_err(io::Error::other)?;
        Ok(Self {
            client: EchoClient::new(channel),
        })
    }

    pub(crate) fn echo(&mut self, runtime: &Runtime, input: &[u8]) -> io::Result<Vec<u8>> {
        let request = Payload { data: input.to_vec() };
        let reply = runtime.block_on(self.client.call(request)).map_err(io::Error::other)?;
        Ok(reply.into_inner().data)
    }
}
