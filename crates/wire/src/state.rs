//! The state of a worker as a file keeps it between two leases: a head of [`HEAD_BYTES`], and behind it the bytes that the
//! program's own function gave.
//!
//! ```text
//! "hlstate" and a version (8) | length of the head (32 bits, little endian) | head (postcard) | BLAKE3 of all that | zeros
//! ```
//!
//! Written by one agent and read by another one of the same user, on a file system between them: what does not prove that it is
//! whole, and of this tenant, program and name, is refused.

use crate::limits::{STATE_NAME_BYTES_MAX, TENANT_BYTES_MAX};
use crate::message::decode_of_any_length;
use serde::{Deserialize, Serialize};

/// Where the state itself begins.
pub const HEAD_BYTES: usize = 1024;
/// The eighth byte is the version.
const MAGIC: [u8; 8] = *b"hlstate\x01";
const LENGTH_BYTES: usize = 4;
const HASH_BYTES: usize = 32;
const BEGIN: usize = MAGIC.len() + LENGTH_BYTES;
/// Bytes of a host's name that are kept.
const HOST_BYTES_MAX: usize = 256;

/// Whose state a file is, and what there is to check it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHead {
    /// Who held the lease.
    pub tenant: String,
    /// What the lease called it.
    pub name: String,
    /// What its program is, hashed: who is another program does not understand it.
    pub program: [u8; 32],
    /// The machine that it was saved on.
    pub host: String,
    /// When, milliseconds since 1970.
    pub saved_ms: u64,
    /// Bytes of the state.
    pub size_bytes: u64,
    /// Their BLAKE3 hash.
    pub hash: [u8; 32],
}

/// Why a file is nobody's state, or another one's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Something else.
    #[error("it is no state of a worker")]
    NotAState,
    /// Of a later or earlier hotlease.
    #[error("it has version {0} of the format, and this hotlease has {version}", version = MAGIC[7])]
    Version(u8),
    /// Its head is not what was written.
    #[error("its head is damaged")]
    Damaged,
    /// The state itself is not what was written, or not all of it.
    #[error("it is damaged: its bytes are not those that were saved")]
    Altered,
    /// Another length than its head says.
    #[error("it is cut short or too long: its head says {said} bytes, and there are {there}")]
    Length {
        /// By the head.
        said: u64,
        /// In the file.
        there: u64,
    },
    /// Somebody else's.
    #[error("it belongs to another tenant")]
    WrongTenant,
    /// Of another one.
    #[error("it is the state `{0}`, under another name")]
    WrongName(String),
    /// Of another one.
    #[error(
        "it was saved by another program: another interpreter or environment, import path, version of a package, or other `imports`; of a \
         function library, another name in HOTLEASE_STATE_SAVE, or another processor"
    )]
    WrongProgram,
}

impl StateHead {
    /// As the first bytes of a file.
    ///
    /// # Errors
    /// If tenant, name or host are longer than they may be.
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

    /// What the first bytes of a file say; total on any bytes.
    ///
    /// # Errors
    /// If that is not exactly what [`encode`](Self::encode) has made.
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

    /// Refuses who else asks for it.
    ///
    /// # Errors
    /// Says what it is instead.
    pub fn admit(&self, tenant: &str, name: &str, program: &[u8; 32]) -> Result<(), StateError> {
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

    /// Refuses another number of bytes behind the head.
    ///
    /// # Errors
    /// Says both.
    pub fn admit_length(&self, there: u64) -> Result<(), StateError> {
        match self.size_bytes {
            said if said == there => Ok(()),
            said => Err(StateError::Length { said, there }),
        }
    }

    /// Refuses other bytes than were saved, by their hash.
    ///
    /// # Errors
    /// [`StateError::Altered`].
    pub fn admit_bytes(&self, hash: &[u8; 32]) -> Result<(), StateError> {
        match self.hash == *hash {
            true => Ok(()),
            false => Err(StateError::Altered),
        }
    }

    fn is_bounded(&self) -> bool {
        self.tenant.len() <= TENANT_BYTES_MAX
            && self.host.len() <= HOST_BYTES_MAX
            && is_state_name(&self.name)
    }
}

/// Whether a state may be called so: letters, digits, `.`, `_` and `-`, and no `.` at its beginning.
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
    fn another_tenant_program_or_name_is_refused_and_each_is_said() {
        let head = head();
        assert_eq!(head.admit("uid:1000", "model", &[7; 32]), Ok(()));
        assert_eq!(
            head.admit("uid:1001", "model", &[7; 32]),
            Err(StateError::WrongTenant)
        );
        assert_eq!(
            head.admit("uid:1000", "model", &[8; 32]),
            Err(StateError::WrongProgram)
        );
        let other = head.admit("uid:1000", "other", &[7; 32]);
        assert_eq!(other, Err(StateError::WrongName("model".into())));
    }

    #[test]
    fn names_are_file_names_that_lead_nowhere_else() {
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
