//! Valid encodings for every decoder: each variant, and each limit at its edge.

use super::refusals::{causes, refusals};
use super::token_key;
use hotlease_wire::control::{CoreSharing, LentSlots, PollingPolicy, WorkerAnswer, WorkerOrder};
use hotlease_wire::fabric::{MessageKind, Prefix};
use hotlease_wire::frame::{
    Flags, Inline, InvocationId, InvocationStatus, LineWords, ReplyHeader, RequestHeader, Seq, Span,
};
use hotlease_wire::ids::{
    AgentId, BootId, CodeHash, Epoch, FunctionIndex, JobId, LeaseId, RegionId, SlotIndex, WorkerIndex,
};
use hotlease_wire::limits::{
    CODE_BYTES_MAX, ENTRY_BYTES_MAX, INLINE_BYTES, PROTOCOL_VERSION, REGION_BYTES_MAX, RING_DEPTH_MAX, TENANT_BYTES_MAX,
};
use hotlease_wire::session::{
    LastInvocation, SessionReply, SessionRequest, SlotPlace, StartPhases, StartSteps, UsageTotals,
};
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights};
use hotlease_wire::tunnel::{Attachment, PREFIX_BYTES, Ticket, TunnelFrame};
use hotlease_wire::{EndReason, encode};

pub const HASH: CodeHash = CodeHash([0xc0; 32]);
const LEASE: LeaseId = LeaseId([1, 2, 3, 4, 5, 6, 7, 8]);

fn bytes_of(words: LineWords) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn request_header() -> Vec<Vec<u8>> {
    let small = RequestHeader {
        seq: Seq::new(1, 0),
        epoch: Epoch(1),
        function: FunctionIndex(0),
        flags: Flags::NONE,
        length: 8,
        reply_entry: 0,
        timeout_us: 0,
        output_capacity: INLINE_BYTES as u32,
        inline: Inline::from_bytes(&[7; INLINE_BYTES]),
    };
    let spans = RequestHeader {
        seq: Seq::new(u32::MAX, u64::from(u32::MAX)),
        epoch: Epoch(u32::MAX),
        function: FunctionIndex(u16::MAX),
        flags: Flags::INPUT_BUFFER.with(Flags::OUTPUT_BUFFER),
        length: 2 * Span::BYTES as u32,
        reply_entry: RING_DEPTH_MAX - 1,
        timeout_us: 1_000_000,
        output_capacity: ENTRY_BYTES_MAX,
        inline: Inline::default(),
    };
    let ring = RequestHeader {
        length: 4096,
        flags: Flags::OUTPUT_BUFFER,
        ..small
    };
    // The express entry.
    let express = RequestHeader {
        reply_entry: u32::MAX,
        ..small
    };
    [small, spans, ring, express]
        .iter()
        .map(|header| bytes_of(header.encode()))
        .collect()
}

pub fn reply_header() -> Vec<Vec<u8>> {
    let seq = Seq::new(7, 41);
    let statuses = (0..=u16::MAX).filter_map(InvocationStatus::from_number);
    let failures = statuses.map(|status| ReplyHeader::failed(seq, status));
    let error = ReplyHeader {
        status: InvocationStatus::FunctionError,
        code: -1,
        ..ReplyHeader::ok(seq, 4096)
    };
    let inline = ReplyHeader {
        inline: Inline::from_bytes(&[9; INLINE_BYTES]),
        ..ReplyHeader::ok(seq, INLINE_BYTES as u64)
    };
    failures
        .chain([error, inline])
        .map(|header| bytes_of(header.encode()))
        .collect()
}

pub fn span() -> Vec<Vec<u8>> {
    let whole = Span {
        region: RegionId(0),
        offset: 0,
        length: REGION_BYTES_MAX,
    };
    let last = Span {
        region: RegionId(u32::MAX),
        offset: REGION_BYTES_MAX - 1,
        length: 1,
    };
    let empty = Span {
        region: RegionId(3),
        offset: 64,
        length: 0,
    };
    [whole, last, empty].iter().map(|span| span.encode().to_vec()).collect()
}

pub fn fabric_prefix() -> Vec<Vec<u8>> {
    let frame = Prefix {
        kind: MessageKind::Frame,
        payload_written: false,
        channel: 0x8000_0003,
        key: u64::MAX,
        entry: RING_DEPTH_MAX - 1,
        length: INLINE_BYTES as u32,
    };
    let written = Prefix {
        payload_written: true,
        entry: u32::MAX,
        length: ENTRY_BYTES_MAX,
        ..frame
    };
    let bare =
        [MessageKind::Probe, MessageKind::ProbeAnswer, MessageKind::Goodbye].map(|kind| Prefix::bare(kind, 7, 8));
    [frame, written]
        .iter()
        .chain(&bare)
        .map(|prefix| prefix.encode().to_vec())
        .collect()
}

