//! Checked mode: before each collective, each member sends the others a card ([`crate::card`]) with the call that it
//! is about to make, and with the place of the call in the program.

use crate::card::{CALL_BYTES, CARD_BYTES, CallSummary, last_bytes, shortened, write};
use hotlease_collectives::{Blocks, Collective, CollectiveCall, Datatype, Operator, Rank};
use std::fmt::Write;
use std::panic::Location;

/// Place in a program that calls a collective.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallSite<'a> {
    place: SourceLocation<'a>,
    /// Name of the operation that is called at this place, if it is not the collective itself.
    name: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
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

    /// Place in a program of another language.
    pub(super) fn other(place: &'a str) -> Self {
        Self {
            place: SourceLocation::Other(place),
            name: None,
        }
    }

    /// Returns this place with the name of an operation that consists of collectives.
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
    CollectiveCall::new(Collective::Allgather { blocks }, Datatype::Bytes, rank, ranks)
}

/// Card of this member: its call and the place of the call.
pub(super) fn card(made: &CollectiveCall<'_>, site: &CallSite<'_>) -> CallSummary {
    let mut card = [0; CARD_BYTES];
    let (call, place) = card.split_at_mut(CALL_BYTES);
    let text = match site.name {
        Some(name) => name.to_owned(),
        None => describe(made),
    };
    write(call, &shortened(text));
    match site.place {
        SourceLocation::Rust(location) => write(place, last_bytes(&location.to_string())),
        SourceLocation::Other(text) => write(place, last_bytes(text)),
    }
    card
}

/// Describes the call, with all arguments that members must agree on.
fn describe(made: &CollectiveCall<'_>) -> String {
    let datatype = made.datatype;
    let mut text = match made.collective {
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
        // Only the root has the counts.
        Collective::Gatherv { root, .. } => format!("gatherv of {datatype} to rank {root}"),
        Collective::Scatterv { root, .. } => format!("scatterv of {datatype} from rank {root}"),
        Collective::Allgather { blocks } => format!("allgather of {} {datatype}", of_each(&blocks)),
        Collective::Reduce { root, count, .. } => format!("reduce of {count} {datatype} to rank {root}"),
        Collective::Allreduce { count, .. } => format!("allreduce of {count} {datatype}"),
        Collective::ReduceScatter { blocks, .. } => {
            format!("reduce_scatter of {} {datatype}", of_each(&blocks))
        }
        Collective::Scan { count, .. } => format!("scan of {count} {datatype}"),
        Collective::Exscan { count, .. } => format!("exscan of {count} {datatype}"),
        Collective::Alltoall { count } => format!("alltoall of {count} {datatype} to each"),
        Collective::Alltoallv { .. } => format!("alltoallv of {datatype}"),
    };
    if let Some(operator) = made.collective.operator() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::first_difference;

    fn at(text: &'static str, count: usize) -> CallSummary {
        let call = CollectiveCall::new(Collective::Broadcast { root: 1, count }, Datatype::F32, 0, 3);
        card(&call, &CallSite::other(text))
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
            let call = CollectiveCall::new(Collective::Allgather { blocks }, Datatype::U8, 0, 1000);
            card(&call, &CallSite::other(&"ä/".repeat(200)))
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
}
