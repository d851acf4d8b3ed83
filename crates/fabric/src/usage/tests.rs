use super::*;

fn pair() -> (UsageBlock, UsageBlock) {
    let agent = UsageBlock::create(2).unwrap();
    let worker = UsageBlock::attach(agent.fd().try_clone_to_owned().unwrap(), 2).unwrap();
    worker.set_clock(1_000_000_000);
    (agent, worker)
}

#[test]
fn agent_sees_what_a_slot_does() {
    let (agent, worker) = pair();
    let meter = worker.meter(1);
    let invocation = InvocationId::from_bits(0x8000_1234_5678);
    meter.start((7, invocation), ticks(), 0, 0);
    assert_eq!(agent.first_call_ns(1), None, "it has not returned");
    let running = agent.read(1).running.unwrap();
    assert_eq!((running.function, running.invocation), (7, invocation));
    assert_eq!(agent.read(0).running, None);
    meter.stop();
    meter.add_ns(10, 20);
    let usage = agent.read(1);
    assert_eq!(
        (usage.hot_ns, usage.compute_ns, usage.invocations, usage.running),
        (10, 20, 1, None)
    );
}

#[test]
fn only_the_first_call_of_a_slot_is_its_first() {
    let (agent, worker) = pair();
    let meter = worker.meter(1);
    let invocation = InvocationId::from_bits(1);
    let begin = std::time::Instant::now();
    meter.start((7, invocation), ticks(), 0, 0);
    while begin.elapsed().as_millis() < 2 {}
    meter.stop();
    let first = agent.first_call_ns(1);
    assert!(first > Some(0), "{first:?}");
    meter.start((7, invocation), ticks(), 0, 0);
    meter.stop();
    assert_eq!(agent.first_call_ns(1), first);
    assert_eq!(agent.first_call_ns(0), None, "slots are kept apart");
}

#[test]
fn last_invocation_that_began_is_known_while_it_runs_and_afterwards() {
    let (agent, worker) = pair();
    let [first, second] = [0x8000_1234_5678, 9].map(InvocationId::from_bits);
    assert_eq!(agent.last_begun(1), None, "nothing began");
    worker.meter(1).start((7, first), ticks(), 0, 0);
    assert_eq!(agent.last_begun(1), Some((first, false)));
    worker.meter(1).stop();
    assert_eq!(agent.last_begun(1), Some((first, true)));
    worker.meter(1).start((7, second), ticks(), 0, 0);
    worker.record_crash(Some(1), 11, 0, 0);
    assert_eq!(agent.last_begun(1), Some((second, false)));
    assert_eq!(agent.last_begun(0), None, "slots are kept apart");
}

#[test]
fn crash_between_two_invocations_is_blamed_on_no_function() {
    let (agent, worker) = pair();
    worker.meter(0).start((7, InvocationId::from_bits(9)), ticks(), 0, 0);
    worker.meter(0).stop();
    worker.record_crash(Some(0), 11, 0, 0);
    let crash = agent.crash().unwrap();
    assert_eq!((crash.function, crash.invocation), (None, None));
}

#[test]
fn agent_sees_what_each_function_used_and_the_surplus_together() {
    let (agent, worker) = pair();
    for function in 0..FUNCTIONS_BILLED_MAX as u16 + 2 {
        let row = worker.row_for(1, 1000 + function);
        assert_eq!(row, worker.row_for(1, 1000 + function), "a row is for ever");
        worker.count_run(1, row, 5);
        worker.count_run(1, row, 6);
    }
    let seen: Vec<_> = agent.functions(1).collect();
    assert_eq!(seen.len(), FUNCTIONS_BILLED_MAX + 1);
    let used = |function, compute_ns, invocations| FunctionUsage {
        function,
        compute_ns,
        invocations,
    };
    assert_eq!(seen[0], used(Some(1000), 11, 2));
    assert_eq!(seen[FUNCTIONS_BILLED_MAX], used(None, 22, 4));
    assert!(
        agent.functions(0).all(|row| row.invocations == 0),
        "slots are kept apart"
    );
}

#[test]
fn overrun_is_told_from_other_faults() {
    for (address, overrun) in [
        (0x5000, Some(4096)),
        (0x5fff, Some(4096)),
        (0x6000, None),
        (0x4fff, None),
        (0, None),
    ] {
        let (agent, worker) = pair();
        let meter = worker.meter(0);
        let invocation = InvocationId::from_bits(9);
        meter.start((3, invocation), ticks(), 0, 0);
        meter.set_output(0x5000, 4096);
        worker.record_crash(Some(0), 11, address, 4096);
        let crash = agent.crash().unwrap();
        assert_eq!(crash.invocation, Some(invocation));
        assert_eq!(
            (crash.signal, crash.function, crash.overrun_capacity),
            (11, Some(3), overrun),
            "{address:#x}"
        );
    }
}

#[test]
fn failures_are_told_once_and_of_many_the_last() {
    let (agent, worker) = pair();
    let failure = |number: u64| InvocationFailure {
        invocation: InvocationId::from_bits(number),
        function: 3,
        status: Some(InvocationStatus::FunctionError),
        code: -(number as i32),
    };
    assert_eq!(agent.failures_since(0, 0), (0, vec![]));
    worker.record_failure(0, failure(1));
    worker.record_failure(0, failure(2));
    assert_eq!(agent.failures_since(0, 0), (2, vec![failure(1), failure(2)]));
    assert_eq!(agent.failures_since(0, 2), (2, vec![]));
    (3..=40).for_each(|number| worker.record_failure(0, failure(number)));
    let (count, last) = agent.failures_since(0, 2);
    assert_eq!((count, last.len()), (40, FAILURES_KEPT));
    assert_eq!((last[0], last[15]), (failure(25), failure(40)));
    assert_eq!(agent.failures_since(1, 0).0, 0, "slots are kept apart");
}

#[test]
fn block_filled_with_ones_is_read_without_panic() {
    let (agent, worker) = pair();
    // SAFETY: fills the block's own memory, as a hostile worker could.
    unsafe { worker.memory.start().write_bytes(0xff, UsageBlock::bytes(2) as usize) };
    let _ = (agent.read(0), agent.read(1), agent.crash());
    assert!(agent.functions(1).all(|row| row.function.is_none()));
    assert!(agent.failures_since(1, 5).1.len() <= FAILURES_KEPT);
    worker.count_run(0, worker.row_for(0, 7), 1);
}
