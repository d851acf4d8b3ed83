//! Payload of a MUNGE credential. It binds the credential to one connection, so that the server cannot use it
//! elsewhere.

/// First line of a payload.
const VERSION: &str = "hotlease-1";

/// Payload of a credential for a connection with this nonce, to a daemon whose certificate has this BLAKE3 hash.
pub fn payload(nonce: &[u8], server: &[u8]) -> String {
    format!("{VERSION}\n{}\n{}\n", hex::encode(nonce), hex::encode(server))
}
