//! Tests of the client against a platform inside the test process that fails on command.

mod failures;
mod invocations;
mod providers;
mod registrations;
mod retries;
mod searches;

use crate::fake_platform::FakePlatform;
use crate::{Function, Invocation, LeaseOptions};

fn start(change: impl FnOnce(&mut LeaseOptions)) -> (FakePlatform, Function) {
    let mut options = LeaseOptions {
        depth: 4,
        replace_lease: false,
        ..LeaseOptions::default()
    };
    change(&mut options);
    let platform = FakePlatform::start(options);
    let echo = platform.invoker.function("echo").unwrap();
    (platform, echo)
}

fn echo_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn submit_all(function: &Function, numbers: std::ops::Range<u64>) -> Vec<Invocation> {
    numbers.map(|n| function.submit(&echo_of(n)).unwrap()).collect()
}
