//! The address of an endpoint, and the check of peers' addresses before they are passed to a provider.

use super::error::OfiError;
use super::ffi::FI_ADDR_STR;
use super::providers::{Addressing, Provider, ip_of};
use hotlease_wire::fabric::PortAddress;

/// Address of an endpoint of this end.
pub(super) struct OwnAddress {
    provider: &'static str,
    addressing: Addressing,
    format: u32,
    bytes: Vec<u8>,
}

impl OwnAddress {
    pub(super) fn of(provider: &Provider, bytes: Vec<u8>) -> Self {
        Self {
            provider: provider.name(),
            addressing: provider.quirks().addressing,
            format: provider.info.top().addr_format,
            bytes,
        }
    }

    pub(super) fn provider(&self) -> &'static str {
        self.provider
    }

    /// The address in the form that is sent to peers.
    pub(super) fn to_port_address(&self) -> PortAddress {
        PortAddress {
            provider: self.provider.to_owned(),
            address: self.bytes.clone(),
        }
    }

    /// Checks that a peer's address belongs to the same provider and is complete.
    pub(super) fn check(&self, address: &PortAddress) -> Result<(), OfiError> {
        let bad = |why| {
            Err(OfiError::BadAddress {
                provider: self.provider.to_owned(),
                why,
            })
        };
        let bytes = &address.address[..];
        if address.provider != self.provider {
            return bad("it is of another provider");
        }
        if self.addressing == Addressing::Ip {
            return match (ip_of(bytes), ip_of(&self.bytes)) {
                (Some((ip, port)), Some((own, _))) if ip.is_ipv4() == own.is_ipv4() => {
                    if port == 0 || ip.is_unspecified() || ip.is_multicast() {
                        bad("no host and port")
                    } else {
                        Ok(())
                    }
                }
                _ => bad("not a socket address of the right family"),
            };
        }
        if self.format == FI_ADDR_STR {
            let text = bytes
                .strip_suffix(&[0])
                .filter(|text| !text.is_empty() && text.len() < 256);
            return match text {
                Some(text) if text.iter().all(u8::is_ascii_graphic) => Ok(()),
                _ => bad("not a short printable name"),
            };
        }
        if bytes.len() != self.bytes.len() {
            return bad("wrong length");
        }
        Ok(())
    }
}
