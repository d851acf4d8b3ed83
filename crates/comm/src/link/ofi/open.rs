//! Choice of a libfabric provider, and the endpoint for messages between members.

use crate::error::Error;
use hotlease_collectives::Rank;
use hotlease_fabric::ofi::providers::{Addressing, find_provider, remote_providers};
use hotlease_fabric::ofi::{Libfabric, Messenger, OfiError, Provider};
use std::net::IpAddr;

/// Environment variable that names a provider, or another transport, for everything that uses fabrics. A provider that
/// the options name takes precedence.
const VARIABLE: &str = "HOTLEASE_TRANSPORT";

/// Checks whether a usable provider exists, before other members wait for this member.
pub(crate) fn check(name: &str, provider: Option<&str>) -> Result<(), Error> {
    candidates(provider, None)
        .map(drop)
        .map_err(|error| no_fabric(name, error))
}

/// Opens an endpoint at this address, for members with ranks below `size`.
pub(crate) fn open(name: &str, provider: Option<&str>, local: IpAddr, size: Rank) -> Result<Messenger, Error> {
    let candidates = candidates(provider, Some(local.to_canonical()));
    let mut failed = Vec::new();
    for provider in candidates.map_err(|error| no_fabric(name, error))? {
        match Messenger::open(&provider, size, super::CONTENT_BYTES) {
            Ok(messenger) => {
                tracing::debug!(name, ?provider, "talking over libfabric");
                return Ok(messenger);
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    Err(no_fabric(name, failed.join("; ")))
}

/// Digest of the link over this provider, which members compare with each other.
pub(crate) fn digest(provider: &str) -> u32 {
    let hash = blake3::hash(format!("ofi:{provider}").as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    // The digest is never zero, because zero means that there is no other link.
    u32::from_le_bytes([a, b, c, d]) | 1
}

/// Error for a member from which nothing arrived in time.
pub(crate) fn silence_error(name: &str, rank: Rank) -> Error {
    let why = format!(
        "nothing came of rank {rank} over libfabric, though there is a connection with it; is a NAT or firewall between the two?"
    );
    no_fabric(name, why)
}

fn no_fabric(name: &str, why: impl ToString) -> Error {
    Error::NoFabric {
        name: name.into(),
        why: why.to_string(),
    }
}

/// Returns the providers to try, best first. There is at least one.
fn candidates(provider: Option<&str>, local: Option<IpAddr>) -> Result<Vec<Provider>, OfiError> {
    let library = Libfabric::load()?;
    // These values of the variable name no provider of libfabric.
    let is_provider = |name: &String| !matches!(name.as_str(), "" | "ofi" | "shm");
    let variable = || std::env::var(VARIABLE).ok().filter(is_provider);
    let wanted = provider.map(str::to_owned).or_else(variable);
    let unusable = |provider: &str, why: &str| OfiError::Unusable {
        provider: provider.into(),
        why: why.into(),
    };
    match wanted.as_deref() {
        None => match remote_providers(&library, local) {
            none if none.is_empty() => {
                let why = "it has no provider here that leads to other hosts; `fi_info` lists those that it has";
                Err(unusable("libfabric", why))
            }
            found => Ok(found),
        },
        Some(name) => {
            let found = find_provider(&library, name, local)?;
            if found.quirks().addressing == Addressing::Node {
                let why = "it leads to no other host; inside a node the link `direct` shares memory";
                return Err(unusable(name, why));
            }
            Ok(vec![found])
        }
    }
}
