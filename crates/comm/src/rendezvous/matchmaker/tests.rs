use super::*;
use std::net::SocketAddr;

const KEY: KeyId = KeyId([1; 16]);

fn group(byte: u8) -> GroupId {
    GroupId([byte; 16])
}

fn address(connection: ConnectionId) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], connection as u16))
}

fn asks(connection: ConnectionId, size: u32, rank: Option<u32>) -> Join {
    Join {
        name: "name".into(),
        size,
        rank,
        address: address(connection),
        wait_ms: 1000,
        meeting: Meeting::First,
        link: "direct".into(),
    }
}

fn refused(answers: Vec<(ConnectionId, JoinAnswer)>) -> Vec<(ConnectionId, JoinRejection)> {
    let refusals = answers.into_iter().map(|(connection, answer)| match answer {
        JoinAnswer::Refused(refused) => (connection, refused),
        answer => panic!("{answer:?}"),
    });
    refusals.collect()
}

#[test]
fn everybody_is_told_where_all_are_when_the_last_has_come() {
    let mut matchmaker = Matchmaker::new(10, true);
    let now = Instant::now();
    // Two members ask for a rank, and two members get the remaining ranks, in the order of their arrival.
    assert!(
        matchmaker
            .join(KEY, 1, asks(1, 4, Some(3)), None, now, group(1))
            .is_empty()
    );
    // One member is behind a NAT.
    let mapped = Some(NatMapping {
        address: address(99),
        varies: true,
    });
    assert!(
        matchmaker
            .join(KEY, 2, asks(2, 4, None), mapped, now, group(1))
            .is_empty()
    );
    assert!(
        matchmaker
            .join(KEY, 3, asks(3, 4, Some(0)), None, now, group(1))
            .is_empty()
    );
    let answers = matchmaker.join(KEY, 4, asks(4, 4, None), None, now, group(1));
    let place = |connection| MemberAddress {
        address: address(connection),
        mapped: mapped.filter(|_| connection == 2),
    };
    let members: Vec<_> = [3, 2, 4, 1].map(place).to_vec();
    let expected: Vec<_> = [(3, 0), (2, 1), (4, 2), (1, 3)]
        .map(|(connection, rank)| {
            let answer = JoinAnswer::Together {
                group: group(1),
                rank,
                members: members.clone(),
                relays: true,
            };
            (connection, answer)
        })
        .to_vec();
    assert_eq!(answers, expected);
    assert_eq!(matchmaker.next_due(), None, "no member waits any more");
}

#[test]
fn the_next_of_one_name_are_another_group() {
    let mut matchmaker = Matchmaker::new(10, true);
    let now = Instant::now();
    for round in 0..3 {
        let first = 2 * round;
        assert!(
            matchmaker
                .join(KEY, first, asks(first, 2, None), None, now, group(9))
                .is_empty()
        );
        let answers = matchmaker.join(KEY, first + 1, asks(first + 1, 2, None), None, now, group(round as u8));
        assert!(answers.iter().all(|(connection, answer)| {
            *connection >= first
                && matches!(answer, JoinAnswer::Together { group: of, .. } if *of == group(round as u8))
        }));
        assert_eq!(answers.len(), 2);
    }
}

#[test]
fn groups_of_one_name_and_two_secrets_are_separate() {
    let mut matchmaker = Matchmaker::new(10, true);
    let now = Instant::now();
    assert!(
        matchmaker
            .join(KEY, 1, asks(1, 2, Some(0)), None, now, group(1))
            .is_empty()
    );
    let other = KeyId([2; 16]);
    assert!(
        matchmaker
            .join(other, 2, asks(2, 3, Some(0)), None, now, group(1))
            .is_empty()
    );
    assert_eq!(
        matchmaker.join(KEY, 3, asks(3, 2, Some(1)), None, now, group(1)).len(),
        2
    );
}

