//! Every decoder of this crate with its promises for any bytes.
//!
//! Shared by the mutation test beside it and by the fuzz targets (`fuzz/`), so that both check the same promises: a
//! decoder never panics; an accepted value encodes to the accepted bytes (or, for the variable-length messages, to a
//! form that decodes to the same value); and every limit holds.

mod batch;
mod comm;
mod connections;
pub mod library;
mod machines;
mod native;
mod pickles;
mod refusals;
pub mod seeds;
mod states;
mod tasks;

use hotlease_wire::batch::NodeAnswer;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::control::{WorkerAnswer, WorkerOrder};
use hotlease_wire::fabric::{Envelope, Inbox, Prefix};
use hotlease_wire::frame::{EXPRESS_ENTRY, LineWords, ReplyHeader, RequestHeader, Span};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, LeaseId};
use hotlease_wire::limits::{
    CODE_BYTES_MAX, FUNCTION_NAME_BYTES_MAX, FUNCTIONS_MAX, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX, PARTS_MAX,
    REGION_BYTES_MAX, TENANT_BYTES_MAX,
};
use hotlease_wire::machine::{FromGuest, ToGuest};
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::token::{CLAIMS_VERSION, Claims, TOKEN_BYTES_MAX, TokenKey};
use hotlease_wire::tunnel::{Attachment, FRAME_BYTES_MAX, TunnelFrame};
use hotlease_wire::{decode, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// One decoder.
pub struct Decoder {
    /// Name of its fuzz target and of its corpus folder.
    pub name: &'static str,
    /// Checks the promises for these bytes; returns whether they were accepted.
    pub check: fn(&[u8]) -> bool,
    /// Valid encodings, each variant at least once.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "request_header",
        check: request_header,
        seeds: seeds::request_header,
    },
    Decoder {
        name: "reply_header",
        check: reply_header,
        seeds: seeds::reply_header,
    },
    Decoder {
        name: "span",
        check: span,
        seeds: seeds::span,
    },
    Decoder {
        name: "fabric_prefix",
        check: fabric_prefix,
        seeds: seeds::fabric_prefix,
    },
    Decoder {
        name: "inbox",
        check: inbox,
        seeds: comm::inbox_seeds,
    },
    Decoder {
        name: "session_request",
        check: message::<SessionRequest>,
        seeds: seeds::session_request,
    },
    Decoder {
        name: "session_reply",
        check: message::<SessionReply>,
        seeds: seeds::session_reply,
    },
    Decoder {
        name: "order",
        check: message::<WorkerOrder>,
        seeds: seeds::order,
    },
    Decoder {
        name: "node_request",
        check: batch::request,
        seeds: batch::requests,
    },
    Decoder {
        name: "node_answer",
        check: message::<NodeAnswer>,
        seeds: batch::answers,
    },
    Decoder {
        name: "answer",
        check: message::<WorkerAnswer>,
        seeds: seeds::answer,
    },
    Decoder {
        name: "connection_request",
        check: message::<ConnectionRequest>,
        seeds: connections::connection_request,
    },
    Decoder {
        name: "connection_reply",
        check: message::<ConnectionReply>,
        seeds: connections::connection_reply,
    },
    Decoder {
        name: "tunnel_frame",
        check: tunnel_frame,
        seeds: seeds::tunnel_frame,
    },
    Decoder {
        name: "token",
        check: token,
        seeds: seeds::token,
    },
    Decoder {
        name: "code",
        check: code,
        seeds: seeds::code,
    },
    #[cfg(feature = "grpc")]
    Decoder {
        name: "refusal_status",
        check: refusal_status,
        seeds: seeds::refusal_status,
    },
    Decoder {
        name: "machine_head",
        check: machines::head,
        seeds: machines::heads,
    },
    Decoder {
        name: "machine_run",
        check: machines::run,
        seeds: machines::runs,
    },
    Decoder {
        name: "to_guest",
        check: message::<ToGuest>,
        seeds: machines::to_guest,
    },
    Decoder {
        name: "from_guest",
        check: message::<FromGuest>,
        seeds: machines::from_guest,
    },
    Decoder {
        name: "state_head",
        check: states::head,
        seeds: states::seeds,
    },
    Decoder {
        name: "identifier",
        check: identifier,
        seeds: seeds::identifier,
    },
    Decoder {
        name: "task_request",
        check: tasks::request,
        seeds: tasks::request_seeds,
    },
    Decoder {
        name: "task_reply",
        check: tasks::reply,
        seeds: tasks::reply_seeds,
    },
    Decoder {
        name: "task_pickle",
        check: pickles::pickle,
        seeds: pickles::pickle_seeds,
    },
    Decoder {
        name: "left_reply",
        check: tasks::left_reply,
        seeds: tasks::left_reply_seeds,
    },
    Decoder {
        name: "left_exchange",
        check: tasks::left_exchange,
        seeds: tasks::left_exchange_seeds,
    },
    Decoder {
        name: "native_arguments",
        check: native::arguments,
        seeds: native::argument_seeds,
    },
    Decoder {
        name: "comm_greeting",
        check: comm::greeting,
        seeds: comm::greeting_seeds,
    },
    Decoder {
        name: "comm_frame",
        check: comm::frame,
        seeds: comm::frame_seeds,
    },
    Decoder {
        name: "comm_question",
        check: comm::question,
        seeds: comm::question_seeds,
    },
    Decoder {
        name: "comm_answer",
        check: comm::answer,
        seeds: comm::answer_seeds,
    },
];

