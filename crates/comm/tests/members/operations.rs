//! Tests of every collective over shared memory, over TCP and through the rendezvous, for one to nine members.

use crate::group::{each, each_over, hidden};
use crate::typed::{LENGTHS, all_operations};
use hotlease_comm::{Algorithm, Collective, Datatype, LinkChoice, Operator, Route, Table};
use std::sync::Arc;

#[test]
fn every_collective_gives_what_a_plain_program_computes() {
    for size in 1..=9 {
        each(size, |_| (), |all| all_operations(&all, &LENGTHS));
    }
}

#[test]
fn every_collective_is_right_through_the_rendezvous() {
    for size in 1..=9 {
        each_over(&LinkChoice::Tcp, size, hidden, |all| {
            let others = (0..).zip(all.routes()).filter(|(rank, _)| *rank != all.rank());
            others.for_each(|(rank, route)| assert_eq!(route, Route::Relayed, "{rank}"));
            all_operations(&all, &LENGTHS[..5]);
        });
    }
}

#[test]
fn every_collective_is_right_in_checked_mode_and_in_a_part_of_a_communicator() {
    each(
        5,
        |options| options.is_checked = true,
        |all| {
            // Ranks in reverse order, without rank 2.
            let color = (all.rank() != 2).then_some(7);
            let part = all.split(color, -i64::from(all.rank())).expect("all are well");
            assert_eq!(part.is_none(), all.rank() == 2);
            if let Some(part) = part {
                let expected = [3, 2, 9, 1, 0][all.rank() as usize];
                assert_eq!((part.rank(), part.size()), (expected, 4));
                all_operations(&part, &LENGTHS[..4]);
            }
        },
    );
}

#[test]
fn truth_values_are_elements_and_come_back_as_such() {
    each(
        3,
        |_| (),
        |all| {
            let mine = [all.rank() == 1, true, all.rank() < 2];
            let mut any = [false; 3];
            all.allreduce(&mine, &mut any, &Operator::LogicalXor)
                .expect("all are well");
            assert_eq!(any, [true, true, false]);
            let begun = all.iallreduce(mine.to_vec(), &Operator::LogicalAnd).expect("begun");
            assert_eq!(begun.wait().expect("all are well"), [false, true, false]);
        },
    );
}

#[test]
fn a_table_of_the_users_decides_on_the_algorithm() {
    let table = "version = 1\n[[rule]]\noperation = \"allreduce\"\nalgorithm = \"reduce-broadcast\"\n";
    let table = Arc::new(Table::parse(table).expect("a table"));
    each(
        4,
        |options| options.table = Some(Arc::clone(&table)),
        |all| {
            let operator = &Operator::Sum;
            let sum = all.collective(Collective::Allreduce { count: 3, operator }, Datatype::U64);
            let why = sum.explain().expect("a call that makes sense");
            assert_eq!(why.recipe.algorithm, Algorithm::ReduceBroadcast, "{why}");
            let mut total = [0u64; 3];
            all.allreduce(&[1, 2, u64::from(all.rank())], &mut total, &Operator::Sum)
                .expect("all are well");
            assert_eq!(total, [4, 8, 6]);
        },
    );
}
