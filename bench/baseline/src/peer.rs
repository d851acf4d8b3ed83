//! Peer of the raw round trips: answers until told to stop.

use crate::RoundTripKind;
use crate::area::{Area, STOP};
use crate::futex;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Answers the client of `memory` until that client says stop. Returns false, without touching anything, if the memory
/// is too small or misaligned for the kind.
///
/// # Safety
/// `memory` is valid for reads and writes of `bytes` bytes during the call, and its only other user is one
/// [`crate::Client`] of the same kind.
pub unsafe fn serve_peer(memory: *mut u8, bytes: usize, kind: RoundTripKind) -> bool {
    // SAFETY: promised by the caller.
    let Some(area) = (unsafe { Area::new(memory, bytes) }) else {
        return false;
    };
    match kind {
        RoundTripKind::Line { words } => match words {
            0 | 1 => answer_lines::<1>(&area),
            2 => answer_lines::<2>(&area),
            3 => answer_lines::<3>(&area),
            4 => answer_lines::<4>(&area),
            5 => answer_lines::<5>(&area),
            6 => answer_lines::<6>(&area),
            7 => answer_lines::<7>(&area),
            _ => return false,
        },
        RoundTripKind::Copy { bytes } if bytes > area.payload_bytes => return false,
        RoundTripKind::Copy { bytes } => answer_copies(&area, bytes),
        RoundTripKind::Futex { client_sleeps } => answer_sleeping(&area, client_sleeps),
    }
    true
}

fn answer_lines<const WORDS: usize>(area: &Area) {
    let (request, reply) = (area.request.line(), area.reply.line());
    let mut expected = 1;
    loop {
        let seq = request.seq.load(Acquire);
        if seq == expected {
            for (to, from) in reply.words[..WORDS].iter().zip(&request.words) {
                to.store(from.load(Relaxed), Relaxed);
            }
            reply.seq.store(seq, Release);
            expected += 1;
        } else if seq == STOP {
            return;
        }
    }
}

fn answer_copies(area: &Area, bytes: usize) {
    let (request, reply) = (area.request.line(), area.reply.line());
    let mut expected = 1;
    loop {
        let seq = request.seq.load(Acquire);
        if seq == expected {
            // SAFETY: `bytes` fits both payloads (checked by the caller), which do not overlap; the client touches
            // neither between its request and the reply.
            unsafe { copy_nonoverlapping(area.request.payload(), area.reply.payload(), bytes) };
            reply.seq.store(seq, Release);
            expected += 1;
        } else if seq == STOP {
            return;
        }
    }
}

fn answer_sleeping(area: &Area, client_sleeps: bool) {
    let (request, reply) = (&area.request.line().seq, &area.reply.line().seq);
    let mut last = 0;
    loop {
        last = futex::sleep_while(request, last);
        if last == STOP {
            return;
        }
        reply.store(last, Release);
        if client_sleeps {
            futex::wake(reply);
        }
    }
}
