//! Builders of schedules: turn a collective, as one rank calls it, and an algorithm into the steps of that rank.
//!
//! Builders are pure, and the number of ranks need not be a power of two. All ranks must build with the same recipe.

mod allgather;
mod allreduce;
mod alltoall;
mod barrier;
mod blocks;
mod broadcast;
mod flat;
mod fold;
mod gather;
mod halving;
mod hierarchical;
mod nodes;
mod objects;
mod ordered_reduce;
mod plan;
mod reduce;
mod reduce_scatter;
mod scan;
mod scatter;
#[cfg(test)]
mod tests;
mod tree;

pub use blocks::Blocks;

use crate::collective::{Collective, CollectiveCall, Operation};
use crate::error::Error;
use crate::schedule::{Area, AreaSpan, Schedule};
use nodes::NodeLayout;
use plan::{RankGroup, SchedulePlan};
use serde::Deserialize;
use std::fmt;
use std::ops::Range;

/// Algorithm of a collective. The builder of each algorithm states its cost and where it was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Without a tree: straight to or from the root, to every rank at once, or from each rank to the next.
    Linear,
    /// Along a binomial tree.
    Binomial,
    /// A barrier: in round `k` each rank notifies the rank `2^k` after it.
    Dissemination,
    /// A broadcast: one share to each rank along a tree, then all shares around a ring.
    ScatterAllgather,
    /// A broadcast from each rank to the next, in segments.
    Chain,
    /// Around a ring.
    Ring,
    /// Exchanges with the ranks 1, 2, 4... away.
    RecursiveDoubling,
    /// Exchanges of halves, then quarters and so on.
    RecursiveHalving,
    /// Bruck's algorithm, with the fewest messages.
    Bruck,
    /// A gather and a broadcast.
    GatherBroadcast,
    /// Rabenseifner's algorithm: recursive halving, then recursive doubling.
    Rabenseifner,
    /// A reduction and a broadcast.
    ReduceBroadcast,
    /// Each rank exchanges with one other rank at a time.
    Pairwise,
    /// A scan up a tree, then down the tree.
    TwoPhase,
    /// Through a store: each rank that needs an object reads it.
    Objects,
    /// Through a store and rank 0, which reads the objects of all ranks and writes one object for all.
    ObjectsRoot,
    /// Through a store; each rank reduces one share.
    ObjectsScattered,
    /// Through a store, with the ranks 1, 2, 4... away.
    ObjectsDoubling,
}

