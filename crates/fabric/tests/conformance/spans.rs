//! Transfers of large data: spans of registered memory.

use crate::ports::attended;
use crate::served::pattern;
use crate::transport::{Fabric, GENERATION, LONG, connected, introduce, open, shape};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Access, OfiError, TransferSpans};
use hotlease_fabric::ring::FarRing;
use hotlease_wire::fabric::RmaMemory;
use hotlease_wire::frame::Seq;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn memory(bytes: u64) -> Arc<Memory> {
    Arc::new(Memory::create("test", bytes).unwrap())
}

fn bytes(memory: &Memory, at: u64, length: usize) -> Vec<u8> {
    // SAFETY: inside the memory, and no operation is under way.
    unsafe { std::slice::from_raw_parts(memory.start().as_ptr().add(at as usize), length) }.to_vec()
}

fn fill(memory: &Memory, at: u64, data: &[u8]) {
    // SAFETY: as above.
    unsafe {
        let to = memory.start().as_ptr().add(at as usize);
        std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
    }
}

pub fn spans_of_every_size_are_read_and_written(fabric: &Fabric) {
    let (client, worker) = (fabric.port(), fabric.port());
    let (_to_worker, to_client) = introduce(&client, &worker);
    let mut sizes = vec![0, 1, 7, 64, 1000, 4096, 65_537, 1 << 20, (1 << 20) + 1, 9 << 20];
    match fabric.provider.name() {
        // Packets of 1.5 KB, each acknowledged in software: 64 MiB would take a minute.
        "udp;ofi_rxd" => {}
        _ => sizes.push(64 << 20),
    }
    for length in sizes {
        let (near, far) = (memory(length + 4096), memory(length + 4096));
        let data = pattern(length, length as usize);
        fill(&far, 3, &data);
        let lent = client.register(&far, Access::PeerReadsAndWrites).unwrap();
        let local = worker.register(&near, Access::Local).unwrap();
        let spans = TransferSpans {
            remote: lent.remote(),
            remote_offset: 3,
            local: &local,
            local_offset: 5,
            length,
        };
        attended(&client, || {
            worker.read(&to_client, &[spans], LONG).unwrap();
            assert!(
                bytes(&near, 5, length as usize) == data,
                "{length} bytes were read wrong"
            );
            let back = TransferSpans {
                remote_offset: 70,
                ..spans
            };
            worker.write(&to_client, &[back], LONG).unwrap();
            // Without FI_ORDER_SAW, `write` has waited for delivery; with it, the probe's message arrives after the
            // bytes.
            worker.probe(&to_client, LONG).unwrap();
        });
        assert!(
            bytes(&far, 70, length as usize) == data,
            "{length} bytes were written wrong"
        );
        assert_eq!(bytes(&near, 0, 5), [0; 5], "before the span");
        assert_eq!(bytes(&near, 5 + length, 64), [0; 64], "behind the span");
    }
}

/// Runs once, over the fastest provider, because it takes seconds, mostly for allocating the pages.
pub fn gibibyte_is_read_whole(fabric: &Fabric) {
    const BYTES: u64 = 1 << 30;
    let (client, worker) = (fabric.port(), fabric.port());
    let (_to_worker, to_client) = introduce(&client, &worker);
    let (near, far) = (memory(BYTES), memory(BYTES));
    for page in 0..BYTES / 4096 {
        fill(&far, page * 4096, &page.to_le_bytes());
        fill(&far, page * 4096 + 4088, &(!page).to_le_bytes());
    }
    let lent = client.register(&far, Access::PeerReads).unwrap();
    let local = worker.register(&near, Access::Local).unwrap();
    let spans = TransferSpans {
        remote: lent.remote(),
        remote_offset: 0,
        local: &local,
        local_offset: 0,
        length: BYTES,
    };
    attended(&client, || worker.read(&to_client, &[spans], 3 * LONG).unwrap());
    for page in 0..BYTES / 4096 {
        let found = bytes(&near, page * 4096, 4096);
        let right = found[..8] == page.to_le_bytes()
            && found[8..4088].iter().all(|byte| *byte == 0)
            && found[4088..] == (!page).to_le_bytes();
        assert!(right, "page {page} was read wrong");
    }
}