#[test]
fn a_rank_that_is_taken_another_size_and_another_link_are_refused_at_once() {
    let mut matchmaker = Matchmaker::new(10, true);
    let now = Instant::now();
    assert!(
        matchmaker
            .join(KEY, 1, asks(1, 3, Some(2)), None, now, group(1))
            .is_empty()
    );
    let twice = refused(matchmaker.join(KEY, 2, asks(2, 3, Some(2)), None, now, group(1)));
    let duplicate = JoinRejection::DuplicateRank {
        rank: 2,
        other: address(1),
    };
    assert_eq!(twice, [(2, duplicate)]);
    let larger = refused(matchmaker.join(KEY, 3, asks(3, 4, None), None, now, group(1)));
    assert_eq!(larger, [(3, JoinRejection::OtherSize { theirs: 3, ours: 4 })]);
    let mut through_a_store = asks(3, 3, None);
    through_a_store.link = "redis".into();
    let elsewhere = refused(matchmaker.join(KEY, 3, through_a_store, None, now, group(1)));
    let other_link = JoinRejection::OtherLink {
        theirs: "direct".into(),
        ours: "redis".into(),
    };
    assert_eq!(elsewhere, [(3, other_link)]);
    // The first member waits as before, and does not disturb the others when it has left.
    matchmaker.remove(1);
    assert!(
        matchmaker
            .join(KEY, 4, asks(4, 4, Some(2)), None, now, group(1))
            .is_empty()
    );
}

#[test]
fn missing_members_are_reported_to_all_present_ones() {
    let mut matchmaker = Matchmaker::new(10, true);
    let now = Instant::now();
    let mut early = asks(1, 5, Some(1));
    early.wait_ms = 500;
    matchmaker.join(KEY, 1, early, None, now, group(1));
    matchmaker.join(KEY, 2, asks(2, 5, None), None, now, group(1));
    matchmaker.join(KEY, 3, asks(3, 5, Some(4)), None, now, group(1));
    assert_eq!(matchmaker.next_due(), Some(now + Duration::from_millis(500)));
    assert!(
        matchmaker
            .expire(now + Duration::from_millis(499), || group(1))
            .is_empty()
    );
    let answers = refused(matchmaker.expire(now + Duration::from_millis(500), || group(1)));
    // Rank 0 is for the member that asked for no rank.
    let missing = JoinRejection::Missing {
        ranks: vec![2, 3],
        size: 5,
        waited_ms: 500,
    };
    assert_eq!(answers, [1, 2, 3].map(|connection| (connection, missing.clone())));
    assert_eq!(matchmaker.next_due(), None);
}

#[test]
fn no_more_wait_than_may() {
    let mut matchmaker = Matchmaker::new(2, false);
    let now = Instant::now();
    matchmaker.join(KEY, 1, asks(1, 4, None), None, now, group(1));
    matchmaker.join(KEY, 2, asks(2, 4, None), None, now, group(1));
    let third = refused(matchmaker.join(KEY, 3, asks(3, 4, None), None, now, group(1)));
    assert_eq!(third, [(3, JoinRejection::Full { members: 2 })]);
    let stopped = refused(matchmaker.stop());
    assert_eq!(stopped, [(1, JoinRejection::Stopping), (2, JoinRejection::Stopping)]);
}

/// Request of a member of the rest of a communicator of 4.
fn left(connection: ConnectionId, rank: u32, lost: &[u32]) -> Join {
    let mut join = asks(connection, 4, Some(rank));
    join.meeting = Meeting::Rest {
        of: group(7),
        context: 0,
        number: 0,
        lost: lost.to_vec(),
    };
    join
}

/// Connections of the members that are told that they have met, by new rank.
fn together(answers: &[(ConnectionId, JoinAnswer)]) -> Vec<ConnectionId> {
    let told = answers
        .iter()
        .enumerate()
        .map(|(place, (connection, answer))| match answer {
            JoinAnswer::Together { rank, members, .. } => {
                assert_eq!((*rank as usize, members.len()), (place, answers.len()));
                assert_eq!(members[place].address, address(*connection));
                *connection
            }
            other => panic!("{other:?}"),
        });
    told.collect()
}

