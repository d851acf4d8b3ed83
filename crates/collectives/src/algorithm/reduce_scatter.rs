//! Reduce-scatters: each member contributes one block for every member, one after the other in `mine`, and gets the
//! sum of its own blocks in `into`. In place, `mine` is the output and `into` is its beginning.

use super::blocks::{Blocks, PackedBlocks};
use super::fold::{Fold, FoldRole};
use super::plan::{RankGroup, SchedulePlan};
use crate::schedule::AreaSpan;
use std::ops::Range;

/// Recursive halving: `log2 p` steps, and a member sends less than `n` elements. If `p` is not a power of two, there
/// are 2 steps more, and a member sends up to `n` elements more.
///
/// If the operator does not commute, the distance begins with neighbours and is doubled. Every partial result then
/// covers a range of ranks, so rank order is kept. Blocks are then halved in the order of the reversed bits of their
/// numbers, so they are first copied into that order. If the operator commutes, no copy is needed: the distance is
/// halved, and blocks stay in place.
///
/// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005); Iannello:
/// Efficient algorithms for the reduce-scatter operation in LogGP (1997).
pub(crate) fn recursive_halving(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    into: AreaSpan,
    commutes: bool,
) {
    let fold = Fold::new(group);
    let (number, partner) = match fold.role(group.me) {
        FoldRole::Idle { partner } => {
            plan.send(group, partner, mine);
            plan.end_round();
            plan.receive(group, partner, into);
            return plan.end_round();
        }
        FoldRole::Active { number, partner } => (number, partner),
    };
    if group.size == 1 {
        plan.copy(mine, into);
        return plan.end_round();
    }
    let mut partial = mine;
    let received = plan.allocate_scratch(mine.count);
    let sum = plan.allocate_scratch(mine.count);
    if let Some(partner) = partner {
        plan.receive(group, partner, received);
        plan.combine(partner < group.me, received, partial, sum);
        plan.end_round();
        partial = sum;
    }
    let order = BlockOrder::new(&fold, blocks, group.size, !commutes);
    if !commutes {
        let ordered = plan.allocate_scratch(mine.count);
        for place in 0..fold.size {
            let from = blocks.joined(partial, fold.members(order.owner(place)..order.owner(place) + 1));
            plan.copy(
                from.unwrap_or(AreaSpan { count: 0, ..partial }),
                order.of(ordered, place..place + 1),
            );
        }
        partial = ordered;
    }
    let mut places = 0..fold.size;
    for step in 0..fold.size.ilog2() {
        let mask = if commutes { fold.size >> (step + 1) } else { 1 << step };
        let middle = places.start + places.len() / 2;
        let (lower, upper) = (places.start..middle, middle..places.end);
        let is_upper = number & mask != 0;
        let (kept, given) = if is_upper { (upper, lower) } else { (lower, upper) };
        let peer = fold.member(number ^ mask);
        let incoming = received.part(0, order.of(partial, kept.clone()).count);
        plan.send(group, peer, order.of(partial, given));
        plan.receive(group, peer, incoming);
        plan.combine(
            is_upper,
            incoming,
            order.of(partial, kept.clone()),
            order.of(sum, kept.clone()),
        );
        plan.end_round();
        (places, partial) = (kept, sum);
    }
    // The block of this member and, if it stands in for a neighbour, the block of that neighbour.
    let result = order.of(partial, places);
    let (own, other) = match partner {
        None => (result, None),
        Some(partner) if partner < group.me => {
            let lower = blocks.count(partner);
            (
                result.part(lower, result.count - lower),
                Some((partner, result.part(0, lower))),
            )
        }
        Some(partner) => {
            let lower = blocks.count(group.me);
            (
                result.part(0, lower),
                Some((partner, result.part(lower, result.count - lower))),
            )
        }
    };
    if let Some((partner, block)) = other {
        plan.send(group, partner, block);
    }
    plan.copy(own, into);
    plan.end_round();
}

/// Order of the active members' blocks, and the position of each block in this order.
struct BlockOrder {
    reversed: Option<u32>,
    starts: Vec<usize>,
}

