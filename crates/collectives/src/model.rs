//! Time and price of a collective on each link, and choice of the best link for it.
//!
//! *Time* comes from [`cost`](crate::cost), which simulates the schedules that the [`Table`] chooses with the link's
//! times. *Price* is the sum of three terms: the functions that wait (seconds, times ranks, times memory), the servers
//! (the rendezvous of direct links, a Redis node), and the requests, which are counted in the same schedules. The terms
//! are taken from Copik, Böhringer, Calotoiu, Hoefler: FMI: Fast and Cheap Message Passing for Serverless Functions
//! (2023).
//!
//! [`LinkPrices`] has the times and prices with their sources. In this module, time is in seconds and money in one
//! currency; if a field of a file has another unit, the field's name contains the unit.
//!
//! ```
//! use hotlease_collectives::model::{Criterion, LinkPrices, Scenario, choose, collective_of_size};
//! use hotlease_collectives::{CollectiveCall, Datatype, LinkKind, Operation, Table};
//!
//! let allreduce = collective_of_size(Operation::Allreduce, 0, 32, 1 << 17);
//! let scenario = Scenario {
//!     call: CollectiveCall::new(allreduce, Datatype::F64, 0, 32),
//!     memory_bytes: 2 << 30,
//!     operations_per_hour: None,
//! };
//! let links = [LinkKind::Tcp, LinkKind::S3];
//! let best = choose(&scenario, Criterion::Price, &links, Table::built_in(), LinkPrices::built_in())?;
//! assert_eq!(best.link, LinkKind::Tcp);
//! println!("{:.1} ms, {:.2} millionths", best.seconds() * 1e3, best.price.total() * 1e6);
//! # Ok::<(), hotlease_collectives::Error>(())
//! ```

mod candidates;
mod prices;
mod traffic;

use crate::algorithm::{Blocks, Recipe};
use crate::choice::{LinkKind, Question, Table};
use crate::collective::{Collective, CollectiveCall};
use crate::cost::{Costs, LinkCost, SimulationResult, StoreCost, simulate};
use crate::datatype::Datatype;
use crate::error::Error;
use crate::names::name_of;
use crate::operation::Operation;
use crate::operator::Operator;
use crate::schedule::Rank;
use std::fmt;
use std::str::FromStr;
use traffic::{Survey, Traffic, survey};

pub use candidates::{RecipeCandidate, candidates};
pub use prices::{
    FigureOrigin, FunctionPrice, LinkFigures, LinkPrices, MessageTimes, RankTimes, RequestPrices, ServerPrice,
    StorePrices, StoreTimes,
};

/// Maximum number of ranks that are simulated.
pub const RANKS_MAX: Rank = 100_000;
/// Maximum length of a buffer that is simulated, in bytes.
const BYTES_MAX: u128 = 1 << 40;
/// Maximum number of messages or requests that are simulated: more would take minutes.
const TRANSFERS_MAX: u64 = 500_000_000;
/// Number of transfers above which a recipe is simulated only if it can be the fastest. With this limit, the estimates
/// for ten thousand ranks take seconds.
const TRANSFERS_SMALL: u64 = 2_000_000;
/// Maximum number of transfers at a time: more would not fit in memory.
const AT_ONCE_MAX: u64 = 20_000_000;

const SECONDS_PER_HOUR: f64 = 3600.0;
const BYTES_PER_GIB: f64 = (1u64 << 30) as f64;

/// A collective between functions.
#[derive(Debug, Clone, Copy)]
pub struct Scenario<'a> {
    /// The call of any rank; if the calls differ between ranks, the call of the root.
    pub call: CollectiveCall<'a>,
    /// Memory of each function, which is charged for while the function waits.
    pub memory_bytes: u64,
    /// Number of these operations that share the servers in an hour. If `None`, servers are charged for the duration of
    /// the operation.
    pub operations_per_hour: Option<f64>,
}

