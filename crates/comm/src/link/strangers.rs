//! Choice of the unidentified connection that makes room for a new one.
//!
//! The host with the most unidentified connections loses its oldest one. If the choice ignored hosts, a host that opens
//! connections as fast as it can would replace connections of members whose first bytes need a round trip to arrive.
//! The oldest connection hardly belongs to a member, because a member takes only milliseconds to identify itself.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Address of a host; for IPv6 the /64 network of the host, because one host may use all addresses of its network.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Chooses among connections, each with its address and its deadline.
pub(crate) fn replaceable<K: Copy>(strangers: impl Iterator<Item = (K, IpAddr, Option<Instant>)>) -> Option<K> {
    let strangers: Vec<_> = strangers.map(|(key, from, until)| (key, host(from), until)).collect();
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for (_, from, _) in &strangers {
        *counts.entry(*from).or_default() += 1;
    }
    let order = |(_, from, until): &&(K, IpAddr, Option<Instant>)| (Reverse(counts.get(from).copied()), *until);
    strangers.iter().min_by_key(order).map(|(key, ..)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_host_with_many_connections_replaces_its_own() {
        let now = Instant::now();
        let strangers = |all: &[(&'static str, &str)]| {
            let all = (0..).zip(all).map(|(age, (name, from))| {
                let until = now + Duration::from_secs(age);
                (*name, from.parse().expect("an address"), Some(until))
            });
            replaceable(all.collect::<Vec<_>>().into_iter())
        };
        assert_eq!(strangers(&[]), None);
        let alone = [("first", "192.0.2.1"), ("second", "192.0.2.2")];
        assert_eq!(strangers(&alone), Some("first"));
        let crowd = [
            ("member", "192.0.2.1"),
            ("a1", "::ffff:192.0.2.2"),
            ("a2", "192.0.2.2"),
            ("other member", "2001:db8::1"),
        ];
        assert_eq!(strangers(&crowd), Some("a1"));
        let network = [
            ("member", "192.0.2.1"),
            ("b1", "2001:db8::1"),
            ("b2", "2001:db8::2"),
            ("b3", "2001:db8:0:1::1"),
        ];
        assert_eq!(strangers(&network), Some("b1"));
    }
}
