//! Tests of members that communicate through stores, with the real servers.

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "../group/mod.rs"]
mod group;

#[path = "../typed/mod.rs"]
mod typed;

#[path = "../struck/mod.rs"]
mod struck;

mod auto;
mod communicators;
mod dynamodb;
mod failures;
mod messages;
mod operations;
mod progress;
mod redis;
mod reference;
mod s3;

use hotlease_comm::{Communicator, LinkChoice, Rank};

/// Runs a member of each rank over a store, as threads; all finish at the end.
fn each<R: Send>(size: Rank, link: &LinkChoice, member: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    group::each_over(
        link,
        size,
        // No member fails here; the longer bound allows for a busy host.
        |options| options.failure_bound = std::time::Duration::from_secs(6),
        |all| {
            let result = member(&all);
            all.finish().expect("everything is read");
            result
        },
    )
}
