//! Address of a daemon: `https://HOST:PORT`.

use crate::NetError;
use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use tokio::net::lookup_host;

/// Longest address, bytes: a host name has at most 253 bytes.
pub const ADDRESS_BYTES_MAX: usize = 270;
const PREFIX: &str = "https://";

/// Host (a name or an IP address) and port of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Builds an address from a host (a name, or an IP address without brackets) and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Host: a name, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        match self.host.parse() {
            Ok(IpAddr::V6(host)) => format!("[{host}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// Name that the server's certificate must be valid for.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, NetError> {
        ServerName::try_from(self.host.clone()).map_err(|_| NetError::Address {
            text: self.to_string(),
            why: "the host is neither a name nor an address",
        })
    }

    /// Resolves the host; returns at least one socket address.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, NetError> {
        let unresolved = |why: String| NetError::Unresolved {
            host: self.host.clone(),
            why,
        };
        let found = lookup_host((self.host.as_str(), self.port)).await;
        let found: Vec<_> = found.map_err(|error| unresolved(error.to_string()))?.collect();
        if found.is_empty() {
            return Err(unresolved("it has no address".into()));
        }
        Ok(found)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.authority())
    }
}

impl FromStr for Address {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        let bad = |why| NetError::Address {
            text: text.chars().take(ADDRESS_BYTES_MAX).collect(),
            why,
        };
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let authority = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| bad("it does not begin with https://"))?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        let port = port.parse().map_err(|_| bad("its port is no number up to 65535"))?;
        if port == 0 {
            return Err(bad("its port is 0"));
        }
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let host = rest.strip_suffix(']').ok_or_else(|| bad("a bracket is open"))?;
                let host: std::net::Ipv6Addr = host
                    .parse()
                    .map_err(|_| bad("the text in brackets is no IPv6 address"))?;
                host.to_string()
            }
            None if host.contains(':') => return Err(bad("an IPv6 address stands in brackets")),
            None => host.to_owned(),
        };
        let address = Self { host, port };
        address.server_name()?;
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in [
            "https://manager.example:7070",
            "https://10.0.0.1:1",
            "https://[fd00::1]:65535",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        let long = format!("https://{}:1", "h".repeat(300));
        for bad in [
            "",
            "manager:7070",
            "http://manager:7070",
            "https://manager",
            "https://manager:0",
            "https://manager:70700",
            "https://fd00::1:7070",
            "https://[fd00::1:7070",
            "https://[manager]:7070",
            "https://:7070",
            "https://mana ger:7070",
            "https://manager:7070/path",
            &long,
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?} was taken");
        }
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_named_in_the_error() {
        let address: Address = "https://no-such-host.invalid:1".parse().expect("well-formed");
        let error = address.resolve().await.expect_err("no host has this name");
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
