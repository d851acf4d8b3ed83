//! Tests of members that communicate through stores, with the real servers.

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "../../../comm/tests/members/group/mod.rs"]
mod group;

#[path = "../../../comm/tests/members/typed/mod.rs"]
mod typed;

#[path = "../../../comm/tests/members/struck/mod.rs"]
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

use hotlease_comm::rendezvous::Server;
use hotlease_comm::{Communicator, LinkChoice, Options, Rank};

/// Options of a member, with the links of this crate.
fn options(server: &Server, name: &str, size: Rank) -> Options {
    let mut options = group::options(server, name, size);
    options.stores = hotlease_stores::openers();
    options
}

/// Runs a member of each rank over a store, as threads; all finish at the end.
fn each<R: Send>(size: Rank, link: &LinkChoice, member: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    group::each_over(
        link,
        size,
        // No member fails here; the longer bound allows for a busy host.
        |options| {
            options.failure_bound = std::time::Duration::from_secs(6);
            options.stores = hotlease_stores::openers();
        },
        |all| {
            let result = member(&all);
            all.finish().expect("everything is read");
            result
        },
    )
}
