//! Blocking collectives on slices of elements.

use super::Communicator;
use super::arguments::Contribution;
use crate::error::Error;
use hotlease_collectives::{Blocks, Collective, Element, Operation, Operator, Rank};

/// Blocking collectives: all members must call the same collectives, in the same order. A call returns when this member
/// has its result. Input memory is never written.
///
/// Errors of all blocking collectives: [`Error::Arguments`] and [`Error::Operator`]: nothing was sent, and the other
/// members still wait for this member's call. [`Error::Mismatch`] and [`Error::OperatorPanicked`]: every later
/// collective of the communicator ends with [`Error::CollectiveFailed`]. [`Error::MemberLost`] and
/// [`Error::MemberLeft`] for any member. In checked mode also [`Error::CallMismatch`].
impl Communicator {
    /// Waits until all members have called the barrier.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn barrier(&self) -> Result<(), Error> {
        self.run_typed::<u8>(Collective::Barrier, false, &[], &mut [])
    }

    /// Copies the root's elements to all members.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let count = buffer.len();
        let collective = Collective::Broadcast { root, count };
        if root == self.rank() {
            self.run_typed(collective, false, buffer, &mut [])
        } else {
            self.run_typed(collective, false, &[], buffer)
        }
    }

    /// Collects the elements of all members at the root, by rank. Each member contributes the same number of elements.
    /// `all` has `size` times that number, and may be empty at members other than the root.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn gather<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        all: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let (mine, is_root) = (mine.into(), root == self.rank());
        let count = match mine.len() {
            Some(count) => count,
            None if is_root => self.share(Operation::Gather, all.len())?,
            None => return Err(self.only_the_root(Operation::Gather)),
        };
        if is_root {
            self.check_count(
                Operation::Gather,
                "elements of all members",
                all.len(),
                count * self.size() as usize,
            )?;
        }
        let blocks = Blocks::Equal(count);
        self.run_contribution(Collective::Gather { root, blocks }, mine, all)
    }

    /// Collects blocks of any length at the root. Only the root passes the lengths of all blocks: at other members,
    /// `blocks` and `all` are ignored.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn gatherv<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        all: &mut [T],
        blocks: Blocks<'_>,
        root: Rank,
    ) -> Result<(), Error> {
        let (given, is_root) = (mine.into(), root == self.rank());
        let mine = match given.len() {
            Some(count) => count,
            None if is_root => count_of(&blocks, root),
            None => return Err(self.only_the_root(Operation::Gatherv)),
        };
        let collective = Collective::Gatherv { root, mine, blocks };
        self.run_contribution(collective, given, all)
    }

    /// Gives each member its part of the root's elements, by rank; `mine` has the same length at all members. If
    /// `mine` is empty at the root, the root's own part stays in `all`. `all` may be empty at members other than the
    /// root.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn scatter<T: Element>(&self, all: &[T], mine: &mut [T], root: Rank) -> Result<(), Error> {
        let (mut count, mut stays) = (mine.len(), false);
        if root == self.rank() {
            stays = count == 0 && !all.is_empty();
            count = self.share(Operation::Scatter, all.len())?;
            if !stays {
                self.check_count(Operation::Scatter, "elements for the root itself", mine.len(), count)?;
            }
        }
        let blocks = Blocks::Equal(count);
        let all = if root == self.rank() { all } else { &[] };
        self.run_typed(Collective::Scatter { root, blocks }, stays, all, mine)
    }

    /// Gives each member its block of the root's elements. Blocks may have any length. Only the root passes the lengths
    /// of all blocks: at other members, `blocks` and `all` are ignored.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn scatterv<T: Element>(&self, all: &[T], blocks: Blocks<'_>, mine: &mut [T], root: Rank) -> Result<(), Error> {
        let own = count_of(&blocks, self.rank());
        let is_root = root == self.rank();
        let stays = is_root && mine.is_empty() && own > 0;
        let collective = Collective::Scatterv {
            root,
            mine: if stays { own } else { mine.len() },
            blocks,
        };
        let all = if is_root { all } else { &[] };
        self.run_typed(collective, stays, all, mine)
    }

    /// Collects the elements of all members at every member, by rank. Each member contributes the same number of
    /// elements, and `all` has `size` times that number.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn allgather<'a, T: Element>(&self, mine: impl Into<Contribution<'a, T>>, all: &mut [T]) -> Result<(), Error> {
        let mine = mine.into();
        let count = match mine.len() {
            Some(count) => count,
            None => self.share(Operation::Allgather, all.len())?,
        };
        self.check_count(
            Operation::Allgather,
            "elements of all members",
            all.len(),
            count * self.size() as usize,
        )?;
        let blocks = Blocks::Equal(count);
        self.run_contribution(Collective::Allgather { blocks }, mine, all)
    }

    /// Collects blocks of any length at every member. All members pass the lengths of all blocks.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn allgatherv<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        all: &mut [T],
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let mine = mine.into();
        if let Some(count) = mine.len() {
            let own = count_of(&blocks, self.rank());
            self.check_count(Operation::Allgather, "elements of its own", count, own)?;
        }
        self.run_contribution(Collective::Allgather { blocks }, mine, all)
    }

    /// Gives the root the sum (or another result) of the elements of all members, element by element. `total` may be
    /// empty at members other than the root.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn reduce<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        total: &mut [T],
        operator: &Operator,
        root: Rank,
    ) -> Result<(), Error> {
        let (mine, is_root) = (mine.into(), root == self.rank());
        let count = match mine.len() {
            Some(count) => count,
            None if is_root => total.len(),
            None => return Err(self.only_the_root(Operation::Reduce)),
        };
        if is_root {
            self.check_count(Operation::Reduce, "elements of the result", total.len(), count)?;
        }
        let collective = Collective::Reduce { root, count, operator };
        self.run_contribution(collective, mine, total)
    }

    /// Gives every member the sum (or another result) of the elements of all members, element by element, with
    /// identical bits.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn allreduce<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        total: &mut [T],
        operator: &Operator,
    ) -> Result<(), Error> {
        let count = total.len();
        self.reduce_all(Collective::Allreduce { count, operator }, mine.into(), total)
    }

    /// Gives each member its part of the result of an [`allreduce`](Self::allreduce): `counts` has the number of
    /// elements for each rank. In place, `part` contains all elements of this member before the call, and begins with
    /// its part of the result after the call.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn reduce_scatter<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        part: &mut [T],
        counts: &[usize],
        operator: &Operator,
    ) -> Result<(), Error> {
        let displacements = Blocks::consecutive_starts(counts);
        let blocks = Blocks::Each {
            counts,
            displacements: &displacements,
        };
        let collective = Collective::ReduceScatter { blocks, operator };
        self.run_contribution(collective, mine.into(), part)
    }

    /// Gives each member its part of the result of an [`allreduce`](Self::allreduce); all parts have the same length.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn reduce_scatter_block<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        part: &mut [T],
        operator: &Operator,
    ) -> Result<(), Error> {
        let mine = mine.into();
        let operation = Operation::ReduceScatter;
        let count = match mine.len() {
            Some(count) => self.share(operation, count)?,
            None => self.share(operation, part.len())?,
        };
        if mine.len().is_some() {
            self.check_count(operation, "elements of the result", part.len(), count)?;
        }
        let blocks = Blocks::Equal(count);
        let collective = Collective::ReduceScatter { blocks, operator };
        self.run_contribution(collective, mine, part)
    }

    /// Gives each member the sum (or another result) of the elements of the members up to and including itself.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn scan<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        total: &mut [T],
        operator: &Operator,
    ) -> Result<(), Error> {
        let count = total.len();
        self.reduce_all(Collective::Scan { count, operator }, mine.into(), total)
    }

    /// Gives each member the sum (or another result) of the elements of the members before it. At rank 0, `total` is
    /// unchanged.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn exscan<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        total: &mut [T],
        operator: &Operator,
    ) -> Result<(), Error> {
        let count = total.len();
        self.reduce_all(Collective::Exscan { count, operator }, mine.into(), total)
    }

    /// Gives part `i` of each member's elements to rank `i`, in the order of the sending ranks; all parts have the
    /// same length.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn alltoall<'a, T: Element>(&self, mine: impl Into<Contribution<'a, T>>, all: &mut [T]) -> Result<(), Error> {
        let mine = mine.into();
        let count = self.share(Operation::Alltoall, all.len())?;
        let given = mine.len().unwrap_or(all.len());
        self.check_count(Operation::Alltoall, "elements for all members", given, all.len())?;
        self.run_contribution(Collective::Alltoall { count }, mine, all)
    }

    /// Gives part `i` of each member's elements to rank `i`, with parts of any length: `sent` describes the parts that
    /// this member sends, `received` the parts that it receives. In place, `received` also describes the sent parts.
    ///
    /// # Errors
    /// Errors of all blocking collectives, listed above.
    #[track_caller]
    pub fn alltoallv<'a, T: Element>(
        &self,
        mine: impl Into<Contribution<'a, T>>,
        sent: Blocks<'_>,
        all: &mut [T],
        received: Blocks<'_>,
    ) -> Result<(), Error> {
        let collective = Collective::Alltoallv { sent, received };
        self.run_contribution(collective, mine.into(), all)
    }

    /// Runs a reduction whose result has the same number of elements as the contribution of each member.
    #[track_caller]
    fn reduce_all<T: Element>(
        &self,
        collective: Collective<'_>,
        given: Contribution<'_, T>,
        total: &mut [T],
    ) -> Result<(), Error> {
        if let Some(own) = given.len() {
            self.check_count(collective.operation(), "elements of its own", own, total.len())?;
        }
        self.run_contribution(collective, given, total)
    }

    #[track_caller]
    fn run_contribution<T: Element>(
        &self,
        collective: Collective<'_>,
        given: Contribution<'_, T>,
        output: &mut [T],
    ) -> Result<(), Error> {
        match given {
            Contribution::Separate(input) => self.run_typed(collective, false, input, output),
            Contribution::InPlace => self.run_typed(collective, true, &[], output),
        }
    }

    #[track_caller]
    fn run_typed<T: Element>(
        &self,
        collective: Collective<'_>,
        in_place: bool,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), Error> {
        let collective = self.collective(collective, T::KIND).in_place(in_place);
        T::write(output, |output| collective.run(bytemuck::cast_slice(input), output))
    }

    /// Number of elements for each rank.
    pub(super) fn share(&self, operation: Operation, elements: usize) -> Result<usize, Error> {
        let size = self.size() as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        let why = format!("{elements} elements cannot be divided equally among {size} ranks");
        Err(self.contradiction(operation, why))
    }

    fn check_count(&self, operation: Operation, what: &str, given: usize, needed: usize) -> Result<(), Error> {
        if given == needed {
            return Ok(());
        }
        let why = format!("the caller gives memory for {given} {what}, but {needed} are needed");
        Err(self.contradiction(operation, why))
    }

    fn only_the_root(&self, operation: Operation) -> Error {
        self.contradiction(operation, "only the root can give in place".into())
    }

    pub(super) fn contradiction(&self, operation: Operation, why: String) -> Error {
        Error::Arguments {
            operation,
            rank: self.rank(),
            why,
        }
    }
}

/// Number of elements in the block of a rank, as the caller passed it; the blocks are checked later.
pub(super) fn count_of(blocks: &Blocks<'_>, rank: Rank) -> usize {
    match blocks {
        Blocks::Equal(count) => *count,
        Blocks::Each { counts, .. } => counts.get(rank as usize).copied().unwrap_or(0),
    }
}
