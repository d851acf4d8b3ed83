//! Collective methods of a communicator, which all members call in the same order: the second base of `MPI.Comm`.
//! Methods whose name starts with `I` only start the operation, and return a request to wait for.

use super::buffer_blocks::BufferBlocks;
use super::collectives::CommunicatorGuard;
use super::messages::Messages;
use super::operator::Op;
use super::prepared::{begin, run};
use super::request::Request;
use hotlease_comm::{Collective, Operator};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Base with the collective methods; see the module.
#[pyclass(frozen, subclass, extends = Messages, module = "hotlease._core")]
pub struct Collectives;

fn group(slf: &Bound<'_, Collectives>) -> PyResult<CommunicatorGuard> {
    CommunicatorGuard::new(slf.py(), &slf.as_super().get().member)
}

/// The operator of a call; the sum by default.
fn or_sum<'py>(py: Python<'py>, op: Option<Bound<'py, Op>>) -> PyResult<Bound<'py, Op>> {
    static SUM: PyOnceLock<Py<Op>> = PyOnceLock::new();
    if let Some(op) = op {
        return Ok(op);
    }
    let sum = SUM.get_or_try_init(py, || -> PyResult<_> {
        let sum = py.import("hotlease.MPI._constants")?.getattr("SUM")?;
        Ok(sum.cast_into::<Op>()?.unbind())
    })?;
    Ok(sum.bind(py).clone())
}

fn allreduce(count: usize, operator: &Operator) -> Collective<'_> {
    Collective::Allreduce { count, operator }
}

fn scan(count: usize, operator: &Operator) -> Collective<'_> {
    Collective::Scan { count, operator }
}

fn exscan(count: usize, operator: &Operator) -> Collective<'_> {
    Collective::Exscan { count, operator }
}

#[pymethods]
impl Collectives {
    #[new]
    fn new(of: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        Ok(PyClassInitializer::from(Messages::made_of(of)?).add_subclass(Self))
    }

    /// Waits until all ranks have called this method.
    fn Barrier(slf: &Bound<'_, Self>) -> PyResult<()> {
        group(slf)?.barrier(slf.py(), run)
    }

    /// Starts [`Barrier`](Self::Barrier).
    fn Ibarrier(slf: &Bound<'_, Self>) -> PyResult<Request> {
        group(slf)?.barrier(slf.py(), begin)
    }

    /// Copies the root's buffer to all ranks.
    #[pyo3(signature = (buf, root=0))]
    fn Bcast(slf: &Bound<'_, Self>, buf: &Bound<'_, PyAny>, root: i64) -> PyResult<()> {
        group(slf)?.broadcast(buf, root, run)
    }

    /// Starts [`Bcast`](Self::Bcast).
    #[pyo3(signature = (buf, root=0))]
    fn Ibcast(slf: &Bound<'_, Self>, buf: &Bound<'_, PyAny>, root: i64) -> PyResult<Request> {
        group(slf)?.broadcast(buf, root, begin)
    }

