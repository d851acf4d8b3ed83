//! Tests of checked mode: if calls do not match, all members are told the members, the calls and their places.

use crate::group::{each, each_over};
use hotlease_comm::{Collective, Communicator, Datatype, Error, LinkChoice, MemberCall, Operator, Rank};
use std::sync::Arc;

/// Runs members in checked mode and returns the error of each.
fn errors(size: Rank, call: impl Fn(&Communicator) -> Result<(), Error> + Sync) -> Vec<Error> {
    each_over(
        &LinkChoice::Direct,
        size,
        |options| options.is_checked = true,
        |all| {
            let error = call(&all).expect_err("they do not belong together");
            // Nothing was sent, so the communicator remains usable.
            let mut total = [0];
            all.allreduce(&[1], &mut total, &Operator::Sum).expect("these do");
            assert_eq!(total[0], size);
            error
        },
    )
}

/// Checks that all members get the same error, in which rank 1 differs from rank 0.
fn told(size: Rank, call: impl Fn(&Communicator) -> Result<(), Error> + Sync) -> (MemberCall, MemberCall) {
    let errors = errors(size, call);
    assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "{errors:?}");
    match &errors[0] {
        Error::CallMismatch { first, other } => {
            assert_eq!((first.rank, other.rank), (0, 1));
            for caller in [first, other] {
                assert!(caller.site.contains("tests/members/checked.rs:"), "{caller}");
            }
            (*first.clone(), *other.clone())
        }
        error => panic!("{error}"),
    }
}

#[test]
fn operations_in_another_order_are_told_with_both_sites() {
    let (first, other) = told(3, |all| {
        if all.rank() == 1 {
            all.barrier()
        } else {
            all.broadcast(&mut [0u16; 3], 2)
        }
    });
    assert_eq!(
        (&*first.call, &*other.call),
        ("broadcast of 3 u16 from rank 2", "barrier")
    );
    assert_ne!(first.site, other.site, "two lines of this file");
}

#[test]
fn counts_types_roots_and_operators_that_differ_are_told() {
    let is_other = |all: &Communicator| usize::from(all.rank() == 1);
    let (first, other) = told(2, |all| {
        let mine = &[1.0f32, 2.0][..2 - is_other(all)];
        all.allreduce(mine, &mut vec![0.0; mine.len()], &Operator::Sum)
    });
    assert_eq!(
        (&*first.call, &*other.call),
        ("allreduce of 2 f32 by sum", "allreduce of 1 f32 by sum")
    );

    let (_, other) = told(2, |all| match is_other(all) {
        1 => all.allgather(&[1i64], &mut [0; 2]),
        _ => all.allgather(&[1.0f64], &mut [0.0; 2]),
    });
    assert_eq!(
        other.call, "allgather of 1 of each i64",
        "of one length, so no other check would notice"
    );

    let (_, other) = told(3, |all| {
        all.reduce(&[1u8], &mut [0], &Operator::Sum, 2 * is_other(all) as Rank)
    });
    assert_eq!(other.call, "reduce of 1 u8 to rank 2 by sum");

    let mine = Operator::User {
        function: Arc::new(|_, _, _| ()),
        commutes: false,
    };
    let (first, other) = told(2, |all| {
        let operator = if is_other(all) == 1 { &mine } else { &Operator::Max };
        all.scan(&[1u8], &mut [0], operator)
    });
    assert_eq!(first.call, "scan of 1 u8 by max");
    assert_eq!(
        other.call,
        "scan of 1 u8 by a function of the user's that does not commute"
    );
}

#[test]
fn a_split_that_meets_something_else_is_told_as_such() {
    let (first, other) = told(2, |all| match all.rank() {
        0 => all.split(Some(1), 0).map(drop),
        _ => all.barrier(),
    });
    assert_eq!((&*first.call, &*other.call), ("split", "barrier"));
}

#[test]
fn mismatches_show_the_call_sites_of_other_languages() {
    let errors = errors(2, |all| {
        let count = 1 + all.rank() as usize;
        let place = ["train.py:12", "train.py:90"][all.rank() as usize];
        let alltoall = all.collective(Collective::Alltoall { count }, Datatype::I16);
        alltoall.at(place).run(&[0; 8], &mut [0; 8])
    });
    let text = errors[1].to_string();
    let expected = "members call different collectives: rank 0 `alltoall of 1 i16 to each` at train.py:12, \
                    rank 1 `alltoall of 2 i16 to each` at train.py:90; nothing was sent";
    assert_eq!(text, expected);
}

#[test]
fn collectives_that_are_begun_are_checked_without_waiting_for_the_others() {
    each(
        2,
        |options| options.is_checked = true,
        |all| {
            // Rank 1 begins its collective only after a message of rank 0, which has begun its own before.
            if all.rank() == 0 {
                let begun = all.iallreduce(vec![1u32], &Operator::Sum).expect("begun");
                all.send(&[1], 1, 5).expect("it takes it");
                assert_eq!(begun.wait(), Ok(vec![3]));
            } else {
                all.receive(&mut [0], hotlease_comm::Pattern::of(0, 5))
                    .expect("it comes");
                let begun = all.iallreduce(vec![2u32], &Operator::Sum).expect("begun");
                assert_eq!(begun.wait(), Ok(vec![3]));
            }
            // A member that waits later gets the error too.
            let begun = all.ibroadcast(vec![0u8; 1 + all.rank() as usize], 0).expect("begun");
            let error = begun.wait().expect_err("of one byte and of two");
            assert!(matches!(error, Error::CallMismatch { .. }), "{error}");
        },
    );
}