impl Scenario<'_> {
    fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Options { what });
        if self.call.ranks > RANKS_MAX {
            let ranks = self.call.ranks;
            return Err(self.no_estimate(format!("{ranks} ranks; up to {RANKS_MAX} are simulated")));
        }
        self.call.check()?;
        let (buffer, element) = (self.call.input().max(self.call.output()), self.element());
        if buffer as u128 * element as u128 > BYTES_MAX {
            return wrong(format!(
                "buffers of {buffer} elements of {element} bytes; the most is 1 TiB"
            ));
        }
        match self.operations_per_hour {
            Some(count) if !(count.is_finite() && count > 0.0) => {
                wrong(format!("{count} operations in an hour; it must be more than 0"))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of an element.
    pub fn element(&self) -> usize {
        self.call.datatype.size()
    }

    fn unknown(&self, link: LinkKind) -> Error {
        self.no_estimate(format!("the prices say nothing about {link}"))
    }

    fn no_estimate(&self, why: String) -> Error {
        Error::Model {
            operation: self.call.collective.operation(),
            why,
        }
    }
}

/// Makes an operation in which all ranks have equal counts. `elements` is the size of a broadcast, reduction or scan;
/// for other operations it is the size of all blocks that one rank sends or receives, divided among the ranks and
/// rounded up. Operations without a root ignore `root`; operations that reduce use [`Operator::Sum`].
pub fn collective_of_size(operation: Operation, root: Rank, ranks: Rank, elements: usize) -> Collective<'static> {
    let (count, block) = (elements, elements.div_ceil((ranks as usize).max(1)));
    let (blocks, operator) = (Blocks::Equal(block), &Operator::Sum);
    match operation {
        Operation::Barrier => Collective::Barrier,
        Operation::Broadcast => Collective::Broadcast { root, count },
        Operation::Gather => Collective::Gather { root, blocks },
        Operation::Gatherv => Collective::Gatherv {
            root,
            mine: block,
            blocks,
        },
        Operation::Scatter => Collective::Scatter { root, blocks },
        Operation::Scatterv => Collective::Scatterv {
            root,
            mine: block,
            blocks,
        },
        Operation::Allgather => Collective::Allgather { blocks },
        Operation::Reduce => Collective::Reduce { root, count, operator },
        Operation::Allreduce => Collective::Allreduce { count, operator },
        Operation::ReduceScatter => Collective::ReduceScatter { blocks, operator },
        Operation::Scan => Collective::Scan { count, operator },
        Operation::Exscan => Collective::Exscan { count, operator },
        Operation::Alltoall => Collective::Alltoall { count: block },
        Operation::Alltoallv => Collective::Alltoallv {
            sent: blocks,
            received: blocks,
        },
    }
}

/// Makes an operation as [`collective_of_size`] does, for this many bytes; also returns the type of its elements: the
/// longest numbers whose length divides these bytes.
pub fn collective_of_bytes(
    operation: Operation,
    root: Rank,
    ranks: Rank,
    bytes: usize,
) -> (Collective<'static>, Datatype) {
    let fits = |datatype: &Datatype| bytes.is_multiple_of(datatype.size());
    let longest = [Datatype::U64, Datatype::U32, Datatype::U16].into_iter().find(fits);
    let datatype = longest.unwrap_or(Datatype::U8);
    let elements = bytes / datatype.size();
    (collective_of_size(operation, root, ranks, elements), datatype)
}

/// Price of a collective, in the currency of the [`LinkPrices`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Price {
    /// Functions that wait: seconds, times ranks, times memory.
    pub functions: f64,
    /// Servers: the rendezvous of links from rank to rank, or the node of a store.
    pub servers: f64,
    /// Requests to a store, including reads of objects that do not exist yet and removals.
    pub requests: f64,
}

impl Price {
    /// Sum of all parts.
    pub fn total(&self) -> f64 {
        self.functions + self.servers + self.requests
    }
}

/// Time and price of a collective on a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The link.
    pub link: LinkKind,
    /// The algorithm and its parameters.
    pub recipe: Recipe,
    /// Counts and time of the simulation.
    pub outcome: SimulationResult,
    /// The price.
    pub price: Price,
}

impl Estimate {
    /// Time from the common start of all ranks until the last rank has finished.
    pub fn seconds(&self) -> f64 {
        self.outcome.seconds
    }
}

/// Criterion by which a link is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// Least time.
    Time,
    /// Least price.
    Price,
    /// Least product of time and price.
    Product,
}

impl Criterion {
    const NAMES: [(Criterion, &'static str); 3] = [
        (Criterion::Time, "time"),
        (Criterion::Price, "price"),
        (Criterion::Product, "product"),
    ];

    fn measure(self, estimate: &Estimate) -> f64 {
        match self {
            Criterion::Time => estimate.seconds(),
            Criterion::Price => estimate.price.total(),
            Criterion::Product => estimate.seconds() * estimate.price.total(),
        }
    }

    /// Best of several estimates; the first one if several are equally good.
    pub fn best(self, estimates: &[Estimate]) -> Option<&Estimate> {
        let order = |a: &&Estimate, b: &&Estimate| self.measure(a).total_cmp(&self.measure(b));
        estimates.iter().min_by(order)
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Criterion::NAMES, self))
    }
}

impl FromStr for Criterion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Criterion::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(by, _)| *by).ok_or_else(|| Error::Options {
            what: format!("a link is chosen by time, price or product, and not by `{text}`"),
        })
    }
}

