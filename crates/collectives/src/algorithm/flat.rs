//! Selection of a builder by operation and algorithm. [`Recipe::check`] has checked that the builder exists; the last
//! entry of each list serves any call.

use super::Algorithm::*;
use super::blocks::Blocks;
use super::plan::{RankGroup, SchedulePlan};
use super::{Recipe, allgather, allreduce, alltoall, barrier, broadcast, gather, objects, reduce, reduce_scatter};
use super::{scan, scatter};
use crate::schedule::AreaSpan;

pub(crate) fn barrier(plan: &mut SchedulePlan, group: &RankGroup, recipe: &Recipe) {
    match recipe.algorithm {
        Binomial => barrier::tree(plan, group),
        Linear => barrier::linear(plan, group),
        Objects => objects::barrier(plan, group),
        ObjectsRoot => objects::barrier_by_root(plan, group),
        ObjectsDoubling => objects::barrier_by_doubling(plan, group),
        _ => barrier::dissemination(plan, group),
    }
}

pub(crate) fn broadcast(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan, recipe: &Recipe) {
    match recipe.algorithm {
        Linear => broadcast::linear(plan, group, root, data),
        ScatterAllgather => broadcast::scatter_allgather(plan, group, root, data),
        Chain => broadcast::chain(plan, group, root, data, recipe.segment),
        Objects => objects::broadcast(plan, group, root, data),
        _ => broadcast::binomial(plan, group, root, data),
    }
}

pub(crate) fn gather(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        Binomial => gather::binomial(plan, group, root, blocks, mine, all),
        Objects => objects::gather(plan, group, root, blocks, mine, all),
        _ => gather::linear(plan, group, root, blocks, mine, all),
    }
}

pub(crate) fn scatter(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    all: AreaSpan,
    mine: Option<AreaSpan>,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        Binomial => scatter::binomial(plan, group, root, blocks, all, mine),
        Objects => objects::scatter(plan, group, root, blocks, all, mine),
        _ => scatter::linear(plan, group, root, blocks, all, mine),
    }
}

pub(crate) fn allgather(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        Linear => allgather::linear(plan, group, blocks, mine, all),
        RecursiveDoubling => allgather::recursive_doubling(plan, group, blocks, mine, all),
        Bruck => allgather::bruck(plan, group, blocks, mine, all),
        GatherBroadcast => allgather::gather_broadcast(plan, group, blocks, mine, all),
        Objects => objects::allgather(plan, group, blocks, mine, all),
        ObjectsRoot => {
            allgather::through_root(plan, group, blocks, mine, all, objects::gather, objects::broadcast);
        }
        _ => allgather::ring(plan, group, blocks, mine, all),
    }
}

pub(crate) fn reduce(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    mine: AreaSpan,
    into: AreaSpan,
    commutes: bool,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        Rabenseifner => reduce::rabenseifner(plan, group, root, mine, into),
        Linear => reduce::linear(plan, group, root, mine, into),
        Objects => objects::reduce(plan, group, root, mine, into),
        _ => reduce::binomial(plan, group, root, mine, into, commutes),
    }
}

pub(crate) fn allreduce(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan, recipe: &Recipe) {
    match recipe.algorithm {
        Rabenseifner => allreduce::rabenseifner(plan, group, mine, into),
        Ring => allreduce::ring(plan, group, mine, into),
        ReduceBroadcast => allreduce::reduce_broadcast(plan, group, mine, into),
        Linear => allreduce::linear(plan, group, mine, into),
        Objects => objects::allreduce(plan, group, mine, into),
        ObjectsRoot => objects::allreduce_by_root(plan, group, mine, into),
        ObjectsScattered => objects::allreduce_scattered(plan, group, mine, into),
        _ => allreduce::recursive_doubling(plan, group, mine, into),
    }
}

pub(crate) fn reduce_scatter(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    into: AreaSpan,
    commutes: bool,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        RecursiveHalving => reduce_scatter::recursive_halving(plan, group, blocks, mine, into, commutes),
        Ring => reduce_scatter::ring(plan, group, blocks, mine, into),
        Objects => objects::reduce_scatter(plan, group, blocks, mine, into),
        _ => reduce_scatter::pairwise(plan, group, blocks, mine, into),
    }
}

pub(crate) fn scan(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    mine: AreaSpan,
    into: AreaSpan,
    exclusive: bool,
    recipe: &Recipe,
) {
    match recipe.algorithm {
        Linear => scan::linear(plan, group, mine, into, exclusive),
        TwoPhase => scan::two_phase(plan, group, mine, into, exclusive),
        Objects => objects::scan(plan, group, mine, into, exclusive),
        ObjectsDoubling => objects::scan_by_doubling(plan, group, mine, into, exclusive),
        _ => scan::doubling(plan, group, mine, into, exclusive),
    }
}

pub(crate) fn alltoall(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    sent: (&Blocks, AreaSpan),
    got: (&Blocks, AreaSpan),
    recipe: &Recipe,
) {
    match (recipe.algorithm, sent.0) {
        (Bruck, Blocks::Equal(count)) => alltoall::bruck(plan, group, *count, sent.1, got.1),
        (Linear, _) => alltoall::linear(plan, group, sent, got),
        (Objects, _) => objects::alltoall(plan, group, sent, got),
        _ => alltoall::pairwise(plan, group, sent, got),
    }
}
