//! Peer of a connection, as its certificate describes it; no other source is used.

use hotlease_wire::ids::LeaseId;
use std::fmt;
use std::str::FromStr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest name of a peer or tenant, bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Prefix of all hotlease URIs in a certificate.
pub(crate) const SCHEME: &str = "hotlease:";

/// Role that a certificate gives its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CertificateRole {
    /// Daemon with which agents register, and which asks them for grants.
    Manager,
    /// Daemon that owns a node's cores.
    Agent,
    /// Program that leases cores.
    Client,
}

impl CertificateRole {
    /// Name of the role in certificates and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Agent => "agent",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for CertificateRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: the text names no [`CertificateRole`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no role: manager, agent or client")]
pub struct UnknownRole {
    text: String,
}

impl FromStr for CertificateRole {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let all = [Self::Manager, Self::Agent, Self::Client];
        let known = all.into_iter().find(|role| role.name() == text);
        known.ok_or_else(|| UnknownRole { text: text.to_owned() })
    }
}

/// Error: the certificate does not identify its holder. Contains the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate {why}")]
pub struct ForeignCertificate {
    why: &'static str,
}

/// Holder of a certificate of the site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Role of the holder.
    pub role: CertificateRole,
    /// Name for logs, and to distinguish daemons: the first host of a daemon, the tenant of a client.
    pub name: String,
    /// Tenant that pays; every client has a tenant.
    pub tenant: Option<String>,
    /// Host names and addresses that the certificate is valid for.
    pub hosts: Vec<String>,
    /// BLAKE3 hash of the certificate.
    pub fingerprint: [u8; 32],
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

impl Peer {
    /// Makes the peer of a client without a certificate that has shown the token of a lease.
    pub fn bearer(tenant: &str, lease: LeaseId) -> Self {
        Self {
            role: CertificateRole::Client,
            name: tenant.to_owned(),
            tenant: Some(tenant.to_owned()),
            hosts: Vec::new(),
            fingerprint: blake3::derive_key("hotlease 2026 bearer of a lease", &lease.0),
        }
    }
}

/// Whether this is a valid name of a tenant. No colon is allowed: names like `uid:0` come from the kernel only.
pub fn is_tenant_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Whether this is a valid name of a peer: a tenant's name, a host's name or an IP address.
pub(crate) fn is_peer_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Contents of a certificate: its holder and its validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Holder of the certificate.
    pub peer: Peer,
    /// Start of the validity, seconds since 1970.
    pub not_before: i64,
    /// End of the validity, seconds since 1970.
    pub not_after: i64,
}

/// Parses a certificate. Does not verify it: TLS does that, before or after this call. Any bytes give a result or an
/// error.
pub fn parse_certificate(der: &[u8]) -> Result<CertificateInfo, ForeignCertificate> {
    let not_ours = |why| ForeignCertificate { why };
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| not_ours("is not a certificate at all"))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| not_ours("has malformed names"))?
        .ok_or(not_ours("was not issued by `hotlease identity issue`: it has no names"))?;
    let (mut role, mut name, mut tenant, mut hosts) = (None, None, None, Vec::new());
    for general in &names.value.general_names {
        match general {
            GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
            GeneralName::IPAddress(bytes) => hosts.extend(ip(bytes)),
            GeneralName::URI(uri) => {
                let Some((key, value)) = uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')) else {
                    continue;
                };
                let place = match key {
                    "role" => &mut role,
                    "name" => &mut name,
                    "tenant" => &mut tenant,
                    _ => return Err(not_ours("has fields that this version does not know")),
                };
                // Two values are rejected, because it would be unclear which is valid.
                if place.replace(value).is_some() {
                    return Err(not_ours("names its holder twice"));
                }
            }
            _ => {}
        }
    }
    let role = role
        .and_then(|role| role.parse().ok())
        .ok_or(not_ours("has no role of hotlease"))?;
    let name = name.filter(|name| is_peer_name(name));
    let name = name.ok_or(not_ours("has no name of a holder"))?.to_owned();
    if tenant.is_some_and(|tenant| !is_tenant_name(tenant)) {
        return Err(not_ours("names a tenant with an invalid name"));
    }
    if role == CertificateRole::Client && tenant.is_none() {
        return Err(not_ours("is a client's, and names no tenant"));
    }
    Ok(CertificateInfo {
        peer: Peer {
            role,
            name,
            tenant: tenant.map(str::to_owned),
            hosts,
            fingerprint: *blake3::hash(der).as_bytes(),
        },
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
    })
}

fn ip(bytes: &[u8]) -> Option<String> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(bytes).to_string());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(std::net::Ipv6Addr::from(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_certificate_can_pass_for_a_local_user() {
        for name in ["uid:0", "", "a b", "alice/bob", "ü", &"x".repeat(65)] {
            assert!(!is_tenant_name(name), "{name:?} would be taken for a tenant");
        }
        assert!(is_tenant_name("alice") && is_tenant_name("group-7.chem"));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_no_peer() {
        for bytes in [&b""[..], b"0", &[0x30, 0x82, 0xff, 0xff], &[0; 4096]] {
            assert!(parse_certificate(bytes).is_err());
        }
    }
}
