//! Reduction by one member that receives the terms of all other members, in rank order.

use super::plan::SchedulePlan;
use crate::schedule::AreaSpan;
use std::ops::Range;

/// Least number of terms to receive at a time.
const AT_ONCE_MIN: usize = 16;
/// Number of elements to receive at a time: if terms are short, more than [`AT_ONCE_MIN`] terms are received.
const AT_ONCE_ELEMENTS: usize = 64 * 1024;

/// Reduces the terms of these members; the term of member `me` is `mine`. `get` plans the transfer of another member's
/// term into a span.
pub(crate) fn in_order(
    plan: &mut SchedulePlan,
    me: usize,
    members: Range<usize>,
    mine: AreaSpan,
    into: AreaSpan,
    mut get: impl FnMut(&mut SchedulePlan, usize, AreaSpan),
) {
    let count = into.count;
    // In place, `into` contains this member's own term. A sum must not overwrite this term before it is read, which
    // happens late unless this member comes first.
    let free = !into.overlaps(mine);
    let own_first = me == members.start && mine == into;
    let sum = if free || own_first {
        into
    } else {
        plan.allocate_scratch(count)
    };
    let alone = members.len() == 1 && free;
    let at_once = (AT_ONCE_ELEMENTS / count.max(1)).max(AT_ONCE_MIN).min(members.len());
    let slots = plan.allocate_scratch(if alone { 0 } else { at_once * count });
    let mut partial: Option<AreaSpan> = None;
    let end = members.end;
    for first in members.step_by(at_once) {
        let batch = first..end.min(first + at_once);
        let term = |member: usize| {
            if member == me {
                mine
            } else if alone {
                into
            } else {
                slots.part((member - first) * count, count)
            }
        };
        for member in batch.clone().filter(|member| *member != me) {
            get(plan, member, term(member));
        }
        for member in batch {
            partial = Some(match partial {
                None => term(member),
                Some(partial) => {
                    plan.reduce(partial, term(member), sum);
                    sum
                }
            });
        }
        plan.end_round();
    }
    if let Some(partial) = partial {
        plan.copy(partial, into);
        plan.end_round();
    }
}
