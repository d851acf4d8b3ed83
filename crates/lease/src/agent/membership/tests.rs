use super::*;

const MOMENT: Duration = Duration::from_millis(1);

fn member() -> Membership {
    let mut membership = Membership::new(Duration::ZERO);
    let asked = membership.step(MembershipEvent::Tick, Duration::ZERO);
    assert_eq!(
        asked,
        [MembershipAction::Register {
            ask: QuestionId(1),
            proof: 0
        }]
    );
    let registered = MembershipEvent::Registered {
        ask: QuestionId(1),
        heartbeat: Duration::ZERO,
        ledger: 7,
    };
    let joined = membership.step(registered, MOMENT);
    assert_eq!(
        joined,
        [
            MembershipAction::Joined,
            MembershipAction::OweAgain,
            MembershipAction::Report {
                ask: QuestionId(2),
                whole: true,
                leaving: false
            },
        ]
    );
    membership
}

#[test]
fn reports_follow_each_other_at_the_managers_pace() {
    let mut membership = member();
    let heard = MembershipEvent::ReportAnswered {
        ask: QuestionId(2),
        known: true,
        heartbeat: Duration::ZERO,
        totals_every: Duration::ZERO,
    };
    assert_eq!(
        membership.step(heard, 2 * MOMENT),
        [MembershipAction::Acknowledged { ask: QuestionId(2) }]
    );
    assert_eq!(membership.next_step(), Some(2 * MOMENT + HEARTBEAT));
    assert!(membership.step(MembershipEvent::Tick, HEARTBEAT).is_empty());
    assert_eq!(membership.step(MembershipEvent::Tick, HEARTBEAT + 2 * MOMENT).len(), 1);
}

#[test]
fn an_answer_after_its_time_acknowledges_nothing() {
    let mut membership = member();
    let late = ANSWER_LIMIT + MOMENT;
    let given_up = membership.step(MembershipEvent::Tick, late);
    assert_eq!(
        given_up,
        [
            MembershipAction::Unacknowledged { ask: QuestionId(2) },
            MembershipAction::Lost,
            MembershipAction::Register {
                ask: QuestionId(3),
                proof: 0
            },
        ]
    );
    let heard = MembershipEvent::ReportAnswered {
        ask: QuestionId(2),
        known: true,
        heartbeat: Duration::ZERO,
        totals_every: Duration::ZERO,
    };
    assert!(membership.step(heard, late).is_empty());
}

#[test]
fn an_unknown_agent_registers_and_a_known_ledger_gets_no_total_twice() {
    let mut membership = member();
    let unknown = MembershipEvent::ReportAnswered {
        ask: QuestionId(2),
        known: false,
        heartbeat: Duration::ZERO,
        totals_every: Duration::ZERO,
    };
    let actions = membership.step(unknown, MOMENT);
    assert_eq!(
        actions.last(),
        Some(&MembershipAction::Register {
            ask: QuestionId(3),
            proof: 0
        })
    );
    let again = |ask, ledger| MembershipEvent::Registered {
        ask,
        heartbeat: Duration::ZERO,
        ledger,
    };
    let actions = membership.step(again(QuestionId(3), 7), MOMENT);
    assert!(!actions.contains(&MembershipAction::OweAgain), "{actions:?}");
}

#[test]
fn the_pause_between_reports_is_what_the_manager_said_last() {
    let mut membership = member();
    let mut now = MOMENT;
    let long = 4 * HEARTBEAT;
    let mut pauses = Vec::new();
    for (number, heartbeat) in (2..).zip([long, Duration::ZERO, Duration::MAX, HEARTBEAT]) {
        let heard = MembershipEvent::ReportAnswered {
            ask: QuestionId(number),
            known: true,
            heartbeat,
            totals_every: Duration::ZERO,
        };
        membership.step(heard, now);
        let next = membership.next_step().expect("it goes on");
        pauses.push(next - now);
        now = next;
        membership.step(MembershipEvent::Tick, now);
    }
    assert_eq!(pauses, [long, long, HEARTBEAT_MAX, HEARTBEAT]);
}