impl Algorithm {
    /// All algorithms, each with its name in tables and on command lines.
    pub const NAMES: [(Algorithm, &'static str); 18] = [
        (Algorithm::Linear, "linear"),
        (Algorithm::Binomial, "binomial"),
        (Algorithm::Dissemination, "dissemination"),
        (Algorithm::ScatterAllgather, "scatter-allgather"),
        (Algorithm::Chain, "chain"),
        (Algorithm::Ring, "ring"),
        (Algorithm::RecursiveDoubling, "recursive-doubling"),
        (Algorithm::RecursiveHalving, "recursive-halving"),
        (Algorithm::Bruck, "bruck"),
        (Algorithm::GatherBroadcast, "gather-broadcast"),
        (Algorithm::Rabenseifner, "rabenseifner"),
        (Algorithm::ReduceBroadcast, "reduce-broadcast"),
        (Algorithm::Pairwise, "pairwise"),
        (Algorithm::TwoPhase, "two-phase"),
        (Algorithm::Objects, "objects"),
        (Algorithm::ObjectsRoot, "objects-root"),
        (Algorithm::ObjectsScattered, "objects-scattered"),
        (Algorithm::ObjectsDoubling, "objects-doubling"),
    ];

    /// Returns whether the algorithm uses objects of a store instead of messages.
    pub const fn is_mediated(self) -> bool {
        matches!(
            self,
            Algorithm::Objects | Algorithm::ObjectsRoot | Algorithm::ObjectsScattered | Algorithm::ObjectsDoubling
        )
    }

    /// Returns whether the algorithm reduces in another order than rank order, in this operation.
    const fn needs_commuting(self, operation: Operation) -> bool {
        matches!(
            (self, operation),
            (Algorithm::Ring, Operation::Allreduce | Operation::ReduceScatter)
        )
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Algorithm::NAMES
            .iter()
            .find(|(algorithm, _)| algorithm == self)
            .map_or("?", |(_, name)| name);
        f.pad(name)
    }
}

impl Operation {
    /// Algorithms that implement this operation.
    pub const fn algorithms(self) -> &'static [Algorithm] {
        use Algorithm::*;
        match self {
            Operation::Barrier => &[Dissemination, Binomial, Linear, Objects, ObjectsRoot, ObjectsDoubling],
            Operation::Broadcast => &[Binomial, Linear, ScatterAllgather, Chain, Objects],
            Operation::Gather | Operation::Scatter => &[Binomial, Linear, Objects],
            Operation::Gatherv | Operation::Scatterv => &[Linear, Objects],
            Operation::Allgather => &[
                Bruck,
                Ring,
                RecursiveDoubling,
                GatherBroadcast,
                Linear,
                Objects,
                ObjectsRoot,
            ],
            Operation::Reduce => &[Binomial, Rabenseifner, Linear, Objects],
            Operation::Allreduce => &[
                RecursiveDoubling,
                Rabenseifner,
                Ring,
                ReduceBroadcast,
                Linear,
                Objects,
                ObjectsRoot,
                ObjectsScattered,
            ],
            Operation::ReduceScatter => &[RecursiveHalving, Pairwise, Ring, Objects],
            Operation::Scan | Operation::Exscan => &[RecursiveDoubling, TwoPhase, Linear, Objects, ObjectsDoubling],
            Operation::Alltoall => &[Pairwise, Linear, Bruck, Objects],
            Operation::Alltoallv => &[Pairwise, Linear, Objects],
        }
    }

    /// Returns whether the operation can be done in two levels, inside nodes and between them.
    pub const fn has_levels(self) -> bool {
        matches!(
            self,
            Operation::Barrier
                | Operation::Broadcast
                | Operation::Gather
                | Operation::Scatter
                | Operation::Allgather
                | Operation::Reduce
                | Operation::Allreduce
        )
    }
}

/// Some rounds of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulePart {
    /// The rounds, with the scratch memory of the whole schedule.
    pub schedule: Schedule,
    /// Whether more rounds follow.
    pub has_more: bool,
}

/// An algorithm and its parameters. All ranks must use the same recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether the algorithm runs between the leaders of nodes only, with trees inside the nodes.
    pub by_nodes: bool,
    /// Number of elements that [`Algorithm::Chain`] sends at a time; 0: all.
    pub segment: usize,
}

impl From<Algorithm> for Recipe {
    fn from(algorithm: Algorithm) -> Self {
        Recipe {
            algorithm,
            by_nodes: false,
            segment: 0,
        }
    }
}

impl Recipe {
    /// Checks whether the recipe can do this call. The result is the same at all ranks.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedAlgorithm`] with the reason.
    pub fn check(&self, call: &CollectiveCall) -> Result<(), Error> {
        let operation = call.collective.operation();
        let refuse = |why| {
            Err(Error::UnsupportedAlgorithm {
                operation,
                algorithm: self.algorithm,
                why,
            })
        };
        if !operation.algorithms().contains(&self.algorithm) {
            return refuse("there is no such algorithm for it");
        }
        if self.algorithm.needs_commuting(operation) && !call.commutes {
            return refuse("it reduces in another order than that of ranks, and the operator does not commute");
        }
        if self.by_nodes {
            let Some(nodes) = call.nodes else {
                return refuse("it is not known which ranks share a node");
            };
            if self.algorithm.is_mediated() {
                return refuse("a store is as far from every rank");
            }
            if !operation.has_levels() {
                return refuse("it cannot be done in two levels");
            }
            if operation.is_reduction() && !call.commutes && !NodeLayout::is_in_order(nodes) {
                return refuse("the operator does not commute, and nodes do not have ranks that follow each other");
            }
        }
        Ok(())
    }