pub fn session_request() -> Vec<Vec<u8>> {
    [
        SessionRequest::Attach {
            version: PROTOCOL_VERSION,
            token: token().remove(0),
        },
        SessionRequest::Load {
            hash: HASH,
            size_bytes: 16_384,
        },
        SessionRequest::Connect {
            worker: WorkerIndex(3),
            over_fabric: true,
        },
        SessionRequest::Renew,
        SessionRequest::Release,
        SessionRequest::Delegate {
            places: vec![PLACE, PLACE],
            within_ms: 60_000,
        },
        SessionRequest::Revoke { delegation: 3 },
    ]
    .iter()
    .map(encode)
    .collect()
}

pub fn session_reply() -> Vec<Vec<u8>> {
    let usage = UsageTotals {
        allocated_ns: u64::MAX,
        hot_ns: 1 << 40,
        compute_ns: 12_345,
        invocations: 1_000_000,
    };
    let mut replies = vec![
        SessionReply::Attached {
            lease: LEASE,
            ttl_ms: 5000,
            workers: vec![vec![0, 1], vec![], vec![1023]],
            start: StartPhases {
                pooled: 1,
                started: 2,
                grant_us: 90,
                start_us: 4000,
                steps: StartSteps {
                    sandbox_us: Some(700),
                    imports_us: Some(u64::MAX),
                    ..StartSteps::default()
                },
                configure_us: 150,
                cold: "the first lease of this program".into(),
            },
            lent: None,
        },
        SessionReply::Attached {
            lease: LEASE,
            ttl_ms: 100,
            workers: vec![vec![3]],
            start: StartPhases::default(),
            lent: Some(vec![PLACE]),
        },
        SessionReply::Delegated {
            delegation: 3,
            token: token().remove(0),
        },
        SessionReply::Revoked { delegation: u32::MAX },
        SessionReply::Loaded {
            hash: HASH,
            base: 12,
            load_us: 900,
        },
        SessionReply::Connected {
            worker: WorkerIndex(0),
            epoch: Epoch(5),
        },
        SessionReply::Renewed {
            ttl_ms: 5000,
            token: token_key().mint(&holder()),
        },
    ];
    for cause in causes() {
        let output = "last words\n".to_owned();
        replies.push(SessionReply::WorkerDied {
            worker: WorkerIndex(1),
            epoch: Epoch(6),
            cause,
            output,
            begun: vec![
                LastInvocation {
                    invocation: InvocationId::new(Seq::new(3, 77), 5),
                    ended: false,
                },
                LastInvocation {
                    invocation: InvocationId::from_bits(u64::MAX),
                    ended: true,
                },
            ],
        });
    }
    replies.extend(END_REASONS.map(|reason| SessionReply::LeaseEnded { reason, usage }));
    replies.extend(END_REASONS.map(|reason| SessionReply::LeaseEnding { reason }));
    replies.extend(refusals().into_iter().map(SessionReply::Refused));
    replies.push(SessionReply::RoomWanted);
    replies.iter().map(encode).collect()
}

pub fn order() -> Vec<Vec<u8>> {
    let configure = |polling, hot_budget_ns, cores: Vec<u32>| WorkerOrder::Configure {
        lease: LEASE,
        epoch: Epoch(9),
        cores,
        polling,
        hot_budget_ns,
        tick_hz: 2_100_000_000,
        memory_bytes: 1 << 30,
        tenant: "uid:1000".into(),
        shared: (polling == PollingPolicy::Warm).then_some(CoreSharing { call_limit_ms: 10_000 }),
        gpus: (polling != PollingPolicy::Warm).then(|| vec![0, 7]),
    };
    [
        configure(PollingPolicy::Adaptive, 500_000, vec![0]),
        configure(PollingPolicy::Hot, u64::MAX, (0..64).collect()),
        configure(PollingPolicy::Warm, 0, vec![]),
        WorkerOrder::Load {
            hash: HASH,
            size_bytes: 1 << 20,
            base: u16::MAX,
        },
        WorkerOrder::Introduce { lent: None },
        WorkerOrder::Introduce {
            lent: Some(LentSlots {
                delegation: 3,
                slots: vec![SlotIndex(0), SlotIndex(1023)],
            }),
        },
        WorkerOrder::Dismiss { delegation: 3 },
        WorkerOrder::Move { core: 1023 },
    ]
    .iter()
    .map(encode)
    .chain(super::states::orders())
    .collect()
}