/// The key with which seeds and checks mint and open tokens.
pub fn token_key() -> TokenKey {
    TokenKey::new([0x5a; 32])
}

fn line(bytes: &[u8]) -> Option<LineWords> {
    let (line, _) = bytes.split_first_chunk::<64>()?;
    let mut words = LineWords::default();
    for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    }
    Some(words)
}

fn request_header(bytes: &[u8]) -> bool {
    let Some(words) = line(bytes) else { return false };
    let Ok(header) = RequestHeader::decode(&words) else {
        return false;
    };
    assert_eq!(header.encode(), words, "an accepted request header has one form only");
    assert!(
        header.flags.span_bytes() <= 2 * PARTS_MAX * Span::BYTES,
        "as many spans as there may be"
    );
    true
}

fn reply_header(bytes: &[u8]) -> bool {
    let Some(words) = line(bytes) else { return false };
    let Ok(header) = ReplyHeader::decode(&words) else {
        return false;
    };
    let mut again = header.encode();
    assert_eq!(again[3], 0, "the unused word is sent as zero");
    again[3] = words[3];
    assert_eq!(
        again, words,
        "but for the unused word, an accepted reply header has one form only"
    );
    true
}

fn span(bytes: &[u8]) -> bool {
    let Ok(span) = Span::decode(bytes) else {
        return false;
    };
    assert_eq!(
        span.encode(),
        bytes[..Span::BYTES],
        "an accepted span has one form only"
    );
    let end = span.offset.checked_add(span.length);
    assert!(
        end.is_some_and(|end| end <= REGION_BYTES_MAX),
        "{span:?} is larger than any buffer"
    );
    true
}

fn inbox(bytes: &[u8]) -> bool {
    // An envelope's message is not read past its end, for any bytes.
    if let Ok((envelope, content)) = Envelope::decode(bytes) {
        assert_eq!([&envelope.encode()[..], content].concat(), bytes);
    }
    let Ok(inbox) = Inbox::decode(bytes) else {
        return false;
    };
    assert!(inbox.message_bytes as usize > Envelope::BYTES);
    let again = encode(&inbox);
    assert!(again.len() <= Inbox::BYTES_MAX, "{inbox:?}");
    assert_eq!(Inbox::decode(&again), Ok(inbox));
    true
}

fn fabric_prefix(bytes: &[u8]) -> bool {
    let Ok(prefix) = Prefix::decode(bytes) else {
        return false;
    };
    assert_eq!(
        prefix.encode(),
        bytes[..Prefix::BYTES],
        "an accepted prefix has one form only"
    );
    let shape = RingShape {
        depth: 64,
        entry_bytes: 8128,
    };
    if prefix.fits_ring(shape) {
        assert!(prefix.entry < 64 || prefix.entry == EXPRESS_ENTRY);
        assert!(prefix.length <= 8128);
    }
    true
}

fn message<M: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = decode::<M>(bytes) else {
        return false;
    };
    assert!(
        bytes.len() <= MESSAGE_BYTES_MAX,
        "a message of {} bytes was accepted",
        bytes.len()
    );
    let again = encode(&message);
    assert!(again.len() <= bytes.len(), "the encoding is the shortest form");
    assert_eq!(decode::<M>(&again).as_ref(), Ok(&message));
    // Messages reach logs and users: both must cope with any content.
    assert!(!format!("{message:?}").is_empty());
    true
}

