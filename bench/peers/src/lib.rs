//! The same echo through the transports in use today: a Unix socket, TCP, gRPC and HTTP.
//!
//! [`serve`] runs in a separate process, as a worker does; [`Client`] runs in the benchmark's process. For sockets both
//! ends block, and for gRPC and HTTP both have single-threaded runtimes: the fastest form of each transport for one
//! call at a time.
//! Connections are made once and kept.
//!
//! The servers are benchmark peers and nothing else: they live as long as one run, listen only on the loopback address
//! and a port that the kernel chooses (the Unix socket: in a directory of the user's own), serve a single connection,
//! keep no state, and echo at most [`BYTES_MAX`] bytes. Any process that connects to one gets its own bytes back.

#![forbid(unsafe_code)]

mod client;
mod grpc;
mod http;
mod socket;

pub use client::{Client, PeerError};

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::str::FromStr;
use tokio::runtime::{Builder, Runtime};

/// Length of the longest message that a peer echoes.
pub const BYTES_MAX: usize = 4096;

/// Kind of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// Unix stream socket, blocking at both ends.
    Unix,
    /// TCP over loopback with TCP_NODELAY, blocking at both ends.
    Tcp,
    /// gRPC (tonic), a unary call over TCP.
    Grpc,
    /// HTTP/1.1 (hyper, axum), keep-alive POST over TCP.
    Http,
}

impl PeerKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Unix, Self::Tcp, Self::Grpc, Self::Http];

    /// Returns one word, for arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }

    /// Returns a description for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Unix => "Unix socket",
            Self::Tcp => "TCP, loopback",
            Self::Grpc => "gRPC (tonic)",
            Self::Http => "HTTP keep-alive POST (axum)",
        }
    }
}

impl FromStr for PeerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| format!("no peer is called `{name}`"))
    }
}

/// Serves one client until it hangs up. Writes one line to `announce` as soon as it listens: the port, or the path of
/// the Unix socket, which it creates in `directory`.
///
/// # Errors
/// If listening, announcing or serving fails.
pub fn serve(kind: PeerKind, directory: &Path, mut announce: impl Write) -> io::Result<()> {
    if kind == PeerKind::Unix {
        let path = directory.join("echo.sock");
        let listener = UnixListener::bind(&path)?;
        writeln!(announce, "{}", path.display())?;
        return socket::serve(listener.accept()?.0);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let SocketAddr::V4(address) = listener.local_addr()? else {
        return Err(io::Error::other("loopback is not IPv4 here"));
    };
    writeln!(announce, "{}", address.port())?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    match kind {
        PeerKind::Unix | PeerKind::Tcp => socket::serve(stream),
        PeerKind::Grpc => grpc::serve(&runtime()?, stream),
        PeerKind::Http => http::serve(&runtime()?, stream),
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn every_peer_echoes_and_ends_with_its_client() {
        for kind in PeerKind::ALL {
            let directory = std::env::temp_dir().join(format!("hotlease-peers-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir(&directory).unwrap();
            let (reader, writer) = io::pipe().unwrap();
            std::thread::scope(|scope| {
                let server = scope.spawn(|| serve(kind, &directory, writer));
                let mut place = String::new();
                BufReader::new(reader).read_line(&mut place).unwrap();
                let mut client = Client::connect(kind, place.trim()).unwrap();
                for length in [1, 8, 100, BYTES_MAX] {
                    let input: Vec<u8> = (0..length).map(|i| i as u8).collect();
                    let mut output = vec![0; length];
                    client.echo(&input, &mut output).unwrap();
                    assert_eq!(output, input, "{kind:?}, {length} bytes");
                }
                drop(client);
                server.join().unwrap().unwrap();
            });
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}
