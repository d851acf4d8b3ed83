//! A reduction by one member that gets what all others add, in the order of their ranks.

use super::plan::Plan;
use crate::schedule::Span;
use std::ops::Range;

/// How many terms are got at a time, at least; and of short ones so many that they have this many elements.
const AT_ONCE_MIN: usize = 16;
const AT_ONCE_ELEMENTS: usize = 64 * 1024;

/// Reduces what these members add, with `mine` where member `me` comes. `get` plans how another member's term comes into a span.
pub(crate) fn in_order(
    plan: &mut Plan,
    me: usize,
    members: Range<usize>,
    mine: Span,
    into: Span,
    mut get: impl FnMut(&mut Plan, usize, Span),
) {
    let count = into.count;
    // In place the output is still read when it could be written, unless this member comes first.
    let free = !into.overlaps(mine);
    let own_first = me == members.start && mine == into;
    let sum = if free || own_first {
        into
    } else {
        plan.scratch(count)
    };
    let alone = members.len() == 1 && free;
    let at_once = (AT_ONCE_ELEMENTS / count.max(1))
        .max(AT_ONCE_MIN)
        .min(members.len());
    let slots = plan.scratch(if alone { 0 } else { at_once * count });
    let mut partial: Option<Span> = None;
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
        plan.round();
    }
    if let Some(partial) = partial {
        plan.copy(partial, into);
        plan.round();
    }
}
