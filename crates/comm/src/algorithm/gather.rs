//! Gathers. `mine` is what this member gives; `all` is where the root gets the blocks, and counts at the root only.

use super::blocks::{Blocks, Packed};
use super::plan::{Group, Plan};
use super::tree::Tree;
use crate::schedule::Span;

/// Everyone sends to the root: `p - 1` steps there. Who is not the root need not know how long others' blocks are.
pub(crate) fn linear(plan: &mut Plan, group: &Group, root: usize, blocks: &Blocks, mine: Span, all: Span) {
    if group.me == root {
        for distance in 1..group.size {
            let member = group.after(distance);
            plan.receive(group, member, blocks.of(all, member));
        }
        plan.copy(mine, blocks.of(all, root));
    } else {
        plan.send(group, root, mine);
    }
    plan.round();
}

/// Up a binomial tree, whose subtrees are packed in one message each: `ceil(log2 p)` steps, and the root receives each
/// element once. The blocks' lengths must be known everywhere.
pub(crate) fn binomial(plan: &mut Plan, group: &Group, root: usize, blocks: &Blocks, mine: Span, all: Span) {
    let tree = Tree::new(group, root);
    let packed = Packed::new(blocks, root, group.size);
    let Some(parent) = tree.parent() else {
        return at_root(plan, group, &tree, &packed, blocks, mine, all);
    };
    let places = tree.places();
    if places.len() == 1 {
        plan.send(group, parent, mine);
        return plan.round();
    }
    let buffer = plan.scratch(packed.count(places.clone()));
    let within = |range: std::ops::Range<usize>| {
        buffer.part(packed.count(places.start..range.start), packed.count(range))
    };
    for child in tree.children() {
        plan.receive(group, child.member, within(child.places));
    }
    plan.copy(mine, within(places.start..places.start + 1));
    plan.round();
    plan.send(group, parent, buffer);
    plan.round();
}

fn at_root(
    plan: &mut Plan,
    group: &Group,
    tree: &Tree,
    packed: &Packed,
    blocks: &Blocks,
    mine: Span,
    all: Span,
) {
    let mut staged = Vec::new();
    for child in tree.children() {
        match in_place(tree, blocks, all, &child.places) {
            Some(place) => plan.receive(group, child.member, place),
            None => {
                let buffer = plan.scratch(packed.count(child.places.clone()));
                plan.receive(group, child.member, buffer);
                staged.push((buffer, child.places));
            }
        }
    }
    plan.copy(mine, blocks.of(all, group.me));
    for (buffer, places) in staged {
        let base = places.start;
        for place in places {
            let from = buffer.part(packed.count(base..place), packed.count(place..place + 1));
            plan.copy(from, blocks.of(all, tree.member(place)));
        }
    }
    plan.round();
}

/// A subtree's blocks where they belong, unless they are apart there.
pub(crate) fn in_place(
    tree: &Tree,
    blocks: &Blocks,
    all: Span,
    places: &std::ops::Range<usize>,
) -> Option<Span> {
    let first = tree.member(places.start);
    let last = tree.member(places.end - 1);
    // A subtree that goes around the circle ends before it begins.
    if first <= last {
        blocks.joined(all, first..last + 1)
    } else {
        None
    }
}
