//! Allgathers. `mine` is the block that this member contributes, possibly already at its final position; `all` is
//! where every member receives the blocks.

use super::blocks::{Blocks, PackedBlocks};
use super::fold::{Fold, FoldRole};
use super::plan::{RankGroup, SchedulePlan};
use super::{broadcast, gather};
use crate::schedule::AreaSpan;

/// Around a ring: `p - 1` steps, and a member sends all blocks except one.
pub(crate) fn ring(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, all: AreaSpan) {
    for round in plan.begin_passes(1..group.size) {
        // This member's block is sent from the caller's memory, and copied to its position during the transfer.
        let sent = if round == 1 {
            mine
        } else {
            blocks.of(all, group.before(round - 1))
        };
        plan.send(group, group.after(1), sent);
        plan.receive(group, group.before(1), blocks.of(all, group.before(round)));
        if round == 1 {
            plan.copy(mine, blocks.of(all, group.me));
        }
        plan.end_round();
    }
    if group.size == 1 {
        plan.copy(mine, blocks.of(all, group.me));
    }
}

/// Each member sends to all others at once: `p - 1` messages each, none of which waits for another.
pub(crate) fn linear(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, all: AreaSpan) {
    for distance in 1..group.size {
        plan.send(group, group.after(distance), mine);
        plan.receive(group, group.before(distance), blocks.of(all, group.before(distance)));
    }
    plan.copy(mine, blocks.of(all, group.me));
    plan.end_round();
}

/// Recursive doubling: neighbours exchange the blocks that they have, then pairs do, then groups of four. Takes `log2
/// p` steps, and a member sends all blocks except one. If `p` is not a power of two, the allgather takes 2 steps more,
/// and a member sends about twice that number of blocks.
///
/// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
pub(crate) fn recursive_doubling(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
) {
    let (blocks, all, user) = make_dense(plan, group, blocks, all);
    let range = |members| blocks.of(all, members);
    let fold = Fold::new(group);
    match fold.role(group.me) {
        FoldRole::Idle { partner } => {
            plan.send(group, partner, mine);
            plan.end_round();
            plan.receive(group, partner, range(0..group.size));
        }
        FoldRole::Active { number, partner } => {
            if let Some(partner) = partner {
                plan.receive(group, partner, range(partner..partner + 1));
            }
            plan.copy(mine, range(group.me..group.me + 1));
            plan.end_round();
            let mut mask = 1;
            while mask < fold.size {
                let own = number & !(mask - 1);
                let other = own ^ mask;
                let peer = fold.member(number ^ mask);
                plan.send(group, peer, range(fold.members(own..own + mask)));
                plan.receive(group, peer, range(fold.members(other..other + mask)));
                plan.end_round();
                mask *= 2;
            }
            if let Some(partner) = partner {
                plan.send(group, partner, range(0..group.size));
            }
        }
    }
    plan.end_round();
    unpack(plan, group, &blocks, all, user);
}

/// Bruck's algorithm: in round `k` each member sends the blocks that it has, up to `2^k`, to the member `2^k` before
/// it. Takes `ceil(log2 p)` steps for any `p`, and a member sends all blocks except one; at the end the blocks are
/// copied to their final positions.
///
/// Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in multiport
/// message-passing systems (1997).
pub(crate) fn bruck(plan: &mut SchedulePlan, group: &RankGroup, blocks: &Blocks, mine: AreaSpan, all: AreaSpan) {
    let packed = PackedBlocks::new(blocks, group.me, group.size);
    let buffer = plan.allocate_scratch(blocks.total(group.size));
    plan.copy(mine, packed.of(buffer, 0..1));
    let mut had = 1;
    while had < group.size {
        let more = had.min(group.size - had);
        plan.send(group, group.before(had), packed.of(buffer, 0..more));
        plan.receive(group, group.after(had), packed.of(buffer, had..had + more));
        plan.end_round();
        had += more;
    }
    for place in 0..group.size {
        let member = group.after(place);
        // In place, the own block is already at its position and stays there.
        if member != group.me || mine != blocks.of(all, member) {
            plan.copy(packed.of(buffer, place..place + 1), blocks.of(all, member));
        }
    }
    plan.end_round();
}

/// A binomial gather to member 0, then a binomial broadcast: `2 ceil(log2 p)` steps, few messages.
pub(crate) fn gather_broadcast(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
) {
    through_root(plan, group, blocks, mine, all, gather::binomial, broadcast::binomial);
}

type GatherTo = fn(&mut SchedulePlan, &RankGroup, usize, &Blocks, AreaSpan, AreaSpan);
type BroadcastFrom = fn(&mut SchedulePlan, &RankGroup, usize, AreaSpan);

/// A gather to member 0, then a broadcast, by the given builders.
pub(crate) fn through_root(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks,
    mine: AreaSpan,
    all: AreaSpan,
    gather: GatherTo,
    broadcast: BroadcastFrom,
) {
    let (blocks, all, user) = make_dense(plan, group, blocks, all);
    match &blocks {
        DenseBlocks::Caller(blocks) => gather(plan, group, 0, blocks, mine, all),
        DenseBlocks::Packed(packed, _) => {
            let displacements: Vec<usize> = (0..group.size).map(|member| packed.count(0..member)).collect();
            let counts: Vec<usize> = (0..group.size).map(|member| packed.count(member..member + 1)).collect();
            let blocks = Blocks::Each {
                counts: &counts,
                displacements: &displacements,
            };
            gather(plan, group, 0, &blocks, mine, all);
        }
    }
    broadcast(plan, group, 0, blocks.of(all, 0..group.size));
    unpack(plan, group, &blocks, all, user);
}

/// Blocks without gaps: either the blocks of the caller, or packed blocks that are copied to the caller's blocks at
/// the end.
enum DenseBlocks<'a> {
    Caller(Blocks<'a>),
    Packed(PackedBlocks, Blocks<'a>),
}

impl DenseBlocks<'_> {
    fn of(&self, buffer: AreaSpan, members: std::ops::Range<usize>) -> AreaSpan {
        match self {
            // `make_dense` has checked that the blocks follow each other.
            DenseBlocks::Caller(blocks) => blocks
                .joined(buffer, members)
                .unwrap_or(AreaSpan { count: 0, ..buffer }),
            DenseBlocks::Packed(packed, _) => packed.of(buffer, members),
        }
    }
}

fn make_dense<'a>(
    plan: &mut SchedulePlan,
    group: &RankGroup,
    blocks: &Blocks<'a>,
    all: AreaSpan,
) -> (DenseBlocks<'a>, AreaSpan, AreaSpan) {
    if blocks.joined(all, 0..group.size).is_some() {
        return (DenseBlocks::Caller(*blocks), all, all);
    }
    let buffer = plan.allocate_scratch(blocks.total(group.size));
    (
        DenseBlocks::Packed(PackedBlocks::new(blocks, 0, group.size), *blocks),
        buffer,
        all,
    )
}

fn unpack(plan: &mut SchedulePlan, group: &RankGroup, dense: &DenseBlocks, buffer: AreaSpan, user: AreaSpan) {
    if let DenseBlocks::Packed(packed, blocks) = dense {
        for member in 0..group.size {
            plan.copy(packed.of(buffer, member..member + 1), blocks.of(user, member));
        }
        plan.end_round();
    }
}
