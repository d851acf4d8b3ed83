//! Connection without a certificate whose peer has not signed in yet.
//!
//! Such a connection keeps its place among the handshakes after its handshake. It is closed if the peer has not signed
//! in within a limit, or if another connection needs the place.

use super::places::{ConnectionPlace, CountGuard, KeyedCounts};
use super::waiting_room::WaitingRoomPlace;
use crate::identity::ConnectionProtocol;
use crate::peer::CertificateRole;
use hotlease_wire::Rejection;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
    unidentified: Mutex<Option<WaitingRoomPlace>>,
    /// Counts of connections by peer.
    peers: KeyedCounts<PeerKey>,
    /// Name of the peer, and the place of this connection among those of the peer.
    peer: OnceLock<(String, CountGuard<PeerKey>)>,
}

type PeerKey = (CertificateRole, String);

impl std::fmt::Debug for StrangerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StrangerInfo")
    }
}

impl StrangerInfo {
    pub(crate) fn new(server: [u8; 32], unidentified: WaitingRoomPlace, peers: KeyedCounts<PeerKey>) -> Self {
        Self(Arc::new(Inner {
            channel: rand::random(),
            server,
            unidentified: Mutex::new(Some(unidentified)),
            peers,
            peer: OnceLock::new(),
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

    /// Notes who the peer is: the connection may stay, and its place among the handshakes is free. Only the first name
    /// counts. Fails with [`Rejection::TooMany`] if the peer has too many connections; the connection is then closed
    /// like that of a stranger.
    pub fn make_known(&self, name: &str) -> Result<(), Rejection> {
        if self.is_known() {
            return Ok(());
        }
        let counted = self.0.peers.count((CertificateRole::Client, name.to_owned()));
        let counted = counted.ok_or_else(|| Rejection::TooMany {
            what: format!("connections of {name}"),
            limit: self.0.peers.most() as u64,
        })?;
        if self.0.peer.set((name.to_owned(), counted)).is_ok() {
            let mut unidentified = self.0.unidentified.lock().unwrap_or_else(PoisonError::into_inner);
            drop(unidentified.take());
        }
        Ok(())
    }

    /// Name of the peer, once it is known.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.get().map(|(name, _)| name.as_str())
    }

    /// Whether the peer is known.
    pub fn is_known(&self) -> bool {
        self.0.peer.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_for_their_peer_once_it_is_known() {
        let peers = KeyedCounts::new(2);
        let info = || {
            StrangerInfo(Arc::new(Inner {
                channel: [1; 32],
                server: [2; 32],
                unidentified: Mutex::new(None),
                peers: peers.clone(),
                peer: OnceLock::new(),
            }))
        };
        let (first, second, third) = (info(), info(), info());
        assert_eq!(first.peer(), None);
        for one in [&first, &second, &first] {
            assert_eq!(one.make_known("ann"), Ok(()));
        }
        assert!(matches!(
            third.make_known("ann"),
            Err(Rejection::TooMany { limit: 2, .. })
        ));
        assert!(!third.is_known(), "it is closed like that of a stranger");
        assert_eq!(info().make_known("bob"), Ok(()));
        assert_eq!(first.make_known("bob"), Ok(()), "only the first name counts");
        assert_eq!(first.peer(), Some("ann"));
        drop(first);
        assert_eq!(third.make_known("ann"), Ok(()));
    }
}
