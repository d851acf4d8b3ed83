//! Forged frames in the ring: each one is answered with the right status and has no other effect.

use hotlease_fabric::memory::Memory;
use hotlease_tests::lease::{Bystander, RawLease};
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_wire::connection::{ConnectionRequest, RingShape};
use hotlease_wire::frame::{EXPRESS_ENTRY, Flags, InvocationStatus, RequestHeader, Seq, Span};
use hotlease_wire::ids::{Epoch, FunctionIndex, RegionId};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::time::Duration;

/// Checks that a forged request is refused: the function did not run and there is no output.
#[track_caller]
fn refused(lease: &mut RawLease, what: &str, status: InvocationStatus, forge: impl FnOnce(&mut RequestHeader)) {
    let mut request = lease
        .channel
        .request(lease.epoch, lease.functions.index("echo"), b"forged");
    forge(&mut request);
    let reply = lease.channel.send(&request.encode());
    assert_eq!((reply.status, reply.length, reply.code), (status, 0, 0), "{what}");
    lease.echo();
}

#[test]
fn forged_epoch_is_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let mut other = RawLease::take(&platform);
    assert_ne!(lease.epoch, other.epoch, "every grant has an epoch of its own");
    let right = lease.epoch.0;
    for epoch in [
        right.wrapping_sub(1),
        right + 1,
        0,
        u32::MAX,
        right ^ 1 << 31,
        other.epoch.0,
    ] {
        refused(
            &mut lease,
            &format!("epoch {epoch}, not {right}"),
            InvocationStatus::StaleEpoch,
            |request| {
                request.epoch = Epoch(epoch);
            },
        );
    }
    other.echo();
}

#[test]
fn forged_function_index_is_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    // The library has one function, index 0.
    for index in [1, 2, 255, 256, 32767, 65535] {
        refused(
            &mut lease,
            &format!("function {index}"),
            InvocationStatus::UnknownFunction,
            |request| {
                request.function = FunctionIndex(index);
            },
        );
    }
    bystander.finish();
}

#[test]
fn forged_lengths_are_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    for length in [4097, 8192, 1 << 20, u32::MAX, u32::MAX - 63, 1 << 31] {
        refused(
            &mut lease,
            &format!("length {length}"),
            InvocationStatus::BadLength,
            |request| {
                request.length = length;
            },
        );
        refused(
            &mut lease,
            &format!("output capacity {length}"),
            InvocationStatus::BadLength,
            |request| {
                request.output_capacity = length;
            },
        );
    }
    // Payloads that are too short for the spans that they must begin with.
    for (flags, length) in [
        (Flags::INPUT_BUFFER, 0),
        (Flags::INPUT_BUFFER, 23),
        (Flags::OUTPUT_BUFFER, 6),
        (Flags::INPUT_BUFFER.with(Flags::OUTPUT_BUFFER), 47),
        (Flags::of_parts(16, 16).expect("as many as there may be"), 767),
    ] {
        refused(
            &mut lease,
            &format!("{flags:?} in {length} bytes"),
            InvocationStatus::BadLength,
            |request| {
                (request.flags, request.length) = (flags, length);
            },
        );
    }
    bystander.finish();
}

#[test]
fn forged_reply_entry_or_flags_are_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    for entry in [1, 7, 8, u32::MAX] {
        refused(
            &mut lease,
            &format!("reply entry +{entry}"),
            InvocationStatus::BadHeader,
            |request| {
                request.reply_entry = request.reply_entry.wrapping_add(entry);
                // The ring has 8 entries: +8 names the right entry modulo 8, and must be refused nevertheless.
            },
        );
    }
    let mut status_with = |flags: u64| {
        let request = lease.channel.request(lease.epoch, lease.functions.index("echo"), b"x");
        let mut words = request.encode();
        words[1] |= flags << 48;
        lease.channel.send(&words).status
    };
    // More parts than there may be; claims on a request that cannot be withdrawn.
    for bit in [13, 14, 15, 5, 6] {
        assert_eq!(status_with(1 << bit), InvocationStatus::BadHeader, "flag {bit}");
    }
    // A request that can be withdrawn: not claimed, and claimed before it arrives.
    assert_eq!(status_with(1 << 7), InvocationStatus::Ok);
    for claims in [1, 2, 3] {
        let status = status_with(1 << 7 | claims << 5);
        assert_eq!(status, InvocationStatus::Withdrawn, "claims {claims}");
    }
    lease.echo();
}

