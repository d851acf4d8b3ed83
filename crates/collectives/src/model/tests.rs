use super::*;
use crate::operation::Algorithm;

mod fmi;
mod grid;

fn scenario(operation: Operation, count: usize, ranks: Rank) -> Scenario<'static> {
    Scenario {
        call: CollectiveCall::new(collective_of_size(operation, 0, ranks, count), Datatype::U8, 0, ranks),
        memory_bytes: 2 << 30,
        operations_per_hour: None,
    }
}

fn close(value: f64, expected: f64, what: &str) {
    assert!(
        (value / expected - 1.0).abs() < 1e-9,
        "{what}: {value}, by the formula {expected}"
    );
}

/// A file in which all figures are round numbers.
const ROUND: &str = r#"
version = 1
currency = "EUR"
[function]
gib_second_price = 0.5
origin = { source = "a test", date = "2026-01-01" }
[rendezvous]
hour_price = 3600.0
origin = { source = "a test", date = "2026-01-01" }
[rank]
copy_mb_s = 1e9
reduce_mb_s = 1e9
origin = { source = "a test", date = "2026-01-01" }
[link.tcp]
latency_us = 1000.0
bandwidth_mb_s = 10.0
origin = { source = "a test", date = "2026-01-01" }
[link.s3.times]
write_ms = 20.0
read_ms = 30.0
bandwidth_mb_s = 100.0
origin = { source = "a test", date = "2026-01-01" }
[link.s3.requests]
write_price = 7.0
read_price = 0.125
remove_price = 3.0
write_unit_bytes = 1024
read_unit_bytes = 4096
origin = { source = "a test", date = "2026-01-01" }
[link.s3.server]
hour_price = 36.0
origin = { source = "a test", date = "2026-01-01" }
"#;

fn round() -> LinkPrices {
    LinkPrices::parse(ROUND).expect("a file")
}

#[test]
fn a_message_is_charged_for_by_its_seconds() {
    let broadcast = scenario(Operation::Broadcast, 1_000_000, 2);
    let estimate = estimate(&broadcast, LinkKind::Tcp, Table::built_in(), &round()).expect("an estimate");
    // Milliseconds and seconds: 1 ms, and 1 MB at 10 MB/s.
    close(estimate.seconds(), 0.101, "seconds");
    close(
        estimate.price.functions,
        0.101 * 2.0 * 2.0 * 0.5,
        "two functions of 2 GiB",
    );
    close(estimate.price.servers, 0.101, "the rendezvous, 1 a second");
    assert_eq!(estimate.price.requests, 0.0);
    close(
        estimate.price.total(),
        estimate.price.functions + estimate.price.servers,
        "the sum",
    );
    let shared = Scenario {
        operations_per_hour: Some(1000.0),
        ..broadcast
    };
    let shared = super::estimate(&shared, LinkKind::Tcp, Table::built_in(), &round()).expect("an estimate");
    close(shared.price.servers, 3.6, "a thousandth of an hour");
}

#[test]
fn requests_are_counted_in_schedules_and_charged_for_by_their_units() {
    // Rank 0 writes 5,000 bytes, the 3 others read them: 5 units of 1 KiB, 2 units of 4 KiB.
    let broadcast = scenario(Operation::Broadcast, 5_000, 4);
    let estimate = estimate(&broadcast, LinkKind::S3, Table::built_in(), &round()).expect("an estimate");
    close(
        estimate.price.requests,
        5.0 * (7.0 + 3.0) + 3.0 * 2.0 * 0.125,
        "requests",
    );
    let seconds = 20e-3 + 30e-3 + 2.0 * 5_000.0 / 100e6;
    close(estimate.seconds(), seconds, "a write and a read");
    close(estimate.price.servers, seconds * 0.01, "the node, 0.01 a second");
    close(estimate.price.functions, seconds * 4.0, "four functions of 2 GiB");

    // Each reader asks at 0, 35, 75... ms, until the object exists after 20 ms.
    let mut polled = round();
    let store = polled.link.s3.as_mut().expect("S3");
    (store.times.poll_first_ms, store.times.poll_most_ms) = (Some(5.0), Some(100.0));
    let polled = super::estimate(&broadcast, LinkKind::S3, Table::built_in(), &polled).expect("an estimate");
    assert_eq!(polled.outcome.polls, 3);
    close(
        polled.price.requests,
        5.0 * 10.0 + (3.0 * 2.0 + 3.0) * 0.125,
        "and three that found nothing",
    );
}

#[test]
fn the_link_is_chosen_in_one_unit() {
    // 10 MB: 1.0 s from rank to rank; 0.05 s and twice 0.1 s through the store. Adding milliseconds of one part to
    // seconds of another would give 50.2 for the store, and choose the wrong link.
    let both = [LinkKind::Tcp, LinkKind::S3];
    let best = |by, bytes, prices: &LinkPrices| {
        let broadcast = scenario(Operation::Broadcast, bytes, 2);
        choose(&broadcast, by, &both, Table::built_in(), prices)
            .expect("a choice")
            .link
    };
    assert_eq!(best(Criterion::Time, 10_000_000, &round()), LinkKind::S3);
    assert_eq!(
        best(Criterion::Time, 100_000, &round()),
        LinkKind::Tcp,
        "where latency counts"
    );
    // The store's requests are expensive, until they cost nothing.
    assert_eq!(best(Criterion::Price, 10_000_000, &round()), LinkKind::Tcp);
    assert_eq!(best(Criterion::Product, 10_000_000, &round()), LinkKind::Tcp);
    let mut cheap = round();
    cheap.link.s3.as_mut().expect("S3").requests = None;
    assert_eq!(best(Criterion::Price, 10_000_000, &cheap), LinkKind::S3);
    assert_eq!(best(Criterion::Product, 10_000_000, &cheap), LinkKind::S3);
}

