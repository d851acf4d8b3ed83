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

use crate::collective::{Collective, CollectiveCall};
use crate::error::Error;
use crate::operation::{Algorithm, Operation};
use crate::schedule::{Area, AreaSpan, Schedule};
use nodes::NodeLayout;
use plan::{RankGroup, SchedulePlan};
use std::ops::Range;

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
    /// Number of elements that [`Algorithm::Chain`] sends at a time; 0 for all elements.
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
        if self.algorithm.needs_commuting(operation) && !call.collective.commutes() {
            return refuse("it reduces in another order than that of ranks, and the operator does not commute");
        }
        if self.by_nodes {
            let Some(nodes) = call.nodes else {
                return refuse("it is not known which ranks share a node");
            };
            if self.algorithm.is_mediated() {
                return refuse(
                    "it sends through a store, which is equally far from all ranks, so levels by node do not help",
                );
            }
            if !operation.has_levels() {
                return refuse("it cannot be done in two levels");
            }
            if !call.collective.commutes() && !NodeLayout::is_in_order(nodes) {
                return refuse("the operator does not commute, and nodes do not have ranks that follow each other");
            }
        }
        Ok(())
    }

    /// Builds the schedule of the calling rank.
    ///
    /// ```
    /// use hotlease_collectives::{Algorithm, Collective, CollectiveCall, Datatype, Operator, Recipe};
    ///
    /// // Rank 2 of 4, in a sum of 1000 elements that all ranks get.
    /// let sum = Collective::Allreduce { count: 1000, operator: &Operator::Sum };
    /// let call = CollectiveCall::new(sum, Datatype::F64, 2, 4);
    /// let schedule = Recipe::from(Algorithm::RecursiveDoubling).build(&call)?;
    /// assert_eq!(schedule.rounds.len(), 2, "log2 4");
    /// println!("{:#?}", schedule.rounds[0].transfers);
    /// # Ok::<(), hotlease_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Arguments`] if the call contradicts itself, [`Error::UnsupportedAlgorithm`] if the algorithm cannot do
    /// this call.
    pub fn build(&self, call: &CollectiveCall) -> Result<Schedule, Error> {
        self.build_part(call, 0..usize::MAX).map(|part| part.schedule)
    }

    /// Builds only the rounds in `rounds`. Models use this if the rounds of all ranks would not fit in memory. Rounds
    /// are numbered from 0 in the order of planning. A round in which this rank does nothing has a number, but is left
    /// out.
    ///
    /// # Errors
    ///
    /// Errors of [`Recipe::build`].
    pub fn build_part(&self, call: &CollectiveCall, rounds: Range<usize>) -> Result<SchedulePart, Error> {
        call.check()?;
        self.check(call)?;
        let mut plan = SchedulePlan::new(rounds);
        self.plan(&mut plan, call);
        Ok(plan.finish())
    }

    fn plan(&self, plan: &mut SchedulePlan, call: &CollectiveCall) {
        let (me, ranks) = (call.rank as usize, call.ranks as usize);
        let group = RankGroup::all(me, ranks);
        let levels = |root: Option<usize>| {
            call.nodes
                .filter(|_| self.by_nodes)
                .map(|nodes| NodeLayout::new(nodes, me, root))
        };
        let commutes = call.collective.commutes();
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
            Collective::Reduce { root, count, .. } => {
                let root = root as usize;
                let mine = if me == root { given } else { Area::Input };
                let (mine, into) = (AreaSpan::first(mine, count), AreaSpan::first(Area::Output, count));
                match levels(Some(root)) {
                    Some(nodes) => {
                        hierarchical::reduce(plan, &nodes, root, (mine, into), commutes, self);
                    }
                    None => flat::reduce(plan, &group, root, mine, into, commutes, self),
                }
            }
            Collective::Allreduce { count, .. } => {
                let (mine, into) = (AreaSpan::first(given, count), AreaSpan::first(Area::Output, count));
                match levels(None) {
                    Some(nodes) => hierarchical::allreduce(plan, &nodes, mine, into, commutes, self),
                    None => flat::allreduce(plan, &group, mine, into, self),
                }
            }
            Collective::ReduceScatter { ref blocks, .. } => {
                let mine = AreaSpan::first(given, blocks.total(ranks));
                let into = AreaSpan::first(Area::Output, blocks.count(me));
                flat::reduce_scatter(plan, &group, blocks, mine, into, commutes, self);
            }
            Collective::Scan { count, .. } | Collective::Exscan { count, .. } => {
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
