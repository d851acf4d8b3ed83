//! Reduction of any number of members to a power of two: in some pairs of neighbours, one member gives its part to the
//! other and waits.

use super::plan::RankGroup;
use std::ops::Range;

/// Choice of `2^k` active members: one member of each of the first pairs, and all members after these pairs.
pub(crate) struct Fold {
    /// Number of active members, a power of two.
    pub size: usize,
    paired: usize,
    /// Number of the pair whose lower member is active; in all other pairs the higher member is active.
    lower_of: usize,
}

/// Role of a member.
pub(crate) enum FoldRole {
    /// The member takes part under this number, also on behalf of its partner if it has one.
    Active { number: usize, partner: Option<usize> },
    /// The partner takes part on the member's behalf.
    Idle { partner: usize },
}

impl Fold {
    pub fn new(group: &RankGroup) -> Self {
        let size = 1 << group.size.ilog2();
        Fold {
            size,
            paired: group.size - size,
            lower_of: usize::MAX,
        }
    }

    /// Makes a choice in which `active` is an active member.
    pub fn with_active(group: &RankGroup, active: usize) -> Self {
        let fold = Fold::new(group);
        let lower = active < 2 * fold.paired && active.is_multiple_of(2);
        Fold {
            lower_of: if lower { active / 2 } else { usize::MAX },
            ..fold
        }
    }

    pub fn role(&self, member: usize) -> FoldRole {
        if member >= 2 * self.paired {
            return FoldRole::Active {
                number: member - self.paired,
                partner: None,
            };
        }
        let (number, partner) = (member / 2, member ^ 1);
        if self.member(number) == member {
            FoldRole::Active {
                number,
                partner: Some(partner),
            }
        } else {
            FoldRole::Idle { partner }
        }
    }

    /// Active member with this number.
    pub fn member(&self, number: usize) -> usize {
        if number >= self.paired {
            number + self.paired
        } else {
            2 * number + usize::from(number != self.lower_of)
        }
    }

    /// Members for which the active members with these numbers take part.
    pub fn members(&self, numbers: Range<usize>) -> Range<usize> {
        let first = |number: usize| number + number.min(self.paired);
        first(numbers.start)..first(numbers.end)
    }
}
