//! Settings of the link choice by the model.

use super::link::LinkChoice;
use crate::error::Error;
use hotlease_collectives::model::{Criterion, Estimate, LinkPrices, Scenario, collective_of_bytes, estimate};
use hotlease_collectives::{CollectiveCall, Operation, Rank, Table};
use std::fmt;
use std::str::FromStr;

/// Settings of a choice among several links: [`model`](crate::model) chooses the best link for an operation of a given
/// size.
///
/// As text: `auto:direct,redis://host,s3://bucket,op=allreduce,size=1MiB,by=price`; a part that is not a link is one
/// of the settings below. Without links, the links of `HOTLEASE_COMM_LINKS` are used, for instance
/// `direct,redis://host`: the program says `auto`, and the environment says which links there are. A comma in a
/// password is written `%2C`.
///
/// All members must give the same links and settings, in the same order; the rendezvous rejects a member with other
/// settings, prices or tables. A store may have a different address at each member. Members choose when they have met,
/// for the number of members that have met, and again when a communicator shrinks or grows.
/// [`Communicator::link`](crate::Communicator::link) is the chosen link; `hotlease comm plan` shows the choice for the
/// same figures. Prices and times come from the file that `HOTLEASE_COMM_PRICES` names, else from the built-in prices,
/// which are AWS's and have no figures for libfabric. If the chosen link does not work, for instance because members
/// cannot reach each other, that is an error: no other link is tried.
///
/// ```
/// use hotlease_comm::model::Criterion;
/// use hotlease_comm::{LinkChoice, Operation};
///
/// let link: LinkChoice = "auto:direct,redis://cache,size=64KiB".parse()?;
/// let LinkChoice::Auto(auto) = &link else { unreachable!() };
/// assert_eq!((auto.operation, auto.bytes, auto.by), (Operation::Allreduce, 65536, Criterion::Price));
/// # Ok::<(), hotlease_comm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoLink {
    /// Links to choose from, at most 8, none of them `auto`. Of equally good links, the first is chosen. If empty, the
    /// links of `HOTLEASE_COMM_LINKS` are used.
    pub links: Vec<LinkChoice>,
    /// Operation to choose for: `op=` (default: allreduce).
    pub operation: Operation,
    /// Bytes of the operation: `size=`, counted as in [`collective_of_size`](crate::model::collective_of_size) (default: 1 MiB).
    pub bytes: usize,
    /// Criterion: `by=time`, `price` or `product` (default: price).
    pub by: Criterion,
    /// Memory of each member, which is charged for: `memory=` (default: 2 GiB).
    pub memory_bytes: u64,
    /// Number of these operations that share an hour of a store or rendezvous: `operations-per-hour=` (default:
    /// servers are charged for the duration of the operation).
    pub operations_per_hour: Option<u32>,
}

/// Maximum number of links to choose from.
const LINKS_MAX: usize = 8;
const LINKS: &str = "HOTLEASE_COMM_LINKS";

impl Default for AutoLink {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            operation: Operation::Allreduce,
            bytes: 1 << 20,
            by: Criterion::Price,
            memory_bytes: 2 << 30,
            operations_per_hour: None,
        }
    }
}

fn wrong(why: impl fmt::Display) -> Error {
    let what = format!("a link: auto: {why}");
    Error::Options { what }
}

impl AutoLink {
    /// Adds the links of the environment, unless the settings name links.
    pub(super) fn with_links(self) -> Result<Self, Error> {
        if !self.links.is_empty() {
            return Ok(self);
        }
        let found = std::env::var_os(LINKS).filter(|links| !links.is_empty());
        let text = found.ok_or_else(|| {
            wrong(format_args!(
                "it has no links to choose from: name them, as in `auto:direct,redis://host`, or set {LINKS}"
            ))
        })?;
        let text = text
            .into_string()
            .map_err(|_| wrong(format_args!("{LINKS} is no text")))?;
        let Self { links, .. } = text.parse()?;
        let are_links = text.parse()
            == Ok(Self {
                links: links.clone(),
                ..Self::default()
            })
            && !links.is_empty();
        match are_links {
            true => Ok(Self { links, ..self }),
            false => Err(wrong(format_args!(
                "{LINKS} has links only, such as `direct,redis://host`"
            ))),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let count = self.links.len();
        if count > LINKS_MAX {
            return Err(wrong(format_args!("{count} links; the most is {LINKS_MAX}")));
        }
        if self.links.iter().any(|link| matches!(link, LinkChoice::Auto(_))) {
            return Err(wrong("it chooses from links, and `auto` is none"));
        }
        Ok(())
    }

    /// Time and price of each link, in the order of `links`.
    ///
    /// # Errors
    /// [`Error::Model`] if a link has no prices or cannot be simulated; [`Error::Options`].
    pub fn estimates(&self, ranks: Rank, table: &Table, prices: &LinkPrices) -> Result<Vec<Estimate>, Error> {
        let (collective, datatype) = collective_of_bytes(self.operation, 0, ranks, self.bytes);
        let scenario = Scenario {
            call: CollectiveCall::new(collective, datatype, 0, ranks),
            memory_bytes: self.memory_bytes,
            operations_per_hour: self.operations_per_hour.map(f64::from),
        };
        let kinds = self.links.iter().filter_map(LinkChoice::kind);
        kinds
            .map(|kind| Ok(estimate(&scenario, kind, table, prices)?))
            .collect()
    }

    /// Text of the settings that all members must agree on.
    pub(super) fn agreed(&self) -> String {
        self.describe(LinkChoice::agreed)
    }

    fn describe(&self, link: impl Fn(&LinkChoice) -> String) -> String {
        let mut parts: Vec<String> = self.links.iter().map(link).collect();
        parts.push(format!("op={},size={},by={}", self.operation, self.bytes, self.by));
        parts.push(format!("memory={}", self.memory_bytes));
        parts.extend(
            self.operations_per_hour
                .map(|count| format!("operations-per-hour={count}")),
        );
        format!("auto:{}", parts.join(","))
    }

    /// Best link for this number of members.
    pub(super) fn choose(&self, ranks: Rank, table: &Table, prices: &LinkPrices) -> Result<LinkChoice, Error> {
        let estimates = self.estimates(ranks, table, prices)?;
        let best = self.by.best(&estimates).map(|best| best.link);
        let found = self.links.iter().find(|link| best.is_some() && link.kind() == best);
        found.cloned().ok_or_else(|| wrong("it has no links to choose from"))
    }
}

impl fmt::Display for AutoLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(LinkChoice::to_string))
    }
}