    /// Collects the elements of all ranks at the root, in equal blocks.
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Gather(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<()> {
        group(slf)?.gather(sendbuf, recvbuf, root, run)
    }

    /// Starts [`Gather`](Self::Gather).
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Igather(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<Request> {
        group(slf)?.gather(sendbuf, recvbuf, root, begin)
    }

    /// Collects the elements of all ranks at the root, in blocks of any length.
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Gatherv(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<()> {
        group(slf)?.gatherv(sendbuf, recvbuf, root, run)
    }

    /// Starts [`Gatherv`](Self::Gatherv).
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Igatherv(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<Request> {
        group(slf)?.gatherv(sendbuf, recvbuf, root, begin)
    }

    /// Sends each rank an equal block of the root's elements.
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Scatter(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<()> {
        group(slf)?.scatter(sendbuf, recvbuf, root, run)
    }

    /// Starts [`Scatter`](Self::Scatter).
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Iscatter(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<Request> {
        group(slf)?.scatter(sendbuf, recvbuf, root, begin)
    }

    /// Sends each rank a block of the root's elements, of any length.
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Scatterv(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<()> {
        group(slf)?.scatterv(sendbuf, recvbuf, root, run)
    }

    /// Starts [`Scatterv`](Self::Scatterv).
    #[pyo3(signature = (sendbuf, recvbuf, root=0))]
    fn Iscatterv(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        root: i64,
    ) -> PyResult<Request> {
        group(slf)?.scatterv(sendbuf, recvbuf, root, begin)
    }

    /// Collects the elements of all ranks at all ranks, in equal blocks.
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Allgather(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<()> {
        group(slf)?.allgather(sendbuf, recvbuf, run)
    }

    /// Starts [`Allgather`](Self::Allgather).
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Iallgather(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<Request> {
        group(slf)?.allgather(sendbuf, recvbuf, begin)
    }

    /// Collects the elements of all ranks at all ranks, in blocks of any length.
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Allgatherv(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<()> {
        group(slf)?.allgatherv(sendbuf, recvbuf, run)
    }

    /// Starts [`Allgatherv`](Self::Allgatherv).
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Iallgatherv(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<Request> {
        group(slf)?.allgatherv(sendbuf, recvbuf, begin)
    }

    /// Sends block `i` of each rank to rank `i`.
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Alltoall(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<()> {
        group(slf)?.alltoall(sendbuf, recvbuf, run)
    }

    /// Starts [`Alltoall`](Self::Alltoall).
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Ialltoall(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<Request> {
        group(slf)?.alltoall(sendbuf, recvbuf, begin)
    }

    /// Sends block `i` of each rank to rank `i`; blocks have any length.
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Alltoallv(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<()> {
        group(slf)?.alltoallv(sendbuf, recvbuf, BufferBlocks::of, run)
    }

    /// Starts [`Alltoallv`](Self::Alltoallv).
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Ialltoallv(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<Request> {
        group(slf)?.alltoallv(sendbuf, recvbuf, BufferBlocks::of, begin)
    }

    /// Sends block `i` of each rank to rank `i`; blocks have any length and type.
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Alltoallw(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<()> {
        group(slf)?.alltoallv(sendbuf, recvbuf, BufferBlocks::of_types, run)
    }

    /// Starts [`Alltoallw`](Self::Alltoallw).
    #[pyo3(signature = (sendbuf, recvbuf))]
    fn Ialltoallw(slf: &Bound<'_, Self>, sendbuf: &Bound<'_, PyAny>, recvbuf: &Bound<'_, PyAny>) -> PyResult<Request> {
        group(slf)?.alltoallv(sendbuf, recvbuf, BufferBlocks::of_types, begin)
    }

    /// Reduces the elements of all ranks with `op` (default: the sum); the root gets the result.
    #[pyo3(signature = (sendbuf, recvbuf, op=None, root=0))]
    fn Reduce(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
        root: i64,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce(sendbuf, recvbuf, &op, root, run)
    }

    /// Starts [`Reduce`](Self::Reduce).
    #[pyo3(signature = (sendbuf, recvbuf, op=None, root=0))]
    fn Ireduce(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
        root: i64,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce(sendbuf, recvbuf, &op, root, begin)
    }

    /// Reduces the elements of all ranks with `op` (default: the sum); all ranks get the result, with the same bits.
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Allreduce(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, allreduce, run)
    }

    /// Starts [`Allreduce`](Self::Allreduce).
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Iallreduce(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, allreduce, begin)
    }

    /// Reduces the elements of all ranks; each rank gets its block of the result. Blocks are equal.
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Reduce_scatter_block(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_scatter_block(sendbuf, recvbuf, &op, run)
    }

    /// Starts [`Reduce_scatter_block`](Self::Reduce_scatter_block).
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Ireduce_scatter_block(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_scatter_block(sendbuf, recvbuf, &op, begin)
    }

    /// Reduces the elements of all ranks; each rank gets its block of the result.
    #[pyo3(signature = (sendbuf, recvbuf, recvcounts=None, op=None))]
    fn Reduce_scatter(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        recvcounts: Option<Vec<usize>>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_scatter(sendbuf, recvbuf, recvcounts, &op, run)
    }

    /// Starts [`Reduce_scatter`](Self::Reduce_scatter).
    #[pyo3(signature = (sendbuf, recvbuf, recvcounts=None, op=None))]
    fn Ireduce_scatter(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        recvcounts: Option<Vec<usize>>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_scatter(sendbuf, recvbuf, recvcounts, &op, begin)
    }

    /// Reduces at rank `i` the elements of ranks 0 to `i`.
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Scan(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, scan, run)
    }

    /// Starts [`Scan`](Self::Scan).
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Iscan(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, scan, begin)
    }

    /// Reduces at rank `i` the elements of ranks 0 to `i - 1`; does not change the receive buffer of rank 0.
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Exscan(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<()> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, exscan, run)
    }

    /// Starts [`Exscan`](Self::Exscan).
    #[pyo3(signature = (sendbuf, recvbuf, op=None))]
    fn Iexscan(
        slf: &Bound<'_, Self>,
        sendbuf: &Bound<'_, PyAny>,
        recvbuf: &Bound<'_, PyAny>,
        op: Option<Bound<'_, Op>>,
    ) -> PyResult<Request> {
        let op = or_sum(slf.py(), op)?;
        group(slf)?.reduce_all(sendbuf, recvbuf, &op, exscan, begin)
    }
}
