//! Broadcasts. `data` is where the root has the elements, and where the other members receive them.

use super::plan::{RankGroup, SchedulePlan, share, shares};
use super::tree::Tree;
use crate::schedule::AreaSpan;

/// Down a binomial tree: `ceil(log2 p)` steps, all elements in each.
pub(crate) fn binomial(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan) {
    let tree = Tree::new(group, root);
    if let Some(parent) = tree.parent() {
        plan.receive(group, parent, data);
        plan.end_round();
    }
    for child in tree.children().rev() {
        plan.send(group, child.member, data);
    }
    plan.end_round();
}

/// The root sends to one member after the other: `p - 1` steps, but no member waits for another.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan) {
    if group.me == root {
        for distance in 1..group.size {
            plan.send(group, group.after(distance), data);
        }
    } else {
        plan.receive(group, root, data);
    }
    plan.end_round();
}

/// One share to each member down a binomial tree, then all shares around a ring: `ceil(log2 p) + p - 1` steps. A member
/// sends fewer than `2 n` elements, for any number of ranks.
///
/// Van de Geijn's algorithm: Barnett et al., Interprocessor collective communication library (1994); Thakur,
/// Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005). Shares that the tree has
/// already delivered are not sent again.
pub(crate) fn scatter_allgather(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan) {
    let tree = Tree::new(group, root);
    let size = group.size;
    if let Some(parent) = tree.parent() {
        plan.receive(group, parent, shares(data, size, tree.places()));
        plan.end_round();
    }
    for child in tree.children().rev() {
        plan.send(group, child.member, shares(data, size, child.places));
    }
    plan.end_round();

    let place = tree.place();
    let next = (place + 1) % size;
    for round in plan.begin_passes(1..size) {
        let sent = (place + size - (round - 1)) % size;
        let received = (place + size - round) % size;
        if !(next..tree.end(next)).contains(&sent) {
            plan.send(group, group.after(1), share(data, size, sent));
        }
        if !tree.places().contains(&received) {
            plan.receive(group, group.before(1), share(data, size, received));
        }
        plan.end_round();
    }
}

/// Sends from each member to the next, in segments: `p - 2 + s` steps for `s` segments, and a member sends the elements
/// once.
pub(crate) fn chain(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan, segment: usize) {
    let tree = Tree::new(group, root);
    let segments = if segment == 0 { 1 } else { data.count.div_ceil(segment) };
    let (first, last) = (tree.place() == 0, tree.place() + 1 == group.size);
    for round in plan.begin_passes(0..segments + 1) {
        if !first && round < segments {
            plan.receive(group, group.before(1), share(data, segments, round));
        }
        if !last && round > 0 {
            plan.send(group, group.after(1), share(data, segments, round - 1));
        }
        plan.end_round();
    }
}
