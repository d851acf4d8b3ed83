//! Somebody who came without a certificate, and has not said yet who it is.
//!
//! Where a daemon takes such connections, one stays at the door after its handshake: it goes on to occupy a place
//! among those that shake hands, and is closed if it has not made itself known in time.

use crate::identity::Protocol;
use crate::listener::{Counted, Counts, Place};
use crate::peer::Role;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

/// How long a stranger may take to make itself known.
pub(crate) const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// Dropped once somebody is known.
pub(crate) type AtTheDoor = (OwnedSemaphorePermit, Counted<IpAddr>);

/// A connection of a stranger, counted as long as it lives.
pub struct Stranger {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) info: StrangerInfo,
    pub(crate) place: Place,
    pub(crate) peers: Counts<(Role, String)>,
}

impl Stranger {
    /// What it wants to talk.
    pub fn protocol(&self) -> Option<Protocol> {
        Protocol::of_alpn(self.stream.get_ref().1.alpn_protocol())
    }
}

/// What is known of a stranger: in the extensions of its requests.
#[derive(Clone)]
pub struct StrangerInfo(Arc<Inner>);

struct Inner {
    channel: [u8; 32],
    server: [u8; 32],
    is_known: AtomicBool,
    at_the_door: Mutex<Option<AtTheDoor>>,
}

impl std::fmt::Debug for StrangerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StrangerInfo")
    }
}

impl StrangerInfo {
    pub(crate) fn new(server: [u8; 32], at_the_door: AtTheDoor) -> Self {
        Self(Arc::new(Inner {
            channel: rand::random(),
            server,
            is_known: AtomicBool::new(false),
            at_the_door: Mutex::new(Some(at_the_door)),
        }))
    }

    /// Names the connection: random, and known to nobody else.
    pub fn channel(&self) -> [u8; 32] {
        self.0.channel
    }

    /// BLAKE3 of the certificate that this connection was shown.
    pub fn server(&self) -> [u8; 32] {
        self.0.server
    }

    /// It has made itself known: it may stay, and its place at the door is free.
    pub fn make_known(&self) {
        if !self.0.is_known.swap(true, Ordering::Relaxed) {
            let mut at_the_door = self.0.at_the_door.lock().unwrap_or_else(PoisonError::into_inner);
            drop(at_the_door.take());
        }
    }

    /// Whether it has.
    pub fn is_known(&self) -> bool {
        self.0.is_known.load(Ordering::Relaxed)
    }
}
