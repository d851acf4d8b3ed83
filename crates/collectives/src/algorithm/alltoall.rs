//! All-to-all exchanges: block `i` of `from` goes to member `i`; `to` receives one block from each member.

use super::blocks::Blocks;
use super::plan::{RankGroup, SchedulePlan};
use crate::schedule::AreaSpan;

/// All transfers at once: `p - 1` messages each way. Each member begins with a different peer, so that no member is the
/// first peer of all others.
///
/// Two members exchange the same messages as in [`pairwise`], so members that choose different algorithms still
/// understand each other.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, sent: (&Blocks, AreaSpan), got: (&Blocks, AreaSpan)) {
    for distance in 1..group.size {
        exchange(plan, group, distance, sent, got);
    }
    copy_own(plan, group, sent, got);
    plan.end_round();
}

/// Pairwise exchange: in step `i` of `p - 1` each member sends to the member `i` after it and receives from the member
/// `i` before it. Each element is sent once, and each member has one message each way at a time.
pub(crate) fn pairwise(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    sent: (&Blocks, AreaSpan),
    got: (&Blocks, AreaSpan),
) {
    copy_own(plan, group, sent, got);
    for distance in plan.begin_passes(1..group.size) {
        exchange(plan, group, distance, sent, got);
        plan.end_round();
    }
    plan.end_round();
}

fn exchange(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    distance: usize,
    sent: (&Blocks, AreaSpan),
    got: (&Blocks, AreaSpan),
) {
    let (to, from) = (group.after(distance), group.before(distance));
    plan.send(group, to, sent.0.of(sent.1, to));
    plan.receive(group, from, got.0.of(got.1, from));
}

fn copy_own(plan: &mut SchedulePlan, group: &RankGroup, sent: (&Blocks, AreaSpan), got: (&Blocks, AreaSpan)) {
    plan.copy(sent.0.of(sent.1, group.me), got.0.of(got.1, group.me));
}

/// Bruck's algorithm, for blocks of `count` elements. A block for the member `d` ranks away is sent on once for each
/// bit that is set in `d`, together with all other blocks that have this bit set. Takes `ceil(log2 p)` steps and
/// messages, with about `n/2` elements in each.
///
/// Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in multiport
/// message-passing systems (1997).
pub(crate) fn bruck(plan: &mut SchedulePlan, group: &RankGroup, count: usize, from: AreaSpan, to: AreaSpan) {
    let size = group.size;
    // Position `d` contains the block that moves `d` ranks in all; at first, this member's block for the member `d`
    // ranks after it.
    let travelling = plan.allocate_scratch(size * count);
    let at = |place: usize| travelling.part(place * count, count);
    for distance in 0..size {
        plan.copy(from.part(group.after(distance) * count, count), at(distance));
    }
    let most = size.div_ceil(2) * count;
    let (packed, received) = (plan.allocate_scratch(most), plan.allocate_scratch(most));
    let mut bit = 1;
    while bit < size {
        let moving = || (0..size).filter(|place| place & bit != 0).enumerate();
        for (number, place) in moving() {
            plan.copy(at(place), packed.part(number * count, count));
        }
        let length = moving().count() * count;
        plan.send(group, group.after(bit), packed.part(0, length));
        plan.receive(group, group.before(bit), received.part(0, length));
        for (number, place) in moving() {
            plan.copy(received.part(number * count, count), at(place));
        }
        bit *= 2;
    }
    for distance in 0..size {
        plan.copy(at(distance), to.part(group.before(distance) * count, count));
    }
    plan.end_round();
}