impl FromStr for AutoLink {
    type Err = Error;

    /// Parses the text after `auto:`.
    ///
    /// # Errors
    /// [`Error::Options`]. The error does not repeat the text, which may contain a password.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut auto = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let number =
                |value: &str| bytes(value).ok_or_else(|| wrong("a size is a number such as 4096, 64KiB or 1MiB"));
            match part.split_once('=') {
                Some(("op", value)) => auto.operation = value.parse()?,
                Some(("by", value)) => auto.by = value.parse()?,
                Some(("size", value)) => {
                    auto.bytes = number(value)?
                        .try_into()
                        .map_err(|_| wrong("a size that is no size here"))?;
                }
                Some(("memory", value)) => auto.memory_bytes = number(value)?,
                Some(("operations-per-hour", value)) => {
                    let count = value.parse().ok().filter(|count| *count > 0);
                    auto.operations_per_hour =
                        Some(count.ok_or_else(|| wrong("operations-per-hour is a number of at least 1"))?);
                }
                _ => auto.links.push(part.parse()?),
            }
        }
        auto.check()?;
        Ok(auto)
    }
}

/// Parses a size: `4096`, `64K`, `1MiB`; units are powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim_end_matches("iB") {
        "" if unit.is_empty() => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::StoreAddress;

    fn auto(text: &str) -> AutoLink {
        match text.parse().expect(text) {
            LinkChoice::Auto(auto) => auto,
            link => panic!("{link:?}"),
        }
    }

    #[test]
    fn settings_stand_among_links() {
        let said = auto(
            "auto:direct, redis://me:secret@h?prefix=a/,by=time,s3://b?region=x,size=3K,op=scan,memory=1GiB,operations-per-hour=9",
        );
        assert_eq!(
            said.to_string(),
            "auto:direct,redis://h,s3://b,op=scan,size=3072,by=time,memory=1073741824,operations-per-hour=9"
        );
        assert_eq!(said.links[1].store().map(StoreAddress::prefix), Some("a/"));
        assert_eq!(auto("auto"), AutoLink::default());
        assert_eq!(auto(&said.to_string()).to_string(), said.to_string());
    }

    #[test]
    fn invalid_choices_are_refused_without_repeating_the_text() {
        for (text, expected) in [
            ("auto:telex", "it can be `direct`"),
            ("auto:direct,auto", "auto"),
            ("auto:direct,size=much", "a size is a number"),
            ("auto:size=99999999999999999999", "a size is a number"),
            ("auto:size=iB", "a size is a number"),
            ("auto:operations-per-hour=0", "at least 1"),
            ("auto:op=sing,direct", "sing"),
            ("auto:by=colour", "time, price or product"),
            ("auto:redis://me:secret@", "no host"),
            ("auto:tcp,tcp,tcp,tcp,tcp,tcp,tcp,tcp,tcp", "9 links"),
            ("automatic", "it can be"),
        ] {
            let error = text.parse::<LinkChoice>().expect_err(text).to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn the_choice_is_that_of_the_model() {
        let (table, mut prices) = (Table::built_in(), LinkPrices::built_in().clone());
        let among = auto("auto:redis://h,tcp,s3://b,size=64K");
        assert_eq!(among.choose(16, table, &prices), Ok(LinkChoice::Tcp));
        // With a slow network, a store is cheaper.
        let tcp = prices.link.tcp.as_mut().expect("TCP");
        tcp.latency_us = 1e6;
        assert_eq!(among.choose(16, table, &prices), Ok(among.links[0].clone()));
        let first = auto("auto:tcp,direct");
        assert_eq!(
            first.choose(16, table, &prices),
            Ok(LinkChoice::Tcp),
            "of equal ones the first"
        );
        prices.link.redis = None;
        let error = among.choose(16, table, &prices).expect_err("nothing is known of it");
        assert!(
            error.to_string().contains("the prices say nothing about redis"),
            "{error}"
        );
    }
}
