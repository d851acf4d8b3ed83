//! Decoders of the messages between members of a communicator, and with the rendezvous.

use hotlease_wire::comm::frame::{
    BellLocation, CREDIT_MAX, DATA_BYTES_MAX, EAGER_BYTES_MAX, MESSAGE_BYTES_MAX, MemberFrame, MessageAddress,
    MessageClass,
};
use hotlease_wire::comm::greeting::{
    Greeting, Introduction, KeyId, Knock, MemberNode, NodeId, Purpose, VERSION, Verdict,
};
use hotlease_wire::comm::rendezvous::{
    AnswerPieces, Join, JoinAnswer, JoinQuestion, JoinRejection, LINK_BYTES_MAX, LOST_MAX, Meeting, MemberAddress,
    NatMapping, Relay, WAIT_MS_MAX,
};
use hotlease_wire::comm::{GroupId, Loss, NAME_BYTES_MAX, RANKS_MAX};
use hotlease_wire::encode;
use hotlease_wire::fabric::{Inbox, PortAddress};

/// Checks a greeting; longer bytes as a knock, shorter bytes as an introduction or a verdict.
pub fn greeting(bytes: &[u8]) -> bool {
    if let [byte] = bytes
        && let Ok(verdict) = Verdict::decode(*byte)
    {
        assert_eq!(verdict.encode(), *byte);
        return true;
    }
    if let Ok(introduction) = Introduction::decode(bytes) {
        assert_eq!(introduction.encode(), bytes, "it has one form only");
        assert!(introduction.from < RANKS_MAX && introduction.to < RANKS_MAX);
        assert_ne!(introduction.from, introduction.to, "no member connects to itself");
        return true;
    }
    if let Ok(knock) = <&[u8; Knock::BYTES]>::try_from(bytes)
        && let Ok(knock) = Knock::decode(knock)
    {
        assert_eq!(knock.encode(), bytes, "it has one form only");
        assert!(
            knock.introduction.from > knock.introduction.to,
            "the higher rank knocks"
        );
    }
    let Some(bytes) = bytes.first_chunk() else {
        return false;
    };
    let Ok(greeting) = Greeting::decode(bytes) else {
        return false;
    };
    assert_eq!(greeting.encode(), *bytes, "it has one form only");
    assert_eq!(Greeting::version(bytes), Some(VERSION));
    true
}

pub fn frame(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk() else {
        return false;
    };
    let Ok(frame) = MemberFrame::decode(bytes) else {
        return false;
    };
    assert_eq!(frame.encode(), *bytes, "an accepted frame has one form only");
    match frame {
        MemberFrame::Eager { length, .. } => assert!(length <= EAGER_BYTES_MAX),
        MemberFrame::Announce { length, .. } => assert!((1..=MESSAGE_BYTES_MAX).contains(&length)),
        MemberFrame::Data { length, .. } => assert!((1..=DATA_BYTES_MAX).contains(&length)),
        MemberFrame::Credit { amount, .. } => assert!(amount <= CREDIT_MAX),
        MemberFrame::Lost { rank, .. } | MemberFrame::Broken { rank, .. } => assert!(rank < RANKS_MAX),
        MemberFrame::Inbox { length } => assert!((1..=Inbox::BYTES_MAX as u64).contains(&length)),
        _ => assert_eq!(frame.body_bytes(), 0),
    }
    assert!(
        frame.body_bytes() <= EAGER_BYTES_MAX.max(DATA_BYTES_MAX),
        "{frame:?} has a body over all limits"
    );
    true
}

pub fn question(bytes: &[u8]) -> bool {
    let Ok(question) = JoinQuestion::decode(bytes) else {
        return false;
    };
    match &question {
        JoinQuestion::Join(join) => {
            assert!((1..=NAME_BYTES_MAX).contains(&join.name.len()));
            assert!((1..=RANKS_MAX).contains(&join.size));
            assert!(join.rank.is_none_or(|rank| rank < join.size));
            assert!(join.wait_ms <= WAIT_MS_MAX);
            assert!((1..=LINK_BYTES_MAX).contains(&join.link.len()));
            if let Meeting::Rest { lost, .. } = &join.meeting {
                assert!(join.rank.is_some() && lost.len() <= LOST_MAX);
                assert!(lost.iter().all(|rank| *rank < join.size));
            }
        }
        JoinQuestion::Relay(relay) => {
            assert!(relay.from < RANKS_MAX && relay.to < RANKS_MAX);
            assert_ne!(relay.from, relay.to, "no member talks to itself");
        }
        JoinQuestion::Lost(ranks) => {
            assert!(ranks.len() <= LOST_MAX && ranks.iter().all(|rank| *rank < RANKS_MAX));
        }
    }
    assert_eq!(JoinQuestion::decode(&encode(&question)).as_ref(), Ok(&question));
    true
}

