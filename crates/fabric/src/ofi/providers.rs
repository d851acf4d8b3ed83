//! Table of libfabric's providers with their known properties, and the providers that this host has.
//!
//! Properties that a provider reports at run time (inject size, registration modes, orders, limits) are read from the
//! provider; the table holds properties that providers do not report, or report wrongly. Rows are sorted best first.

use super::error::OfiError;
use super::ffi;
use super::library::{Libfabric, ProviderInfo};
use std::net::IpAddr;
use std::sync::Arc;

/// Kind of address of a provider's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// IP address and port: a source address chooses the interface.
    Ip,
    /// The adapter's own addresses.
    Adapter,
    /// Names that are valid on one node only.
    Node,
}

/// Whether a row of the table was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestStatus {
    /// The conformance suite runs on the provider wherever the library has the provider.
    Conformance,
    /// Not tested: written from manual pages and sources, because the hardware was not available.
    Untested,
}

/// Known properties of a provider.
#[derive(Debug)]
pub struct Quirks {
    /// libfabric's name of the provider.
    pub name: &'static str,
    /// Kind of address of its endpoints.
    pub addressing: Addressing,
    /// Whether FI_ORDER_SAW can be trusted if the provider claims it: a message that is sent after an RMA write is
    /// received only after the written bytes are visible. If not trusted, writes request delivery, and the sender waits
    /// for it.
    pub trust_send_after_write: bool,
    /// Whether the source address of a message is reliable and cheap to get.
    pub reports_source: bool,
    /// Longest payload that is sent in the message; a longer payload is written ahead by RMA.
    pub eager_bytes: u32,
    /// Number of receive buffers of a port; messages for which none is free wait in the provider or in the network.
    pub receives: u32,
    /// Whether a completion queue has a descriptor to sleep on.
    pub wait_fd: bool,
    /// Whether a message to a peer that is gone causes an error at worst. If not, no goodbye is sent to peers, and
    /// their addresses stay in the address vector until the port is closed.
    pub survives_peer: bool,
    /// Whether the conformance suite runs on the provider.
    pub tested: TestStatus,
    /// Known faults, and workarounds.
    pub trouble: &'static str,
    /// Origin of the row's content: manual pages, measurements.
    pub evidence: &'static str,
}

/// Eager limit of adapters: the size at which a copy costs about as much as a second operation.
const EAGER_BYTES: u32 = 4096;
/// Eager limit of sockets, where a second operation costs each side one more system call: a round trip of 8128 bytes
/// took 1.10 times the raw ping-pong with one message, and 1.53 times with the payload written ahead. A whole entry of
/// the default size fits.
const EAGER_BYTES_SOCKETS: u32 = hotlease_wire::limits::ENTRY_BYTES_DEFAULT;

/// Receive buffers of adapters. On an adapter a message that finds no buffer is refused, and sent again after a pause.
const RECEIVES: u32 = 256;
/// Receive buffers of sockets, which hold messages back by themselves. Buffers are used in turn, and a small set of
/// buffers stays in the processor's cache: with 256 buffers a round trip over `net` took 1.2 us longer than with 16,
/// for messages of any size.
const RECEIVES_SOCKETS: u32 = 16;