    /// Builds the schedule of the calling rank.
    ///
    /// ```
    /// use hotlease_collectives::{Algorithm, Call, Collective, Recipe};
    ///
    /// // Rank 2 of 4, in a sum of 1000 elements that everyone gets.
    /// let call = Call::new(Collective::Allreduce { count: 1000 }, 2, 4);
    /// let schedule = Recipe::from(Algorithm::RecursiveDoubling).build(&call)?;
    /// assert_eq!(schedule.rounds.len(), 2, "log2 4");
    /// println!("{:#?}", schedule.rounds[0].transfers);
    /// # Ok::<(), hotlease_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Arguments`] if the call contradicts itself, [`Error::UnsupportedAlgorithm`] if the algorithm cannot do this
    /// call.
    pub fn build(&self, call: &CollectiveCall) -> Result<Schedule, Error> {
        self.build_part(call, 0..usize::MAX).map(|part| part.schedule)
    }

    /// Builds some of the rounds: for models with so many ranks that the rounds of all ranks would not fit in memory.
    /// Rounds are counted from 0 in the order of planning. A round in which this rank does nothing counts, but is left
    /// out.
    ///
    /// # Errors
    ///
    /// Those of [`Recipe::build`].
    pub fn build_part(&self, call: &CollectiveCall, rounds: Range<usize>) -> Result<SchedulePart, Error> {
        call.check()?;
        self.check(call)?;
        let mut plan = SchedulePlan::new(rounds);
        self.plan(&mut plan, call);
        let (schedule, more) = plan.finish();
        Ok(SchedulePart {
            schedule,
            has_more: more,
        })
    }

