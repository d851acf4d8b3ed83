//! File of a worker's state between two leases: a head of [`HEAD_BYTES`], followed by the bytes that the program's own
//! save function wrote.
//!
//! ```text
//! "hlstate" and a version (8) | length of the head (32 bits, little endian) | head (postcard) | BLAKE3 of all that | zeros
//! ```
//!
//! One agent writes the file, and another agent of the same user reads it, on a file system that both can use. A file
//! is refused unless its head proves that it is complete, and that it belongs to this tenant, program and name.

use crate::limits::{STATE_NAME_BYTES_MAX, TENANT_BYTES_MAX};
use crate::message::decode_of_any_length;
use serde::{Deserialize, Serialize};

/// Offset of the state itself.
pub const HEAD_BYTES: usize = 1024;
/// First bytes of a file; the eighth byte is the version.
const MAGIC: [u8; 8] = *b"hlstate\x01";
const LENGTH_BYTES: usize = 4;
const HASH_BYTES: usize = 32;
const BEGIN: usize = MAGIC.len() + LENGTH_BYTES;
/// Longest host name that is kept, bytes.
const HOST_BYTES_MAX: usize = 256;

/// Owner of a state, and the data to check it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHead {
    /// Tenant that held the lease.
    pub tenant: String,
    /// Name of the state, from the lease.
    pub name: String,
    /// Hash of the program's identity: another program cannot restore the state.
    pub program: [u8; 32],
    /// Host on which the state was saved.
    pub host: String,
    /// Time of saving, milliseconds since 1970.
    pub saved_ms: u64,
    /// Size of the state, bytes.
    pub size_bytes: u64,
    /// BLAKE3 hash of the state.
    pub hash: [u8; 32],
}

/// Reason why a file is not the requested state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The file is no state.
    #[error("it is no state of a worker")]
    NotAState,
    /// The file was written by a later or earlier version of hotlease.
    #[error("it has version {0} of the format, and this hotlease has {version}", version = MAGIC[7])]
    Version(u8),
    /// The head was changed after it was written.
    #[error("its head is damaged")]
    Damaged,
    /// The state was changed after it was written, or is incomplete.
    #[error("it is damaged: its bytes are not those that were saved")]
    Altered,
    /// The file's length differs from the length in its head.
    #[error("it is cut short or too long: its head says {said} bytes, and there are {there}")]
    Length {
        /// Length in the head.
        said: u64,
        /// Length of the file.
        there: u64,
    },
    /// The state belongs to another tenant.
    #[error("it belongs to another tenant")]
    WrongTenant,
    /// The state has another name.
    #[error("it is the state `{0}`, under another name")]
    WrongName(String),
    /// The state belongs to another program.
    #[error(
        "it was saved by another program: with another interpreter, environment, import path, version of a package, or other `imports`; \
         or by a function library with another name in HOTLEASE_STATE_SAVE, or for another processor"
    )]
    WrongProgram,
}