#[test]
fn express_entry_is_checked_like_the_ring() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    let echo = lease.functions.index("echo");
    type Forge = fn(&mut RequestHeader);
    let forgeries: [(&str, InvocationStatus, Forge); 8] = [
        ("nothing", InvocationStatus::Ok, |_| ()),
        ("epoch", InvocationStatus::StaleEpoch, |request| request.epoch.0 ^= 1),
        ("function", InvocationStatus::UnknownFunction, |request| {
            request.function.0 = 1
        }),
        ("length", InvocationStatus::BadLength, |request| request.length = 4097),
        ("capacity", InvocationStatus::BadLength, |request| {
            request.output_capacity = 4097
        }),
        ("spans", InvocationStatus::BadLength, |request| {
            request.flags = Flags::INPUT_BUFFER
        }),
        ("ring's reply entry", InvocationStatus::BadHeader, |request| {
            request.reply_entry = request.seq.word() as u32 & 7;
        }),
        ("nothing", InvocationStatus::Ok, |_| ()),
    ];
    for (what, status, forge) in forgeries {
        let mut request = lease.channel.express_request(lease.epoch, echo, b"express");
        forge(&mut request);
        let reply = lease.channel.send_express(&request.encode());
        assert_eq!(reply.status, status, "{what} forged");
        lease.echo();
    }
    // A request that belongs into the ring is not taken from the express entry, however often the doorbell rings. (One
    // more echo, so that the counts of the two differ.)
    lease.echo();
    let request = lease.channel.request(lease.epoch, echo, b"astray");
    lease.channel.write_words(EXPRESS_ENTRY, &request.encode());
    for _ in 0..20 {
        lease.echo();
    }
    let request = lease.channel.express_request(lease.epoch, echo, b"after");
    assert_eq!(
        lease.channel.send_express(&request.encode()).status,
        InvocationStatus::Ok
    );
    bystander.finish();
}

#[test]
fn span_outside_its_buffer_is_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    const SIZE: u64 = 100_000;
    let memory = Memory::create("test", SIZE).unwrap();
    lease.connection.register(7, &memory).unwrap();
    let span = |offset, length| Span {
        region: RegionId(7),
        offset,
        length,
    };
    let fine = span(0, 64);
    let (epoch, echo) = (lease.epoch, lease.functions.index("echo"));
    let mut send = |input: Span, output: Span| {
        let request = lease.channel.span_request(epoch, echo, input, output);
        lease.channel.send(&request.encode())
    };
    // The last byte of the memory still belongs to it.
    for (input, output) in [
        (fine, span(SIZE - 64, 64)),
        (span(SIZE - 64, 64), fine),
        (span(SIZE, 0), fine),
    ] {
        let reply = send(input, output);
        assert_eq!(
            (reply.status, reply.length),
            (InvocationStatus::Ok, input.length),
            "{input:?} {output:?}"
        );
    }
    for bad in [
        span(SIZE - 63, 64),
        span(SIZE, 1),
        span(SIZE + 1, 0),
        span(0, SIZE + 1),
        span(1 << 40, 64),
        span(u64::MAX, 1),
        span(u64::MAX - 63, 64),
        span(64, u64::MAX),
        span(u64::MAX, u64::MAX),
        span(1 << 63, 1 << 63),
    ] {
        assert_eq!(send(bad, fine).status, InvocationStatus::BadSpan, "input {bad:?}");
        assert_eq!(send(fine, bad).status, InvocationStatus::BadSpan, "output {bad:?}");
    }
    assert_eq!(send(fine, fine).status, InvocationStatus::Ok);
    bystander.finish();
}

#[test]
fn unknown_buffer_is_refused() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let memory = Memory::create("test", 4096).unwrap();
    lease.connection.register(1, &memory).unwrap();
    // This region is registered by another connection only.
    let (other, _) = lease.session.worker(0).unwrap();
    other.register(2, &Memory::create("test", 4096).unwrap()).unwrap();
    let span = |region| Span {
        region: RegionId(region),
        offset: 0,
        length: 64,
    };
    let (epoch, echo) = (lease.epoch, lease.functions.index("echo"));
    let mut status = |input, output| {
        let request = lease.channel.span_request(epoch, echo, span(input), span(output));
        lease.channel.send(&request.encode()).status
    };
    assert_eq!(status(1, 1), InvocationStatus::Ok);
    for unknown in [0, 2, 3, 1024, 1025, 65537, u32::MAX] {
        assert_eq!(
            status(unknown, 1),
            InvocationStatus::UnknownRegion,
            "input in region {unknown}"
        );
        assert_eq!(
            status(1, unknown),
            InvocationStatus::UnknownRegion,
            "output in region {unknown}"
        );
    }
    let region = RegionId(1);
    lease
        .connection
        .done(&ConnectionRequest::Deregister { region }, &[])
        .unwrap();
    assert_eq!(
        status(1, 1),
        InvocationStatus::UnknownRegion,
        "it is not registered any more"
    );
    // Memory that is smaller than before, under the same number.
    lease
        .connection
        .register(1, &Memory::create("test", 32).unwrap())
        .unwrap();
    assert_eq!(
        status(1, 1),
        InvocationStatus::BadSpan,
        "the size of the buffer that was there before"
    );
}

