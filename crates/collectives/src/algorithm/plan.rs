//! A schedule under construction, and the group of ranks that takes part in it.

use super::SchedulePart;
use crate::schedule::{Area, AreaSpan, Rank, Round, Schedule, Step};
use std::ops::Range;

/// Ranks that take part in one phase of a collective, counted from 0: all ranks of a communicator or some of them, for
/// example the ranks of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankGroup<'a> {
    /// Index of this rank in the group.
    pub me: usize,
    /// Number of ranks in the group.
    pub size: usize,
    members: Option<&'a [Rank]>,
}

impl<'a> RankGroup<'a> {
    pub fn all(me: usize, size: usize) -> Self {
        RankGroup {
            me,
            size,
            members: None,
        }
    }

    pub fn of(me: usize, members: &'a [Rank]) -> Self {
        RankGroup {
            me,
            size: members.len(),
            members: Some(members),
        }
    }

    fn rank(&self, member: usize) -> Rank {
        debug_assert!(member < self.size && member != self.me, "a peer is another member");
        self.members.map_or(member as Rank, |members| members[member])
    }

    /// Member `distance` after this rank, around the circle.
    pub fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.size
    }

    /// Member `distance` before this rank, around the circle.
    pub fn before(&self, distance: usize) -> usize {
        (self.me + self.size - distance % self.size) % self.size
    }
}

/// A schedule under construction. A transfer after local work begins a new round automatically. A transfer that depends
/// on the result of an earlier transfer must be separated from it by [`SchedulePlan::end_round`]. Steps without
/// elements are left out.
pub(crate) struct SchedulePlan {
    schedule: Schedule,
    current: Round,
    closed: usize,
    passed: usize,
    window: Range<usize>,
}

impl SchedulePlan {
    /// Starts a plan that keeps only the rounds in a window: the rounds of a ring of 10,000 ranks are too many to keep
    /// for each rank at once. Rounds are numbered in the order of planning. An empty round has a number, but is left
    /// out.
    pub fn new(window: Range<usize>) -> Self {
        SchedulePlan {
            schedule: Schedule::default(),
            current: Round::default(),
            closed: 0,
            passed: 0,
            window,
        }
    }

    pub fn send(&mut self, group: &RankGroup, to: usize, from: AreaSpan) {
        if from.count > 0 {
            self.transfer(Step::Send {
                to: group.rank(to),
                from,
            });
        }
    }

    pub fn receive(&mut self, group: &RankGroup, from: usize, into: AreaSpan) {
        if into.count > 0 {
            self.transfer(Step::Receive {
                from: group.rank(from),
                into,
            });
        }
    }

    pub fn publish(&mut self, key: usize, from: AreaSpan, readers: usize) {
        if from.count > 0 && readers > 0 {
            self.transfer(Step::Publish {
                key: key as u32,
                from,
                readers: readers as u32,
            });
        }
    }

    pub fn fetch(&mut self, group: &RankGroup, of: usize, key: usize, into: AreaSpan) {
        if into.count > 0 {
            self.transfer(Step::Fetch {
                of: group.rank(of),
                key: key as u32,
                into,
            });
        }
    }

    /// Plans a copy, unless the data is already in place. Two copies become one if both their sources and their
    /// targets follow each other.
    pub fn copy(&mut self, from: AreaSpan, into: AreaSpan) {
        if from.count == 0 || from == into {
            return;
        }
        if let Some(Step::Copy {
            from: last_from,
            into: last_into,
        }) = self.current.local.last_mut()
        {
            let follows = |last: AreaSpan, next: AreaSpan| last.area == next.area && last.end() == next.offset;
            let longer = |last: AreaSpan| AreaSpan {
                count: last.count + from.count,
                ..last
            };
            if follows(*last_from, from)
                && follows(*last_into, into)
                && !longer(*last_from).overlaps(longer(*last_into))
            {
                (*last_from, *last_into) = (longer(*last_from), longer(*last_into));
                return;
            }
        }
        self.current.local.push(Step::Copy { from, into });
    }

    pub fn reduce(&mut self, left: AreaSpan, right: AreaSpan, into: AreaSpan) {
        if into.count > 0 {
            self.current.local.push(Step::Reduce { left, right, into });
        }
    }

    /// Reduces `partial` and `other` to `into`, in the order of their ranks: `other` is the left operand if its ranks
    /// are lower.
    pub fn combine(&mut self, other_is_lower: bool, other: AreaSpan, partial: AreaSpan, into: AreaSpan) {
        let (left, right) = if other_is_lower {
            (other, partial)
        } else {
            (partial, other)
        };
        self.reduce(left, right, into);
    }

    /// Ends the current round: later steps wait for the steps planned so far.
    pub fn end_round(&mut self) {
        if self.window.contains(&self.closed) && !self.is_empty() {
            self.schedule.rounds.push(std::mem::take(&mut self.current));
        }
        self.current.transfers.clear();
        self.current.local.clear();
        self.closed += 1;
    }

    /// For a loop in which each pass is one round: returns the passes that are in the window. The other passes are
    /// only counted.
    pub fn begin_passes(&mut self, passes: Range<usize>) -> Range<usize> {
        if !self.is_empty() {
            self.end_round();
        }
        let inside = |place: usize| place.saturating_sub(self.closed).min(passes.len());
        let (first, end) = (inside(self.window.start), inside(self.window.end));
        self.closed += first;
        // A round after the window needs no number.
        self.passed += passes.len() - end;
        passes.start + first..passes.start + end
    }

    fn is_empty(&self) -> bool {
        self.current.transfers.is_empty() && self.current.local.is_empty()
    }

    /// Allocates scratch memory of the schedule.
    pub fn allocate_scratch(&mut self, count: usize) -> AreaSpan {
        let span = AreaSpan {
            area: Area::Scratch,
            offset: self.schedule.scratch,
            count,
        };
        self.schedule.scratch += count;
        span
    }

    /// Returns the planned schedule, and whether more rounds follow after the window.
    pub fn finish(mut self) -> SchedulePart {
        self.end_round();
        SchedulePart {
            has_more: self.closed + self.passed > self.window.end,
            schedule: self.schedule,
        }
    }

    fn transfer(&mut self, step: Step) {
        if !self.current.local.is_empty() {
            self.end_round();
        }
        self.current.transfers.push(step);
    }
}

/// Divides a span into `parts` shares, and returns the share with this index. The lengths of shares differ by at most
/// one element.
pub(crate) fn share(span: AreaSpan, parts: usize, index: usize) -> AreaSpan {
    shares(span, parts, index..index + 1)
}

/// Several consecutive shares. Two halves of an even number of shares also differ by at most one element.
pub(crate) fn shares(span: AreaSpan, parts: usize, range: Range<usize>) -> AreaSpan {
    let start = |index: usize| index * (span.count / parts) + index * (span.count % parts) / parts;
    span.part(start(range.start), start(range.end) - start(range.start))
}
