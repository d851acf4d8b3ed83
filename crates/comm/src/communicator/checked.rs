//! Checked mode: before each collective, members tell each other the call that they are about to make, and its place
//! in the program.
//!
//! Each member sends a card of fixed length, so that cards can be exchanged even if the calls have nothing in common.
//! Every member gets all cards and compares them in the same way. So all members return the same error, nothing of the
//! collective is sent, and the communicator remains usable.

use super::arguments::CollectiveArguments;
use crate::error::{Error, MemberCall};
use hotlease_collectives::{Blocks, Collective, CollectiveCall, Operator, Rank};
use std::fmt::Write;
use std::panic::Location;

/// Bytes of a card: two texts, each with its length before it.
const CARD_BYTES: usize = CALL_BYTES + SITE_BYTES;
const CALL_BYTES: usize = 128;
const SITE_BYTES: usize = 128;

/// Description of a member's call, as it is sent.
pub(crate) type CallSummary = [u8; CARD_BYTES];

/// Place in a program that calls a collective.
#[derive(Clone, Copy)]
pub(super) struct CallSite<'a> {
    place: SourceLocation<'a>,
    /// Name of the call there, if it is not the collective itself.
    name: Option<&'static str>,
}

#[derive(Clone, Copy)]
enum SourceLocation<'a> {
    Rust(&'static Location<'static>),
    Other(&'a str),
}

impl<'a> CallSite<'a> {
    pub(super) fn rust(location: &'static Location<'static>) -> Self {
        Self {
            place: SourceLocation::Rust(location),
            name: None,
        }
    }

    /// Place that the caller gives, else the place in Rust.
    pub(super) fn of(ask: &CollectiveArguments<'a>, location: &'static Location<'static>) -> Self {
        Self {
            place: ask.site.map_or(SourceLocation::Rust(location), SourceLocation::Other),
            name: None,
        }
    }

    /// This place, for an operation that is made of collectives.
    pub(super) fn named(self, name: &'static str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }
}

/// Call that exchanges the cards.
pub(super) fn exchange_call(rank: Rank, ranks: Rank) -> CollectiveCall<'static> {
    let blocks = Blocks::Equal(CARD_BYTES);
    CollectiveCall::new(Collective::Allgather { blocks }, rank, ranks)
}

/// Card of this member: its call and the place of the call.
pub(super) fn card(ask: &CollectiveArguments<'_>, site: &CallSite<'_>) -> CallSummary {
    let mut card = [0; CARD_BYTES];
    let (call, place) = card.split_at_mut(CALL_BYTES);
    let text = match site.name {
        Some(name) => name.to_owned(),
        None => describe(ask),
    };
    write(call, &shortened(text));
    match site.place {
        SourceLocation::Rust(location) => write(place, last_bytes(&location.to_string())),
        SourceLocation::Other(text) => write(place, last_bytes(text)),
    }
    card
}

/// Error with the first two calls that differ, if any do.
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

/// Describes the call, with all arguments that members must agree on.
fn describe(ask: &CollectiveArguments<'_>) -> String {
    let datatype = ask.datatype;
    let mut text = match ask.collective {
        Collective::Barrier => return "barrier".into(),
        Collective::Broadcast { root, count } => {
            format!("broadcast of {count} {datatype} from rank {root}")
        }
        Collective::Gather { root, blocks } => {
            format!("gather of {} {datatype} to rank {root}", of_each(&blocks))
        }
        Collective::Scatter { root, blocks } => {
            format!("scatter of {} {datatype} from rank {root}", of_each(&blocks))
        }
        // Only the root knows the counts.
        Collective::Gatherv { root, .. } => format!("gatherv of {datatype} to rank {root}"),
        Collective::Scatterv { root, .. } => format!("scatterv of {datatype} from rank {root}"),
        Collective::Allgather { blocks } => format!("allgather of {} {datatype}", of_each(&blocks)),
        Collective::Reduce { root, count } => format!("reduce of {count} {datatype} to rank {root}"),
        Collective::Allreduce { count } => format!("allreduce of {count} {datatype}"),
        Collective::ReduceScatter { blocks } => {
            format!("reduce_scatter of {} {datatype}", of_each(&blocks))
        }
        Collective::Scan { count } => format!("scan of {count} {datatype}"),
        Collective::Exscan { count } => format!("exscan of {count} {datatype}"),
        Collective::Alltoall { count } => format!("alltoall of {count} {datatype} to each"),
        Collective::Alltoallv { .. } => format!("alltoallv of {datatype}"),
    };
    if let Some(operator) = ask.operator.filter(|_| ask.collective.operation().is_reduction()) {
        let order = match operator {
            Operator::User { commutes: false, .. } => " that does not commute",
            _ => "",
        };
        // Writing to a string never fails.
        let _ = write!(text, " by {}{order}", operator.name());
    }
    text
}

