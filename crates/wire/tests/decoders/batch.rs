//! Decoders of the node socket.

use super::message;
use hotlease_wire::batch::{
    BatchJob, CORE_MAX, JobOnNode, JobShare, JobSharing, NAME_BYTES_MAX, NodeAnswer, NodeJobs, NodeRequest, PolicyState,
};
use hotlease_wire::ids::JobId;
use hotlease_wire::{decode, encode};

pub fn request(bytes: &[u8]) -> bool {
    if let Ok(request) = decode::<NodeRequest>(bytes) {
        // The result is ignored: the check must not panic.
        let _ = request.check();
    }
    message::<NodeRequest>(bytes)
}

fn jobs() -> [BatchJob; 2] {
    let shares = [
        JobShare::Node,
        JobShare::Part {
            cores: [0, CORE_MAX].into(),
            gpus: [].into(),
            memory_bytes: u64::MAX,
        },
    ];
    shares.map(|share| BatchJob {
        user: "a".repeat(NAME_BYTES_MAX),
        partition: "normal".into(),
        constraint: "haswell&company".into(),
        comment: "hotlease".into(),
        nodes: 2,
        sharing: JobSharing::Requested,
        gpus: Some([1].into()),
        group: "s1".into(),
        share,
        ..BatchJob::unknown(JobId(17))
    })
}

pub fn requests() -> Vec<Vec<u8>> {
    let jobs = jobs().map(|job| NodeRequest::Yield(job.into()));
    jobs.iter()
        .chain([&NodeRequest::Retake(JobId(u64::MAX)), &NodeRequest::Show])
        .map(encode)
        .collect()
}

pub fn answers() -> Vec<Vec<u8>> {
    let answers = [
        NodeAnswer::Free { leases: 3 },
        NodeAnswer::Retaken,
        NodeAnswer::Shown(NodeJobs {
            policy: Some(PolicyState {
                file: "/etc/hotlease/batch.toml".into(),
                since_ms: 1,
                fault: Some("it is not there".into()),
            }),
            jobs: jobs()
                .map(|job| JobOnNode {
                    job,
                    why: "rule 1".into(),
                })
                .into(),
            left_out: 1,
        }),
        NodeAnswer::Refused { why: "no".into() },
    ];
    answers.iter().map(encode).collect()
}
