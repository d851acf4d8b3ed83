//! Echo by an HTTP/1.1 POST on a persistent connection.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use tokio::runtime::Runtime;

/// Serves until the client hangs up.
pub(crate) fn serve(runtime: &Runtime, stream: TcpStream) -> io::Result<()> {
    let echo = |body: Bytes| async { body };
    let router = Router::new()
        .route("/echo", post(echo))
        .layer(DefaultBodyLimit::max(crate::BYTES_MAX));
    runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
        hyper::server::conn::http1::Builder::new()
            .serve_connection(stream, TowerToHyperService::new(router))
            .await
            .map_err(io::Error::other)
    })
}

/// Client's side of the HTTP peer.
pub(crate) struct HttpClient {
    sender: SendRequest<Full<Bytes>>,
}

impl HttpClient {
    pub(crate) fn connect(runtime: &Runtime, port: u16) -> io::Result<Self> {
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Ok(Self { sender })
        })
    }

    pub(crate) fn echo(&mut self, runtime: &Runtime, input: &[u8]) -> io::Result<Bytes> {
        runtime.block_on(async {
            let request = Request::builder()
                .method(Method::POST)
                .uri("/echo")
                .header("host", "localhost")
                .header("content-type", "application/octet-stream")
                .body(Full::new(Bytes::copy_from_slice(input)))
                .map_err(io::Error::other)?;
            self.sender.ready().await.map_err(io::Error::other)?;
            let reply = self.sender.send_request(request).await.map_err(io::Error::other)?;
            if !reply.status().is_success() {
                return Err(io::Error::other(format!("HTTP status {}", reply.status())));
            }
            let body = reply.into_body().collect().await.map_err(io::Error::other)?;
            Ok(body.to_bytes())
        })
    }
}