/// The table, best first.
pub const PROVIDERS: &[Quirks] = &[
    Quirks {
        name: "cxi",
        addressing: Addressing::Adapter,
        // Sends and writes may take different paths through the switches.
        trust_send_after_write: false,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES,
        wait_fd: true,
        survives_peer: true,
        tested: TestStatus::Untested,
        trouble: "needs a service id that the user may use; wait descriptors need FI_CXI_DEFAULT_CQ_SIZE room",
        evidence: "fi_cxi(7)",
    },
    Quirks {
        name: "verbs;ofi_rxm",
        addressing: Addressing::Ip,
        trust_send_after_write: true,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES,
        wait_fd: true,
        survives_peer: true,
        tested: TestStatus::Untested,
        trouble: "locked memory limit (ulimit -l); fork needs IBV_FORK_SAFE or kernel 5.12 copy-on-fork",
        evidence: "fi_verbs(7), fi_rxm(7); a reliable connection places in order",
    },
    Quirks {
        name: "efa",
        addressing: Addressing::Adapter,
        // Scalable reliable datagrams arrive in any order; the provider restores the order of sends only.
        trust_send_after_write: false,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES,
        wait_fd: false,
        survives_peer: true,
        tested: TestStatus::Untested,
        trouble: "no wait object before 1.20; fork needs FI_EFA_FORK_SAFE=1; RMA without delivery is emulated",
        evidence: "fi_efa(7)",
    },
    Quirks {
        name: "opx",
        addressing: Addressing::Adapter,
        trust_send_after_write: false,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES,
        wait_fd: false,
        survives_peer: true,
        tested: TestStatus::Untested,
        trouble: "no wait object; registers by offset (FI_MR_SCALABLE only in old versions)",
        evidence: "fi_opx(7)",
    },
    Quirks {
        name: "psm2",
        addressing: Addressing::Adapter,
        trust_send_after_write: false,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES,
        wait_fd: false,
        survives_peer: true,
        tested: TestStatus::Untested,
        trouble: "one endpoint per process unless PSM2_MULTI_EP=1; wait descriptors need a progress thread",
        evidence: "fi_psm2(7)",
    },
    // `tcp` and `net` are the same provider: RDM over TCP, without a layer in between, was called `net` up to 1.17 and
    // is called `tcp` since 1.18.
    Quirks {
        name: "tcp",
        addressing: Addressing::Ip,
        trust_send_after_write: true,
        reports_source: true,
        eager_bytes: EAGER_BYTES_SOCKETS,
        receives: RECEIVES_SOCKETS,
        wait_fd: true,
        survives_peer: true,
        tested: TestStatus::Conformance,
        trouble: "keys and bounds of RMA are not checked before the initiator is told of success",
        evidence: "fi_tcp(7), measured with 2.4: one stream for each peer, in order",
    },
    Quirks {
        name: "net",
        addressing: Addressing::Ip,
        trust_send_after_write: true,
        reports_source: true,
        eager_bytes: EAGER_BYTES_SOCKETS,
        receives: RECEIVES_SOCKETS,
        wait_fd: true,
        survives_peer: true,
        tested: TestStatus::Conformance,
        trouble: "as tcp; loses a descriptor for each endpoint that is closed before its connection is set up, \
                  0.6 KB for each endpoint, and 0.7 KB for each connection that it accepts",
        evidence: "measured with 1.17 (valgrind), and its sources",
    },
    Quirks {
        name: "tcp;ofi_rxm",
        addressing: Addressing::Ip,
        trust_send_after_write: true,
        reports_source: true,
        eager_bytes: EAGER_BYTES_SOCKETS,
        receives: RECEIVES_SOCKETS,
        wait_fd: true,
        survives_peer: true,
        tested: TestStatus::Conformance,
        trouble: "8 to 10 us slower than tcp or net; keeps memory of endpoints that were connected and \
                  closed: 0.5 MiB each with 1.17; 2.4 kept nothing in most runs, 117 MiB of 100 in one",
        evidence: "fi_rxm(7), measured with 1.17 and 2.4",
    },
    Quirks {
        name: "udp;ofi_rxd",
        addressing: Addressing::Ip,
        trust_send_after_write: true,
        // With several peers the provider reports wrong sources of messages (measured with 1.17 and 2.4).
        reports_source: false,
        eager_bytes: EAGER_BYTES_SOCKETS,
        // With 16 buffers, two dozen channels at once lost a message for good under load (2.4).
        receives: RECEIVES,
        wait_fd: false,
        survives_peer: true,
        tested: TestStatus::Conformance,
        trouble: "large transfers are slow; no wait object (FI_GETWAIT: function not implemented); 1.17 \
                  never forgets a peer: a client that gets the UDP port of an earlier one of the same \
                  worker is not heard, and says so after its probe's time; 2.4 hears it",
        evidence: "fi_rxd(7), measured with 1.17 and 2.4",
    },
    Quirks {
        name: "shm",
        addressing: Addressing::Node,
        trust_send_after_write: false,
        reports_source: true,
        eager_bytes: EAGER_BYTES,
        receives: RECEIVES_SOCKETS,
        wait_fd: false,
        survives_peer: false,
        tested: TestStatus::Conformance,
        trouble: "installs signal handlers; leaves files in /dev/shm when killed; a send to, or the removal \
                  of, an endpoint of \
                  the same process that was closed is a segmentation fault; for conformance only, the \
                  transport shm of this crate is 2 to 4 times faster",
        evidence: "fi_shm(7), measured with 1.17 and 2.4",
    },
];

