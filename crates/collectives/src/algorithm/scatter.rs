//! Scatters. `all` is where the root has the blocks, and is ignored at the other members. `mine` is where this member
//! receives its own block; it is `None` at a root that leaves its block in place.

use super::blocks::{Blocks, PackedBlocks};
use super::gather::joined_subtree;
use super::plan::{RankGroup, SchedulePlan};
use super::tree::Tree;
use crate::schedule::AreaSpan;

/// The root sends to each member: `p - 1` steps at the root. A member that is not the root does not need the lengths of
/// other blocks.
pub(crate) fn linear(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    all: AreaSpan,
    mine: Option<AreaSpan>,
) {
    if group.me == root {
        for distance in 1..group.size {
            let member = group.after(distance);
            plan.send(group, member, blocks.of(all, member));
        }
        if let Some(mine) = mine {
            plan.copy(blocks.of(all, root), mine);
        }
    } else if let Some(mine) = mine {
        plan.receive(group, root, mine);
    }
    plan.end_round();
}

/// Down a binomial tree; each subtree is packed in one message. Takes `ceil(log2 p)` steps, and the root sends each
/// element once. All members need the lengths of all blocks.
pub(crate) fn binomial(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    blocks: &Blocks,
    all: AreaSpan,
    mine: Option<AreaSpan>,
) {
    let tree = Tree::new(group, root);
    let packed = PackedBlocks::new(blocks, root, group.size);
    if tree.is_root() {
        return at_root(plan, group, &tree, &packed, blocks, all, mine);
    }
    let (Some(parent), Some(mine)) = (tree.parent(), mine) else {
        return;
    };
    let places = tree.places();
    if places.len() == 1 {
        plan.receive(group, parent, mine);
        return plan.end_round();
    }
    let buffer = plan.allocate_scratch(packed.count(places.clone()));
    let within =
        |range: std::ops::Range<usize>| buffer.part(packed.count(places.start..range.start), packed.count(range));
    plan.receive(group, parent, buffer);
    plan.end_round();
    for child in tree.children().rev() {
        plan.send(group, child.member, within(child.places));
    }
    plan.copy(within(places.start..places.start + 1), mine);
    plan.end_round();
}

fn at_root(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    tree: &Tree,
    packed: &PackedBlocks,
    blocks: &Blocks,
    all: AreaSpan,
    mine: Option<AreaSpan>,
) {
    let mut sends = Vec::new();
    for child in tree.children().rev() {
        let span = joined_subtree(tree, blocks, all, &child.places).unwrap_or_else(|| {
            let buffer = plan.allocate_scratch(packed.count(child.places.clone()));
            for place in child.places.clone() {
                let into = buffer.part(packed.count(child.places.start..place), packed.count(place..place + 1));
                plan.copy(blocks.of(all, tree.member(place)), into);
            }
            buffer
        });
        sends.push((child.member, span));
    }
    for (member, span) in sends {
        plan.send(group, member, span);
    }
    if let Some(mine) = mine {
        plan.copy(blocks.of(all, group.me), mine);
    }
    plan.end_round();
}