fn tunnel_frame(bytes: &[u8]) -> bool {
    // The first bytes, as a length, are within the limit, or refused.
    if let Some(prefix) = bytes.first_chunk()
        && let Ok(size) = TunnelFrame::body_bytes(*prefix)
    {
        assert!(size <= FRAME_BYTES_MAX, "a frame of {size} bytes was announced");
    }
    let Ok(frame) = TunnelFrame::decode(bytes) else {
        return false;
    };
    let encoded = frame.encode();
    let (prefix, body) = encoded.split_first_chunk().expect("a length");
    assert_eq!(
        TunnelFrame::body_bytes(*prefix),
        Ok(body.len()),
        "the length is the body's"
    );
    assert_eq!(TunnelFrame::decode(body).as_ref(), Ok(&frame));
    if let TunnelFrame::Message { bytes, attachments } = &frame {
        assert!((1..=MESSAGE_BYTES_MAX).contains(&bytes.len()) && attachments.len() <= MESSAGE_FDS_MAX);
        for attachment in attachments {
            let fits = |size| (1..=CODE_BYTES_MAX).contains(size);
            assert!(!matches!(attachment, Attachment::Memory { size_bytes } if !fits(size_bytes)));
        }
    }
    assert!(!format!("{frame:?}").is_empty());
    true
}

fn token(bytes: &[u8]) -> bool {
    let key = token_key();
    // Any claims that may be minted open with their key, and with no other.
    if let Ok(claims) = decode::<Claims>(bytes) {
        let minted = key.mint(&claims);
        if claims.version == CLAIMS_VERSION && claims.tenant.len() <= TENANT_BYTES_MAX {
            assert_eq!(key.open(&minted).as_ref(), Ok(&claims));
            assert!(
                TokenKey::new([0xa5; 32]).open(&minted).is_err(),
                "a foreign key opened it"
            );
        } else {
            assert!(
                key.open(&minted).is_err(),
                "claims past a limit were accepted: {claims:?}"
            );
        }
    }
    let Ok(claims) = key.open(bytes) else { return false };
    assert!(
        bytes.len() <= TOKEN_BYTES_MAX,
        "a token of {} bytes was accepted",
        bytes.len()
    );
    assert_eq!(key.mint(&claims), bytes, "only what the key minted opens");
    true
}

fn code(bytes: &[u8]) -> bool {
    let Ok(exports) = hotlease_wire::code::exports(bytes) else {
        return false;
    };
    let functions = &exports.functions;
    assert!(
        (1..=FUNCTIONS_MAX).contains(&functions.len()),
        "{} functions",
        functions.len()
    );
    for function in functions {
        assert!(
            function.name.len() <= FUNCTION_NAME_BYTES_MAX,
            "a name of {} bytes",
            function.name.len()
        );
    }
    assert!(
        functions.windows(2).all(|pair| pair[0].name < pair[1].name),
        "functions are sorted and unique, or client and worker would disagree on indices"
    );
    let is_bounded = |format: &String| (1..=FUNCTION_NAME_BYTES_MAX).contains(&format.len());
    assert!(exports.state.iter().all(is_bounded), "{:?}", exports.state);
    assert_eq!(hotlease_wire::code::exports(bytes).as_ref(), Ok(&exports));
    true
}

#[cfg(feature = "grpc")]
fn refusal_status(bytes: &[u8]) -> bool {
    use hotlease_wire::Rejection;
    use tonic::{Code, Status};

    let accepted = decode::<Rejection>(bytes);
    let details = bytes.to_vec().into();
    let refusal = Rejection::from(Status::with_details(Code::FailedPrecondition, "refused", details));
    assert!(!refusal.to_string().is_empty(), "every refusal has words");
    match &accepted {
        Ok(sent) => assert_eq!(&refusal, sent),
        Err(_) => assert!(
            matches!(refusal, Rejection::Unavailable { .. }),
            "{refusal:?} out of nothing"
        ),
    }
    assert_eq!(Rejection::from(Status::from(refusal.clone())), refusal);
    accepted.is_ok()
}

fn identifier(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    fn check<I: std::str::FromStr + ToString>(text: &str) -> bool {
        let Ok(id) = text.parse::<I>() else { return false };
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
        true
    }
    let lease = check::<LeaseId>(text);
    assert_eq!(check::<AgentId>(text), lease);
    assert_eq!(check::<BootId>(text), lease);
    lease | check::<CodeHash>(text)
}
