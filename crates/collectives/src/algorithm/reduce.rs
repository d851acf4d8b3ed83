//! Reductions to a root. `mine` is what this member adds. `into` is where the root gets the result; it may be `mine`,
//! and is ignored at the other members.

use super::fold::{Fold, FoldRole};
use super::halving::{Halving, halve};
use super::ordered_reduce;
use super::plan::{RankGroup, SchedulePlan};
use super::tree::Tree;
use crate::schedule::AreaSpan;

/// Reduces up a binomial tree: `ceil(log2 p)` steps, all elements in each. If the operator does not commute, member 0
/// is the root of the tree, because subtrees must be ranges of ranks; the result then goes on to the root in one more
/// step.
pub(crate) fn binomial(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    root: usize,
    mine: AreaSpan,
    into: AreaSpan,
    commutes: bool,
) {
    let top = if commutes { root } else { 0 };
    let tree = Tree::new(group, top);
    let mut partial = mine;
    let children = tree.children().count();
    if children > 0 {
        let received = plan.allocate_scratch(mine.count);
        let sum = if group.me == root {
            into
        } else {
            plan.allocate_scratch(mine.count)
        };
        for child in tree.children() {
            plan.receive(group, child.member, received);
            plan.combine(false, received, partial, sum);
            plan.end_round();
            partial = sum;
        }
    }
    if let Some(parent) = tree.parent() {
        plan.send(group, parent, partial);
        plan.end_round();
    }
    if group.me == root && top == root {
        plan.copy(partial, into);
    } else if group.me == root {
        plan.receive(group, top, into);
    } else if group.me == top && top != root {
        plan.send(group, root, partial);
    }
    plan.end_round();
}

/// Each member sends to the root, which reduces alone, in rank order: `p - 1` steps at the root, and no other member
/// waits.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, root: usize, mine: AreaSpan, into: AreaSpan) {
    if group.me == root {
        ordered_reduce::in_order(plan, root, 0..group.size, mine, into, |plan, member, into| {
            plan.receive(group, member, into);
        });
    } else {
        plan.send(group, root, mine);
        plan.end_round();
    }
}

/// Rabenseifner's algorithm: a reduce-scatter by halving, then the pieces go up a binomial tree. Takes `2 log2 p`
/// steps, one more if `p` is not a power of two, and a member sends fewer than `2 n` elements. Keeps rank order,
/// because neighbours halve first.
///
/// Rabenseifner: Optimization of collective reduction operations (2004).
pub(crate) fn rabenseifner(plan: &mut SchedulePlan, group: &RankGroup, root: usize, mine: AreaSpan, into: AreaSpan) {
    let fold = Fold::with_active(group, root);
    let (number, partner) = match fold.role(group.me) {
        FoldRole::Idle { partner } => {
            plan.send(group, partner, mine);
            return plan.end_round();
        }
        FoldRole::Active { number, partner } => (number, partner),
    };
    let sum = if group.me == root {
        into
    } else {
        plan.allocate_scratch(mine.count)
    };
    let halving = halve(
        plan,
        group,
        &fold,
        Halving {
            number,
            partner,
            mine,
            sum,
        },
    );

    // In the reverse order of the halving: of two members with adjacent pieces, the one on the root's side gets both
    // pieces.
    let FoldRole::Active { number: goal, .. } = fold.role(root) else {
        return;
    };
    let mut mask = fold.size / 2;
    let mut pieces = halving;
    while mask > 0 {
        let (peer, others) = (fold.member(number ^ mask), pieces.sibling());
        if number & mask != goal & mask {
            plan.send(group, peer, pieces.of(sum, fold.size));
            return plan.end_round();
        }
        plan.receive(group, peer, others.of(sum, fold.size));
        plan.end_round();
        pieces = pieces.parent();
        mask /= 2;
    }
}