#[test]
fn leases_that_go_on_are_named_as_often_as_the_manager_wants_and_first_of_all_to_a_new_one() {
    let every = 4 * HEARTBEAT;
    let mut membership = member();
    let mut now = MOMENT;
    let mut wholes = Vec::new();
    for number in 2..12 {
        let heard = MembershipEvent::ReportAnswered {
            ask: QuestionId(number),
            known: true,
            heartbeat: Duration::ZERO,
            totals_every: every,
        };
        membership.step(heard, now);
        now = membership.next_step().expect("it goes on");
        let reports = membership.step(MembershipEvent::Tick, now);
        let [MembershipAction::Report { whole, .. }] = reports[..] else {
            panic!("{reports:?} is no report");
        };
        wholes.push(whole);
    }
    let (yes, no) = (true, false);
    assert_eq!(wholes, [no, no, no, yes, no, no, no, yes, no, no]);
    let unknown = MembershipEvent::ReportAnswered {
        ask: QuestionId(12),
        known: false,
        heartbeat: Duration::ZERO,
        totals_every: every,
    };
    membership.step(unknown, now);
    membership.step(MembershipEvent::Tick, now);
    let again = MembershipEvent::Registered {
        ask: QuestionId(13),
        heartbeat: Duration::ZERO,
        ledger: 7,
    };
    let first = membership.step(again, now);
    assert!(
        matches!(first.last(), Some(MembershipAction::Report { whole: true, .. })),
        "{first:?}: a manager that did not know us does not know our leases"
    );
}

#[test]
fn failed_registrations_are_spaced_out() {
    let mut membership = Membership::new(Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let actions = membership.step(MembershipEvent::Tick, now);
        let [MembershipAction::Register { ask, .. }] = actions[..] else {
            panic!("{actions:?} is no registration");
        };
        assert!(membership.step(MembershipEvent::Failed { ask }, now).is_empty());
        let due = membership.next_step().expect("it goes on");
        pauses.push((due - now).as_millis());
        now = due;
    }
    assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500, 500]);
}

#[test]
fn the_goodbye_ends_by_an_answer_or_its_time() {
    for answered in [true, false] {
        let mut membership = member();
        let leaving = membership.step(MembershipEvent::Leave, MOMENT);
        let goodbye = MembershipAction::Report {
            ask: QuestionId(3),
            whole: true,
            leaving: true,
        };
        assert_eq!(leaving.last(), Some(&goodbye));
        let (event, now) = if answered {
            let heard = MembershipEvent::ReportAnswered {
                ask: QuestionId(3),
                known: true,
                heartbeat: Duration::ZERO,
                totals_every: Duration::ZERO,
            };
            (heard, MOMENT)
        } else {
            (MembershipEvent::Tick, MOMENT + GOODBYE_LIMIT)
        };
        assert_eq!(membership.step(event, now).last(), Some(&MembershipAction::Left));
        assert_eq!((membership.next_step(), membership.has_left()), (None, true));
    }
}

/// Because of a late message of a dead run, the manager regards the present run as ended.
#[test]
fn an_agent_that_is_taken_for_an_ended_run_repeats_the_challenge() {
    let now = Duration::ZERO;
    let mut membership = Membership::new(now);
    let asked = membership.step(MembershipEvent::Tick, now);
    assert_eq!(
        asked,
        [MembershipAction::Register {
            ask: QuestionId(1),
            proof: 0
        }]
    );
    let challenged = |ask, challenge| MembershipEvent::Challenged {
        ask: QuestionId(ask),
        challenge,
    };
    assert_eq!(membership.step(challenged(9, 5), now), [], "an answer to nothing");
    // After the first challenge the agent registers at once. After a further challenge it waits, as after any other
    // failure.
    let asked = membership.step(challenged(1, 7), now);
    assert_eq!(
        asked,
        [MembershipAction::Register {
            ask: QuestionId(2),
            proof: 7
        }]
    );
    assert_eq!(membership.step(challenged(2, 8), now), []);
    let asked = membership.step(MembershipEvent::Tick, now + BACKOFF_MIN);
    assert_eq!(
        asked,
        [MembershipAction::Register {
            ask: QuestionId(3),
            proof: 8
        }]
    );
    let registered = MembershipEvent::Registered {
        ask: QuestionId(3),
        heartbeat: Duration::ZERO,
        ledger: 1,
    };
    let joined = membership.step(registered, now + BACKOFF_MIN);
    assert_eq!(joined.first(), Some(&MembershipAction::Joined));
}
