//! Allreduces. `mine` is what this member adds, `into` is where every member gets the result; both may be the same
//! span. Each element is reduced in the same order at all members, so all get the same bits.

use super::fold::{Fold, FoldRole};
use super::halving::{Halving, halve};
use super::plan::{RankGroup, SchedulePlan, share};
use super::{broadcast, reduce, reduce_scatter};
use crate::schedule::AreaSpan;

/// Recursive doubling: each member exchanges all elements with its neighbour, then with the member 2 away, then 4.
/// Takes `log2 p` steps; if `p` is not a power of two, 2 more. A member sends `n` elements in each step.
///
/// The two members of an exchange reduce the same two operands in the same order, which is rank order.
pub(crate) fn recursive_doubling(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    let fold = Fold::new(group);
    let (number, partner) = match fold.role(group.me) {
        FoldRole::Idle { partner } => return idle(plan, group, partner, mine, into),
        FoldRole::Active { number, partner } => (number, partner),
    };
    let received = plan.allocate_scratch(if group.size == 1 { 0 } else { mine.count });
    let mut partial = mine;
    if let Some(partner) = partner {
        plan.receive(group, partner, received);
        plan.combine(partner < group.me, received, partial, into);
        plan.end_round();
        partial = into;
    }
    let mut mask = 1;
    while mask < fold.size {
        let peer = fold.member(number ^ mask);
        plan.send(group, peer, partial);
        plan.receive(group, peer, received);
        plan.combine(peer < group.me, received, partial, into);
        plan.end_round();
        (partial, mask) = (into, mask * 2);
    }
    plan.copy(partial, into);
    if let Some(partner) = partner {
        plan.send(group, partner, into);
    }
    plan.end_round();
}

/// Rabenseifner's algorithm: a reduce-scatter by halving, then an allgather by doubling. Takes `2 log2 p` steps, 2
/// more if `p` is not a power of two. A member sends less than `2 n` elements; a member that stands in for a neighbour
/// sends less than `3 n`. Keeps rank order.
///
/// Rabenseifner: Optimization of collective reduction operations (2004).
pub(crate) fn rabenseifner(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    let fold = Fold::new(group);
    let (number, partner) = match fold.role(group.me) {
        FoldRole::Idle { partner } => return idle(plan, group, partner, mine, into),
        FoldRole::Active { number, partner } => (number, partner),
    };
    let mut pieces = halve(
        plan,
        group,
        &fold,
        Halving {
            number,
            partner,
            mine,
            sum: into,
        },
    );
    let mut mask = fold.size / 2;
    while mask > 0 {
        let peer = fold.member(number ^ mask);
        plan.send(group, peer, pieces.of(into, fold.size));
        plan.receive(group, peer, pieces.sibling().of(into, fold.size));
        plan.end_round();
        (pieces, mask) = (pieces.parent(), mask / 2);
    }
    if let Some(partner) = partner {
        plan.send(group, partner, into);
    }
    plan.end_round();
}

/// Shares of the elements go around a ring twice: first they are reduced, then the results go around. Takes `2 (p -
/// 1)` steps, and a member sends less than `2 n` elements for any `p`. Only for operators that commute, because each
/// share begins at another rank.
///
/// Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
pub(crate) fn ring(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    let parts = group.size;
    let own = share(into, parts, group.me);
    let longest = mine.count.div_ceil(parts);
    reduce_scatter::reduce_around_ring(plan, group, longest, |member| share(mine, parts, member), own);
    for round in plan.begin_passes(1..parts) {
        plan.send(group, group.after(1), share(into, parts, group.before(round - 1)));
        plan.receive(group, group.before(1), share(into, parts, group.before(round)));
        plan.end_round();
    }
}

/// Each member sends to member 0, which reduces and sends the result to all: `2 (p - 1)` messages. The longest chain of
/// messages that wait for each other has two messages, for any number of members.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    reduce::linear(plan, group, 0, mine, into);
    broadcast::linear(plan, group, 0, into);
}

/// A binomial reduction to member 0, then a binomial broadcast: `2 ceil(log2 p)` steps, `2 (p - 1)` messages. Keeps
/// rank order.
pub(crate) fn reduce_broadcast(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    reduce::binomial(plan, group, 0, mine, into, false);
    broadcast::binomial(plan, group, 0, into);
}

fn idle(plan: &mut SchedulePlan, group: &RankGroup, partner: usize, mine: AreaSpan, into: AreaSpan) {
    plan.send(group, partner, mine);
    plan.end_round();
    plan.receive(group, partner, into);
    plan.end_round();
}
