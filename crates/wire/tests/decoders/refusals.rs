//! Every rejection, and every cause in one.

use super::seeds::{END_REASONS, HASH};
use hotlease_wire::ids::Epoch;
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::objections::Objection;
use hotlease_wire::{Cause, EndReason, Refusal};

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

pub fn refusals() -> Vec<Refusal> {
    let mut refusals = vec![
        Refusal::NoCapacity {
            asked: 4,
            free: 1,
            offered: 2,
        },
        Refusal::NoPlaces {
            asked: 8,
            free: 0,
            offered: 8,
        },
        Refusal::NoGpus {
            asked: 2,
            free: 1,
            offered: 4,
        },
        Refusal::NoAgent,
        Refusal::NotTogether { asked: 9, found: 3 },
        Refusal::BadToken,
        Refusal::StaleEpoch {
            token: Epoch(1),
            current: Epoch(2),
        },
        Refusal::UnknownLease,
        Refusal::WrongTenant,
        Refusal::NotPermitted {
            what: "release with a token to invoke".into(),
        },
        Refusal::UnknownWorker { index: 4, workers: 2 },
        Refusal::UnknownSlot { index: 1, slots: 1 },
        Refusal::TooMany {
            what: "registered buffers".into(),
            limit: 1024,
        },
        Refusal::BadRequest {
            what: "depth 3 is not a power of two".into(),
        },
        Refusal::NeedCode(HASH),
        Refusal::CodeMismatch,
        Refusal::CodeRejected {
            why: "undefined symbol: dgemm_".into(),
        },
        Refusal::Version {
            theirs: 2,
            ours: PROTOCOL_VERSION,
        },
        Refusal::Timeout {
            what: "worker 0".into(),
            after_ms: 5000,
        },
        Refusal::Unavailable {
            what: "manager.sock: connection refused".into(),
        },
    ];
    refusals.push(Refusal::TenantNotServed {
        tenant: "alice".into(),
        served: "bob, carol".into(),
    });
    refusals.push(Refusal::QuotaExceeded {
        tenant: "alice".into(),
        what: "cores".into(),
        limit: 8,
        used: 8,
    });
    refusals.push(Refusal::NotAuthenticated {
        why: "the token has expired".into(),
    });
    refusals.push(Refusal::NoSandbox {
        kind: "namespace".into(),
        why: "the kernel has none".into(),
    });
    refusals.push(Refusal::NoEnvironment {
        environment: "00ff".repeat(16),
        why: "no store has it".into(),
    });
    refusals.push(Refusal::OutOfReach {
        what: "/scratch/ann to read".into(),
        node: "n1".into(),
        why: "it is not granted".into(),
    });
    refusals.push(Refusal::NeedsSharedMemory {
        what: "a channel's ring".into(),
    });
    refusals.push(Refusal::Nowhere {
        reasons: vec![Objection {
            nodes: vec!["n1".into(), "n2".into()],
            more: 3,
            why: "no such module".into(),
        }],
    });
    refusals.extend(END_REASONS.map(Refusal::LeaseEnded));
    refusals.extend(causes().into_iter().map(|cause| Refusal::WorkerDied {
        cause,
        output: "boom\n".into(),
    }));
    refusals
}
