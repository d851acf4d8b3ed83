//! Ways to reach another member, and when each of them is tried.

use hotlease_collectives::Rank;
use hotlease_wire::comm::rendezvous::MemberAddress;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pause before a failed connection is tried again; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Time that the system has for one connection; doubled each time. NATs and firewalls drop its first packet where the
/// other side has not called yet, and the system would repeat it only after a second.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// Delay of the higher rank's own call if no NAT is known: a firewall may block the lower rank's call.
const CALL_BACK_DELAY: Duration = Duration::from_millis(300);
/// Delay of the request for a relay, unless only a relay can work. The first connection that is ready is used, so the
/// delay gives direct connections this much time.
const RELAY_DELAY: Duration = Duration::from_secs(2);

/// Way to reach another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Approach {
    /// To the member's own address.
    Direct,
    /// To the address that a NAT has assigned to the member.
    Mapped,
    /// Through the rendezvous.
    Relay,
    /// The other member called.
    Incoming,
}

/// Attempt to reach a member by one approach.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) to: SocketAddr,
    /// Time to begin; `None` if the attempt has begun.
    pub(super) at: Option<Instant>,
    pause: Duration,
    patience: Duration,
    /// Reason of the last failure.
    pub(super) why: Option<String>,
}

impl Attempt {
    fn new(to: SocketAddr, at: Instant) -> Self {
        Self {
            to,
            at: Some(at),
            pause: PAUSE_MIN,
            patience: PATIENCE_MIN,
            why: None,
        }
    }

    /// Begins the attempt; returns the time until which the system may try to connect.
    pub(super) fn begin(&mut self, now: Instant) -> Instant {
        self.at = None;
        let until = now + self.patience;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        until
    }

    /// Notes a failure, and schedules the next attempt.
    pub(super) fn fail(&mut self, now: Instant, why: Option<String>) {
        self.why = why.or_else(|| self.why.take());
        self.at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// Ways from one member to another, and their first attempts.
pub(super) fn ways(
    (me, mine): (Rank, &MemberAddress),
    (other, theirs): (Rank, &MemberAddress),
    relay: Option<SocketAddr>,
    now: Instant,
) -> Vec<(Approach, Attempt)> {
    // If the lower rank can reach the higher rank, the call of the lower rank is enough.
    let calls_at = if me < other || mine.mapped.is_some() {
        now
    } else {
        now + CALL_BACK_DELAY
    };
    let relays_at = if needs_relay(mine, theirs) {
        now
    } else {
        now + RELAY_DELAY
    };
    let own = (Approach::Direct, Attempt::new(theirs.address, calls_at));
    let mapped = theirs
        .mapped
        .map(|mapped| (Approach::Mapped, Attempt::new(mapped.address, calls_at)));
    let relay = relay.map(|relay| (Approach::Relay, Attempt::new(relay, relays_at)));
    std::iter::once(own).chain(mapped).chain(relay).collect()
}

/// Whether only a relay can connect these members: if both NATs use a different port for each destination, no packet
/// reaches a port that is known. Two members behind one NAT may reach each other inside it.
fn needs_relay(mine: &MemberAddress, theirs: &MemberAddress) -> bool {
    let (Some(mine), Some(theirs)) = (mine.mapped, theirs.mapped) else {
        return false;
    };
    mine.varies && theirs.varies && mine.address.ip() != theirs.address.ip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::comm::rendezvous::NatMapping;

    /// Place of a member behind the NAT of this number.
    fn place_behind(nat: u8, mapped: Option<bool>) -> MemberAddress {
        MemberAddress {
            address: SocketAddr::from(([10, 0, 0, 2], 4000)),
            mapped: mapped.map(|varies| NatMapping {
                address: SocketAddr::from(([203, 0, 113, nat], 4000)),
                varies,
            }),
        }
    }

    /// Start time of each way between two members.
    fn plan(me: Rank, mine: Option<bool>, other: Rank, theirs: Option<bool>) -> Vec<(Approach, Duration)> {
        plan_of((me, place_behind(5, mine)), (other, place_behind(6, theirs)))
    }

    fn plan_of((me, mine): (Rank, MemberAddress), (other, theirs): (Rank, MemberAddress)) -> Vec<(Approach, Duration)> {
        let now = Instant::now();
        let relay = "203.0.113.1:7072".parse().ok();
        let ways = ways((me, &mine), (other, &theirs), relay, now);
        let ways = ways.into_iter();
        ways.map(|(way, attempt)| (way, attempt.at.expect("not begun") - now))
            .collect()
    }

    #[test]
    fn one_side_connects_where_there_is_no_nat() {
        let at_once = Duration::ZERO;
        assert_eq!(
            plan(0, None, 1, None),
            [(Approach::Direct, at_once), (Approach::Relay, RELAY_DELAY)]
        );
        assert_eq!(
            plan(1, None, 0, None),
            [(Approach::Direct, CALL_BACK_DELAY), (Approach::Relay, RELAY_DELAY)]
        );
    }

    #[test]
    fn both_sides_of_two_nats_call_each_other_at_once() {
        let at_once = Duration::ZERO;
        let all = [
            (Approach::Direct, at_once),
            (Approach::Mapped, at_once),
            (Approach::Relay, RELAY_DELAY),
        ];
        assert_eq!(plan(0, Some(false), 1, Some(false)), all);
        assert_eq!(plan(1, Some(false), 0, Some(true)), all);
        // If only one of the two is behind a NAT, this member calls or is called.
        assert_eq!(plan(1, Some(false), 0, None)[0], (Approach::Direct, at_once));
        assert_eq!(plan(1, None, 0, Some(false))[1], (Approach::Mapped, CALL_BACK_DELAY));
    }

    #[test]
    fn between_two_nats_with_varying_ports_a_relay_is_asked_at_once() {
        let relay = |ways: Vec<(Approach, Duration)>| ways.last().copied();
        assert_eq!(
            relay(plan(0, Some(true), 1, Some(true))),
            Some((Approach::Relay, Duration::ZERO))
        );
        assert_eq!(
            relay(plan(0, Some(true), 1, Some(false))),
            Some((Approach::Relay, RELAY_DELAY))
        );
    }

    #[test]
    fn members_behind_one_nat_try_a_direct_connection_before_the_relay() {
        let place = || place_behind(5, Some(true));
        let ways = plan_of((0, place()), (1, place()));
        assert_eq!(ways[0], (Approach::Direct, Duration::ZERO));
        assert_eq!(ways[2], (Approach::Relay, RELAY_DELAY));
    }

    #[test]
    fn a_failed_attempt_is_repeated_and_keeps_its_reason() {
        let now = Instant::now();
        let mut attempt = Attempt::new("10.0.0.2:1".parse().expect("an address"), now);
        let first = attempt.begin(now) - now;
        attempt.fail(now, Some("refused".into()));
        assert_eq!(attempt.at, Some(now + PAUSE_MIN));
        assert!(attempt.begin(now) - now > first, "it waits longer");
        attempt.fail(now, None);
        assert_eq!(attempt.why.as_deref(), Some("refused"));
        assert_eq!(attempt.at, Some(now + 2 * PAUSE_MIN));
    }
}
