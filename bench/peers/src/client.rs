//! Benchmark's end of every peer.

use crate::{PeerKind, grpc, http, runtime, socket};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use tokio::runtime::Runtime;

/// Error of a peer that cannot be reached, or hung up.
#[derive(Debug)]
pub struct PeerError {
    kind: PeerKind,
    source: io::Error,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo over {} failed: {}", self.kind.title(), self.source)
    }
}

impl std::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
    Grpc(grpc::GrpcClient, Runtime),
    Http(http::HttpClient, Runtime),
}

/// Connection to a peer.
pub struct Client {
    kind: PeerKind,
    connection: Connection,
}

impl Client {
    /// Connects to the place that the server announced.
    ///
    /// # Errors
    /// If no server listens there.
    pub fn connect(kind: PeerKind, place: &str) -> Result<Self, PeerError> {
        let connection = match kind {
            PeerKind::Unix => UnixStream::connect(place).map(Connection::Unix),
            _ => port(place).and_then(|port| connect(kind, port)),
        };
        match connection {
            Ok(connection) => Ok(Self { kind, connection }),
            Err(source) => Err(PeerError { kind, source }),
        }
    }

    /// Does one round trip; `output` is as long as `input`.
    ///
    /// # Errors
    /// If the peer hung up or answered with other bytes.
    pub fn echo(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), PeerError> {
        let kind = self.kind;
        match &mut self.connection {
            Connection::Unix(stream) => socket::echo(stream, input, output),
            Connection::Tcp(stream) => socket::echo(stream, input, output),
            Connection::Grpc(caller, runtime) => caller.echo(runtime, input).and_then(|reply| copy(&reply, output)),
            Connection::Http(caller, runtime) => caller.echo(runtime, input).and_then(|reply| copy(&reply, output)),
        }
        .map_err(|source| PeerError { kind, source })
    }
}

fn copy(reply: &[u8], output: &mut [u8]) -> io::Result<()> {
    if reply.len() != output.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    output.copy_from_slice(reply);
    Ok(())
}

fn port(place: &str) -> io::Result<u16> {
    place
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the server announced no port"))
}

fn connect(kind: PeerKind, port: u16) -> io::Result<Connection> {
    Ok(match kind {
        PeerKind::Grpc => {
            let runtime = runtime()?;
            Connection::Grpc(grpc::GrpcClient::connect(&runtime, port)?, runtime)
        }
        PeerKind::Http => {
            let runtime = runtime()?;
            Connection::Http(http::HttpClient::connect(&runtime, port)?, runtime)
        }
        PeerKind::Unix | PeerKind::Tcp => {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            Connection::Tcp(stream)
        }
    })
}
