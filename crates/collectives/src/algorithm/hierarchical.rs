//! Collectives in two levels: inside each node over memory, and between nodes by their leaders alone. Leaders use any
//! of the other algorithms; inside a node, all collectives use binomial trees.
//!
//! With an operator that does not commute, the ranks of each node must follow each other.

use super::blocks::Blocks;
use super::nodes::NodeLayout;
use super::plan::{RankGroup, SchedulePlan};
use super::{Recipe, barrier, broadcast, flat, gather, reduce, scatter};
use crate::schedule::AreaSpan;

pub(crate) fn barrier(plan: &mut SchedulePlan, nodes: &NodeLayout, recipe: &Recipe) {
    barrier::arrive(plan, &nodes.node_group());
    if let Some(leaders) = nodes.leader_group() {
        flat::barrier(plan, &leaders, recipe);
    }
    barrier::release(plan, &nodes.node_group());
}

pub(crate) fn broadcast(plan: &mut SchedulePlan, nodes: &NodeLayout, root: usize, data: AreaSpan, recipe: &Recipe) {
    if let Some(leaders) = nodes.leader_group() {
        flat::broadcast(plan, &leaders, nodes.node_of(root), data, recipe);
    }
    broadcast::binomial(plan, &nodes.node_group(), nodes.lead(), data);
}

pub(crate) fn reduce(
    plan: &mut SchedulePlan,
    nodes: &NodeLayout,
    root: usize,
    (mine, into): (AreaSpan, AreaSpan),
    commutes: bool,
    recipe: &Recipe,
) {
    let Some(leaders) = nodes.leader_group() else {
        return reduce::binomial(plan, &nodes.node_group(), nodes.lead(), mine, into, commutes);
    };
    let goal = nodes.node_of(root);
    let sum = if leaders.me == goal {
        into
    } else {
        plan.allocate_scratch(mine.count)
    };
    let partial = inside_sum(plan, &nodes.node_group(), nodes.lead(), mine, sum, commutes);
    flat::reduce(plan, &leaders, goal, partial, into, commutes, recipe);
}

pub(crate) fn allreduce(
    plan: &mut SchedulePlan,
    nodes: &NodeLayout,
    mine: AreaSpan,
    into: AreaSpan,
    commutes: bool,
    recipe: &Recipe,
) {
    let partial = inside_sum(plan, &nodes.node_group(), nodes.lead(), mine, into, commutes);
    if let Some(leaders) = nodes.leader_group() {
        flat::allreduce(plan, &leaders, partial, into, recipe);
    }
    broadcast::binomial(plan, &nodes.node_group(), nodes.lead(), into);
}

/// Plans the sum of a node; returns the span of the sum at the leader. If the node has one rank, the sum stays in
/// `mine`.
fn inside_sum(
    plan: &mut SchedulePlan,
    inside: &RankGroup,
    lead: usize,
    mine: AreaSpan,
    sum: AreaSpan,
    commutes: bool,
) -> AreaSpan {
    if inside.size == 1 {
        return mine;
    }
    reduce::binomial(plan, inside, lead, mine, sum, commutes);
    sum
}

pub(crate) fn gather(
    plan: &mut SchedulePlan,
    nodes: &NodeLayout,
    root: usize,
    blocks: &Blocks,
    (mine, all): (AreaSpan, AreaSpan),
    recipe: &Recipe,
) {
    let layout = nodes.layout(blocks, all);
    let inside = layout.inside.blocks();
    let Some(leaders) = nodes.leader_group() else {
        return gather::binomial(plan, &nodes.node_group(), nodes.lead(), &inside, mine, all);
    };
    let goal = nodes.node_of(root);
    if leaders.me != goal {
        let own = plan.allocate_scratch(
            layout
                .own(AreaSpan {
                    count: layout.total,
                    ..all
                })
                .count,
        );
        gather::binomial(plan, &nodes.node_group(), nodes.lead(), &inside, mine, own);
        return flat::gather(plan, &leaders, goal, &layout.across.blocks(), own, own, recipe);
    }
    let memory = layout.place.unwrap_or_else(|| plan.allocate_scratch(layout.total));
    let own = layout.own(memory);
    gather::binomial(plan, &nodes.node_group(), nodes.lead(), &inside, mine, own);
    flat::gather(plan, &leaders, goal, &layout.across.blocks(), own, memory, recipe);
    if layout.place.is_none() {
        for (packed, block) in layout.pairs(memory, blocks, all) {
            plan.copy(packed, block);
        }
        plan.end_round();
    }
}

pub(crate) fn scatter(
    plan: &mut SchedulePlan,
    nodes: &NodeLayout,
    root: usize,
    blocks: &Blocks,
    (all, mine): (AreaSpan, Option<AreaSpan>),
    recipe: &Recipe,
) {
    let layout = nodes.layout(blocks, all);
    let inside = layout.inside.blocks();
    let Some(leaders) = nodes.leader_group() else {
        return scatter::binomial(plan, &nodes.node_group(), nodes.lead(), &inside, all, mine);
    };
    let goal = nodes.node_of(root);
    let own = if leaders.me == goal {
        let memory = layout.place.unwrap_or_else(|| plan.allocate_scratch(layout.total));
        if layout.place.is_none() {
            for (packed, block) in layout.pairs(memory, blocks, all) {
                plan.copy(block, packed);
            }
            plan.end_round();
        }
        flat::scatter(plan, &leaders, goal, &layout.across.blocks(), memory, None, recipe);
        layout.own(memory)
    } else {
        let own = plan.allocate_scratch(
            layout
                .own(AreaSpan {
                    count: layout.total,
                    ..all
                })
                .count,
        );
        flat::scatter(plan, &leaders, goal, &layout.across.blocks(), own, Some(own), recipe);
        own
    };
    scatter::binomial(plan, &nodes.node_group(), nodes.lead(), &inside, own, mine);
}

pub(crate) fn allgather(
    plan: &mut SchedulePlan,
    nodes: &NodeLayout,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
    recipe: &Recipe,
) {
    let layout = nodes.layout(blocks, all);
    let memory = layout.place.unwrap_or_else(|| plan.allocate_scratch(layout.total));
    let own = layout.own(memory);
    gather::binomial(
        plan,
        &nodes.node_group(),
        nodes.lead(),
        &layout.inside.blocks(),
        mine,
        own,
    );
    if let Some(leaders) = nodes.leader_group() {
        flat::allgather(plan, &leaders, &layout.across.blocks(), own, memory, recipe);
    }
    broadcast::binomial(plan, &nodes.node_group(), nodes.lead(), memory);
    if layout.place.is_none() {
        for (packed, block) in layout.pairs(memory, blocks, all) {
            plan.copy(packed, block);
        }
        plan.end_round();
    }
}
