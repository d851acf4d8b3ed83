//! Collectives through a store of objects: an object is written once and read by all ranks that need it. A store
//! answers in milliseconds and serves many requests at a time, so the cost depends on the number of consecutive waits
//! and on the number of requests.
//!
//! Reductions are made in rank order, by each rank that needs the result.

use super::blocks::Blocks;
use super::ordered_reduce;
use super::plan::{RankGroup, SchedulePlan, share};
use super::scan::doubling_with;
use crate::schedule::AreaSpan;

/// Each member writes an object and reads the objects of all others: one wait, `p (p - 1)` reads.
pub(crate) fn barrier(plan: &mut SchedulePlan, group: &RankGroup) {
    let told = plan.allocate_scratch(1);
    plan.publish(0, told, group.size - 1);
    for distance in 1..group.size {
        let heard = plan.allocate_scratch(1);
        plan.fetch(group, group.before(distance), 0, heard);
    }
    plan.end_round();
}

/// Each member notifies member 0, which then notifies all: two waits, `p` writes, `2 (p - 1)` reads.
pub(crate) fn barrier_by_root(plan: &mut SchedulePlan, group: &RankGroup) {
    let told = plan.allocate_scratch(1);
    if group.me == 0 {
        for member in 1..group.size {
            let heard = plan.allocate_scratch(1);
            plan.fetch(group, member, 0, heard);
        }
        plan.end_round();
        plan.publish(0, told, group.size - 1);
    } else {
        let heard = plan.allocate_scratch(1);
        plan.publish(0, told, 1);
        plan.end_round();
        plan.fetch(group, 0, 0, heard);
    }
    plan.end_round();
}

/// Dissemination: `ceil(log2 p)` waits, `p ceil(log2 p)` writes and reads.
pub(crate) fn barrier_by_doubling(plan: &mut SchedulePlan, group: &RankGroup) {
    let (told, heard) = (plan.allocate_scratch(1), plan.allocate_scratch(1));
    let (mut distance, mut step) = (1, 0);
    while distance < group.size {
        plan.publish(step, told, 1);
        plan.fetch(group, group.before(distance), step, heard);
        plan.end_round();
        (distance, step) = (2 * distance, step + 1);
    }
}

/// One write, `p - 1` reads.
pub(crate) fn broadcast(plan: &mut SchedulePlan, group: &RankGroup, root: usize, data: AreaSpan) {
    if group.me == root {
        plan.publish(0, data, group.size - 1);
    } else {
        plan.fetch(group, root, 0, data);
    }
    plan.end_round();
}

/// `p - 1` writes; the root reads all these objects at once.
pub(crate) fn gather(
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
            plan.fetch(group, member, 0, blocks.of(all, member));
        }
        plan.copy(mine, blocks.of(all, root));
    } else {
        plan.publish(0, mine, 1);
    }
    plan.end_round();
}

/// The root writes one object for each other member.
pub(crate) fn scatter(
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
            plan.publish(member, blocks.of(all, member), 1);
        }
        if let Some(mine) = mine {
            plan.copy(blocks.of(all, root), mine);
        }
    } else if let Some(mine) = mine {
        plan.fetch(group, root, group.me, mine);
    }
    plan.end_round();
}

/// Each member writes its block and reads the blocks of all others: one wait, `p` writes, `p (p - 1)` reads.
pub(crate) fn allgather(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, all: AreaSpan) {
    plan.publish(0, mine, group.size - 1);
    for distance in 1..group.size {
        let member = group.before(distance);
        plan.fetch(group, member, 0, blocks.of(all, member));
    }
    plan.copy(mine, blocks.of(all, group.me));
    plan.end_round();
}

/// Each member writes what it adds, and the root reads all objects: one wait.
pub(crate) fn reduce(plan: &mut SchedulePlan, group: &RankGroup, root: usize, mine: AreaSpan, into: AreaSpan) {
    if group.me == root {
        in_order(plan, group, 0..group.size, 0, mine, into);
    } else {
        plan.publish(0, mine, 1);
        plan.end_round();
    }
}

