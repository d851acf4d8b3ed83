//! Any number of members as a power of two: of some pairs of neighbours one gives its part to the other, and waits.

use super::plan::Group;
use std::ops::Range;

/// `2^k` of the members are active: one of each of the first pairs, and all after them.
pub(crate) struct Fold {
    /// How many are active, a power of two.
    pub size: usize,
    paired: usize,
    /// The pair whose lower member is the active one; of the others it is the higher.
    lower_of: usize,
}

/// What a member is.
pub(crate) enum Role {
    /// It takes part, under this number, also for its partner if it has one.
    Active { number: usize, partner: Option<usize> },
    /// Its partner takes part for it.
    Idle { partner: usize },
}

impl Fold {
    pub fn new(group: &Group) -> Self {
        let size = 1 << group.size.ilog2();
        Fold {
            size,
            paired: group.size - size,
            lower_of: usize::MAX,
        }
    }

    /// Such that this member is active.
    pub fn with(group: &Group, active: usize) -> Self {
        let fold = Fold::new(group);
        let lower = active < 2 * fold.paired && active.is_multiple_of(2);
        Fold {
            lower_of: if lower { active / 2 } else { usize::MAX },
            ..fold
        }
    }

    pub fn role(&self, member: usize) -> Role {
        if member >= 2 * self.paired {
            return Role::Active {
                number: member - self.paired,
                partner: None,
            };
        }
        let (number, partner) = (member / 2, member ^ 1);
        if self.member(number) == member {
            Role::Active {
                number,
                partner: Some(partner),
            }
        } else {
            Role::Idle { partner }
        }
    }

    /// Who is active under this number.
    pub fn member(&self, number: usize) -> usize {
        if number >= self.paired {
            number + self.paired
        } else {
            2 * number + usize::from(number != self.lower_of)
        }
    }

    /// The members that these numbers stand for.
    pub fn members(&self, numbers: Range<usize>) -> Range<usize> {
        let first = |number: usize| number + number.min(self.paired);
        first(numbers.start)..first(numbers.end)
    }
}