fn of_each(blocks: &Blocks<'_>) -> String {
    match blocks {
        Blocks::Equal(count) => format!("{count} of each"),
        Blocks::Each { counts, .. } => {
            let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
            counts.join(", ")
        }
    }
}

/// Shortens a text that is too long. It then ends with a digest of the full text, so that different texts stay
/// different.
fn shortened(text: String) -> String {
    const DIGITS: usize = 16;
    if text.len() < CALL_BYTES {
        return text;
    }
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let end = CALL_BYTES - 1 - DIGITS - "... #".len();
    let end = (0..=end).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}... #{}", &text[..end], &digest[..DIGITS])
}

/// The last part of a place, which tells more than its beginning: a file and a line.
fn last_bytes(text: &str) -> &str {
    let start = text.len().saturating_sub(SITE_BYTES - 1);
    let is_boundary = |place: &usize| text.is_char_boundary(*place);
    let start = (start..text.len()).find(is_boundary).unwrap_or(text.len());
    &text[start..]
}

fn write(field: &mut [u8], text: &str) {
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
    use hotlease_collectives::Datatype;

    fn at(text: &'static str, count: usize) -> CallSummary {
        let ask = CollectiveArguments {
            site: Some(text),
            ..CollectiveArguments::new(Collective::Broadcast { root: 1, count }, Datatype::F32)
        };
        card(&ask, &CallSite::of(&ask, Location::caller()))
    }

    #[test]
    fn all_are_told_of_the_first_two_that_differ() {
        let same = [at("here.py:1", 5), at("there.py:2", 5)];
        assert_eq!(
            first_difference(same.as_flattened()),
            None,
            "from where it is called may differ"
        );
        let cards = [at("here.py:1", 5), at("here.py:1", 5), at("there.py:2", 6)];
        let error = first_difference(cards.as_flattened()).expect("rank 2 has another count");
        assert_eq!(
            error.to_string(),
            "members call different collectives: rank 0 `broadcast of 5 f32 from rank 1` at here.py:1, \
             rank 2 `broadcast of 6 f32 from rank 1` at there.py:2; nothing was sent"
        );
    }

    #[test]
    fn long_texts_are_cut_where_it_matters_least() {
        let long = |first: usize| {
            let counts: Vec<usize> = (0..1000).map(|rank| if rank == 999 { first } else { rank }).collect();
            let blocks = Blocks::Each {
                counts: &counts,
                displacements: &counts,
            };
            let ask = CollectiveArguments {
                site: Some(&"ä/".repeat(200)),
                ..CollectiveArguments::new(Collective::Allgather { blocks }, Datatype::U8)
            };
            card(&ask, &CallSite::of(&ask, Location::caller()))
        };
        let cards = [long(1), long(2)];
        let error = first_difference(cards.as_flattened())
            .expect("the last count differs")
            .to_string();
        assert!(
            error.contains("allgather of 0, 1, 2") && error.contains("ä/"),
            "{error}"
        );
        assert_eq!(first_difference([long(1), long(1)].as_flattened()), None);
    }

    #[test]
    fn whatever_others_send_is_read() {
        let mut cards = [[0xFF; CARD_BYTES], [0; CARD_BYTES]];
        cards[1][CALL_BYTES] = 200;
        assert!(first_difference(cards.as_flattened()).is_some());
    }
}
