//! Reduce-scatters: everyone adds blocks for all, one after the other in `mine`, and gets the sum of its own in `into`. In
//! place `mine` is the output, and `into` its beginning.

use super::blocks::{Blocks, Packed};
use super::fold::{Fold, Role};
use super::plan::{Group, Plan};
use crate::schedule::Span;
use std::ops::Range;

/// Recursive halving: `log2 p` steps, and a member sends less than `n` elements; where `p` is not a power of two, 2 steps
/// and up to `n` elements more.
///
/// The distance is doubled from neighbours on, so every partial result is that of a range of ranks and rank order is
/// kept; blocks are copied first into the order in which they are halved then, that of the numbers' reversed bits. An operator that commutes
/// needs no copy: the distance is halved, and blocks stay as they are.
///
/// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005); Iannello: Efficient
/// algorithms for the reduce-scatter operation in LogGP (1997).
pub(crate) fn recursive_halving(
    plan: &mut Plan,
    group: &Group,
    blocks: &Blocks,
    mine: Span,
    into: Span,
    commutes: bool,
) {
    let fold = Fold::new(group);
    let (number, partner) = match fold.role(group.me) {
        Role::Idle { partner } => {
            plan.send(group, partner, mine);
            plan.round();
            plan.receive(group, partner, into);
            return plan.round();
        }
        Role::Active { number, partner } => (number, partner),
    };
    if group.size == 1 {
        plan.copy(mine, into);
        return plan.round();
    }
    let mut partial = mine;
    let received = plan.scratch(mine.count);
    let sum = plan.scratch(mine.count);
    if let Some(partner) = partner {
        plan.receive(group, partner, received);
        plan.combine(partner < group.me, received, partial, sum);
        plan.round();
        partial = sum;
    }
    let order = Order::new(&fold, blocks, group.size, !commutes);
    if !commutes {
        let ordered = plan.scratch(mine.count);
        for place in 0..fold.size {
            let from = blocks.joined(partial, fold.members(order.owner(place)..order.owner(place) + 1));
            plan.copy(
                from.unwrap_or(Span { count: 0, ..partial }),
                order.of(ordered, place..place + 1),
            );
        }
        partial = ordered;
    }
    let mut places = 0..fold.size;
    for step in 0..fold.size.ilog2() {
        let mask = if commutes {
            fold.size >> (step + 1)
        } else {
            1 << step
        };
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
        plan.round();
        (places, partial) = (kept, sum);
    }
    // The blocks of this member and, if it stands in for a neighbour, of that one.
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
    plan.round();
}

/// In which order the blocks of active members are, and where.
struct Order {
    reversed: Option<u32>,
    starts: Vec<usize>,
}

impl Order {
    fn new(fold: &Fold, blocks: &Blocks, ranks: usize, reversed: bool) -> Self {
        let packed = Packed::new(blocks, 0, ranks);
        let mut order = Order {
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

    /// Whose block is at a place.
    fn owner(&self, place: usize) -> usize {
        match self.reversed {
            None | Some(0) => place,
            Some(bits) => place.reverse_bits() >> (usize::BITS - bits),
        }
    }

    fn of(&self, span: Span, places: Range<usize>) -> Span {
        span.part(
            self.starts[places.start],
            self.starts[places.end] - self.starts[places.start],
        )
    }
}

/// Around a ring: `p - 1` steps, and a member sends all blocks but one. For operators that commute.
pub(crate) fn ring(plan: &mut Plan, group: &Group, blocks: &Blocks, mine: Span, into: Span) {
    around(
        plan,
        group,
        blocks.longest(),
        |member| blocks.of(mine, member),
        into,
    );
}

/// Each block goes around from the member after its owner, and grows by everyone's part, its owner's last.
pub(crate) fn around(
    plan: &mut Plan,
    group: &Group,
    longest: usize,
    block: impl Fn(usize) -> Span,
    into: Span,
) {
    let size = group.size;
    if size == 1 {
        plan.copy(block(0), into);
        return plan.round();
    }
    // What comes in while the other one goes out.
    let buffers = [
        plan.scratch(longest),
        plan.scratch(if size > 2 { longest } else { 0 }),
    ];
    for round in plan.passes(1..size) {
        let (sent, part) = (block(group.before(round)), block(group.before(round + 1)));
        let partial = if round == 1 {
            sent
        } else {
            buffers[round % 2].part(0, sent.count)
        };
        let received = buffers[(round + 1) % 2].part(0, part.count);
        plan.send(group, group.after(1), partial);
        plan.receive(group, group.before(1), received);
        // In place the result may lie across the part that goes into it.
        let straight = round + 1 == size && (part == into || !part.overlaps(into));
        plan.reduce(received, part, if straight { into } else { received });
        if round + 1 == size && !straight {
            plan.copy(received, into);
        }
        plan.round();
    }
}

/// Pairwise exchange: everyone sends each block straight to its owner, one in each of `p - 1` steps. Keeps rank order by two
/// sums, of lower and of higher ranks: blocks come from the next lower rank first, around the circle.
pub(crate) fn pairwise(plan: &mut Plan, group: &Group, blocks: &Blocks, mine: Span, into: Span) {
    let (me, own) = (group.me, blocks.of(mine, group.me));
    let mut buffer = |wanted: bool| plan.scratch(if wanted { own.count } else { 0 });
    let (some_lower, some_higher, several_higher) = (me > 0, me + 1 < group.size, me + 2 < group.size);
    let received = buffer(group.size > 1);
    // In place the output's beginning is still to be sent, so the sum is elsewhere until the end.
    let lower = if some_lower { buffer(true) } else { own };
    let higher = if several_higher { buffer(true) } else { received };
    for distance in plan.passes(1..group.size) {
        let from = group.before(distance);
        plan.send(
            group,
            group.after(distance),
            blocks.of(mine, group.after(distance)),
        );
        if from < me {
            plan.receive(group, from, received);
            plan.reduce(received, if distance == 1 { own } else { lower }, lower);
        } else if from + 1 == group.size {
            // The highest rank's: nothing to add it to yet.
            plan.receive(group, from, higher);
        } else {
            plan.receive(group, from, received);
            plan.reduce(received, higher, higher);
        }
        plan.round();
    }
    if some_higher {
        plan.reduce(lower, higher, into);
    } else {
        plan.copy(lower, into);
    }
    plan.round();
}