/// A key is an address, not a secret. Providers differ in the treatment of a wrong key, but the operation must fail,
/// and other memory must not change.
pub fn keys_that_are_guessed_or_stale_are_errors(fabric: &Fabric) {
    if fabric.provider.name() == "shm" {
        return eprintln!("not checked: it copies from process to process, and 1.17 takes any key");
    }
    let patience = Duration::from_secs(1);
    for what in ["right", "stale", "guessed"] {
        for write in [false, true] {
            // New ports for each case, because after an error several providers no longer connect the two ports.
            let (client, worker) = (fabric.port(), fabric.impatient_port(patience));
            let (_to_worker, to_client) = connected(&client, &worker);
            let (bystander, local) = (memory(4096), memory(4096));
            fill(&bystander, 0, &pattern(7, 4096));
            let kept = client.register(&bystander, Access::PeerReadsAndWrites).unwrap();
            let gone = client.register(&memory(4096), Access::PeerReadsAndWrites).unwrap();
            let remote = match what {
                "right" => *kept.remote(),
                "stale" => *gone.remote(),
                _ => RmaMemory {
                    key: kept.remote().key ^ 0x5a5a,
                    ..*kept.remote()
                },
            };
            drop(gone);
            let local = worker.register(&local, Access::Local).unwrap();
            let spans = TransferSpans {
                remote: &remote,
                remote_offset: 0,
                local: &local,
                local_offset: 0,
                length: 4096,
            };
            let result = attended(&client, || match write {
                // The write may complete without an answer of the peer. The peer's refusal then arrives with the answer
                // to the read that follows.
                true => worker
                    .write(&to_client, &[spans], patience)
                    .and_then(|()| worker.read(&to_client, &[spans], patience)),
                false => worker.read(&to_client, &[spans], patience),
            });
            if what == "right" {
                result.unwrap();
                continue;
            }
            assert!(result.is_err(), "a {what} key was taken (write: {write})");
            assert!(
                bytes(&bystander, 0, 4096) == pattern(7, 4096) && bytes(local.memory(), 0, 4096) == [0; 4096],
                "bytes went where a {what} key pointed (write: {write})"
            );
        }
    }
}

pub fn spans_outside_of_the_memory_are_refused(fabric: &Fabric) {
    let (client, worker) = (fabric.port(), fabric.port());
    let (to_worker, to_client) = introduce(&client, &worker);
    let lent = client.register(&memory(4096), Access::PeerReadsAndWrites).unwrap();
    let local = worker.register(&memory(4096), Access::Local).unwrap();
    let whole = TransferSpans {
        remote: lent.remote(),
        remote_offset: 0,
        local: &local,
        local_offset: 0,
        length: 4096,
    };
    let wraps = RmaMemory {
        address: u64::MAX,
        ..*lent.remote()
    };
    for bad in [
        TransferSpans { length: 4097, ..whole },
        TransferSpans {
            remote_offset: 1,
            ..whole
        },
        TransferSpans {
            local_offset: 1,
            ..whole
        },
        TransferSpans {
            remote_offset: u64::MAX,
            length: 2,
            ..whole
        },
        TransferSpans {
            local_offset: u64::MAX,
            length: 2,
            ..whole
        },
        TransferSpans {
            remote: &wraps,
            ..whole
        },
    ] {
        let error = worker.read(&to_client, &[bad], LONG).unwrap_err();
        assert!(
            matches!(error, OfiError::OutOfBounds { .. } | OfiError::BadEnd { .. }),
            "{error}"
        );
    }
    let error = client.read(&to_worker, &[whole], LONG).unwrap_err();
    assert!(
        matches!(error, OfiError::BadEnd { .. }),
        "memory of another port: {error}"
    );
}

/// Tests the ordering argument of the transport, as far as a test can: a frame that is published after a write finds
/// the whole span in place.
pub fn written_span_is_in_place_before_the_frame_that_follows(fabric: &Fabric) {
    let (client, worker) = (fabric.port(), fabric.port());
    let (to_worker, to_client) = introduce(&client, &worker);
    let ends = open(&to_worker, &to_client, shape(1, 64), shape(1, 64));
    let (far, near) = (memory(1 << 20), memory(1 << 20));
    let lent = client.register(&far, Access::PeerWrites).unwrap();
    let local = worker.register(&near, Access::Local).unwrap();
    let rounds = 60u64;
    std::thread::scope(|scope| {
        let slot = scope.spawn(|| {
            let mut ends_worker = ends.worker;
            for round in 1..=rounds {
                let begin = Instant::now();
                let request = loop {
                    worker.progress();
                    match ends_worker.take() {
                        Some(request) => break request,
                        None => assert!(begin.elapsed() < LONG, "no request"),
                    }
                };
                fill(&near, 0, &vec![round as u8; 1 << 20]);
                let length = [1 << 20, 4097, 100][round as usize % 3];
                let spans = TransferSpans {
                    remote: lent.remote(),
                    remote_offset: 0,
                    local: &local,
                    local_offset: 0,
                    length,
                };
                worker.write(&to_client, &[spans], LONG).unwrap();
                ends_worker.reply(&request, hotlease_wire::frame::InvocationStatus::Ok, 0, length);
                ends_worker.settle();
            }
            // Drives the port for long enough that the last reply leaves.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {
                ends_worker.far().progress();
            }
        });
        for round in 1..=rounds {
            let number = round - 1;
            ends.client.publish(number, &crate::served::CALL, &[b"go"]).unwrap();
            let begin = Instant::now();
            let header = loop {
                match ends.client.poll(number) {
                    Some(header) => break header.unwrap(),
                    None => assert!(begin.elapsed() < LONG, "no reply to {:?}", Seq::new(GENERATION, number)),
                }
            };
            let seen = bytes(&far, 0, header.length as usize);
            assert!(
                seen.iter().all(|byte| *byte == round as u8),
                "round {round}: the frame came first"
            );
        }
        slot.join().unwrap();
    });
}
