//! Prefix reductions: member `r` gets what members `0 ..= r` add, or `0 .. r` if exclusive, in rank order. `mine` and
//! `into` may be the same span. An exclusive scan leaves `into` of member 0 unchanged.

use super::plan::{RankGroup, SchedulePlan};
use crate::schedule::AreaSpan;

/// Sends from each member to the next: `p - 1` steps, the fewest elements sent.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan, exclusive: bool) {
    let (first, last) = (group.me == 0, group.me + 1 == group.size);
    let mut sum = mine;
    if !first {
        let received = plan.allocate_scratch(mine.count);
        plan.receive(group, group.before(1), received);
        sum = match (exclusive, last) {
            (false, _) => into,
            (true, false) => plan.allocate_scratch(mine.count),
            (true, true) => mine,
        };
        if !(exclusive && last) {
            plan.reduce(received, mine, sum);
        }
        if exclusive {
            plan.copy(received, into);
        }
        plan.end_round();
    } else if !exclusive {
        plan.copy(mine, into);
        plan.end_round();
    }
    if !last {
        plan.send(group, group.after(1), sum);
        plan.end_round();
    }
}

/// Doubling: in step `k` each member receives a sum from the member `2^k` before it. That sum covers up to `2^k`
/// members and ends with the sender. Takes `ceil(log2 p)` steps for any `p`.
///
/// Hillis, Steele: Data parallel algorithms (1986).
pub(crate) fn doubling(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan, exclusive: bool) {
    doubling_with(
        plan,
        group,
        mine,
        into,
        exclusive,
        |plan, _, sum, received, distance| {
            if group.me + distance < group.size {
                plan.send(group, group.me + distance, sum);
            }
            if group.me >= distance {
                plan.receive(group, group.me - distance, received);
            }
        },
    );
}

/// Plans a scan by doubling in which `exchange(plan, step, sum, received, distance)` moves the sums between members.
pub(crate) fn doubling_with(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    mine: AreaSpan,
    into: AreaSpan,
    exclusive: bool,
    mut exchange: impl FnMut(&mut SchedulePlan, usize, AreaSpan, AreaSpan, usize),
) {
    let spare = |plan: &mut SchedulePlan, wanted: bool| plan.allocate_scratch(if wanted { mine.count } else { 0 });
    let received = spare(plan, group.me > 0);
    // An exclusive scan needs the inclusive sum only as an intermediate value.
    let sum = if exclusive { spare(plan, group.me > 0) } else { into };
    let before = spare(plan, exclusive && group.me > 1);
    let (mut inclusive, mut lower): (AreaSpan, Option<AreaSpan>) = (mine, None);
    let mut distance = 1;
    while distance < group.size {
        exchange(plan, distance.ilog2() as usize, inclusive, received, distance);
        if group.me >= distance {
            let wanted_again = group.me + 2 * distance < group.size;
            // The sum is computed before any write to the output, because the output may be the memory of `mine`.
            if !exclusive || wanted_again {
                plan.reduce(received, inclusive, sum);
                inclusive = sum;
            }
            if exclusive {
                match lower {
                    Some(lower) => plan.reduce(received, lower, before),
                    None if group.me > 1 => plan.copy(received, before),
                    None => plan.copy(received, into),
                }
                lower = Some(before);
            }
        }
        plan.end_round();
        distance *= 2;
    }
    if exclusive && group.me > 1 {
        plan.copy(before, into);
    } else if !exclusive {
        plan.copy(inclusive, into);
    }
    plan.end_round();
}

/// Scans up a binomial tree and down again, as FMI does: about `2 log2 p` steps, less than `2 p` messages. An exclusive
/// scan is a scan of all ranks except the last, and then one step in which each result moves one rank up.
///
/// Brent, Kung: A regular layout for parallel adders (1982).
pub(crate) fn two_phase(plan: &mut SchedulePlan, group: &RankGroup, mine: AreaSpan, into: AreaSpan, exclusive: bool) {
    let (me, size) = (group.me, if exclusive { group.size - 1 } else { group.size });
    let received = plan.allocate_scratch(if me > 0 { mine.count } else { 0 });
    // In place or not, the output of an exclusive scan is written last.
    let sum = if exclusive {
        plan.allocate_scratch(mine.count)
    } else {
        into
    };
    let mut partial = mine;
    let mut add = |plan: &mut SchedulePlan, from: usize| {
        plan.receive(group, from, received);
        plan.reduce(received, partial, sum);
        plan.end_round();
        partial = sum;
        partial
    };
    let mut current = mine;
    // A member at the end of a range of 2d members adds the sum of the range's lower half, which ends d members before
    // it.
    let mut distance = 1;
    while distance < size && me < size {
        if (me + 1).is_multiple_of(2 * distance) {
            current = add(plan, me - distance);
        } else if (me + 1).is_multiple_of(distance) && me + distance < size {
            plan.send(group, me + distance, current);
            plan.end_round();
        }
        distance *= 2;
    }
    while distance > 0 && me < size {
        if (me + 1).is_multiple_of(2 * distance) && me + distance < size {
            plan.send(group, me + distance, current);
            plan.end_round();
        } else if (me + 1) % (2 * distance) == distance && me >= distance {
            current = add(plan, me - distance);
        }
        distance /= 2;
    }
    if exclusive {
        if me < size {
            plan.send(group, me + 1, current);
        }
        if me > 0 {
            plan.receive(group, me - 1, received);
            plan.copy(received, into);
        }
    } else {
        plan.copy(current, into);
    }
    plan.end_round();
}
