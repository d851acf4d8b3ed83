//! What a MUNGE credential carries, so that nobody who was shown it can show it elsewhere.

/// What a payload begins with.
const VERSION: &str = "hotlease-1";

/// What a credential must carry for a connection with this nonce, where the daemon's certificate has this BLAKE3.
pub fn payload(nonce: &[u8], server: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{VERSION}\n{}\n{}\n", hex(nonce), hex(server))
}
