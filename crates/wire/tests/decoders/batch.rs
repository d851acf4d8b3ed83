//! Decoders of the node socket.

use super::message;
use hotlease_wire::batch::{BatchJob, CORE_MAX, JobShare, NAME_BYTES_MAX, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use hotlease_wire::{decode, encode};

pub fn request(bytes: &[u8]) -> bool {
    if let Ok(request) = decode::<NodeRequest>(bytes) {
        // Its result is not looked at: it must not panic.
        let _ = request.check();
    }
    message::<NodeRequest>(bytes)
}

pub fn requests() -> Vec<Vec<u8>> {
    let shares = [
        JobShare::Node,
        JobShare::Part {
            cores: [0, CORE_MAX].into(),
            gpus: [].into(),
            memory_bytes: u64::MAX,
        },
    ];
    let jobs = shares.map(|share| {
        NodeRequest::Yield(BatchJob {
            id: JobId(17),
            user: "a".repeat(NAME_BYTES_MAX),
            partition: "normal".into(),
            account: String::new(),
            share,
        })
    });
    jobs.iter()
        .chain([&NodeRequest::Retake(JobId(u64::MAX))])
        .map(encode)
        .collect()
}

pub fn answers() -> Vec<Vec<u8>> {
    let answers = [
        NodeAnswer::Free { leases: 3 },
        NodeAnswer::Retaken,
        NodeAnswer::Refused { why: "no".into() },
    ];
    answers.iter().map(encode).collect()
}
