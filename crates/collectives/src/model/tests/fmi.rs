//! Figures of FMI (Copik et al. 2023) that are available: the model parameters of its code, and their consequences.
//!
//! The text of the paper was not available, so nothing of its tables II to IV is quoted. These figures are missing: the
//! printed alpha and beta of FMI's channels (for DynamoDB the code of FMI has none), the formulas and prices of FMI's
//! collectives, and the prices of the paper's examples. Instead, the tests check what the code of FMI computes for a
//! message, with the units of that code corrected.

use super::*;

fn prices() -> LinkPrices {
    LinkPrices::parse(include_str!("fmi.toml")).expect("a file")
}

/// Estimates one message from a function of 2 GiB to another function. It is one of a thousand operations in an hour
/// that share the servers.
fn message(link: LinkKind, bytes: usize) -> Estimate {
    let message = Scenario {
        operations_per_hour: Some(1000.0),
        ..scenario(Operation::Broadcast, bytes, 2)
    };
    estimate(&message, link, Table::built_in(), &prices()).expect("an estimate")
}

/// Seconds that FMI's model gives for one message: its overhead, and its size over the bandwidth. The overhead counts
/// once, because `log2(1 producer + 1 consumer) = 1`.
fn overhead_and_transfer(overhead_ms: f64, bytes: usize, bandwidth_mb_s: f64) -> f64 {
    overhead_ms / 1e3 + bytes as f64 / 1e6 / bandwidth_mb_s
}

#[test]
fn a_message_takes_and_costs_what_the_parameters_of_fmi_say() {
    for bytes in [1, 1_000, 1_000_000, 100_000_000] {
        let direct = message(LinkKind::Tcp, bytes);
        close(direct.seconds(), overhead_and_transfer(0.34, bytes, 400.0), "direct");
        close(direct.price.servers, 0.0134 / 1000.0, "the rendezvous");

        let redis = message(LinkKind::Redis, bytes);
        close(redis.seconds(), overhead_and_transfer(5.2, bytes, 100.0), "Redis");
        close(redis.price.servers, 0.0038 / 1000.0, "Redis' node");
        assert_eq!(redis.price.requests, 0.0);

        // FMI assumes that a reader sleeps for half a pause, and makes half of the polls after which it gives up. Here
        // the time and the number of polls follow from the time when the object exists.
        let s3 = message(LinkKind::S3, bytes);
        let waited = overhead_and_transfer(20.2, bytes, 100.0);
        let polls = (waited / 0.1202).ceil();
        let expected = polls * 0.1202 + overhead_and_transfer(20.2, bytes, 100.0);
        close(s3.seconds(), expected, "S3");
        close(s3.price.requests, 5.4e-6 + (1.0 + polls) * 4.3e-7, "a PUT, and GETs");
        for estimate in [direct, redis, s3] {
            let functions = estimate.seconds() * 2.0 * 2.0 * 0.0000166667;
            close(estimate.price.functions, functions, "two functions of 2 GiB");
        }
    }
}

#[test]
fn a_redis_node_has_one_port() {
    // 31 readers of 100 MB, at 400 MB/s together.
    let broadcast = scenario(Operation::Broadcast, 100_000_000, 32);
    let estimate = estimate(&broadcast, LinkKind::Redis, Table::built_in(), &prices()).expect("an estimate");
    close(estimate.seconds(), 5.2e-3 + 31.0 * 100.0 / 400.0, "through one port");
}

#[test]
fn direct_messages_are_fastest_and_cheapest_as_fmi_found() {
    let links = [LinkKind::Tcp, LinkKind::Redis, LinkKind::S3];
    for ranks in [2, 8, 32] {
        for bytes in [4, 40_000, 1 << 20] {
            for operation in [
                Operation::Broadcast,
                Operation::Reduce,
                Operation::Allreduce,
                Operation::Scan,
            ] {
                let collective = scenario(operation, bytes, ranks);
                for by in [Criterion::Time, Criterion::Price, Criterion::Product] {
                    let best = choose(&collective, by, &links, Table::built_in(), &prices()).expect("a choice");
                    assert_eq!(
                        best.link,
                        LinkKind::Tcp,
                        "{operation} of {bytes} bytes by {ranks} ranks, by {by}"
                    );
                }
            }
        }
    }
}
