//! Tests of members that let the model choose their link. Choices with a store: crates/stores/tests/stores.

use crate::group::{each_over, options, rendezvous, until};
use hotlease_comm::link::StoreOpener;
use hotlease_comm::model::{Criterion, LinkPrices, Scenario, choose, collective_of_bytes};
use hotlease_comm::{
    CollectiveCall, Communicator, Error, JoinRejection, LinkChoice, LinkKind, Operation, Operator, Table,
};
use std::sync::Arc;

fn link(text: &str) -> LinkChoice {
    text.parse().expect(text)
}

#[test]
fn members_talk_over_what_the_model_holds_to_be_the_best() {
    // The built-in prices are the prices of a cloud, where a direct link is the best for this operation.
    let auto = link("auto:s3://nowhere,redis://127.0.0.1:1,tcp,direct,op=allreduce,size=64KiB,by=time");
    let (collective, datatype) = collective_of_bytes(Operation::Allreduce, 0, 3, 64 << 10);
    let scenario = Scenario {
        call: CollectiveCall::new(collective, datatype, 0, 3),
        memory_bytes: 2 << 30,
        operations_per_hour: None,
    };
    let links = [LinkKind::S3, LinkKind::Redis, LinkKind::Tcp];
    let planned = choose(
        &scenario,
        Criterion::Time,
        &links,
        Table::built_in(),
        LinkPrices::built_in(),
    );
    assert_eq!(planned.expect("a plan").link, LinkKind::Tcp);
    let chosen = each_over(
        &auto,
        3,
        |_| (),
        |all| {
            let mut sum = [0];
            all.allreduce(&[all.rank()], &mut sum, &Operator::Sum)
                .expect("all are well");
            assert_eq!(sum, [3]);
            // The part uses the same connections.
            let part = all.split(Some(0), 0).expect("all are well").expect("all are in it");
            assert_eq!(part.link(), all.link());
            all.link().clone()
        },
    );
    assert_eq!(chosen, vec![LinkChoice::Tcp; 3]);
}

#[test]
fn a_member_that_would_choose_otherwise_is_refused_at_once() {
    let server = rendezvous();
    let mut first = options(&server, "auto", 2);
    first.link = link("auto:direct,redis://127.0.0.1:1");
    let refused = |options: &hotlease_comm::Options| match Communicator::join(options) {
        Err(Error::RendezvousRefused {
            refused: JoinRejection::OtherLink { theirs, ours },
            ..
        }) => (theirs, ours),
        other => panic!("{other:?}"),
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| Communicator::join(&first).expect("the other one comes"));
        until("one waits", || server.waiting() == 1);
        let mut other = first.clone();
        other.stores = &[StoreOpener {
            kind: LinkKind::Redis,
            open: |_| unreachable!("this member is refused"),
        }];
        for text in [
            "direct",
            "redis://127.0.0.1:1",
            "auto:direct",
            "auto:direct,redis://127.0.0.1:1,size=8",
        ] {
            other.link = link(text);
            let (theirs, ours) = refused(&other);
            assert!(
                theirs.starts_with("auto:direct,redis,op=allreduce,size=1048576,by=price"),
                "{theirs}"
            );
            assert!(ours.starts_with(text.split("://").next().expect("some")), "{ours}");
        }
        // The links are the same, but the prices differ.
        other.link = first.link.clone();
        let mut prices = LinkPrices::built_in().clone();
        prices.function.gib_second_price *= 2.0;
        other.prices = Some(Arc::new(prices));
        let (theirs, ours) = refused(&other);
        assert_ne!(theirs, ours);
        // The address of a store may differ between members.
        other.prices = None;
        other.link = link("auto:direct,redis://localhost:1");
        let two = Communicator::join(&other).expect("both are here");
        let one = one.join().expect("no panic");
        assert_eq!((one.link(), two.link()), (&LinkChoice::Direct, &LinkChoice::Direct));
    });
}

#[test]
fn an_impossible_choice_fails_before_any_member_waits() {
    let server = rendezvous();
    let mut options = options(&server, "auto", 2);
    let mut said = |text: &str, prices: Option<LinkPrices>| {
        options.link = link(text);
        options.prices = prices.map(Arc::new);
        let error = Communicator::join(&options).expect_err(text).to_string();
        assert_eq!(server.waiting(), 0, "{error}");
        error
    };
    let error = said("auto", None);
    assert!(error.contains("HOTLEASE_COMM_LINKS"), "{error}");
    let mut prices = LinkPrices::built_in().clone();
    prices.link.redis = None;
    let error = said("auto:direct,redis://h", Some(prices));
    assert!(error.contains("the prices say nothing about redis"), "{error}");
}