#[test]
fn remaining_members_wait_for_all_members_that_none_of_them_knows_to_be_lost() {
    let mut matchmaker = Matchmaker::new(10, false);
    let now = Instant::now();
    assert!(matchmaker.join(KEY, 3, left(3, 3, &[]), None, now, group(1)).is_empty());
    // A new group of this name is another meeting.
    assert!(
        matchmaker
            .join(KEY, 9, asks(9, 4, Some(0)), None, now, group(1))
            .is_empty()
    );
    assert!(
        matchmaker
            .join(KEY, 1, left(1, 1, &[0]), None, now, group(1))
            .is_empty()
    );
    let answers = matchmaker.join(KEY, 2, left(2, 2, &[]), None, now, group(1));
    assert_eq!(together(&answers), [1, 2, 3], "in the order of their old ranks");
    // Rank 0 was alive, and must not take itself for the only remaining member.
    let late = refused(matchmaker.join(KEY, 4, left(4, 0, &[1, 2, 3]), None, now, group(2)));
    assert_eq!(late, [(4, JoinRejection::MetWithoutYou)]);
    let long_after = now + MEMORY + Duration::from_millis(1);
    assert!(
        matchmaker
            .join(KEY, 5, left(5, 0, &[]), None, long_after, group(2))
            .is_empty()
    );
}

#[test]
fn a_waiting_member_reports_the_further_losses_that_it_hears_of() {
    let mut matchmaker = Matchmaker::new(10, false);
    let now = Instant::now();
    for rank in 1..=2 {
        let join = left(rank as ConnectionId, rank, &[0]);
        assert!(
            matchmaker
                .join(KEY, rank as ConnectionId, join, None, now, group(1))
                .is_empty()
        );
    }
    let unchanged = matchmaker.report_lost(1, vec![0], now, group(1));
    assert_eq!(unchanged, Some(Vec::new()));
    assert_eq!(
        matchmaker.report_lost(1, vec![0, 4], now, group(1)),
        None,
        "there is no rank 4"
    );
    let answers = matchmaker.report_lost(1, vec![0, 3], now, group(1)).expect("it waits");
    assert_eq!(together(&answers), [1, 2]);
    // The other member reports the loss at the same time, but has its answer already.
    assert_eq!(matchmaker.report_lost(2, vec![0, 3], now, group(2)), None);
    assert_eq!((matchmaker.waiting(), matchmaker.next_due()), (0, None));
    // Members that meet for the first time cannot report losses.
    assert!(
        matchmaker
            .join(KEY, 5, asks(5, 4, Some(0)), None, now, group(3))
            .is_empty()
    );
    assert_eq!(matchmaker.report_lost(5, vec![1], now, group(3)), None);
    assert_eq!(matchmaker.waiting(), 1);
}

#[test]
fn a_member_that_comes_anew_has_its_old_place() {
    let mut matchmaker = Matchmaker::new(10, false);
    let now = Instant::now();
    assert!(
        matchmaker
            .join(KEY, 1, left(1, 1, &[0]), None, now, group(1))
            .is_empty()
    );
    assert!(
        matchmaker
            .join(KEY, 2, left(2, 2, &[0]), None, now, group(1))
            .is_empty()
    );
    let answers = matchmaker.join(KEY, 11, left(11, 1, &[0, 3]), None, now, group(1));
    assert_eq!(together(&answers), [11, 2]);
    // The previous connection closes.
    matchmaker.remove(1);
    assert_eq!((matchmaker.waiting(), matchmaker.next_due()), (0, None));
}

#[test]
fn remaining_members_do_not_wait_for_ever() {
    let mut matchmaker = Matchmaker::new(10, false);
    let now = Instant::now();
    assert!(matchmaker.join(KEY, 3, left(3, 3, &[]), None, now, group(1)).is_empty());
    assert!(matchmaker.join(KEY, 1, left(1, 1, &[]), None, now, group(1)).is_empty());
    let answers = matchmaker.expire(now + Duration::from_millis(1000), || group(5));
    assert_eq!(together(&answers), [1, 3]);
}

#[test]
fn newcomers_join_a_growing_group_and_no_new_one() {
    let mut matchmaker = Matchmaker::new(10, false);
    let now = Instant::now();
    let growth = |connection, rank| Join {
        meeting: Meeting::Growth,
        ..asks(connection, 3, rank)
    };
    assert!(matchmaker.join(KEY, 1, growth(1, None), None, now, group(1)).is_empty());
    assert!(
        matchmaker
            .join(KEY, 2, asks(2, 3, None), None, now, group(1))
            .is_empty()
    );
    assert!(
        matchmaker
            .join(KEY, 3, growth(3, Some(1)), None, now, group(1))
            .is_empty()
    );
    let answers = matchmaker.join(KEY, 4, growth(4, Some(0)), None, now, group(1));
    assert_eq!(together(&answers), [4, 3, 1], "members keep their ranks");
}