impl StateHead {
    /// Encodes the head, as the first bytes of a file.
    ///
    /// # Errors
    /// If tenant, name or host are too long.
    pub fn encode(&self) -> Result<[u8; HEAD_BYTES], StateError> {
        let mut bytes = [0; HEAD_BYTES];
        let head = crate::encode(self);
        let end = BEGIN + head.len();
        if !self.is_bounded() || end + HASH_BYTES > HEAD_BYTES {
            return Err(StateError::Damaged);
        }
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..BEGIN].copy_from_slice(&(head.len() as u32).to_le_bytes());
        bytes[BEGIN..end].copy_from_slice(&head);
        let hash = blake3::hash(&bytes[..end]);
        bytes[end..end + HASH_BYTES].copy_from_slice(hash.as_bytes());
        Ok(bytes)
    }

    /// Decodes the first bytes of a file; total on any bytes.
    ///
    /// # Errors
    /// If the bytes are not exactly as [`encode`](Self::encode) made them.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(StateError::NotAState)?;
        if magic[..7] != MAGIC[..7] {
            return Err(StateError::NotAState);
        }
        if magic[7] != MAGIC[7] {
            return Err(StateError::Version(magic[7]));
        }
        let (length, _) = rest.split_first_chunk::<4>().ok_or(StateError::Damaged)?;
        let end = BEGIN + u32::from_le_bytes(*length) as usize;
        if bytes.len() != HEAD_BYTES || end + HASH_BYTES > HEAD_BYTES {
            return Err(StateError::Damaged);
        }
        let (said, padding) = bytes[end..].split_at(HASH_BYTES);
        if blake3::hash(&bytes[..end]).as_bytes() != said || padding.iter().any(|byte| *byte != 0) {
            return Err(StateError::Damaged);
        }
        let head: Self = decode_of_any_length(&bytes[BEGIN..end]).map_err(|_| StateError::Damaged)?;
        match head.is_bounded() {
            true => Ok(head),
            false => Err(StateError::Damaged),
        }
    }

    /// Checks tenant, name and program of a request for the state.
    ///
    /// # Errors
    /// An error that names the property that differs.
    pub fn check_owner(&self, tenant: &str, name: &str, program: &[u8; 32]) -> Result<(), StateError> {
        if self.tenant != tenant {
            return Err(StateError::WrongTenant);
        }
        if self.name != name {
            return Err(StateError::WrongName(self.name.clone()));
        }
        match self.program == *program {
            true => Ok(()),
            false => Err(StateError::WrongProgram),
        }
    }

    /// Checks the number of bytes after the head.
    ///
    /// # Errors
    /// [`StateError::Length`] with both lengths.
    pub fn check_length(&self, there: u64) -> Result<(), StateError> {
        match self.size_bytes {
            said if said == there => Ok(()),
            said => Err(StateError::Length { said, there }),
        }
    }

    /// Checks the state's bytes by their hash.
    ///
    /// # Errors
    /// [`StateError::Altered`].
    pub fn check_bytes(&self, hash: &[u8; 32]) -> Result<(), StateError> {
        match self.hash == *hash {
            true => Ok(()),
            false => Err(StateError::Altered),
        }
    }

    fn is_bounded(&self) -> bool {
        self.tenant.len() <= TENANT_BYTES_MAX && self.host.len() <= HOST_BYTES_MAX && is_state_name(&self.name)
    }
}

/// Whether a name is valid for a state: letters, digits, `.`, `_` and `-`, and no `.` at its beginning.
pub fn is_state_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=STATE_NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> StateHead {
        StateHead {
            tenant: "uid:1000".into(),
            name: "model".into(),
            program: [7; 32],
            host: "node1".into(),
            saved_ms: 1_764_000_000_000,
            size_bytes: 100 << 20,
            hash: [9; 32],
        }
    }

    #[test]
    fn each_flipped_bit_and_each_cut_of_a_head_is_refused() {
        let bytes = head().encode().expect("small");
        assert_eq!(StateHead::decode(&bytes), Ok(head()));
        for bit in 0..8 * HEAD_BYTES {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(StateHead::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..HEAD_BYTES {
            assert!(StateHead::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut later = bytes;
        later[7] = 2;
        assert_eq!(StateHead::decode(&later), Err(StateError::Version(2)));
    }

    #[test]
    fn a_state_of_another_tenant_program_or_name_is_refused_with_the_reason() {
        let head = head();
        assert_eq!(head.check_owner("uid:1000", "model", &[7; 32]), Ok(()));
        assert_eq!(
            head.check_owner("uid:1001", "model", &[7; 32]),
            Err(StateError::WrongTenant)
        );
        assert_eq!(
            head.check_owner("uid:1000", "model", &[8; 32]),
            Err(StateError::WrongProgram)
        );
        let other = head.check_owner("uid:1000", "other", &[7; 32]);
        assert_eq!(other, Err(StateError::WrongName("model".into())));
    }

    #[test]
    fn state_names_are_plain_file_names() {
        for good in ["model", "run-7.v2", "A_b"] {
            assert!(is_state_name(good), "{good}");
        }
        let long = "x".repeat(STATE_NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", &long] {
            assert!(!is_state_name(bad), "{bad:?}");
            let named = StateHead {
                name: bad.into(),
                ..head()
            };
            assert!(named.encode().is_err(), "{bad:?}");
        }
    }
}
