//! Secret that only the members of a communicator and their rendezvous have.

use crate::error::Error;
use hotlease_wire::comm::greeting::KeyId;
use std::fmt;
use std::path::Path;

/// Shortest secret, bytes. With a recorded handshake an attacker can test any number of guesses.
pub const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Shared secret. Never printed, and never an argument of a program, because other users can see arguments.
#[derive(Clone)]
pub struct Secret {
    key: [u8; 32],
    id: KeyId,
}

impl Secret {
    /// Makes a secret of at least [`SECRET_BYTES_MIN`] bytes, which should be random.
    ///
    /// # Errors
    /// [`Error::Secret`] if it is shorter, or longer than 64 KiB.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            let why = format!(
                "it has {} bytes; it must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, none of which can be guessed",
                bytes.len()
            );
            return Err(Error::Secret { why });
        }
        let key = blake3::derive_key("hotlease comm 1: key of handshakes", bytes);
        let digest = blake3::derive_key("hotlease comm 1: which secret it is", bytes);
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Ok(Self { key, id: KeyId(id) })
    }

    /// Reads the secret from `HOTLEASE_COMM_SECRET`, else from the file that `HOTLEASE_COMM_SECRET_FILE` names. White
    /// space at the end is ignored.
    ///
    /// # Errors
    /// [`Error::Secret`] if neither is set, or the value cannot be used.
    pub fn from_environment() -> Result<Self, Error> {
        if let Some(text) = std::env::var_os("HOTLEASE_COMM_SECRET") {
            return Self::new(text.as_encoded_bytes().trim_ascii_end());
        }
        match std::env::var_os("HOTLEASE_COMM_SECRET_FILE") {
            Some(path) => Self::from_file(Path::new(&path)),
            None => Err(Error::Secret {
                why: "neither HOTLEASE_COMM_SECRET nor HOTLEASE_COMM_SECRET_FILE is set".into(),
            }),
        }
    }

    /// Reads the secret from a file. White space at the end is ignored.
    ///
    /// # Errors
    /// [`Error::Secret`] if it cannot be read or used.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::Secret {
            why: format!("cannot read {}: {error}", path.display()),
        })?;
        Self::new(bytes.trim_ascii_end())
    }

    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }

    pub(crate) fn id(&self) -> KeyId {
        self.id
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_secrets_are_refused_and_none_is_shown() {
        let error = Secret::new(b"too short").expect_err("9 bytes");
        assert!(error.to_string().contains("it has 9 bytes"), "{error}");
        let secret = Secret::new(b"correct horse battery").expect("21 bytes");
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn the_name_of_a_secret_is_not_its_key() {
        let one = Secret::new(&[1; 16]).expect("16 bytes");
        let other = Secret::new(&[2; 16]).expect("16 bytes");
        assert_ne!(one.id(), other.id());
        assert_ne!(one.key()[..16], one.id().0);
    }

    #[test]
    fn the_newline_of_a_file_is_not_a_part_of_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"correct horse battery\n").expect("written");
        let read = Secret::from_file(file.path()).expect("a secret");
        assert_eq!(read.id(), Secret::new(b"correct horse battery").expect("the same").id());
    }
}