/// A provider that this host has, and the info to open it with.
pub struct Provider {
    pub(super) info: ProviderInfo,
    quirks: &'static Quirks,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.name(), self.domain())
    }
}

impl Provider {
    /// libfabric's name of the provider.
    pub fn name(&self) -> &'static str {
        self.quirks.name
    }

    /// Name of the interface or adapter.
    pub fn domain(&self) -> String {
        self.info.domain_name()
    }

    /// Known properties of the provider.
    pub fn quirks(&self) -> &'static Quirks {
        self.quirks
    }

    /// Library of the provider.
    pub fn library(&self) -> &Arc<Libfabric> {
        self.info.library()
    }

    /// Whether the written bytes are in place when a message arrives that follows an RMA write to the same peer. If
    /// not, the write must be complete at its target before the message is sent.
    pub fn keeps_write_order(&self) -> bool {
        self.claims_order(ffi::FI_ORDER_SAW) && self.quirks.trust_send_after_write
    }

    /// Whether messages from one peer to another arrive in the order in which they were sent.
    pub(super) fn keeps_order(&self) -> bool {
        self.claims_order(ffi::FI_ORDER_SAS)
    }

    fn claims_order(&self, order: u64) -> bool {
        self.info.tx().msg_order & self.info.rx().msg_order & order != 0
    }
}

/// The providers of `library` that can carry channels from this host, best first. A provider that is addressed by IP is
/// opened only on the interface of `source`, if `source` is given. If not, it is opened on the first interface, and on
/// a loopback only if there is no other.
pub fn providers(library: &Arc<Libfabric>, source: Option<IpAddr>) -> Vec<Provider> {
    let found = PROVIDERS.iter().map(|quirks| provider(library, quirks, source));
    found.filter_map(Result::ok).collect()
}

/// The providers among [`providers`] that reach other hosts, best first.
pub fn remote_providers(library: &Arc<Libfabric>, source: Option<IpAddr>) -> Vec<Provider> {
    let mut found = providers(library, source);
    found.retain(|provider| provider.quirks().addressing != Addressing::Node);
    found
}

/// The provider of this name, or the reason why it is not available.
pub fn find_provider(library: &Arc<Libfabric>, name: &str, source: Option<IpAddr>) -> Result<Provider, OfiError> {
    let quirks = PROVIDERS.iter().find(|quirks| quirks.name == name);
    let quirks = quirks.ok_or_else(|| OfiError::Unusable {
        provider: name.to_owned(),
        why: "it is not in the table of providers".into(),
    })?;
    provider(library, quirks, source)
}

