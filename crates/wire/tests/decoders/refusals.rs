//! Every rejection, and every cause of a worker's death in a rejection.

use super::seeds::{END_REASONS, HASH};
use hotlease_wire::ids::Epoch;
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::rejection::objections::Objection;
use hotlease_wire::{Cause, EndReason, Rejection};

pub fn causes() -> Vec<Cause> {
    vec![
        Cause::Signal {
            signal: 11,
            function: Some(2),
        },
        Cause::Signal {
            signal: 9,
            function: None,
        },
        Cause::OutputOverrun {
            function: Some(0),
            capacity: 64,
        },
        Cause::Exit {
            status: 3,
            function: None,
        },
        Cause::OutOfMemory,
        Cause::Deadline {
            function: Some(1),
            timeout_us: 1000,
        },
        Cause::LeaseEnded(EndReason::Expired),
        Cause::NotStarted {
            why: "no such file".into(),
            lasts: true,
        },
        Cause::AgentGone,
    ]
}

pub fn refusals() -> Vec<Rejection> {
    let mut refusals = vec![
        Rejection::NoCapacity {
            asked: 4,
            free: 1,
            offered: 2,
        },
        Rejection::NoPlaces {
            asked: 8,
            free: 0,
            offered: 8,
        },
        Rejection::NoGpus {
            asked: 2,
            free: 1,
            offered: 4,
        },
        Rejection::NoAgent,
        Rejection::NotTogether { asked: 9, found: 3 },
        Rejection::BadToken,
        Rejection::StaleEpoch {
            token: Epoch(1),
            current: Epoch(2),
        },
        Rejection::UnknownLease,
        Rejection::WrongTenant,
        Rejection::NotPermitted {
            what: "release with a token to invoke".into(),
        },
        Rejection::UnknownWorker { index: 4, workers: 2 },
        Rejection::UnknownSlot { index: 1, slots: 1 },
        Rejection::TooMany {
            what: "registered buffers".into(),
            limit: 1024,
        },
        Rejection::BadRequest {
            what: "depth 3 is not a power of two".into(),
        },
        Rejection::NeedCode(HASH),
        Rejection::CodeMismatch,
        Rejection::CodeRejected {
            why: "undefined symbol: dgemm_".into(),
        },
        Rejection::Version {
            theirs: 2,
            ours: PROTOCOL_VERSION,
        },
        Rejection::Timeout {
            what: "worker 0".into(),
            after_ms: 5000,
        },
        Rejection::Unavailable {
            what: "manager.sock: connection refused".into(),
        },
    ];
    refusals.push(Rejection::TenantNotServed {
        tenant: "alice".into(),
        served: "bob, carol".into(),
    });
    refusals.push(Rejection::QuotaExceeded {
        tenant: "alice".into(),
        what: "cores".into(),
        limit: 8,
        used: 8,
    });
    refusals.push(Rejection::NotAuthenticated {
        why: "the token has expired".into(),
    });
    refusals.push(Rejection::NoSandbox {
        kind: "namespace".into(),
        why: "the kernel has none".into(),
    });
    refusals.push(Rejection::NoEnvironment {
        environment: "00ff".repeat(16),
        why: "no store has it".into(),
    });
    refusals.push(Rejection::OutOfReach {
        what: "/scratch/ann to read".into(),
        node: "n1".into(),
        why: "it is not granted".into(),
    });
    refusals.push(Rejection::NeedsSharedMemory {
        what: "a channel's ring".into(),
    });
    refusals.push(Rejection::NoSuitableAgent {
        reasons: vec![Objection {
            nodes: vec!["n1".into(), "n2".into()],
            more: 3,
            why: "no such module".into(),
        }],
    });
    refusals.extend(END_REASONS.map(Rejection::LeaseEnded));
    refusals.extend(causes().into_iter().map(|cause| Rejection::WorkerDied {
        cause,
        output: "boom\n".into(),
    }));
    refusals
}