pub fn answer() -> Vec<Vec<u8>> {
    [
        WorkerAnswer::Ready {
            version: PROTOCOL_VERSION,
            imports_us: 12_345,
            boot_us: 300_000,
        },
        WorkerAnswer::Done,
        WorkerAnswer::Failed {
            why: "undefined symbol: dgemm_".into(),
        },
    ]
    .iter()
    .map(encode)
    .collect()
}

fn holder() -> Claims {
    Claims {
        version: CLAIMS_VERSION,
        lease: LEASE,
        tenant: "uid:1000".into(),
        agent: AgentId([2; 8]),
        boot: BootId([3; 8]),
        epoch: Epoch(4),
        attach_until_ms: 5000,
        rights: Rights::HOLDER,
        delegation: 0,
    }
}

pub fn token() -> Vec<Vec<u8>> {
    let holder = holder();
    let longest = Claims {
        tenant: "t".repeat(TENANT_BYTES_MAX),
        epoch: Epoch(u32::MAX),
        attach_until_ms: u64::MAX,
        rights: Rights::INVOKE,
        delegation: u32::MAX,
        ..holder.clone()
    };
    // A token, then bare claims: the check mints these itself.
    vec![
        token_key().mint(&holder),
        token_key().mint(&longest),
        encode(&holder),
        encode(&longest),
    ]
}

/// Frames without their lengths, as the decoder gets them.
pub fn tunnel_frame() -> Vec<Vec<u8>> {
    let ticket = Ticket([0x71; 16]);
    let message = |attachments| TunnelFrame::Message {
        bytes: encode(&SessionRequest::Renew),
        attachments,
    };
    let mut frames = vec![
        TunnelFrame::Hello {
            version: PROTOCOL_VERSION,
        },
        TunnelFrame::Session {
            version: PROTOCOL_VERSION,
            silence_ms: 5500,
        },
        TunnelFrame::Join {
            ticket,
            silence_ms: u64::MAX,
        },
        TunnelFrame::Accepted,
        TunnelFrame::Alive,
        message(vec![]),
        message(vec![Attachment::Socket { ticket }]),
        message(vec![
            Attachment::Memory { size_bytes: 1 },
            Attachment::Memory {
                size_bytes: CODE_BYTES_MAX,
            },
        ]),
    ];
    frames.extend(refusals().into_iter().map(TunnelFrame::Refused));
    frames.push(TunnelFrame::Bearer {
        version: PROTOCOL_VERSION,
        token: token_key().mint(&holder()),
        silence_ms: 5500,
    });
    let body = |frame: TunnelFrame| frame.encode().split_off(PREFIX_BYTES);
    frames.into_iter().map(body).collect()
}

#[cfg(feature = "grpc")]
pub fn refusal_status() -> Vec<Vec<u8>> {
    refusals().iter().map(encode).collect()
}

pub fn identifier() -> Vec<Vec<u8>> {
    vec![
        LEASE.to_string().into(),
        HASH.to_string().into(),
        b"FFEEDDCCBBAA9988".to_vec(),
    ]
}

/// Small shared libraries, as a linker would lay them out.
pub fn code() -> Vec<Vec<u8>> {
    use super::library::{Symbol, library};
    vec![
        library(&[Symbol::function("hello")]),
        library(&[
            Symbol::function("_init"),
            Symbol::function("zeta"),
            Symbol::function("alpha"),
            Symbol::data("hotlease_context_zeta"),
            Symbol::data("hotlease_idempotent_alpha"),
            Symbol::undefined("malloc"),
        ]),
    ]
}

const PLACE: SlotPlace = SlotPlace {
    worker: WorkerIndex(1),
    slot: SlotIndex(2),
};

pub const END_REASONS: [EndReason; 12] = [
    EndReason::Released,
    EndReason::Expired,
    EndReason::ClientGone,
    EndReason::Revoked,
    EndReason::AgentStopping,
    EndReason::Reclaimed,
    EndReason::TakenBack,
    EndReason::NoLongerLent,
    EndReason::SwappedOut,
    EndReason::DurationOver,
    EndReason::Idle,
    EndReason::BatchJob(JobId(u64::MAX)),
];