fn provider(library: &Arc<Libfabric>, quirks: &'static Quirks, source: Option<IpAddr>) -> Result<Provider, OfiError> {
    let unusable = |why: &str| OfiError::Unusable {
        provider: quirks.name.to_owned(),
        why: why.to_owned(),
    };
    let mut hints = library.new_info().ok_or_else(|| unusable("out of memory"))?;
    hints.set_provider(quirks.name);
    let top = hints.top_mut();
    top.caps = ffi::FI_MSG | ffi::FI_RMA | if quirks.reports_source { ffi::FI_SOURCE } else { 0 };
    top.mode = ffi::FI_CONTEXT | ffi::FI_CONTEXT2;
    hints.endpoint_mut().type_ = ffi::FI_EP_RDM;
    let domain = hints.domain_mut();
    domain.threading = ffi::FI_THREAD_DOMAIN;
    domain.control_progress = ffi::FI_PROGRESS_MANUAL;
    domain.data_progress = ffi::FI_PROGRESS_MANUAL;
    domain.resource_mgmt = ffi::FI_RM_ENABLED;
    domain.mr_mode =
        ffi::FI_MR_LOCAL | ffi::FI_MR_VIRT_ADDR | ffi::FI_MR_ALLOCATED | ffi::FI_MR_PROV_KEY | ffi::FI_MR_ENDPOINT;
    let by_ip = quirks.addressing == Addressing::Ip;
    let source_text = source.filter(|_| by_ip).map(|address| address.to_string());
    let infos = library
        .infos(&hints, source_text.as_deref())
        .map_err(|result| library.error(quirks.name, "fi_getinfo", result))?;
    // libfabric also returns layers over the named provider.
    let mut fitting: Vec<ProviderInfo> = infos
        .into_iter()
        .filter(|info| info.provider() == quirks.name)
        .filter(|info| !by_ip || is_bindable(info))
        .collect();
    if by_ip && source.is_none() {
        // The sort is stable: apart from this, libfabric's own order stays.
        fitting.sort_by_key(is_loopback);
    }
    match fitting.into_iter().next() {
        Some(info) => Ok(Provider { info, quirks }),
        None => Err(unusable("libfabric offers it on no interface that was asked for")),
    }
}

fn is_bindable(info: &ProviderInfo) -> bool {
    matches!(
        info.top().addr_format,
        ffi::FI_SOCKADDR | ffi::FI_SOCKADDR_IN | ffi::FI_SOCKADDR_IN6
    ) && ip_of(info.source()).is_some_and(|(address, _)| !address.is_unspecified())
}

fn is_loopback(info: &ProviderInfo) -> bool {
    ip_of(info.source()).is_none_or(|(address, _)| address.is_loopback())
}

/// Address and port of a `sockaddr`, whose length must be exactly right.
pub(super) fn ip_of(bytes: &[u8]) -> Option<(IpAddr, u16)> {
    let family = i32::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    let address = match family {
        libc::AF_INET if bytes.len() == 16 => <[u8; 4]>::try_from(&bytes[4..8]).ok()?.into(),
        libc::AF_INET6 if bytes.len() == 28 => <[u8; 16]>::try_from(&bytes[8..24]).ok()?.into(),
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_where_it_was_learned_and_no_name_comes_twice() {
        for (number, row) in PROVIDERS.iter().enumerate() {
            assert!(!row.evidence.is_empty() && !row.trouble.is_empty(), "{}", row.name);
            assert!(
                PROVIDERS[..number].iter().all(|other| other.name != row.name),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn socket_addresses_of_a_wrong_length_or_family_are_none() {
        let mut v4 = [0u8; 16];
        v4[0] = libc::AF_INET as u8;
        v4[2..8].copy_from_slice(&[1, 2, 10, 0, 0, 7]);
        assert_eq!(ip_of(&v4), Some(("10.0.0.7".parse().unwrap(), 258)));
        assert_eq!(ip_of(&v4[..15]), None);
        v4[0] = libc::AF_INET6 as u8;
        assert_eq!(ip_of(&v4), None);
        assert_eq!(ip_of(&[]), None);
        assert_eq!(ip_of(&[2]), None);
    }
}
