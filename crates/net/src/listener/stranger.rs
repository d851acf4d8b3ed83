//! Connection without a certificate whose peer has not signed in yet.
//!
//! Such a connection keeps its place among the handshakes after its handshake. It is closed if the peer has not signed
//! in within a limit, or if another connection needs the place.

use super::places::{ConnectionPlace, KeyedCounts};
use super::waiting_room::WaitingRoomPlace;
use crate::identity::ConnectionProtocol;
use crate::peer::CertificateRole;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Limit for a stranger to sign in.
pub(crate) const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// Connection of a stranger, counted as long as it lives.
pub struct Stranger {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) info: StrangerInfo,
    pub(crate) place: ConnectionPlace,
    pub(crate) peers: KeyedCounts<(CertificateRole, String)>,
}

impl Stranger {
    /// Protocol that the stranger chose in the handshake, if it is one of ours.
    pub fn protocol(&self) -> Option<ConnectionProtocol> {
        ConnectionProtocol::of_alpn(self.stream.get_ref().1.alpn_protocol())
    }
}

/// State of a stranger's connection; stored in the extensions of its requests.
#[derive(Clone)]
pub struct StrangerInfo(Arc<Inner>);

struct Inner {
    channel: [u8; 32],
    server: [u8; 32],
    is_known: AtomicBool,
    unidentified: Mutex<Option<WaitingRoomPlace>>,
}

impl std::fmt::Debug for StrangerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StrangerInfo")
    }
}

impl StrangerInfo {
    pub(crate) fn new(server: [u8; 32], unidentified: WaitingRoomPlace) -> Self {
        Self(Arc::new(Inner {
            channel: rand::random(),
            server,
            is_known: AtomicBool::new(false),
            unidentified: Mutex::new(Some(unidentified)),
        }))
    }

    /// Identifier of the connection: random, and known to no other party.
    pub fn channel(&self) -> [u8; 32] {
        self.0.channel
    }

    /// BLAKE3 hash of the certificate that we showed on this connection.
    pub fn server(&self) -> [u8; 32] {
        self.0.server
    }

    /// Marks the peer as known: the connection may stay, and its place among the handshakes is free.
    pub fn make_known(&self) {
        if !self.0.is_known.swap(true, Ordering::Relaxed) {
            let mut unidentified = self.0.unidentified.lock().unwrap_or_else(PoisonError::into_inner);
            drop(unidentified.take());
        }
    }

    /// Whether the peer is known.
    pub fn is_known(&self) -> bool {
        self.0.is_known.load(Ordering::Relaxed)
    }
}