/// Each member writes what it adds, reads what all others add, and reduces on its own: one wait, `p (p - 1)` reads of
/// all elements.
pub(crate) fn allreduce(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    plan.publish(0, mine, group.size - 1);
    in_order(plan, group, 0..group.size, 0, mine, into);
}

/// Member 0 reduces, and writes the result for all: two waits, `p` writes, `2 (p - 1)` reads. This is LambdaML's
/// AllReduce.
pub(crate) fn allreduce_by_root(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    reduce(plan, group, 0, mine, into);
    broadcast(plan, group, 0, into);
}

/// Each member reduces a share of the elements: two waits, `p^2` writes, `2 p (p - 1)` reads, but only `2 n` elements
/// each way. This is LambdaML's ScatterReduce: Jiang et al., Towards demystifying serverless machine learning training
/// (2021).
pub(crate) fn allreduce_scattered(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan) {
    let (parts, me) = (group.size, group.me);
    for distance in 1..parts {
        let member = group.after(distance);
        plan.publish(member, share(mine, parts, member), 1);
    }
    in_order(
        plan,
        group,
        0..parts,
        me,
        share(mine, parts, me),
        share(into, parts, me),
    );
    plan.publish(me, share(into, parts, me), parts - 1);
    for distance in 1..parts {
        let member = group.before(distance);
        plan.fetch(group, member, member, share(into, parts, member));
    }
    plan.end_round();
}

/// Each member writes one block for each other member, which reads its blocks and reduces them: one wait, `p (p - 1)`
/// writes and reads.
pub(crate) fn reduce_scatter(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    into: AreaSpan,
) {
    for distance in 1..group.size {
        let member = group.after(distance);
        plan.publish(member, blocks.of(mine, member), 1);
    }
    in_order(plan, group, 0..group.size, group.me, blocks.of(mine, group.me), into);
}

/// Each member writes what it adds and reads what the lower ranks add: one wait, `p (p - 1) / 2` reads.
pub(crate) fn scan(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan, exclusive: bool) {
    plan.publish(0, mine, group.size - 1 - group.me);
    match (exclusive, group.me) {
        (true, 0) => plan.end_round(),
        (true, me) => in_order(plan, group, 0..me, 0, mine, into),
        (false, me) => in_order(plan, group, 0..me + 1, 0, mine, into),
    }
}

/// Scans by doubling: `ceil(log2 p)` waits, less than `p` writes and reads in each.
pub(crate) fn scan_by_doubling(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    mine: AreaSpan,
    into: AreaSpan,
    exclusive: bool,
) {
    doubling_with(
        plan,
        group,
        mine,
        into,
        exclusive,
        |plan, step, sum, received, distance| {
            if group.me + distance < group.size {
                plan.publish(step, sum, 1);
            }
            if group.me >= distance {
                plan.fetch(group, group.me - distance, step, received);
            }
        },
    );
}

/// Each member writes one block for each other member and reads the blocks for itself: one wait, `p (p - 1)` writes
/// and reads.
pub(crate) fn alltoall(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    sent: (&Blocks, AreaSpan),
    got: (&Blocks, AreaSpan),
) {
    let me = group.me;
    for distance in 1..group.size {
        let (to, from) = (group.after(distance), group.before(distance));
        plan.publish(to, sent.0.of(sent.1, to), 1);
        plan.fetch(group, from, me, got.0.of(got.1, from));
    }
    plan.copy(sent.0.of(sent.1, me), got.0.of(got.1, me));
    plan.end_round();
}

/// Reads the objects of these members under one key and reduces them in member order; the term of this member is
/// `mine`.
fn in_order(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    members: std::ops::Range<usize>,
    key: usize,
    mine: AreaSpan,
    into: AreaSpan,
) {
    ordered_reduce::in_order(plan, group.me, members, mine, into, |plan, member, into| {
        plan.fetch(group, member, key, into);
    });
}