/// Chooses the best of some links for a collective: this is what `link = "auto"` means. Links without prices are left
/// out.
///
/// # Errors
///
/// Errors of [`estimate`], for the first link that fails; also [`Error::Model`] if none of the links has prices.
pub fn choose(
    scenario: &Scenario,
    by: Criterion,
    links: &[LinkKind],
    table: &Table,
    prices: &LinkPrices,
) -> Result<Estimate, Error> {
    let known = links.iter().filter(|link| prices.link.has(**link));
    let estimates: Vec<Estimate> = known
        .map(|link| estimate(scenario, *link, table, prices))
        .collect::<Result<_, _>>()?;
    by.best(&estimates).copied().ok_or_else(|| {
        let names: Vec<String> = links.iter().map(LinkKind::to_string).collect();
        scenario.no_estimate(format!("the prices say nothing about {}", names.join(", ")))
    })
}

/// Estimates time and price on a link, with the algorithm that a table chooses.
///
/// # Errors
///
/// [`Error::Arguments`] and [`Error::Options`] if the scenario is invalid, [`Error::Model`] if the link has no prices,
/// or if the collective has more messages than can be simulated.
pub fn estimate(scenario: &Scenario, link: LinkKind, table: &Table, prices: &LinkPrices) -> Result<Estimate, Error> {
    scenario.check()?;
    let recipe = table.choose(&Question::new(&scenario.call, link));
    estimate_by(scenario, link, recipe, prices)
}

/// Estimates time and price on a link, with a given recipe.
///
/// # Errors
///
/// Errors of [`estimate`], and [`Error::UnsupportedAlgorithm`] if the algorithm cannot do the call.
pub fn estimate_by(
    scenario: &Scenario,
    link: LinkKind,
    recipe: Recipe,
    prices: &LinkPrices,
) -> Result<Estimate, Error> {
    scenario.check()?;
    let Survey { transfers, at_once, .. } = survey(&scenario.call, recipe, &|_| 0.0)?;
    if transfers > TRANSFERS_MAX || at_once > AT_ONCE_MAX {
        return Err(scenario.no_estimate(format!(
            "{} has about {transfers} messages or requests, {at_once} of them at a time, which is too much to simulate",
            recipe.algorithm
        )));
    }
    let ranks = f64::from(scenario.call.ranks);
    let (outcome, price) = match prices.link.message(link) {
        Some(times) => {
            let near = prices.link.shm.as_ref().map_or(times.cost(), MessageTimes::cost);
            let outcome = run(scenario, recipe, prices, (near, times.cost()), StoreCost::default())?.0;
            // Ranks that share memory need no rendezvous.
            let hour_price = if link == LinkKind::Shm {
                0.0
            } else {
                prices.rendezvous.hour_price
            };
            (
                outcome,
                Price {
                    servers: server_share(scenario, &outcome, hour_price),
                    ..Price::default()
                },
            )
        }
        None => {
            let store = prices.link.store(link).ok_or_else(|| scenario.unknown(link))?;
            let (outcome, traffic) = run(scenario, recipe, prices, Default::default(), store.times.cost())?;
            let servers = store
                .server
                .as_ref()
                .map_or(0.0, |server| server_share(scenario, &outcome, server.hour_price));
            let requests = store
                .requests
                .as_ref()
                .map_or(0.0, |requests| traffic.price(requests, outcome.polls));
            (
                outcome,
                Price {
                    servers,
                    requests,
                    ..Price::default()
                },
            )
        }
    };
    let gib = scenario.memory_bytes as f64 / BYTES_PER_GIB;
    let functions = outcome.seconds * ranks * gib * prices.function.gib_second_price;
    Ok(Estimate {
        link,
        recipe,
        outcome,
        price: Price { functions, ..price },
    })
}

/// Part of a server's hourly price that an operation pays: `1 / n` if the scenario has `n` operations in an hour,
/// otherwise the part for the operation's own seconds.
fn server_share(scenario: &Scenario, outcome: &SimulationResult, hour_price: f64) -> f64 {
    hour_price
        * match scenario.operations_per_hour {
            Some(count) => 1.0 / count,
            None => outcome.seconds / SECONDS_PER_HOUR,
        }
}

fn run(
    scenario: &Scenario,
    recipe: Recipe,
    prices: &LinkPrices,
    (near, far): (LinkCost, LinkCost),
    store: StoreCost,
) -> Result<(SimulationResult, Traffic), Error> {
    let call = scenario.call;
    let share_a_node = |from: Rank, to: Rank| {
        call.nodes
            .is_some_and(|nodes| nodes[from as usize] == nodes[to as usize])
    };
    let costs = Costs {
        link: &|from, to| if share_a_node(from, to) { near } else { far },
        store,
        reduce_byte_s: prices.rank.reduce_byte_s(),
        copy_byte_s: prices.rank.copy_byte_s(),
    };
    let mut traffic = Traffic::default();
    let outcome = simulate(call.ranks, scenario.element(), &costs, |rank, rounds| {
        let part = recipe.build_part(&CollectiveCall { rank, ..call }, rounds)?;
        traffic.count(&part.schedule, scenario.element());
        Ok(part)
    })?;
    Ok((outcome, traffic))
}

#[cfg(test)]
mod tests;
