//! Objects in a store, and their keys.
//!
//! ```text
//! GROUP/m-CONTEXT-FROM-TO-NUMBER             messages of users, numbered for each receiver
//! GROUP/s-CONTEXT-COLLECTIVE-FROM-TO-NUMBER  messages of a schedule
//! GROUP/p-CONTEXT-COLLECTIVE-FROM-KEY        objects that a schedule publishes
//! GROUP/b/RANK                               the board of a member (board.rs)
//! ```
//!
//! Stores that store objects as files remove a folder with its last object, even while another object is being written
//! there. So objects that are removed again have no folders of their own.
//!
//! An object is a head and the beginning of the body. If the body is too long for one object of the store, the rest is
//! in pieces, `KEY.1`, `KEY.2` and so on, which are written first:
//!
//! ```text
//! byte  0        4         5      6         8     12       16        24       32       40
//!       | "HLOB" | version | kind | readers | tag | member | context | number | length | body ...
//! ```
//!
//! A group's id is random, so two groups never have equal keys, and communicators of one group have different contexts.
//! Nevertheless, a head is compared with the name that was asked for.

use hotlease_comm::link::{ObjectHead, ObjectName};
use hotlease_wire::comm::GroupId;
use std::ops::Range;

/// Key of an object of a group.
pub(crate) fn key(name: &ObjectName, group: &str) -> String {
    match name {
        ObjectName::Message {
            context,
            from,
            to,
            number,
        } => format!("{group}/m-{context:x}-{from}-{to}-{number}"),
        ObjectName::Step {
            context,
            collective,
            from,
            to,
            number,
        } => format!("{group}/s-{context:x}-{collective}-{from}-{to}-{number}"),
        ObjectName::Published {
            context,
            collective,
            from,
            key,
        } => format!("{group}/p-{context:x}-{collective}-{from}-{key}"),
    }
}

/// Kind, member and number of an object, as its head contains them.
fn fields(name: &ObjectName) -> (u8, u32, u64) {
    match *name {
        ObjectName::Message { from, number, .. } => (1, from, number),
        ObjectName::Step {
            collective,
            from,
            number,
            ..
        } => (2, from, u64::from(collective) << 32 | u64::from(number)),
        ObjectName::Published {
            collective, from, key, ..
        } => (3, from, u64::from(collective) << 32 | u64::from(key)),
    }
}

/// Key of a group: the prefix of all its keys.
pub(crate) fn group_key(prefix: &str, group: GroupId) -> String {
    format!("{prefix}{}", hex::encode(group.0))
}

pub(crate) const HEAD_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"HLOB";
const VERSION: u8 = 1;

/// Encodes the head of an object of this name.
pub(crate) fn encode_head(head: &ObjectHead, name: &ObjectName) -> [u8; HEAD_BYTES] {
    let (kind, member, number) = fields(name);
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind;
    bytes[6..8].copy_from_slice(&head.readers.to_le_bytes());
    bytes[8..12].copy_from_slice(&head.tag.to_le_bytes());
    bytes[12..16].copy_from_slice(&member.to_le_bytes());
    bytes[16..24].copy_from_slice(&name.context().to_le_bytes());
    bytes[24..32].copy_from_slice(&number.to_le_bytes());
    bytes[32..].copy_from_slice(&head.length.to_le_bytes());
    bytes
}

/// Decodes the head of an object that was asked for by `name`. Returns `None` if the object has another name, or if its
/// length does not fit: `first_bytes` of the body are stored with the head.
pub(crate) fn decode_head(name: &ObjectName, object: &[u8], first_bytes: fn(u32) -> usize) -> Option<ObjectHead> {
    let (head, body) = object.split_first_chunk::<HEAD_BYTES>()?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let decoded = ObjectHead {
        tag: word(8) as u32,
        length: word(32),
        readers: u16::from_le_bytes([head[6], head[7]]),
    };
    let is_it = encode_head(&decoded, name) == *head;
    let first_max = first_bytes(decoded.readers.into()) as u64;
    let is_whole = body.len() as u64 == decoded.length.min(first_max);
    (is_it && is_whole).then_some(decoded)
}

/// Key of a piece of the body; pieces are numbered from 1.
pub(crate) fn piece_key(key: &str, number: u64) -> String {
    format!("{key}.{number}")
}

/// Numbers of the pieces, from 1, and the range of the body in each piece.
pub(crate) fn pieces(length: u64, first: usize, piece: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let (length, first) = (length as usize, first.min(length as usize));
    let starts = (first..length).step_by(piece.max(1));
    (1..).zip(starts.map(move |start| start..length.min(start.saturating_add(piece))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: ObjectName = ObjectName::Message {
        context: 5,
        from: 1,
        to: 2,
        number: 77,
    };

    #[test]
    fn an_object_is_what_was_asked_for_and_whole_or_nothing() {
        let head = ObjectHead {
            tag: 9,
            length: 3,
            readers: 1,
        };
        let mut object = encode_head(&head, &NAME).to_vec();
        object.extend([1, 2, 3]);
        assert_eq!(decode_head(&NAME, &object, |_| 10), Some(head));
        for length in 0..object.len() {
            let cut = decode_head(&NAME, &object[..length], |_| 10);
            assert_eq!(cut, None, "cut to {length}");
        }
        assert_eq!(decode_head(&NAME, &object, |_| 2), None, "more than goes with a head");
        for place in [0, 4, 5, 12, 16, 24, 33] {
            let mut other = object.clone();
            other[place] ^= 1;
            assert_eq!(decode_head(&NAME, &other, |_| 10), None, "byte {place}");
        }
        let of_another_communicator = ObjectName::Message {
            context: 6,
            from: 1,
            to: 2,
            number: 77,
        };
        assert_eq!(decode_head(&of_another_communicator, &object, |_| 10), None);
    }

    #[test]
    fn names_have_keys_of_their_own() {
        let step = |number| ObjectName::Step {
            context: 5,
            collective: 1,
            from: 1,
            to: 2,
            number,
        };
        let published = |collective, key| ObjectName::Published {
            context: 5,
            collective,
            from: 1,
            key,
        };
        let names = [
            NAME,
            step(77),
            step(78),
            published(1, 2),
            published(12, 2),
            published(1, 22),
        ];
        let keys: std::collections::HashSet<_> = names.iter().map(|name| key(name, "g")).collect();
        assert_eq!(keys.len(), names.len(), "{keys:?}");
    }

    #[test]
    fn pieces_are_all_that_the_first_does_not_have() {
        let all: Vec<_> = pieces(10, 3, 4).collect();
        assert_eq!(all, [(1, 3..7), (2, 7..10)]);
        assert_eq!(pieces(3, 3, 4).count(), 0);
        assert_eq!(pieces(0, 3, 4).count(), 0);
        let large = 3 << 30;
        let total: usize = pieces(large, 1 << 20, 1 << 20).map(|(_, range)| range.len()).sum();
        assert_eq!(total as u64, large - (1 << 20));
    }
}
