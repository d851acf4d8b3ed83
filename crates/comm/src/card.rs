//! Cards of checked mode: what a member is about to call, and where in its program.
//!
//! Each member sends a card of fixed length, so that cards can be exchanged even if the calls have nothing in common.
//! Every member gets all cards and compares them in the same way. So all members return the same error, nothing of the
//! collective is sent, and the communicator remains usable.

use crate::error::{Error, MemberCall};
use hotlease_collectives::Rank;

/// Bytes of a card: two texts, each with its length before it.
pub(crate) const CARD_BYTES: usize = CALL_BYTES + SITE_BYTES;
pub(crate) const CALL_BYTES: usize = 128;
const SITE_BYTES: usize = 128;

/// Description of a member's call, as it is sent.
pub(crate) type CallSummary = [u8; CARD_BYTES];

/// Returns an error with the call of rank 0 and the first different call, or `None` if all calls are equal.
pub(crate) fn first_difference(cards: &[u8]) -> Option<Error> {
    let caller = |(rank, card): (usize, &CallSummary)| MemberCall {
        rank: rank as Rank,
        call: read(&card[..CALL_BYTES]),
        site: read(&card[CALL_BYTES..]),
    };
    let cards = cards.as_chunks::<CARD_BYTES>().0;
    let first = cards.first()?;
    let is_other = |card: &&CallSummary| card[..CALL_BYTES] != first[..CALL_BYTES];
    let other = cards.iter().position(|card| is_other(&card))?;
    Some(Error::CallMismatch {
        first: Box::new(caller((0, first))),
        other: Box::new(caller((other, &cards[other]))),
    })
}

/// Shortens a text that is too long. It then ends with a digest of the full text, so that different texts stay
/// different.
pub(crate) fn shortened(text: String) -> String {
    const DIGITS: usize = 16;
    if text.len() < CALL_BYTES {
        return text;
    }
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let end = CALL_BYTES - 1 - DIGITS - "... #".len();
    let end = (0..=end).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}... #{}", &text[..end], &digest[..DIGITS])
}

/// Returns the last bytes of a place: they contain the file name and the line, which say more than the beginning.
pub(crate) fn last_bytes(text: &str) -> &str {
    let start = text.len().saturating_sub(SITE_BYTES - 1);
    let is_boundary = |place: &usize| text.is_char_boundary(*place);
    let start = (start..text.len()).find(is_boundary).unwrap_or(text.len());
    &text[start..]
}

pub(crate) fn write(field: &mut [u8], text: &str) {
    field[0] = text.len() as u8;
    field[1..=text.len()].copy_from_slice(text.as_bytes());
}

fn read(field: &[u8]) -> String {
    let length = (field[0] as usize).min(field.len() - 1);
    String::from_utf8_lossy(&field[1..=length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_of_any_bytes_are_read() {
        let mut cards = [[0xFF; CARD_BYTES], [0; CARD_BYTES]];
        cards[1][CALL_BYTES] = 200;
        assert!(first_difference(cards.as_flattened()).is_some());
    }
}
