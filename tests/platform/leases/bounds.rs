//! Bounds that a node's operator sets for its leases.

use hotlease_client::{Error, LeaseOptions};
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use hotlease_wire::EndReason;
use std::time::Duration;

#[test]
fn a_lease_ends_when_it_is_idle_or_old_and_its_time_to_live_is_cut() {
    let bounds = [
        "--lease-ttl",
        "700ms",
        "--lease-duration",
        "4s",
        "--lease-idle",
        "400ms",
    ];
    let nodes = Nodes::start_with(1, &bounds);
    let grant = nodes.manager().lease(1, Duration::from_secs(60)).expect("a free core");
    assert_eq!(grant.ttl_ms, 700);
    nodes.manager().release(&grant.lease).expect("it is active");

    let kept = LeaseOptions {
        replace_lease: false,
        ttl: Duration::from_secs(60),
        ..nodes.lease_options()
    };
    let ended = |lease: &str| {
        nodes
            .manager()
            .lease_info(lease)
            .is_some_and(|info| info.state == "ended")
    };
    let idle = nodes.invoker("behaved", kept.clone());
    let echo = idle.function("echo").expect("a function of the fixture");
    assert_eq!(echo.call(b"x").expect("it runs"), b"x");
    until_true("the idle lease ends", LIMIT, || ended(&idle.lease().to_string()));
    let refused = echo.call(b"x").expect_err("it is over");
    let reason = match refused {
        Error::LeaseEnded { reason, .. } => reason,
        other => panic!("{other}"),
    };
    assert_eq!(reason, EndReason::Idle);

    let busy = nodes.invoker("behaved", kept);
    let echo = busy.function("echo").expect("a function of the fixture");
    let mut last = None;
    until_true("the busy lease ends, too", LIMIT, || {
        last = echo.call(b"x").err();
        last.is_some()
    });
    let reason = match last.expect("it ended") {
        Error::LeaseEnded { reason, .. } => reason,
        other => panic!("{other}"),
    };
    assert_eq!(reason, EndReason::DurationOver);
    // A client that may take another lease goes on.
    let invoker = nodes.invoker("behaved", nodes.lease_options());
    let echo = invoker.function("echo").expect("a function of the fixture");
    let first = invoker.lease();
    until_true("another lease is in use", LIMIT, || {
        assert_eq!(echo.call(b"x").expect("it runs on one lease or the next"), b"x");
        invoker.lease() != first
    });
}
