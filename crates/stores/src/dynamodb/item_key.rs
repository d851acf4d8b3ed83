//! Keys of items in the table, from the keys of objects ([`crate::object`]). Numbers have leading zeros, so that items
//! are sorted by number.

use hotlease_comm::Rank;

/// Partition key and sort key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ItemKey {
    pub(super) partition: String,
    pub(super) sort: String,
}

/// Number of partitions with parts of objects.
const PART_PARTITIONS: usize = 16;

impl ItemKey {
    pub(super) fn of(key: &str) -> Self {
        let (rest, name) = key.rsplit_once('/').unwrap_or(("", key));
        if let Some(group) = rest.strip_suffix("/b") {
            return Self {
                partition: format!("{group}/b"),
                sort: padded((name, 4)),
            };
        }
        if let Some((object, part)) = name.split_once('.') {
            // The parts of one object are in different partitions, and the first parts of several objects, too.
            let first: usize = object.bytes().map(usize::from).sum();
            let number = first.wrapping_add(part.parse().unwrap_or(0)) % PART_PARTITIONS;
            return Self {
                partition: format!("{rest}/x{number:x}"),
                sort: name.to_owned(),
            };
        }
        let fields: Vec<&str> = name.split('-').collect();
        let (partition, sort) = match fields[..] {
            ["m", context, from, to, number] => {
                let [context, number, from] = [(context, 16), (number, 20), (from, 4)].map(padded);
                (format!("{rest}/{to}"), format!("m-{context}-{number}-{from}"))
            }
            ["s", context, collective, from, to, number] => {
                let [context, collective] = [(context, 16), (collective, 10)].map(padded);
                let [number, from] = [(number, 10), (from, 4)].map(padded);
                (
                    format!("{rest}/{to}"),
                    format!("s-{context}-{collective}-{number}-{from}"),
                )
            }
            ["p", context, collective, from, key] => {
                let [context, collective] = [(context, 16), (collective, 10)].map(padded);
                let [key, from] = [(key, 10), (from, 4)].map(padded);
                (format!("{rest}/p"), format!("{context}-{collective}-{key}-{from}"))
            }
            _ => (rest.to_owned(), name.to_owned()),
        };
        Self { partition, sort }
    }

    /// Series of objects that are asked for together: messages of a communicator, or objects of one collective.
    pub(super) fn series(&self) -> (&str, &str) {
        // Everything except the number and the sender.
        let series = self.sort.rsplitn(3, '-').last().unwrap_or("");
        (&self.partition, series)
    }
}

fn padded((digits, length): (&str, usize)) -> String {
    format!("{digits:0>length$}")
}

/// All partitions of a group; `group` is the prefix of the group's keys, with a slash at its end.
pub(super) fn partitions(group: &str, size: Rank) -> impl Iterator<Item = String> + use<> {
    let group = group.trim_end_matches('/').to_owned();
    let readers = (0..size).map(|rank| rank.to_string());
    let parts = (0..PART_PARTITIONS).map(|number| format!("x{number:x}"));
    let all = readers.chain(["p".to_owned()]).chain(parts).chain(["b".to_owned()]);
    all.map(move |name| format!("{group}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{self, piece_key};
    use hotlease_comm::link::ObjectName;
    use std::collections::BTreeSet;

    fn names(number: u32) -> [ObjectName; 3] {
        let (context, collective, from, to) = (0xfe, 12, 7, 11);
        let whole = u64::from(number);
        [
            ObjectName::Message {
                context,
                from,
                to,
                number: whole,
            },
            ObjectName::Step {
                context,
                collective,
                from,
                to,
                number,
            },
            ObjectName::Published {
                context,
                collective,
                from,
                key: number,
            },
        ]
    }

    #[test]
    fn objects_are_where_their_readers_look_and_in_order() {
        let [message, step, published] = names(3).map(|name| ItemKey::of(&object::key(&name, "a/b:c-d.e/g")));
        for place in [&message, &step] {
            assert_eq!(place.partition, "a/b:c-d.e/g/11");
        }
        assert_eq!(published.partition, "a/b:c-d.e/g/p");
        for (before, after) in [(0, 1), (9, 10), (99, u32::MAX)] {
            for (before, after) in names(before).iter().zip(&names(after)) {
                let (before, after) = (
                    ItemKey::of(&object::key(before, "g")),
                    ItemKey::of(&object::key(after, "g")),
                );
                assert!(before < after, "{before:?} {after:?}");
                assert_eq!(before.series(), after.series());
            }
        }
        let series = [&message, &step, &published].map(ItemKey::series);
        assert_eq!(series.iter().collect::<BTreeSet<_>>().len(), 3, "{series:?}");
    }

    #[test]
    fn every_object_has_a_place_of_its_own_in_a_partition_that_is_known() {
        let heads = [0, 1, 10, 11].into_iter().flat_map(names);
        let heads = heads.map(|name| object::key(&name, "mine/0f"));
        let keys = heads.flat_map(|key| {
            (0..40).map(move |part| match part {
                0 => key.clone(),
                part => piece_key(&key, part),
            })
        });
        let boards = (0..12).map(|rank| format!("mine/0f/b/{rank}"));
        let keys: Vec<String> = keys.chain(boards).collect();
        let places: BTreeSet<ItemKey> = keys.iter().map(|key| ItemKey::of(key)).collect();
        assert_eq!(places.len(), keys.len());
        let known: BTreeSet<String> = partitions("mine/0f/", 12).collect();
        for place in &places {
            assert!(known.contains(&place.partition), "{place:?}");
        }
    }

    #[test]
    fn parts_that_are_on_their_way_together_are_in_different_partitions() {
        let key = object::key(&names(0)[0], "g");
        let partitions = (1..9).map(|part| ItemKey::of(&piece_key(&key, part)).partition);
        assert_eq!(partitions.collect::<BTreeSet<_>>().len(), 8);
    }
}