pub fn answer(bytes: &[u8]) -> bool {
    // The same bytes, split into records of an answer: an invalid record is an error, and other records are stored.
    let mut pieces = AnswerPieces::default();
    for piece in bytes.chunks(100) {
        if let Ok(Some(answer)) = pieces.take(piece) {
            assert_eq!(JoinAnswer::decode(&encode(&answer)), Ok(answer));
        }
    }
    let Ok(answer) = JoinAnswer::decode(bytes) else {
        return false;
    };
    match &answer {
        JoinAnswer::Seen { port, .. } => assert_ne!(*port, 0),
        JoinAnswer::Relayed => {}
        JoinAnswer::Together { rank, members, .. } => {
            assert!(members.len() <= RANKS_MAX as usize && (*rank as usize) < members.len());
        }
        JoinAnswer::Refused(refused) => {
            if let JoinRejection::Missing { ranks, size, .. } = refused {
                assert!(ranks.iter().all(|rank| rank < size) && *size <= RANKS_MAX);
            }
            let text = refused.to_string();
            assert!(!text.is_empty() && text.len() < 400, "{text}");
        }
    }
    assert_eq!(JoinAnswer::decode(&encode(&answer)).as_ref(), Ok(&answer));
    let mut pieces = AnswerPieces::default();
    let taken = answer.pieces();
    let taken = taken
        .iter()
        .map(|piece| pieces.take(piece).expect("a piece of an answer"));
    assert_eq!(taken.last(), Some(Some(answer)));
    true
}

pub fn greeting_seeds() -> Vec<Vec<u8>> {
    let to = |purpose, group| {
        let greeting = Greeting {
            purpose,
            key: KeyId([0xab; 16]),
            group,
        };
        greeting.encode().to_vec()
    };
    let introduced = |from, to, is_sealed| {
        let introduction = Introduction {
            from,
            to,
            is_sealed,
            link: 0x0102_0304_u32.wrapping_mul(from),
            member_node: MemberNode {
                node: NodeId([from as u8; 16]),
                shares_memory: !is_sealed,
                processors: to as u16,
            },
        };
        introduction.encode().to_vec()
    };
    let knock = Knock {
        key: KeyId([0xab; 16]),
        group: GroupId([0xcd; 16]),
        introduction: Introduction {
            from: 9,
            to: 0,
            is_sealed: true,
            link: u32::MAX,
            member_node: MemberNode::UNKNOWN,
        },
    };
    vec![
        to(Purpose::Rendezvous, GroupId::NONE),
        to(Purpose::Member, GroupId([0xcd; 16])),
        to(Purpose::Knock, GroupId([0xcd; 16])),
        to(Purpose::Mapping, GroupId([0xef; 16])),
        knock.encode().to_vec(),
        introduced(0, 1, false),
        introduced(RANKS_MAX - 2, RANKS_MAX - 1, true),
        vec![Verdict::Welcome.encode()],
        vec![Verdict::OtherSecret.encode()],
        vec![Verdict::OtherVersion.encode()],
        vec![Verdict::OtherGroup.encode()],
        vec![Verdict::OtherPurpose.encode()],
        vec![Verdict::Busy.encode()],
        vec![Verdict::OtherSealing.encode()],
        vec![Verdict::OtherLink.encode()],
    ]
}

pub fn frame_seeds() -> Vec<Vec<u8>> {
    let message = MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag: 7,
    };
    let collective = MessageAddress {
        class: MessageClass::Collective,
        context: u64::MAX,
        tag: u32::MAX,
    };
    let bell = BellLocation {
        process: 4321,
        memory: 7,
        pipe: 9,
        key: u64::MAX,
    };
    let mut frames = vec![
        MemberFrame::Offer {
            bell,
            memory: 8,
            bytes: 1 << 18,
        },
        MemberFrame::Accept { bell },
        MemberFrame::Decline,
        MemberFrame::Switch,
        MemberFrame::Inbox { length: 1 },
        MemberFrame::Inbox {
            length: Inbox::BYTES_MAX as u64,
        },
        MemberFrame::Eager { to: message, length: 0 },
        MemberFrame::Eager {
            to: collective,
            length: EAGER_BYTES_MAX,
        },
        MemberFrame::Announce {
            to: message,
            length: MESSAGE_BYTES_MAX,
            id: 3,
        },
        MemberFrame::Grant { id: 3, landing: 5 },
        MemberFrame::Withdraw { landing: u64::MAX },
        MemberFrame::Data { landing: 5, length: 1 },
        MemberFrame::Data {
            landing: u64::MAX,
            length: DATA_BYTES_MAX,
        },
        MemberFrame::Credit {
            class: MessageClass::Collective,
            amount: CREDIT_MAX,
        },
        MemberFrame::Alive,
        MemberFrame::Goodbye,
        MemberFrame::Farewell,
        MemberFrame::Leave { context: u64::MAX },
        MemberFrame::Broken {
            context: 9,
            rank: RANKS_MAX - 1,
            number: u32::MAX,
        },
    ];
    let losses = [
        Loss::Closed,
        Loss::Silent,
        Loss::Protocol,
        Loss::GaveUp,
        Loss::Declared,
        Loss::Unrelayed,
        Loss::Unreached,
    ];
    frames.extend(losses.map(|loss| MemberFrame::Lost {
        rank: RANKS_MAX - 1,
        loss,
    }));
    frames.iter().map(|frame| frame.encode().to_vec()).collect()
}

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().expect("an address")
}

