//! Promises of a channel over any transport.

use crate::served::{CALL, Served, Wait, pattern};
use crate::transport::{Pair, shape};

const DEFAULT: u32 = 8128;

pub fn every_size_and_alignment_comes_back_whole<P: Pair>(pair: &P) {
    let entry = 70_000;
    let served = Served::start(pair.connect(shape(4, entry), shape(4, entry)), Wait::Poll, Wait::Poll);
    let sizes = (0..=66)
        .chain([100, 928, 1023, 1024, 1025, 4000, 4095, 4096, 4097, 8128, 16_384, 65_537])
        .chain([entry as usize - 1, entry as usize]);
    let mut number = 0;
    for bytes in sizes {
        served.round_trip(number, &pattern(number, bytes));
        number += 1;
    }
    // The caller's data at every alignment, in each form: in the line, in the message, and written ahead of the
    // message.
    for alignment in 0..=64 {
        for bytes in [24, 1000, 9000] {
            let buffer = pattern(number, alignment + bytes);
            served.round_trip(number, &buffer[alignment..]);
            number += 1;
        }
    }
}

pub fn requests_can_be_read_back_until_their_entry_is_used_again<P: Pair>(pair: &P) {
    let served = Served::start(pair.connect(shape(2, 16_000), shape(2, 16_000)), Wait::Poll, Wait::Poll);
    assert_eq!(served.client.recall(0), None, "nothing was published");
    for (number, bytes) in [0, 1, 8, 31, 32, 33, 900, 8128, 16_000].into_iter().enumerate() {
        let (number, input) = (number as u64, pattern(number as u64, bytes));
        served.round_trip(number, &input);
        assert_eq!(served.client.recall(number), Some(input), "{bytes} bytes");
        assert_eq!(served.client.recall(number + 2), None, "not what is to come");
        if let Some(before) = number.checked_sub(2) {
            assert_eq!(served.client.recall(before), None, "its entry was used again");
        }
    }
}

pub fn pipelined_invocations_come_back_in_order_over_many_laps<P: Pair>(pair: &P) {
    for (depth, bytes, count) in [
        (1u32, 8usize, 200u64),
        (2, 5000, 200),
        (8, 100, 2000),
        (64, 8, 5000),
        (16, 8128, 500),
        (4, 16_000, 200),
    ] {
        let ends = pair.connect(shape(depth, 16_000), shape(depth, 16_000));
        let served = Served::start(ends, Wait::Poll, Wait::Poll);
        let input = |number: u64| pattern(number, bytes - (number % 5) as usize);
        let harvest = |number: u64| {
            let header = served.reply(number);
            served.check(number, &header, &input(number));
        };
        for number in 0..count {
            if let Some(oldest) = number.checked_sub(u64::from(depth)) {
                harvest(oldest);
            }
            served.client.publish(number, &CALL, &[&input(number)]).unwrap();
        }
        (count - u64::from(depth)..count).for_each(harvest);
    }
}

pub fn express_entry_and_ring_mix<P: Pair>(pair: &P) {
    let ends = pair.connect(shape(4, DEFAULT), shape(4, DEFAULT));
    let served = Served::start(ends, Wait::Poll, Wait::Poll);
    let (mut in_ring, mut in_express) = (0, 0);
    for step in 0..300 {
        let input = pattern(step, [0, 8, 33, 4000, 8128][step as usize % 5]);
        if step % 3 == 0 {
            let express = served.client.express();
            express.publish_quiet(in_express, &CALL, &[&input]).unwrap();
            served.client.ring();
            let header = served.express_reply(in_express);
            let mut output = vec![0; input.len()];
            assert_eq!(express.read(&header, &mut output), input.len());
            assert!(output == input, "express invocation {in_express}");
            in_express += 1;
        } else {
            served.round_trip(in_ring, &input);
            in_ring += 1;
        }
    }
}

pub fn both_ends_may_sleep<P: Pair>(pair: &P) {
    waits(pair, Wait::Sleep, Wait::Sleep);
}

pub fn sleeping_ends_and_polling_ends_mix<P: Pair>(pair: &P) {
    waits(pair, Wait::Sleep, Wait::Poll);
    waits(pair, Wait::Poll, Wait::Sleep);
}

/// If wake-ups were lost, each invocation would take the 100 ms for which a sleeper sleeps at most.
fn waits<P: Pair>(pair: &P, client: Wait, worker: Wait) {
    let ends = pair.connect(shape(4, DEFAULT), shape(4, DEFAULT));
    let served = Served::start(ends, client, worker);
    served.round_trip(0, b"the first sets up the connection");
    let begin = std::time::Instant::now();
    let count = 300;
    for number in 1..=count {
        served.round_trip(number, &pattern(number, [8, 1000, 8128][number as usize % 3]));
    }
    let each = begin.elapsed() / count as u32;
    assert!(
        each < std::time::Duration::from_millis(90),
        "{each:?} for an invocation: wake-ups are lost ({client:?} client, {worker:?} worker)"
    );
}
