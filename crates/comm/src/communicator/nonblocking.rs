//! Non-blocking collectives on vectors of elements.

use super::Communicator;
use super::blocking::count_of;
use super::collectives::MemberCollective;
use crate::error::Error;
use crate::memory::TransferMemory;
use crate::request::{CollectiveRequest, Request};
use hotlease_collectives::{Blocks, Collective, Element, Operation, Operator, Rank};
use std::sync::{Arc, Mutex};

/// Memory of a collective, which is returned with the result.
type SharedElements<T> = Arc<Mutex<Vec<<T as Element>::Bits>>>;

fn keep<T: Element>(elements: Vec<T>) -> SharedElements<T> {
    Arc::new(Mutex::new(T::into_bits(elements)))
}

fn zeros<T: Element>(count: usize) -> SharedElements<T> {
    Arc::new(Mutex::new(vec![bytemuck::Zeroable::zeroed(); count]))
}

/// Non-blocking collectives: each call returns a request; waiting for the request returns a vector with the result.
/// Members must begin the same collectives in the same order, and may wait for them in any order. The errors are the
/// errors of the blocking calls, and [`Error::TooManyRequests`].
impl Communicator {
    /// Non-blocking [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ibarrier(&self) -> Result<Request, Error> {
        let empty = || TransferMemory::of(Vec::new());
        self.collective(Collective::Barrier, u8::KIND)
            .begin_on(empty(), empty())
    }

    /// Non-blocking [`broadcast`](Self::broadcast): returns the root's elements, at the root too.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ibroadcast<T: Element>(&self, buffer: Vec<T>, root: Rank) -> Result<CollectiveRequest<T>, Error> {
        let count = buffer.len();
        let collective = Collective::Broadcast { root, count };
        let (buffer, nothing) = (keep(buffer), zeros::<T>(0));
        let collective = self.collective(collective, T::KIND);
        let request = if root == self.rank() {
            begin_owned::<T>(collective, &buffer, &nothing)?
        } else {
            begin_owned::<T>(collective, &nothing, &buffer)?
        };
        Ok(CollectiveRequest::new(request, buffer))
    }

    /// Non-blocking [`gather`](Self::gather): returns the elements of all members at the root, and no elements at other
    /// members.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn igather<T: Element>(&self, mine: Vec<T>, root: Rank) -> Result<CollectiveRequest<T>, Error> {
        let blocks = Blocks::Equal(mine.len());
        self.begin_moved(Collective::Gather { root, blocks }, mine)
    }

    /// Non-blocking [`gatherv`](Self::gatherv).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn igatherv<T: Element>(
        &self,
        mine: Vec<T>,
        blocks: Blocks<'_>,
        root: Rank,
    ) -> Result<CollectiveRequest<T>, Error> {
        let collective = Collective::Gatherv {
            root,
            mine: mine.len(),
            blocks,
        };
        self.begin_moved(collective, mine)
    }

    /// Non-blocking [`scatter`](Self::scatter): returns `count` elements. `all` is empty at members other than the
    /// root.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iscatter<T: Element>(&self, all: Vec<T>, count: usize, root: Rank) -> Result<CollectiveRequest<T>, Error> {
        let blocks = Blocks::Equal(count);
        self.begin_moved(Collective::Scatter { root, blocks }, all)
    }

    /// Non-blocking [`scatterv`](Self::scatterv): returns `count` elements.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iscatterv<T: Element>(
        &self,
        all: Vec<T>,
        blocks: Blocks<'_>,
        count: usize,
        root: Rank,
    ) -> Result<CollectiveRequest<T>, Error> {
        let collective = Collective::Scatterv {
            root,
            mine: count,
            blocks,
        };
        self.begin_moved(collective, all)
    }

    /// Non-blocking [`allgather`](Self::allgather).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iallgather<T: Element>(&self, mine: Vec<T>) -> Result<CollectiveRequest<T>, Error> {
        let blocks = Blocks::Equal(mine.len());
        self.begin_moved(Collective::Allgather { blocks }, mine)
    }

    /// Non-blocking [`allgatherv`](Self::allgatherv).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iallgatherv<T: Element>(&self, mine: Vec<T>, blocks: Blocks<'_>) -> Result<CollectiveRequest<T>, Error> {
        let own = count_of(&blocks, self.rank());
        if mine.len() != own {
            let why = format!(
                "its own block has {} elements, but {own} in the list of all blocks",
                mine.len()
            );
            return Err(self.contradiction(Operation::Allgather, why));
        }
        self.begin_moved(Collective::Allgather { blocks }, mine)
    }

    /// Non-blocking [`reduce`](Self::reduce): returns the result at the root, and no elements at other members.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ireduce<T: Element>(
        &self,
        mine: Vec<T>,
        operator: &Operator,
        root: Rank,
    ) -> Result<CollectiveRequest<T>, Error> {
        let count = mine.len();
        self.begin_moved(Collective::Reduce { root, count, operator }, mine)
    }

    /// Non-blocking [`allreduce`](Self::allreduce).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iallreduce<T: Element>(&self, mine: Vec<T>, operator: &Operator) -> Result<CollectiveRequest<T>, Error> {
        let count = mine.len();
        self.begin_in_place(Collective::Allreduce { count, operator }, mine)
    }

    /// Non-blocking [`reduce_scatter`](Self::reduce_scatter).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ireduce_scatter<T: Element>(
        &self,
        mine: Vec<T>,
        counts: &[usize],
        operator: &Operator,
    ) -> Result<CollectiveRequest<T>, Error> {
        let displacements = Blocks::consecutive_starts(counts);
        let blocks = Blocks::Each {
            counts,
            displacements: &displacements,
        };
        self.begin_moved(Collective::ReduceScatter { blocks, operator }, mine)
    }

    /// Non-blocking [`reduce_scatter_block`](Self::reduce_scatter_block).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ireduce_scatter_block<T: Element>(
        &self,
        mine: Vec<T>,
        operator: &Operator,
    ) -> Result<CollectiveRequest<T>, Error> {
        let blocks = Blocks::Equal(self.share(Operation::ReduceScatter, mine.len())?);
        self.begin_moved(Collective::ReduceScatter { blocks, operator }, mine)
    }

    /// Non-blocking [`scan`](Self::scan).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iscan<T: Element>(&self, mine: Vec<T>, operator: &Operator) -> Result<CollectiveRequest<T>, Error> {
        let count = mine.len();
        self.begin_in_place(Collective::Scan { count, operator }, mine)
    }

    /// Non-blocking [`exscan`](Self::exscan): rank 0 gets its own elements back.
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn iexscan<T: Element>(&self, mine: Vec<T>, operator: &Operator) -> Result<CollectiveRequest<T>, Error> {
        let count = mine.len();
        self.begin_in_place(Collective::Exscan { count, operator }, mine)
    }

    /// Non-blocking [`alltoall`](Self::alltoall).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ialltoall<T: Element>(&self, mine: Vec<T>) -> Result<CollectiveRequest<T>, Error> {
        let count = self.share(Operation::Alltoall, mine.len())?;
        self.begin_moved(Collective::Alltoall { count }, mine)
    }

    /// Non-blocking [`alltoallv`](Self::alltoallv).
    ///
    /// # Errors
    /// Errors of the blocking call, and [`Error::TooManyRequests`].
    #[track_caller]
    pub fn ialltoallv<T: Element>(
        &self,
        mine: Vec<T>,
        sent: Blocks<'_>,
        received: Blocks<'_>,
    ) -> Result<CollectiveRequest<T>, Error> {
        self.begin_moved(Collective::Alltoallv { sent, received }, mine)
    }

    /// Begins a collective from one vector into a new one.
    #[track_caller]
    fn begin_moved<T: Element>(&self, collective: Collective<'_>, mine: Vec<T>) -> Result<CollectiveRequest<T>, Error> {
        let collective = self.collective(collective, T::KIND);
        // Arguments that contradict each other could ask for any length.
        let [_, bytes] = collective.lengths()?;
        let (input, output) = (keep(mine), zeros::<T>(bytes / T::KIND.size()));
        let request = begin_owned::<T>(collective, &input, &output)?;
        Ok(CollectiveRequest::new(request, output))
    }

    /// Begins a collective in place, in one vector.
    #[track_caller]
    fn begin_in_place<T: Element>(
        &self,
        collective: Collective<'_>,
        mine: Vec<T>,
    ) -> Result<CollectiveRequest<T>, Error> {
        let (nothing, output) = (zeros::<T>(0), keep(mine));
        let collective = self.collective(collective, T::KIND).in_place(true);
        let request = begin_owned::<T>(collective, &nothing, &output)?;
        Ok(CollectiveRequest::new(request, output))
    }
}

fn begin_owned<T: Element>(
    collective: MemberCollective<'_>,
    input: &SharedElements<T>,
    output: &SharedElements<T>,
) -> Result<Request, Error> {
    let (input, output) = (input.clone(), output.clone());
    collective.begin_on(TransferMemory::Elements(input), TransferMemory::Elements(output))
}
