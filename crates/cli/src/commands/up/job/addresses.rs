//! Addresses of this node that the other nodes of a job can reach.

use hotlease_net::Address;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Time for the resolver, and for each address of another node to take a connection.
const WITHIN: Duration = Duration::from_secs(1);
/// Largest number of addresses of a node that are used.
const ADDRESSES_MAX: usize = 8;

/// Addresses of this node's interfaces. The addresses to which the node's name resolves come first; loopback is used
/// only if there is no other address.
pub(super) async fn own(node: &str) -> Vec<IpAddr> {
    let interfaces = interfaces();
    let named = timeout(WITHIN, lookup_host((node, 0))).await;
    let named: Vec<IpAddr> = match named {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        _ => Vec::new(),
    };
    sorted(interfaces, &named)
}

fn interfaces() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let addresses = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let addresses = addresses.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    addresses.collect()
}

fn sorted(mut addresses: Vec<IpAddr>, named: &[IpAddr]) -> Vec<IpAddr> {
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    addresses.retain(|address| !address.is_loopback() && !is_link_local(address));
    if addresses.is_empty() {
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    // One port serves one address family: addresses of the other family are of no use.
    let has_v4 = addresses.iter().any(IpAddr::is_ipv4);
    addresses.retain(|address| address.is_ipv4() == has_v4);
    // A stable sort: the kernel's order stays.
    addresses.sort_by_key(|address| !named.contains(address));
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

/// Address on which a daemon listens so that it is reached at these addresses: every address of their family, or
/// loopback alone.
pub(super) fn listen(addresses: &[IpAddr]) -> SocketAddr {
    let everywhere = match addresses.first() {
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Some(first) if first.is_loopback() => *first,
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(everywhere, 0)
}

/// Tries the addresses of a manager in their order. Returns the first that takes a connection, and this node's own
/// address on the route to it, at which the other nodes most likely reach this node.
pub(super) async fn reach(manager: &[Address]) -> Option<(Address, IpAddr)> {
    for address in manager {
        let connected = timeout(WITHIN, TcpStream::connect(address.authority())).await;
        if let Ok(Ok(stream)) = connected
            && let Ok(local) = stream.local_addr()
        {
            return Some((address.clone(), local.ip()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn the_address_of_the_nodes_name_comes_first_and_loopback_only_alone() {
        let all = [
            "127.0.0.1",
            "172.17.0.1",
            "192.0.2.7",
            "169.254.1.1",
            "::1",
            "fe80::1",
            "2001:db8::7",
        ];
        let found = sorted(addresses(&all), &addresses(&["127.0.1.1", "192.0.2.7"]));
        assert_eq!(found, addresses(&["192.0.2.7", "172.17.0.1"]));
        assert_eq!(listen(&found), "0.0.0.0:0".parse().expect("an address"));
        let found = sorted(addresses(&["127.0.0.1", "::1", "2001:db8::7"]), &[]);
        assert_eq!(found, addresses(&["2001:db8::7"]));
        assert_eq!(listen(&found), "[::]:0".parse().expect("an address"));
        let found = sorted(addresses(&["127.0.0.1", "fe80::1"]), &[]);
        assert_eq!(listen(&found), "127.0.0.1:0".parse().expect("an address"));
    }
}