#[test]
fn frame_of_another_sequence_is_not_taken() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let request = lease
        .channel
        .request(lease.epoch, lease.functions.index("echo"), b"early");
    let right = request.seq;
    let (generation, number) = ((right.word() >> 32) as u32, right.word() & u64::from(u32::MAX));
    for seq in [
        Seq::new(generation.wrapping_add(1).max(1), number),
        Seq::new(generation, number + 1),
        Seq::new(generation, number + 8),
        Seq::new(generation, number.wrapping_sub(1)),
    ] {
        let words = RequestHeader { seq, ..request }.encode();
        lease.channel.write_words(0, &words);
        let reply = lease.channel.reply(seq, Duration::from_millis(20));
        assert_eq!(reply, None, "{seq:?} was answered; the next one is {right:?}");
    }
    lease.echo();
}

#[test]
fn random_and_mutated_frames_are_answered_and_harm_no_other_client() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    let memory = Memory::create("test", 4096).unwrap();
    lease.connection.register(1, &memory).unwrap();
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (epoch, echo) = (lease.epoch, lease.functions.index("echo"));
    for round in 0..20_000 {
        let span = Span {
            region: RegionId(1),
            offset: random.random_range(0..64),
            length: random.random_range(0..4000),
        };
        let mut words = match round % 3 {
            0 => std::array::from_fn(|_| random.random()),
            1 => lease.channel.request(epoch, echo, b"mutated").encode(),
            _ => lease.channel.span_request(epoch, echo, span, span).encode(),
        };
        words[0] = lease.channel.seq().word();
        if round % 3 > 0 {
            for _ in 0..random.random_range(0..4) {
                words[random.random_range(1..8)] ^= 1 << random.random_range(0..64);
            }
        }
        let reply = lease.channel.try_send(&words, LIMIT);
        let reply = reply.unwrap_or_else(|| panic!("no answer to {words:x?}, seed {seed}"));
        if reply.status == InvocationStatus::Ok {
            assert!(reply.length <= 4096, "{reply:?} to {words:x?}, seed {seed}");
        }
    }
    lease.echo();
    bystander.finish();
}

#[test]
fn payload_that_changes_while_it_is_used_harms_no_other_client() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let memory = Memory::create("test", 4096).unwrap();
    lease.connection.register(1, &memory).unwrap();
    let (epoch, echo) = (lease.epoch, lease.functions.index("echo"));
    let fine = Span {
        region: RegionId(1),
        offset: 0,
        length: 64,
    };
    let bad = Span {
        offset: u64::MAX - 64,
        length: 1 << 40,
        ..fine
    };
    // Spans are in the ring's payload area (48 bytes do not fit the line), which the client can write at any time: here
    // right after its request, so that the worker reads sometimes the right and sometimes the wrong ones.
    for round in 0..20_000 {
        let request = lease.channel.span_request(epoch, echo, fine, fine);
        let words = request.encode();
        lease.channel.write_words(request.seq.word() as u32, &words);
        lease
            .channel
            .overwrite_payload(request.seq.word() as u32, &[bad.encode(), bad.encode()].concat());
        let reply = lease.channel.reply(request.seq, LIMIT);
        let status = reply.unwrap_or_else(|| panic!("no answer in round {round}")).status;
        assert!(
            matches!(status, InvocationStatus::Ok | InvocationStatus::BadSpan),
            "{status:?} in round {round}"
        );
        lease.channel.skip();
    }
    lease.echo();
}

#[test]
fn ring_full_of_garbage_harms_no_other_client() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let bystander = Bystander::start(&platform);
    let shape = RingShape {
        depth: 64,
        entry_bytes: 64,
    };
    let channel = lease.connection.open(0, shape, shape).unwrap().unwrap();
    let mut random = StdRng::seed_from_u64(1);
    for round in 0..50_000u32 {
        channel.write_words(round, &std::array::from_fn(|_| random.random()));
    }
    lease.echo();
    bystander.finish();
}