    fn plan(&self, plan: &mut SchedulePlan, call: &CollectiveCall) {
        let (me, ranks) = (call.rank as usize, call.ranks as usize);
        let group = RankGroup::all(me, ranks);
        let levels = |root: Option<usize>| {
            call.nodes
                .filter(|_| self.by_nodes)
                .map(|nodes| NodeLayout::new(nodes, me, root))
        };
        let given = if call.in_place { Area::Output } else { Area::Input };
        match call.collective {
            Collective::Barrier => match levels(None) {
                Some(nodes) => hierarchical::barrier(plan, &nodes, self),
                None => flat::barrier(plan, &group, self),
            },
            Collective::Broadcast { root, count } => {
                let root = root as usize;
                let data = AreaSpan::first(if me == root { Area::Input } else { Area::Output }, count);
                match levels(Some(root)) {
                    Some(nodes) => hierarchical::broadcast(plan, &nodes, root, data, self),
                    None => flat::broadcast(plan, &group, root, data, self),
                }
            }
            Collective::Gather { root, ref blocks } => {
                let (root, all) = (root as usize, AreaSpan::first(Area::Output, blocks.extent(ranks)));
                let in_place = call.in_place && me == root;
                let mine = if in_place {
                    blocks.of(all, me)
                } else {
                    AreaSpan::first(Area::Input, blocks.count(me))
                };
                match levels(Some(root)) {
                    Some(nodes) => hierarchical::gather(plan, &nodes, root, blocks, (mine, all), self),
                    None => flat::gather(plan, &group, root, blocks, mine, all, self),
                }
            }
            Collective::Gatherv { root, mine, ref blocks } => {
                let root = root as usize;
                let all = AreaSpan::first(Area::Output, if me == root { blocks.extent(ranks) } else { 0 });
                let in_place = call.in_place && me == root;
                let mine = if in_place {
                    blocks.of(all, me)
                } else {
                    AreaSpan::first(Area::Input, mine)
                };
                flat::gather(plan, &group, root, blocks, mine, all, self);
            }
            Collective::Scatter { root, ref blocks } => {
                let (root, all) = (root as usize, AreaSpan::first(Area::Input, blocks.extent(ranks)));
                let stays = call.in_place && me == root;
                let mine = (!stays).then(|| AreaSpan::first(Area::Output, blocks.count(me)));
                match levels(Some(root)) {
                    Some(nodes) => hierarchical::scatter(plan, &nodes, root, blocks, (all, mine), self),
                    None => flat::scatter(plan, &group, root, blocks, all, mine, self),
                }
            }
            Collective::Scatterv { root, mine, ref blocks } => {
                let root = root as usize;
                let all = AreaSpan::first(Area::Input, if me == root { blocks.extent(ranks) } else { 0 });
                let stays = call.in_place && me == root;
                let mine = (!stays).then(|| AreaSpan::first(Area::Output, mine));
                flat::scatter(plan, &group, root, blocks, all, mine, self);
            }
            Collective::Allgather { ref blocks } => {
                let all = AreaSpan::first(Area::Output, blocks.extent(ranks));
                let mine = if call.in_place {
                    blocks.of(all, me)
                } else {
                    AreaSpan::first(Area::Input, blocks.count(me))
                };
                match levels(None) {
                    Some(nodes) => hierarchical::allgather(plan, &nodes, blocks, mine, all, self),
                    None => flat::allgather(plan, &group, blocks, mine, all, self),
                }
            }
            Collective::Reduce { root, count } => {
                let root = root as usize;
                let mine = if me == root { given } else { Area::Input };
                let (mine, into) = (AreaSpan::first(mine, count), AreaSpan::first(Area::Output, count));
                match levels(Some(root)) {
                    Some(nodes) => {
                        hierarchical::reduce(plan, &nodes, root, (mine, into), call.commutes, self);
                    }
                    None => flat::reduce(plan, &group, root, mine, into, call.commutes, self),
                }
            }
            Collective::Allreduce { count } => {
                let (mine, into) = (AreaSpan::first(given, count), AreaSpan::first(Area::Output, count));
                match levels(None) {
                    Some(nodes) => hierarchical::allreduce(plan, &nodes, mine, into, call.commutes, self),
                    None => flat::allreduce(plan, &group, mine, into, self),
                }
            }
            Collective::ReduceScatter { ref blocks } => {
                let mine = AreaSpan::first(given, blocks.total(ranks));
                let into = AreaSpan::first(Area::Output, blocks.count(me));
                flat::reduce_scatter(plan, &group, blocks, mine, into, call.commutes, self);
            }
            Collective::Scan { count } | Collective::Exscan { count } => {
                let exclusive = call.collective.operation() == Operation::Exscan;
                let (mine, into) = (AreaSpan::first(given, count), AreaSpan::first(Area::Output, count));
                flat::scan(plan, &group, mine, into, exclusive, self);
            }
            Collective::Alltoall { count } => {
                self.exchange(plan, &group, call, &Blocks::Equal(count), &Blocks::Equal(count));
            }
            Collective::Alltoallv { ref sent, ref received } => {
                self.exchange(
                    plan,
                    &group,
                    call,
                    if call.in_place { received } else { sent },
                    received,
                );
            }
        }
    }

    fn exchange(
        &self,
        plan: &mut SchedulePlan,
        group: &RankGroup,
        call: &CollectiveCall,
        sent: &Blocks,
        received: &Blocks,
    ) {
        let into = AreaSpan::first(Area::Output, received.extent(group.size));
        let from = if call.in_place {
            // A received block must not overwrite a block that is still to be sent.
            let saved = plan.allocate_scratch(into.count);
            plan.copy(into, saved);
            saved
        } else {
            AreaSpan::first(Area::Input, sent.extent(group.size))
        };
        flat::alltoall(plan, group, (sent, from), (received, into), self);
    }
}
