//! Prepared collective: a collective with its buffers and operator, ready to start.

use super::buffer_spec::{BufferPart, Loan};
use super::collectives::CommunicatorGuard;
use super::operation::{OperationMemory, RunningOperation};
use super::operator::RaisedError;
use super::request::Request;
use hotlease_comm::{Blocks, Collective, CollectiveArguments, Datatype as Kind, Error, Operator};
use pyo3::prelude::*;

/// Counts and displacements of blocks of any length; owned, because [`Blocks`] borrows them.
pub type BlockLists = (Vec<usize>, Vec<usize>);

/// Kind of a collective, with its counts.
pub enum CollectiveKind {
    Barrier,
    Broadcast { root: u32, count: usize },
    Gather { root: u32, count: usize },
    Gatherv { root: u32, mine: usize, all: BlockLists },
    Scatter { root: u32, count: usize },
    Scatterv { root: u32, mine: usize, all: BlockLists },
    Allgather { count: usize },
    Allgatherv { all: BlockLists },
    Reduce { root: u32, count: usize },
    Allreduce { count: usize },
    ReduceScatter { all: BlockLists },
    Scan { count: usize },
    Exscan { count: usize },
    Alltoall { count: usize },
    Alltoallv { sent: BlockLists, received: BlockLists },
}

fn blocks((counts, displacements): &BlockLists) -> Blocks<'_> {
    Blocks::Each { counts, displacements }
}

impl CollectiveKind {
    fn collective(&self) -> Collective<'_> {
        match self {
            Self::Barrier => Collective::Barrier,
            Self::Broadcast { root, count } => Collective::Broadcast {
                root: *root,
                count: *count,
            },
            Self::Gather { root, count } => Collective::Gather {
                root: *root,
                blocks: Blocks::Equal(*count),
            },
            Self::Gatherv { root, mine, all } => Collective::Gatherv {
                root: *root,
                mine: *mine,
                blocks: blocks(all),
            },
            Self::Scatter { root, count } => Collective::Scatter {
                root: *root,
                blocks: Blocks::Equal(*count),
            },
            Self::Scatterv { root, mine, all } => Collective::Scatterv {
                root: *root,
                mine: *mine,
                blocks: blocks(all),
            },
            Self::Allgather { count } => Collective::Allgather {
                blocks: Blocks::Equal(*count),
            },
            Self::Allgatherv { all } => Collective::Allgather { blocks: blocks(all) },
            Self::Reduce { root, count } => Collective::Reduce {
                root: *root,
                count: *count,
            },
            Self::Allreduce { count } => Collective::Allreduce { count: *count },
            Self::ReduceScatter { all } => Collective::ReduceScatter { blocks: blocks(all) },
            Self::Scan { count } => Collective::Scan { count: *count },
            Self::Exscan { count } => Collective::Exscan { count: *count },
            Self::Alltoall { count } => Collective::Alltoall { count: *count },
            Self::Alltoallv { sent, received } => Collective::Alltoallv {
                sent: blocks(sent),
                received: blocks(received),
            },
        }
    }
}

/// A collective with its buffers and operator.
pub struct Prepared {
    shape: CollectiveKind,
    kind: Kind,
    operator: Option<Operator>,
    is_in_place: bool,
    uses: OperationMemory,
}

impl Prepared {
    pub fn of(shape: CollectiveKind, kind: Kind, input: (BufferPart, usize), output: (BufferPart, usize)) -> Self {
        let size = kind.size();
        let input = input.0.lend(input.1 * size);
        let output = output.0.lend_mut(output.1 * size);
        Self {
            shape,
            kind,
            operator: None,
            is_in_place: false,
            uses: OperationMemory {
                loans: [Some(input), Some(output)],
                raised: None,
            },
        }
    }

    pub fn in_place(mut self, is_in_place: bool) -> Self {
        self.is_in_place = is_in_place;
        self
    }

    pub fn with_operator(mut self, (operator, raised): (Operator, Option<RaisedError>)) -> Self {
        self.operator = Some(operator);
        self.uses.raised = raised;
        self
    }

    /// Runs the collective and waits for its end.
    pub fn run(self, py: Python<'_>, group: &CommunicatorGuard) -> PyResult<()> {
        let (uses, rest) = self.split_uses();
        RunningOperation::run(py, &group.member, uses, |loans| rest.begin_lent(group, loans)).map(drop)
    }

    /// Starts the collective.
    pub fn begin(self, py: Python<'_>, group: &CommunicatorGuard) -> PyResult<Request> {
        let (uses, rest) = self.split_uses();
        let work = RunningOperation::begin(py, &group.member, uses, |loans| rest.begin_lent(group, loans))?;
        Ok(Request::of_work(&group.member, work))
    }

    /// Splits off the memory, so that it can outlive the rest.
    fn split_uses(mut self) -> (OperationMemory, Self) {
        (std::mem::take(&mut self.uses), self)
    }

    fn begin_lent(
        &self,
        group: &CommunicatorGuard,
        loans: &[Option<Loan>; 2],
    ) -> Result<hotlease_comm::Request, Error> {
        let [Some(input), Some(output)] = loans else {
            unreachable!("both are lent, if only for nothing");
        };
        let ask = CollectiveArguments {
            operator: self.operator.as_ref(),
            in_place: self.is_in_place,
            site: group.site.as_deref(),
            ..CollectiveArguments::new(self.shape.collective(), self.kind)
        };
        group.shared.begin_collective(&ask, input.read(), output.write())
    }
}
