//! Reduce-scatter by halving the elements and doubling the distance, used in Rabenseifner's algorithms.
//!
//! Member `v` of `2^k` and its neighbour `v ^ 1` each keep one half of the elements and give the other half away; then
//! members at distance 2 halve the halves, and so on. Each partial result covers a range of ranks, so rank order is
//! kept.

use super::fold::Fold;
use super::plan::{RankGroup, SchedulePlan, shares};
use crate::schedule::AreaSpan;

/// Position and memory of one member in a halving.
pub(crate) struct Halving {
    /// Number of the member among the active members.
    pub number: usize,
    /// Idle neighbour that this member stands in for, if any.
    pub partner: Option<usize>,
    /// Elements that the member adds.
    pub mine: AreaSpan,
    /// Span of the same length as `mine`, for partial results and the member's piece of the result. May be `mine`
    /// itself.
    pub sum: AreaSpan,
}

/// An aligned range of the `2^k` shares of the elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareRange {
    first: usize,
    count: usize,
}

impl ShareRange {
    fn half(self, upper: bool) -> Self {
        let count = self.count / 2;
        ShareRange {
            first: self.first + if upper { count } else { 0 },
            count,
        }
    }

    /// The neighbouring range: this range and its sibling are the halves of a range of twice the length.
    pub fn sibling(self) -> Self {
        ShareRange {
            first: self.first ^ self.count,
            count: self.count,
        }
    }

    /// Both halves: this range and its sibling.
    pub fn parent(self) -> Self {
        ShareRange {
            first: self.first & !self.count,
            count: 2 * self.count,
        }
    }

    pub fn of(self, span: AreaSpan, parts: usize) -> AreaSpan {
        shares(span, parts, self.first..self.first + self.count)
    }
}

/// Plans the halving of an active member, whose partner has sent or sends all its elements. Returns which piece of the
/// result is in `sum`.
pub(crate) fn halve(plan: &mut SchedulePlan, group: &RankGroup, fold: &Fold, halving: Halving) -> ShareRange {
    let Halving {
        number,
        partner,
        mine,
        sum,
    } = halving;
    let longest = if partner.is_some() || fold.size == 1 {
        mine.count
    } else {
        mine.count.div_ceil(2)
    };
    let received = plan.allocate_scratch(if group.size == 1 { 0 } else { longest });
    let mut partial = mine;
    if let Some(partner) = partner {
        plan.receive(group, partner, received);
        plan.combine(partner < group.me, received, partial, sum);
        plan.end_round();
        partial = sum;
    }
    let mut pieces = ShareRange {
        first: 0,
        count: fold.size,
    };
    let mut mask = 1;
    while mask < fold.size {
        let upper = number & mask != 0;
        let (kept, given) = (pieces.half(upper), pieces.half(!upper));
        let peer = fold.member(number ^ mask);
        let incoming = received.part(0, kept.of(mine, fold.size).count);
        plan.send(group, peer, given.of(partial, fold.size));
        plan.receive(group, peer, incoming);
        plan.combine(upper, incoming, kept.of(partial, fold.size), kept.of(sum, fold.size));
        plan.end_round();
        (pieces, partial, mask) = (kept, sum, mask * 2);
    }
    plan.copy(partial, sum);
    plan.end_round();
    pieces
}
