//! Binomial tree over any number of members: each subtree is a range of members, so order is kept and blocks stay
//! together.
//!
//! ```text
//!   0 ─┬─────────┬───── 4 ─┬─── 6 ── 7        members are counted from the root, around the circle;
//!      ├─── 2 ── 3         └ 5                the parent of v is v without its lowest set bit, and
//!      └ 1                                    the subtree of v is the range v .. v + that bit
//! ```

use super::plan::RankGroup;
use std::ops::Range;

/// Position of this member in the tree.
pub(crate) struct Tree {
    size: usize,
    root: usize,
    place: usize,
}

/// A subtree below this member.
pub(crate) struct Child {
    /// Topmost member of the subtree.
    pub member: usize,
    /// Positions of the subtree, counted from the root.
    pub places: Range<usize>,
}

impl Tree {
    pub fn new(group: &RankGroup, root: usize) -> Self {
        Tree {
            size: group.size,
            root,
            place: (group.me + group.size - root) % group.size,
        }
    }

    pub fn is_root(&self) -> bool {
        self.place == 0
    }

    /// Parent of this member; `None` at the root.
    pub fn parent(&self) -> Option<usize> {
        (self.place > 0).then(|| self.member(self.place & (self.place - 1)))
    }

    /// Subtrees below this member, the nearest and smallest first.
    pub fn children(&self) -> impl DoubleEndedIterator<Item = Child> + use<> {
        let (size, root, place) = (self.size, self.root, self.place);
        let most = if place == 0 {
            usize::BITS
        } else {
            place.trailing_zeros()
        };
        (0..most.min(usize::BITS - size.leading_zeros()))
            .map(move |bit| place + (1 << bit))
            .filter(move |top| *top < size)
            .map(move |top| Child {
                member: (root + top) % size,
                places: top..(top + (top - place)).min(size),
            })
    }

    /// Positions of this member's subtree, beginning with this member.
    pub fn places(&self) -> Range<usize> {
        self.place..self.end(self.place)
    }

    /// End of the subtree of a position.
    pub fn end(&self, place: usize) -> usize {
        if place == 0 {
            self.size
        } else {
            (place + (1 << place.trailing_zeros())).min(self.size)
        }
    }

    /// Member at a position.
    pub fn member(&self, place: usize) -> usize {
        (self.root + place) % self.size
    }

    /// Position of this member.
    pub fn place(&self) -> usize {
        self.place
    }
}