#[test]
fn unknown_prices_and_overflows_are_errors() {
    let allreduce = scenario(Operation::Allreduce, 8, 4);
    let no = |result: Result<Estimate, Error>, expected: &str| {
        let text = result.expect_err("no estimate").to_string();
        assert!(text.contains(expected), "{text:?} does not say {expected:?}");
    };
    let table = Table::built_in();
    no(
        estimate(&allreduce, LinkKind::Ofi, table, &round()),
        "allreduce: the prices say nothing about ofi",
    );
    let links = [LinkKind::Redis, LinkKind::DynamoDb];
    no(
        choose(&allreduce, Criterion::Time, &links, table, &round()),
        "nothing about redis, dynamodb",
    );
    no(
        estimate_by(
            &scenario(Operation::Alltoall, 1, 10_000),
            LinkKind::Tcp,
            Algorithm::Linear.into(),
            &round(),
        ),
        "too much to simulate",
    );
    no(
        estimate(
            &scenario(Operation::Barrier, 0, 4_000_000_000),
            LinkKind::Tcp,
            table,
            &round(),
        ),
        "ranks",
    );
    no(
        estimate(&scenario(Operation::Barrier, 0, 0), LinkKind::Tcp, table, &round()),
        "no such rank",
    );
    for (change, expected) in [
        (
            Scenario {
                call: CollectiveCall {
                    datatype: Datatype::record::<[u8; 1 << 30]>(),
                    ..scenario(Operation::Allgather, 1 << 20, 4).call
                },
                ..allreduce
            },
            "1 TiB",
        ),
        (
            Scenario {
                operations_per_hour: Some(0.0),
                ..allreduce
            },
            "more than 0",
        ),
        (
            Scenario {
                operations_per_hour: Some(f64::NAN),
                ..allreduce
            },
            "more than 0",
        ),
    ] {
        no(estimate(&change, LinkKind::Tcp, table, &round()), expected);
    }
    assert!("cheapest".parse::<Criterion>().is_err());
    assert_eq!(
        Criterion::NAMES.map(|(by, name)| (name.parse::<Criterion>(), by.to_string() == name)),
        Criterion::NAMES.map(|(by, _)| (Ok(by), true))
    );
}

#[test]
fn prices_without_a_source_or_a_unit_are_refused() {
    assert!(LinkPrices::built_in().link.dynamodb.is_some());
    for (from, to, expected) in [
        ("version = 1", "version = 2", "version 2"),
        ("\"EUR\"", "\"\"", "no name"),
        ("\"EUR\"", "\"\\u001b[2J\"", "no name"),
        (
            "gib_second_price = 0.5",
            "gib_second_price = -0.5",
            "function.gib_second_price is -0.5",
        ),
        ("gib_second_price = 0.5", "gib_second_price = nan", "is NaN"),
        ("gib_second_price = 0.5", "", "missing field"),
        ("latency_us = 1000.0", "latency = 1000.0", "unknown field"),
        ("latency_us = 1000.0", "latency_us = 0.0", "link.tcp.latency_us is 0"),
        (
            "bandwidth_mb_s = 10.0",
            "bandwidth_mb_s = inf",
            "link.tcp.bandwidth_mb_s is inf",
        ),
        ("read_ms = 30.0", "read_ms = 0.0", "link.s3.times.read_ms is 0"),
        (
            "read_ms = 30.0",
            "read_ms = 30.0\npoll_most_ms = 3.0",
            "needs a poll_first_ms",
        ),
        ("write_unit_bytes = 1024", "write_unit_bytes = 0", "a unit of no bytes"),
        ("read_price = 0.125", "read_price = 1e10", "from 0 to"),
        ("[link.tcp]", "[link.telex]", "unknown field"),
        ("source = \"a test\"", "source = \" \"", "has no source"),
        ("source = \"a test\", ", "", "missing field"),
        ("2026-01-01", "yesterday", "no date"),
    ] {
        let text = ROUND.replacen(from, to, 1);
        assert_ne!(text, ROUND, "{from} is there");
        let error = LinkPrices::parse(&text).expect_err("a wrong file").to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        assert!(error.starts_with("the prices: "), "{error}");
    }
    let long = format!("{ROUND}#{}", "x".repeat(1 << 20));
    assert!(LinkPrices::parse(&long).is_err());
}

#[test]
fn ranks_of_a_node_talk_through_its_memory() {
    let mut prices = round();
    prices.link.shm = Some(MessageTimes {
        latency_us: 1.0,
        ..prices.link.tcp.clone().expect("TCP")
    });
    let nodes = [0, 0, 0, 0, 1, 1, 1, 1];
    let barrier = scenario(Operation::Barrier, 0, 8);
    let near = Scenario {
        call: CollectiveCall {
            nodes: Some(&nodes),
            ..barrier.call
        },
        ..barrier
    };
    let seconds = |scenario: &Scenario| {
        estimate(scenario, LinkKind::Tcp, Table::built_in(), &prices)
            .expect("an estimate")
            .seconds()
    };
    assert!(
        (3e-3..3.001e-3).contains(&seconds(&barrier)),
        "three steps of a millisecond"
    );
    assert!((1e-3..1.1e-3).contains(&seconds(&near)), "one step between nodes");
}
