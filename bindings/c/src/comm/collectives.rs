//! Collectives of `communicator.h`: each as a function that waits, and as a non-blocking function.

use crate::argument::object;
use crate::comm::CommHandle;
use crate::comm::collective_call::{BlockLists, WaitMode, is_in_place, start};
use crate::comm::operator::{OperatorHandle, operator};
use crate::comm::request::RequestHandle;
use crate::status::{ErrorHandle, Status, run_guarded};
use hotlease_comm::{Blocks, Collective};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

type Input = *const c_void;
type Output = *mut c_void;
type Sizes = *const usize;
type Op = *const OperatorHandle;

/// Datatype of a barrier, which has no elements.
const HOTLEASE_COMM_BYTES: u64 = 14;

/// Defines the two functions of a collective, which take the same arguments.
macro_rules! collective {
    ($wait:ident, $begin:ident, $comm:ident($($argument:ident: $type:ty),*) {
        $(let $local:ident = $value:expr;)*
        $asked:expr
    }) => {
        /// See `communicator.h`.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the arguments are MPI's")]
        pub unsafe extern "C" fn $wait(
            $comm: *const CommHandle,
            $($argument: $type,)*
            error: *mut *mut ErrorHandle,
        ) -> Status {
            // SAFETY: NULL or valid, as the header demands.
            let body = || unsafe {
                let $comm = object($comm, "comm")?;
                $(let $local = $value;)*
                start($comm, $asked, WaitMode::Wait)
            };
            // SAFETY: NULL or valid, as the header demands.
            unsafe { run_guarded(error, body) }
        }

        /// See `communicator.h`.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the arguments are MPI's")]
        pub unsafe extern "C" fn $begin(
            $comm: *const CommHandle,
            $($argument: $type,)*
            request: *mut *mut RequestHandle,
            error: *mut *mut ErrorHandle,
        ) -> Status {
            // SAFETY: NULL or valid, as the header demands.
            let body = || unsafe {
                let $comm = object($comm, "comm")?;
                $(let $local = $value;)*
                start($comm, $asked, WaitMode::Begin(request))
            };
            // SAFETY: NULL or valid, as the header demands.
            unsafe { run_guarded(error, body) }
        }
    };
}

collective!(hotlease_comm_barrier, hotlease_comm_ibarrier, comm() {
    (Collective::Barrier, HOTLEASE_COMM_BYTES, null(), null_mut())
});
collective!(hotlease_comm_broadcast, hotlease_comm_ibroadcast,
comm(buffer: Output, count: usize, datatype: u64, root: u32) {
    let is_root = comm.communicator.rank() == root;
    let input = if is_root { buffer } else { null_mut() };
    let output = if is_root { null_mut() } else { buffer };
    (Collective::Broadcast { root, count }, datatype, input, output)
});
collective!(hotlease_comm_gather, hotlease_comm_igather,
comm(input: Input, output: Output, count: usize, datatype: u64, root: u32) {
    let blocks = Blocks::Equal(count);
    (Collective::Gather { root, blocks }, datatype, input, output)
});
collective!(hotlease_comm_gatherv, hotlease_comm_igatherv,
comm(input: Input, count: usize, output: Output, counts: Sizes, displacements: Sizes, datatype: u64, root: u32) {
    let each = BlockLists::at_root(comm, root, (counts, "counts"), displacements)?;
    let mine = if is_in_place(input) { each.count(root) } else { count };
    let blocks = each.blocks();
    (Collective::Gatherv { root, mine, blocks }, datatype, input, output)
});
collective!(hotlease_comm_scatter, hotlease_comm_iscatter,
comm(input: Input, output: Output, count: usize, datatype: u64, root: u32) {
    let blocks = Blocks::Equal(count);
    (Collective::Scatter { root, blocks }, datatype, input, output)
});
collective!(hotlease_comm_scatterv, hotlease_comm_iscatterv,
comm(input: Input, counts: Sizes, displacements: Sizes, output: Output, count: usize, datatype: u64, root: u32) {
    let each = BlockLists::at_root(comm, root, (counts, "counts"), displacements)?;
    let mine = if is_in_place(output) { each.count(root) } else { count };
    let blocks = each.blocks();
    (Collective::Scatterv { root, mine, blocks }, datatype, input, output)
});
collective!(hotlease_comm_allgather, hotlease_comm_iallgather,
comm(input: Input, output: Output, count: usize, datatype: u64) {
    let blocks = Blocks::Equal(count);
    (Collective::Allgather { blocks }, datatype, input, output)
});
collective!(hotlease_comm_allgatherv, hotlease_comm_iallgatherv,
comm(input: Input, output: Output, counts: Sizes, displacements: Sizes, datatype: u64) {
    let each = BlockLists::of(comm, (counts, "counts"), displacements)?;
    let blocks = each.blocks();
    (Collective::Allgather { blocks }, datatype, input, output)
});
collective!(hotlease_comm_reduce, hotlease_comm_ireduce,
comm(input: Input, output: Output, count: usize, datatype: u64, op: Op, root: u32) {
    (Collective::Reduce { root, count, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_allreduce, hotlease_comm_iallreduce,
comm(input: Input, output: Output, count: usize, datatype: u64, op: Op) {
    (Collective::Allreduce { count, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_reduce_scatter, hotlease_comm_ireduce_scatter,
comm(input: Input, output: Output, counts: Sizes, datatype: u64, op: Op) {
    let each = BlockLists::of(comm, (counts, "counts"), null())?;
    let blocks = each.blocks();
    (Collective::ReduceScatter { blocks, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_reduce_scatter_block, hotlease_comm_ireduce_scatter_block,
comm(input: Input, output: Output, count: usize, datatype: u64, op: Op) {
    let blocks = Blocks::Equal(count);
    (Collective::ReduceScatter { blocks, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_scan, hotlease_comm_iscan,
comm(input: Input, output: Output, count: usize, datatype: u64, op: Op) {
    (Collective::Scan { count, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_exscan, hotlease_comm_iexscan,
comm(input: Input, output: Output, count: usize, datatype: u64, op: Op) {
    (Collective::Exscan { count, operator: operator(op)? }, datatype, input, output)
});
collective!(hotlease_comm_alltoall, hotlease_comm_ialltoall,
comm(input: Input, output: Output, count: usize, datatype: u64) {
    (Collective::Alltoall { count }, datatype, input, output)
});
collective!(hotlease_comm_alltoallv, hotlease_comm_ialltoallv,
comm(
    input: Input,
    sent_counts: Sizes,
    sent_displacements: Sizes,
    output: Output,
    received_counts: Sizes,
    received_displacements: Sizes,
    datatype: u64
) {
    let received = BlockLists::of(comm, (received_counts, "received_counts"), received_displacements)?;
    // In place, the sent blocks have the places of the received blocks.
    let apart = !is_in_place(input);
    let sent = if apart { BlockLists::of(comm, (sent_counts, "sent_counts"), sent_displacements)? } else { received.clone() };
    let blocks = (sent.blocks(), received.blocks());
    (Collective::Alltoallv { sent: blocks.0, received: blocks.1 }, datatype, input, output)
});
