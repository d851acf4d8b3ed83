//! Processes that functions fork: they start as if hotlease were not there.

use hotlease_client::{Cause, Error};
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::until_true;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Signals that the C library keeps for itself.
const OF_LIBRARY: u64 = 3 << 31;

#[test]
fn children_of_a_function_have_the_default_actions_of_signals() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    for name in ["signals_of_a_program", "signals_of_a_child"] {
        let function = invoker.function(name).unwrap().output_bytes(4096);
        let told = String::from_utf8(function.call(&[]).unwrap()).unwrap();
        let signals = told.lines().map(|line| {
            let (_, number) = line.split_once(":\t").expect("a line of the status");
            u64::from_str_radix(number, 16).expect("a number") & !OF_LIBRARY
        });
        // Blocked, ignored, caught.
        assert_eq!(signals.collect::<Vec<_>>(), [0, 0, 0], "{name}: {told}");
    }
    let pipe = invoker.function("writes_to_a_closed_pipe").unwrap();
    assert_eq!(
        pipe.call(&[]).unwrap(),
        [1],
        "the worker itself does not die of SIGPIPE"
    );
}

#[test]
fn only_the_parent_of_a_fork_answers_and_a_child_s_end_is_not_the_worker_s() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    let forks = invoker.function("forks").unwrap();
    for _ in 0..3 {
        assert_eq!(forks.call(&[]).unwrap(), 0i32.to_le_bytes());
    }
    let dies = invoker.function("outlives_its_children").unwrap();
    match dies.call(&[]) {
        Err(Error::WorkerDied { cause, .. }) => {
            assert!(matches!(cause, Cause::Exit { status: 4, .. }), "{cause:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_child_of_a_program_invokes_nothing_on_its_parent_s_lease() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    let function = invoker.function("writes_to_a_closed_pipe").unwrap();
    // From now on this thread has the channel cached, and so has the child's thread.
    assert_eq!(function.call(&[]).unwrap(), [1]);
    // SAFETY: the child allocates, which the C library allows after a fork, and ends.
    match unsafe { fork() }.expect("another process") {
        ForkResult::Child => {
            let is_refused = || matches!(function.call(&[]), Err(Error::Options { .. }));
            let status = if is_refused() && is_refused() { 0 } else { 1 };
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    assert_eq!(function.call(&[]).unwrap(), [1], "the parent's lease is as before");
}

#[test]
fn the_child_of_a_program_takes_no_results_of_its_parent_s_invocations() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    let function = invoker.function("writes_to_a_closed_pipe").unwrap();
    let (future, mut pipeline) = (function.submit(&[]).unwrap(), function.pipeline().unwrap());
    pipeline.push(&[]).unwrap();
    let mut output = [0];
    // SAFETY: the child allocates, which the C library allows after a fork, and ends.
    match unsafe { fork() }.expect("another process") {
        ForkResult::Child => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(30) };
            let told = [
                matches!(future.wait(), Err(Error::OutcomeUnknown { .. })),
                matches!(pipeline.push(&[]), Err(Error::Options { .. })),
                matches!(pipeline.try_pop(&mut output), Err(Error::OutcomeUnknown { .. })),
                matches!(pipeline.push(&[]), Err(Error::Options { .. })),
            ];
            drop(pipeline);
            let status = told.iter().position(|right| !right).map_or(0, |wrong| 1 + wrong as i32);
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    assert_eq!(future.wait().unwrap(), [1]);
    assert_eq!((pipeline.pop(&mut output).unwrap(), output), (Some(1), [1]));
    assert!(pipeline.is_empty());
}

#[test]
fn the_child_of_a_program_withdraws_none_of_its_parent_s_invocations() {
    let platform = Platform::start();
    let invoker = platform.invoker("misbehaved");
    let (started, queued) = (Marks::new(), Marks::new());
    let naps = invoker.function("marks_and_naps").unwrap();
    let marks = invoker.function("marks").unwrap().withdrawable();
    // The other calls wait behind this call.
    let running = naps.submit(&started.input()).unwrap();
    let future = marks.submit(&queued.input()).unwrap();
    let mut pipeline = marks.pipeline().unwrap();
    pipeline.push(&queued.input()).unwrap();
    until_true("the first runs", LIMIT, || started.count() == 1);
    // SAFETY: the child allocates, which the C library allows after a fork, and ends.
    match unsafe { fork() }.expect("another process") {
        ForkResult::Child => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(30) };
            let status = match (future.withdraw(), pipeline.withdraw_last()) {
                (Err(_), false) => 0,
                (Ok(()), _) => 1,
                (Err(_), true) => 2,
            };
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    running.wait().unwrap();
    future.wait().unwrap();
    assert!(pipeline.pop(&mut [0; 64]).unwrap().is_some());
    assert_eq!(queued.count(), 2);
}
