//! Functions that the benchmarks of fabrics invoke: those of `hotlease-bench-functions`, and the peers of their
//! baselines, which therefore run in the same slot as the functions that are compared with them.
//!
//! | function | input | output |
//! |---|---|---|
//! | `produce` | any bytes | as many bytes as the output has room for, not written |
//! | `work` | nanoseconds, bytes, any bytes | that many bytes, not written, after that time |
//! | `raw_fabric_open` | [`PeerParameters`] | address and keys of the raw peer, which it makes |
//! | `raw_fabric_serve` | address and keys of the client, or nothing | none: answers the client until told to stop |
//! | `tcp_sink` | a token of 16 bytes, an address | none: connects there, sends the token, answers each frame |
//!
//! It is a separate library: otherwise libfabric's bindings would be part of every cold start that is measured with
//! `hotlease-bench-functions`.

mod tcp_sink;

use hotlease_bench_fabric::{EndAddress, Peer, PeerParameters};
use hotlease_bench_functions::{BAD_ARGUMENT, context_functions, write_if_fits};
use hotlease_fabric::memory::Memory;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Error code of a baseline's peer that does not work.
const FAILED: i32 = 5;

/// Longest time that `work` spins.
const LONGEST_NS: u64 = 1_000_000_000;

/// Raw peer of the one slot on which a benchmark runs.
static PEER: Mutex<Option<Peer>> = Mutex::new(None);

fn open(input: &[u8]) -> Option<Vec<u8>> {
    let opening = PeerParameters::from_bytes(input)?;
    let provider = opening.provider().ok()?;
    let memory = Arc::new(Memory::create("raw-peer", opening.memory_bytes).ok()?);
    let peer = Peer::open(&provider, &memory, opening.sleeps).ok()?;
    let hello = peer.hello().ok()?.to_bytes();
    *PEER.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    Some(hello)
}

fn serve(input: &[u8]) -> Option<()> {
    let mut peer = PEER.lock().unwrap_or_else(PoisonError::into_inner);
    let peer = peer.as_mut()?;
    if !input.is_empty() {
        peer.meet(&EndAddress::from_bytes(input)?).ok()?;
    }
    peer.serve().ok()
}

context_functions! {
    produce hotlease_context_produce "Returns as many bytes as there is room for.":
        |_input, output| Ok(output.len());

    work hotlease_context_work "Spins for so many nanoseconds, returns so many bytes: two 64-bit words.":
        |input, output| {
            let [time, bytes] = match input.as_chunks::<8>().0 {
                [time, bytes, ..] => [time, bytes].map(|word| u64::from_le_bytes(*word)),
                _ => return BAD_ARGUMENT,
            };
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_nanos(time.min(LONGEST_NS)) {
                std::hint::spin_loop();
            }
            // A size that does not fit is reported to the caller.
            Ok(usize::try_from(bytes).unwrap_or(usize::MAX).min(output.len()))
        };

    raw_fabric_open hotlease_context_raw_fabric_open "Makes the raw peer.":
        |input, output| match open(input) {
            Some(hello) => write_if_fits(output, &hello),
            None => Err(BAD_ARGUMENT),
        };

    raw_fabric_serve hotlease_context_raw_fabric_serve "Is the raw peer until its client says stop.":
        |input, _output| serve(input).map(|()| 0).ok_or(FAILED);

    tcp_sink hotlease_context_tcp_sink "Reads from a connection to the client until that hangs up.":
        |input, _output| tcp_sink::run(input).map(|()| 0).map_err(|_| FAILED);
}
