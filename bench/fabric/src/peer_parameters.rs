//! Parameters of a raw peer in another process.

use hotlease_fabric::ofi::providers::find_provider;
use hotlease_fabric::ofi::{Libfabric, OfiError, Provider};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest amount of memory that a peer can be asked for.
const MEMORY_BYTES_MAX: u64 = 1 << 32;
const TEXT_BYTES_MAX: usize = 4096;

/// Parameters of a raw peer: library, provider and way of waiting are the same as at the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerParameters {
    /// Path of libfabric.
    pub library: PathBuf,
    /// Provider, by libfabric's name.
    pub provider: String,
    /// Whether the peer waits on the descriptor instead of polling.
    pub sleeps: bool,
    /// Memory that clients may write to.
    pub memory_bytes: u64,
}

impl PeerParameters {
    /// Encodes the parameters for the other process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.sleeps)];
        bytes.extend(self.memory_bytes.to_le_bytes());
        bytes.extend(self.provider.as_bytes());
        bytes.push(0);
        bytes.extend(self.library.as_os_str().as_bytes());
        bytes
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes); returns `None` for all other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sleeps, rest) = bytes.split_first()?;
        let (memory_bytes, text) = rest.split_first_chunk()?;
        let memory_bytes = u64::from_le_bytes(*memory_bytes);
        if text.len() > TEXT_BYTES_MAX || memory_bytes > MEMORY_BYTES_MAX {
            return None;
        }
        let (provider, library) = text.split_at_checked(text.iter().position(|byte| *byte == 0)?)?;
        Some(Self {
            library: Path::new(std::ffi::OsStr::from_bytes(&library[1..])).to_owned(),
            provider: str::from_utf8(provider).ok()?.to_owned(),
            sleeps: *sleeps != 0,
            memory_bytes,
        })
    }

    /// Finds the provider, on the loopback interface of this host.
    pub fn provider(&self) -> Result<Provider, OfiError> {
        let library = Libfabric::load_from(&self.library)?;
        find_provider(&library, &self.provider, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_as_encoded_and_invalid_bytes_are_refused() {
        let opening = PeerParameters {
            library: "/lib/libfabric.so.1".into(),
            provider: "tcp;ofi_rxm".into(),
            sleeps: true,
            memory_bytes: 4096,
        };
        assert_eq!(PeerParameters::from_bytes(&opening.to_bytes()), Some(opening.clone()));
        let greedy = PeerParameters {
            memory_bytes: u64::MAX,
            ..opening
        };
        assert_eq!(PeerParameters::from_bytes(&greedy.to_bytes()), None, "too much memory");
        assert_eq!(PeerParameters::from_bytes(&[0; 8]), None, "too short");
        assert_eq!(PeerParameters::from_bytes(&[1; 99]), None, "no end of the name");
    }
}
