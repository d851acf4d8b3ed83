//! Gathers. `mine` is the block that this member contributes; `all` is where the root receives the blocks, and is
//! ignored at the other members.

use super::blocks::{Blocks, PackedBlocks};
use super::plan::{RankGroup, SchedulePlan};
use super::tree::Tree;
use crate::schedule::AreaSpan;

/// Each member sends to the root: `p - 1` steps at the root. A member that is not the root does not need the lengths of
/// other blocks.
pub(crate) fn linear(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
) {
    if group.me == root {
        for distance in 1..group.size {
            let member = group.after(distance);
            plan.receive(group, member, blocks.of(all, member));
        }
        plan.copy(mine, blocks.of(all, root));
    } else {
        plan.send(group, root, mine);
    }
    plan.end_round();
}

/// Sends up a binomial tree; each subtree is packed in one message. Takes `ceil(log2 p)` steps, and the root receives
/// each element once. All members need the lengths of all blocks.
pub(crate) fn binomial(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
) {
    let tree = Tree::new(group, root);
    let packed = PackedBlocks::new(blocks, root, group.size);
    let Some(parent) = tree.parent() else {
        return at_root(plan, group, &tree, &packed, blocks, mine, all);
    };
    let places = tree.places();
    if places.len() == 1 {
        plan.send(group, parent, mine);
        return plan.end_round();
    }
    let buffer = plan.allocate_scratch(packed.count(places.clone()));
    let within =
        |range: std::ops::Range<usize>| buffer.part(packed.count(places.start..range.start), packed.count(range));
    for child in tree.children() {
        plan.receive(group, child.member, within(child.places));
    }
    plan.copy(mine, within(places.start..places.start + 1));
    plan.end_round();
    plan.send(group, parent, buffer);
    plan.end_round();
}

fn at_root(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    tree: &Tree,
    packed: &PackedBlocks,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
) {
    let mut staged = Vec::new();
    for child in tree.children() {
        match joined_subtree(tree, blocks, all, &child.places) {
            Some(place) => plan.receive(group, child.member, place),
            None => {
                let buffer = plan.allocate_scratch(packed.count(child.places.clone()));
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
    plan.end_round();
}

/// Final span of a subtree's blocks; `None` if they do not follow each other.
pub(crate) fn joined_subtree(
    tree: &Tree,
    blocks: &Blocks,
    all: AreaSpan,
    places: &std::ops::Range<usize>,
) -> Option<AreaSpan> {
    let first = tree.member(places.start);
    let last = tree.member(places.end - 1);
    // If a subtree goes around the circle, its last rank is below its first rank.
    if first <= last {
        blocks.joined(all, first..last + 1)
    } else {
        None
    }
}
