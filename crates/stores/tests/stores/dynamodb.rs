//! Tests over DynamoDB, with Amazon's own DynamoDB Local. The server listens on all addresses, so it runs in a network
//! of its own. For each test, this program is started again inside that network, with credentials.

mod local;
mod throttle;

use crate::operations::hold;
use crate::{communicators, failures, messages};
use hotlease_comm::{LinkChoice, LinkKind};
use local::{Local, link};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Bytes of a body that are stored together with its head, and of each further part.
const FIRST: usize = 31 << 10;
const PART: usize = 399 << 10;

/// Runs a test in the process that another test has started, with a table of its own, which must be empty afterwards;
/// does nothing if run directly.
fn passes(table: &str, test: impl Fn(&LinkChoice)) {
    let Some(link) = link(table) else { return };
    local::make(&link);
    test(&link);
    assert_eq!(local::items(table), 0, "something is left");
}

#[test]
fn every_operation_over_dynamodb_is_as_the_reference_says_and_leaves_nothing() {
    Local::run_shared("operations");
}

#[test]
#[ignore = "started by another test"]
fn operations() {
    passes("operations", |link| {
        hold(link, LinkKind::DynamoDb, [1, 3], &[0, 1000]);
        hold(link, LinkKind::DynamoDb, [5], &[1]);
        hold(link, LinkKind::DynamoDb, [2], &[20_000]);
    });
}

#[test]
fn messages_through_dynamodb_are_whole_in_order_and_read_by_slow_readers() {
    Local::run_shared("exchanges");
}

#[test]
#[ignore = "started by another test"]
fn exchanges() {
    passes("exchanges", |link| {
        messages::sizes(link, &[0, 1, FIRST, FIRST + 1, FIRST + PART, FIRST + PART + 1, 4 << 20]);
        messages::rules(link);
        messages::many(link, 20);
        messages::early_end(link, 60);
        messages::unread(link);
        messages::two_communicators(link);
    });
}

#[test]
fn communicators_split_and_end_over_dynamodb_shrink_and_grow() {
    Local::run_shared("parts");
    Local::run_shared("rest");
}

#[test]
#[ignore = "started by another test"]
fn parts() {
    passes("parts", |link| {
        communicators::parts(link);
        communicators::leaving(link);
    });
}

#[test]
#[ignore = "started by another test"]
fn rest() {
    let Some(link) = link("rest") else { return };
    local::make(&link);
    communicators::rest(&link, &local::link_with("rest", "&prefix=elsewhere/"));
}

#[test]
fn a_member_that_is_killed_or_stands_still_is_told_to_all_over_dynamodb_and_what_it_left_is_removed() {
    Local::run_shared("victims");
}

#[test]
#[ignore = "started by another test"]
fn victims() {
    let text = local::text("victims", local::PORT, "");
    passes("victims", |_| failures::strike_member(&text, Signal::SIGKILL));
    failures::strike_member(&text, Signal::SIGSTOP);
}

#[test]
fn dynamodb_that_refuses_or_has_no_such_table_is_an_error_that_says_what_to_do() {
    Local::run_shared("refusals");
    Local::run_as("refused", "no-such!key");
}

#[test]
#[ignore = "started by another test"]
fn refusals() {
    let Some(link) = link("refusals") else { return };
    let text = failures::refusal(&link);
    failures::check(
        &text,
        &[
            "dynamodb://refusals",
            "no such table",
            "aws dynamodb create-table",
            "expires",
        ],
    );
    // The command that the error suggests makes the table.
    local::make(&link);
    messages::sizes(&link, &[1]);
    local::ask("CreateTable", &local::table("strange", &[("id", "HASH")]));
    let text = failures::refusal(&local::link_with("strange", ""));
    failures::check(
        &text,
        &[
            "dynamodb://strange",
            "ValidationException",
            "`pk` and the sort key `sk`",
        ],
    );
}

#[test]
#[ignore = "started by another test"]
fn refused() {
    let Some(link) = link("refused") else { return };
    let text = failures::refusal(&link);
    failures::check(
        &text,
        &[
            "dynamodb://refused",
            "UnrecognizedClientException",
            "AWS_SECRET_ACCESS_KEY",
        ],
    );
    assert!(!text.contains(local::SECRET), "{text}");
}

#[test]
fn dynamodb_that_throttles_is_waited_for() {
    Local::run_shared("throttled");
}

#[test]
#[ignore = "started by another test"]
fn throttled() {
    passes("throttled", |_| throttle::waits("throttled"));
}

#[test]
fn dynamodb_that_stands_still_or_is_killed_in_the_middle_is_told_to_all_in_time() {
    for test in ["still", "gone"] {
        let Some(server) = Local::start() else { return };
        server.run(test, local::KEY);
    }
}

fn strike(signal: Signal, part: &str) {
    let Some(link) = link("struck") else { return };
    local::make(&link);
    let pid = std::env::var("HOTLEASE_TEST_PID").expect("of the server");
    let pid = Pid::from_raw(pid.parse().expect("a number"));
    let errors = failures::strike(&link, || kill(pid, signal).expect("it runs"));
    failures::hold(&errors, &link, part);
}

#[test]
#[ignore = "started by another test"]
fn still() {
    strike(Signal::SIGSTOP, "does not answer within");
}

#[test]
#[ignore = "started by another test"]
fn gone() {
    strike(Signal::SIGKILL, "look whether it is well");
}
