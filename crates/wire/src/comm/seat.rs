//! A slot's seat in a gang: the data with which its functions find the functions of the other slots.

use crate::limits::SEAT_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A rank's seat in a gang. The client that leased the gang sends the seat over its connection to the worker, and not
/// in the payload of an invocation: the connection is a socket of one node, or inside TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Name of the communicator.
    pub name: String,
    /// Number of ranks.
    pub size: u32,
    /// Rank of this slot.
    pub rank: u32,
    /// Address of the rendezvous, as `host:port`.
    pub rendezvous: String,
    /// Secret that all ranks and the rendezvous share.
    pub secret: SeatSecret,
    /// Time limit for the meeting, milliseconds.
    pub join_ms: u64,
}

impl Seat {
    /// Whether the seat is within its size limit.
    pub fn is_bounded(&self) -> bool {
        self.name.len() + self.rendezvous.len() + self.secret.0.len() <= SEAT_BYTES_MAX
    }
}

/// A secret, which no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatSecret(pub Vec<u8>);

impl fmt::Debug for SeatSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeatSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_seat_lacks_its_secret() {
        let secret = SeatSecret(b"never shown here".to_vec());
        let mut seat = Seat {
            name: "gang".into(),
            size: 2,
            rank: 1,
            rendezvous: "127.0.0.1:7072".into(),
            secret,
            join_ms: 15_000,
        };
        assert!(!format!("{seat:?}").contains("110"), "a byte of it in {seat:?}");
        assert!(seat.is_bounded());
        seat.secret.0 = vec![0; SEAT_BYTES_MAX];
        assert!(!seat.is_bounded());
    }
}