pub fn question_seeds() -> Vec<Vec<u8>> {
    let join = Join {
        name: "training".into(),
        size: 8,
        rank: Some(7),
        address: address("127.0.0.1:4321"),
        wait_ms: 30_000,
        meeting: Meeting::First,
        link: "direct".into(),
    };
    let longest = Join {
        name: "n".repeat(NAME_BYTES_MAX),
        size: RANKS_MAX,
        rank: None,
        address: address("[fe80::1]:65535"),
        wait_ms: WAIT_MS_MAX,
        meeting: Meeting::Growth,
        link: "l".repeat(LINK_BYTES_MAX),
    };
    let rest = Join {
        rank: Some(3),
        meeting: Meeting::Rest {
            of: GroupId([7; 16]),
            context: u64::MAX,
            number: u32::MAX,
            lost: (RANKS_MAX - LOST_MAX as u32..RANKS_MAX).collect(),
        },
        ..longest.clone()
    };
    let relay = Relay {
        group: GroupId([0xcd; 16]),
        from: RANKS_MAX - 1,
        to: 0,
    };
    let questions = [
        JoinQuestion::Join(join),
        JoinQuestion::Join(longest),
        JoinQuestion::Join(rest),
        JoinQuestion::Relay(relay),
        JoinQuestion::Lost(Vec::new()),
        JoinQuestion::Lost((RANKS_MAX - LOST_MAX as u32..RANKS_MAX).collect()),
    ];
    questions.iter().map(encode).collect()
}

pub fn answer_seeds() -> Vec<Vec<u8>> {
    let refusals = [
        JoinRejection::Missing {
            ranks: vec![0, 2, 3, 4, 9],
            size: 10,
            waited_ms: 1500,
        },
        JoinRejection::DuplicateRank {
            rank: 3,
            other: address("10.0.0.3:99"),
        },
        JoinRejection::OtherSize { theirs: 8, ours: 4 },
        JoinRejection::OtherLink {
            theirs: "direct".into(),
            ours: "redis".into(),
        },
        JoinRejection::Full { members: 4096 },
        JoinRejection::Stopping,
        JoinRejection::MetWithoutYou,
        JoinRejection::NoRelay { relays: 0 },
        JoinRejection::NoRelay { relays: 1024 },
    ];
    let place = |text| MemberAddress {
        address: address(text),
        mapped: None,
    };
    let mapped = MemberAddress {
        mapped: Some(NatMapping {
            address: address("203.0.113.7:40000"),
            varies: true,
        }),
        ..place("10.0.0.2:33000")
    };
    let seen = JoinAnswer::Seen {
        port: 7073,
        number: GroupId([0xef; 16]),
    };
    let together = JoinAnswer::Together {
        group: GroupId([0xcd; 16]),
        rank: 1,
        members: vec![place("127.0.0.1:1"), place("[::1]:2"), mapped],
        relays: true,
    };
    let mut seeds = vec![encode(&together), encode(&seen), encode(&JoinAnswer::Relayed)];
    seeds.extend(refusals.map(|refused| encode(&JoinAnswer::Refused(refused))));
    seeds
}

pub fn inbox_seeds() -> Vec<Vec<u8>> {
    let inbox = Inbox {
        address: PortAddress {
            provider: "tcp;ofi_rxm".into(),
            address: vec![2, 0, 0x1f, 0x90, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0],
        },
        number: 3,
        key: 0x0123_4567_89ab_cdef,
        message_bytes: 65_584,
    };
    let longest = Inbox {
        address: PortAddress {
            provider: "p".repeat(64),
            address: vec![0xff; 512],
        },
        number: u32::MAX,
        key: u64::MAX,
        message_bytes: u32::MAX,
    };
    vec![encode(&inbox), encode(&longest)]
}
