//! Collectives in two levels: inside each node over memory, and between nodes by their leaders alone. Leaders use any
//! of the other algorithms; inside a node, all collectives use binomial trees.
//!
//! With an operator that does not commute, the ranks of each node must follow each other.

use super::blocks::Blocks;
use super::nodes::Nodes;
use super::plan::{Group, Plan};
use super::{Recipe, barrier, broadcast, flat, gather, reduce, scatter};
use crate::schedule::Span;

pub(crate) fn barrier(plan: &mut Plan, nodes: &Nodes, recipe: &Recipe) {
    barrier::arrive(plan, &nodes.node_group());
    if let Some(leaders) = nodes.leader_group() {
        flat::barrier(plan, &leaders, recipe);
    }
    barrier::release(plan, &nodes.node_group());
}

pub(crate) fn broadcast(plan: &mut Plan, nodes: &Nodes, root: usize, data: Span, recipe: &Recipe) {
    if let Some(leaders) = nodes.leader_group() {
        flat::broadcast(plan, &leaders, nodes.node_of(root), data, recipe);
    }
    broadcast::binomial(plan, &nodes.node_group(), nodes.lead(), data);
}

pub(crate) fn reduce(
    plan: &mut Plan,
    nodes: &Nodes,
    root: usize,
    (mine, into): (Span, Span),
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

pub(crate) fn allreduce(plan: &mut Plan, nodes: &Nodes, mine: Span, into: Span, commutes: bool, recipe: &Recipe) {
    let partial = inside_sum(plan, &nodes.node_group(), nodes.lead(), mine, into, commutes);
    if let Some(leaders) = nodes.leader_group() {
        flat::allreduce(plan, &leaders, partial, into, recipe);
    }
    broadcast::binomial(plan, &nodes.node_group(), nodes.lead(), into);
}

/// Plans the sum of a node and returns where its leader has it; if the node has one rank, the sum stays in `mine`.
fn inside_sum(plan: &mut Plan, inside: &Group, lead: usize, mine: Span, sum: Span, commutes: bool) -> Span {
    if inside.size == 1 {
        return mine;
    }
    reduce::binomial(plan, inside, lead, mine, sum, commutes);
    sum
}

pub(crate) fn gather(
    plan: &mut Plan,
    nodes: &Nodes,
    root: usize,
    blocks: &Blocks,
    (mine, all): (Span, Span),
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
                .own(Span {
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
    plan: &mut Plan,
    nodes: &Nodes,
    root: usize,
    blocks: &Blocks,
    (all, mine): (Span, Option<Span>),
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
                .own(Span {
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

pub(crate) fn allgather(plan: &mut Plan, nodes: &Nodes, blocks: &Blocks, mine: Span, all: Span, recipe: &Recipe) {
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