impl BlockOrder {
    fn new(fold: &Fold, blocks: &Blocks, ranks: usize, reversed: bool) -> Self {
        let packed = PackedBlocks::new(blocks, 0, ranks);
        let mut order = BlockOrder {
            reversed: reversed.then(|| fold.size.ilog2()),
            starts: vec![0],
        };
        let mut start = 0;
        for place in 0..fold.size {
            let owner = order.owner(place);
            start += packed.count(fold.members(owner..owner + 1));
            order.starts.push(start);
        }
        order
    }

    /// Number of the active member whose block is at a position.
    fn owner(&self, place: usize) -> usize {
        match self.reversed {
            None | Some(0) => place,
            Some(bits) => place.reverse_bits() >> (usize::BITS - bits),
        }
    }

    fn of(&self, span: AreaSpan, places: Range<usize>) -> AreaSpan {
        span.part(
            self.starts[places.start],
            self.starts[places.end] - self.starts[places.start],
        )
    }
}

/// Around a ring: `p - 1` steps, and a member sends all blocks except one. Only for operators that commute.
pub(crate) fn ring(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, into: AreaSpan) {
    reduce_around_ring(plan, group, blocks.longest(), |member| blocks.of(mine, member), into);
}

/// Each block moves around the ring, from the member after its owner to the owner itself, and each member adds its
/// part.
pub(crate) fn reduce_around_ring(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    longest: usize,
    block: impl Fn(usize) -> AreaSpan,
    into: AreaSpan,
) {
    let size = group.size;
    if size == 1 {
        plan.copy(block(0), into);
        return plan.end_round();
    }
    // One buffer receives while the other is sent.
    let buffers = [
        plan.allocate_scratch(longest),
        plan.allocate_scratch(if size > 2 { longest } else { 0 }),
    ];
    for round in plan.begin_passes(1..size) {
        let (sent, part) = (block(group.before(round)), block(group.before(round + 1)));
        let partial = if round == 1 {
            sent
        } else {
            buffers[round % 2].part(0, sent.count)
        };
        let received = buffers[(round + 1) % 2].part(0, part.count);
        plan.send(group, group.after(1), partial);
        plan.receive(group, group.before(1), received);
        // In place, the result may overlap the part that is added to it.
        let straight = round + 1 == size && (part == into || !part.overlaps(into));
        plan.reduce(received, part, if straight { into } else { received });
        if round + 1 == size && !straight {
            plan.copy(received, into);
        }
        plan.end_round();
    }
}

/// Pairwise exchange: each member sends each block straight to the block's owner, one block in each of `p - 1` steps.
/// Keeps rank order with two sums, one of lower ranks and one of higher ranks: the first block arrives from the next
/// lower rank, and further blocks around the circle.
pub(crate) fn pairwise(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, into: AreaSpan) {
    let (me, own) = (group.me, blocks.of(mine, group.me));
    let mut buffer = |wanted: bool| plan.allocate_scratch(if wanted { own.count } else { 0 });
    let (some_lower, some_higher, several_higher) = (me > 0, me + 1 < group.size, me + 2 < group.size);
    let received = buffer(group.size > 1);
    // In place, the beginning of the output is still to be sent, so the sum is in other memory until the end.
    let lower = if some_lower { buffer(true) } else { own };
    let higher = if several_higher { buffer(true) } else { received };
    for distance in plan.begin_passes(1..group.size) {
        let from = group.before(distance);
        plan.send(group, group.after(distance), blocks.of(mine, group.after(distance)));
        if from < me {
            plan.receive(group, from, received);
            plan.reduce(received, if distance == 1 { own } else { lower }, lower);
        } else if from + 1 == group.size {
            // Of the higher ranks' blocks, the block of the highest rank arrives first: there is no sum to add it to
            // yet.
            plan.receive(group, from, higher);
        } else {
            plan.receive(group, from, received);
            plan.reduce(received, higher, higher);
        }
        plan.end_round();
    }
    if some_higher {
        plan.reduce(lower, higher, into);
    } else {
        plan.copy(lower, into);
    }
    plan.end_round();
}
