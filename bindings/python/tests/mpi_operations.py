"""Every collective on communicators of 1 to 9 members, compared with numpy: a program for nine members, which split into
smaller groups."""

import sys

import numpy as np

from hotlease import MPI

TYPES = ["i4", "f8", "c16", "u1", "i8", "f4"]


def given(rank, count, dtype="f8"):
    """Returns the contribution of a rank, which all ranks can compute."""
    return ((np.arange(count) * 7 + rank * 3 + 1) % 11).astype(dtype)


def everybody(comm, count, dtype="f8"):
    return np.stack([given(rank, count, dtype) for rank in range(comm.size)])


def same(got, wanted):
    assert np.array_equal(got, wanted), (got, wanted)


def buffers(comm, count, dtype, root):
    size, rank = comm.size, comm.rank
    all_of = everybody(comm, count, dtype)
    mine, is_root = all_of[rank].copy(), rank == root

    buffer = mine.copy() if is_root else np.zeros(count, dtype)
    comm.Bcast(buffer, root)
    same(buffer, all_of[root])

    whole = np.zeros((size, count), dtype) if is_root else None
    comm.Gather(mine, whole, root)
    if is_root:
        same(whole, all_of)
        whole[rank], kept = mine, whole
    comm.Gather(MPI.IN_PLACE if is_root else mine, kept if is_root else None, root)
    if is_root:
        same(kept, all_of)

    part = np.zeros(count, dtype)
    comm.Scatter(all_of if is_root else None, part, root)
    same(part, mine)
    comm.Scatter(all_of if is_root else None, MPI.IN_PLACE if is_root else part, root)

    whole = np.zeros((size, count), dtype)
    comm.Allgather(mine, whole)
    same(whole, all_of)
    whole = np.zeros((size, count), dtype)
    whole[rank] = mine
    comm.Allgather(MPI.IN_PLACE, whole)
    same(whole, all_of)

    sent = np.stack([given(rank * 100 + to, count, dtype) for to in range(size)])
    wanted = np.stack([given(of * 100 + rank, count, dtype) for of in range(size)])
    whole = np.zeros((size, count), dtype)
    comm.Alltoall(sent, whole)
    same(whole, wanted)
    comm.Alltoall(MPI.IN_PLACE, sent)
    same(sent, wanted)


def reductions(comm, count, dtype, root):
    size, rank = comm.size, comm.rank
    all_of = everybody(comm, count, dtype)
    mine, is_root = all_of[rank].copy(), rank == root
    total = all_of.sum(axis=0, dtype=dtype)

    result = np.zeros(count, dtype)
    comm.Reduce(mine, result if is_root else None, MPI.SUM, root)
    same(result, total if is_root else np.zeros(count, dtype))
    comm.Allreduce(mine, result)
    same(result, total)
    same(mine, all_of[rank])
    result = mine.copy()
    comm.Allreduce(MPI.IN_PLACE, result, op=MPI.SUM)
    same(result, total)
    result = np.zeros(count, dtype)
    comm.Scan(mine, result)
    same(result, all_of[: rank + 1].sum(axis=0, dtype=dtype))
    result = np.full(count, 5, dtype)
    comm.Exscan(mine, result)
    same(result, all_of[:rank].sum(axis=0, dtype=dtype) if rank else np.full(count, 5, dtype))
    blocks = np.stack([given(rank + to, count, dtype) for to in range(size)])
    wanted = sum(given(of + rank, count, dtype) for of in range(size)).astype(dtype)
    result = np.zeros(count, dtype)
    comm.Reduce_scatter_block(blocks, result)
    same(result, wanted)
    if np.dtype(dtype).kind != "c":
        comm.Allreduce(mine, result, MPI.MAX)
        same(result, all_of.max(axis=0))
        comm.Allreduce(mine, result, MPI.MIN)
        same(result, all_of.min(axis=0))


def ragged(comm, root):
    """Blocks of any length, including empty blocks; consecutive, and with gaps in another order."""
    size, rank = comm.size, comm.rank
    counts = [(each * 2) % 5 for each in range(size)]
    mine, is_root = given(rank, counts[rank], "i4"), rank == root
    wanted = np.concatenate([given(each, count, "i4") for each, count in enumerate(counts)])
    whole = np.zeros(sum(counts), "i4")
    comm.Gatherv(mine, [whole, counts] if is_root else None, root)
    if is_root:
        same(whole, wanted)
    part = np.zeros(counts[rank], "i4")
    comm.Scatterv([wanted, (counts, None)] if is_root else None, part, root)
    same(part, mine)
    whole = np.zeros(sum(counts), "i4")
    comm.Allgatherv([mine, MPI.INT], [whole, counts, None, MPI.INT])
    same(whole, wanted)
    # The blocks are in reverse order, with a gap of one element before each block.
    places = [sum(counts[each + 1 :]) + size - each for each in range(size)]
    whole = np.full(sum(counts) + size + 1, -1, "i4")
    comm.Allgatherv(mine, [whole, counts, places, MPI.INT])
    for each, (count, place) in enumerate(zip(counts, places)):
        same(whole[place : place + count], given(each, count, "i4"))
    assert (whole == -1).sum() == size + 1
    sent = np.concatenate([given(rank * 50 + to, (rank + to) % 4, "f8") for to in range(size)])
    lengths = [(rank + to) % 4 for to in range(size)]
    got = np.zeros(sum(lengths))
    comm.Alltoallv([sent, lengths], [got, lengths])
    same(got, np.concatenate([given(of * 50 + rank, (rank + of) % 4, "f8") for of in range(size)]))
    blocks = np.arange(sum(counts), dtype="i8") + rank
    result = np.zeros(counts[rank], "i8")
    comm.Reduce_scatter(blocks, result, counts)
    before = sum(counts[:rank])
    same(result, (np.arange(before, before + counts[rank]) * size + sum(range(size))))
    comm.Reduce_scatter(blocks, result)
    same(result, (np.arange(before, before + counts[rank]) * size + sum(range(size))))


def operators(comm):
    size, rank = comm.size, comm.rank
    flags = np.array([rank % 2, 1, 0, rank], "i4")
    result = np.zeros(4, "i4")
    every = np.stack([np.array([each % 2, 1, 0, each], "i4") for each in range(size)])
    for op, reduce in [
        (MPI.LAND, lambda all_of: all_of.all(axis=0)), (MPI.LOR, lambda all_of: all_of.any(axis=0)),
        (MPI.LXOR, lambda all_of: (all_of != 0).sum(axis=0) % 2), (MPI.BAND, np.bitwise_and.reduce),
        (MPI.BOR, np.bitwise_or.reduce), (MPI.BXOR, np.bitwise_xor.reduce), (MPI.PROD, lambda all_of: all_of.prod(axis=0)),
    ]:  # fmt: skip
        comm.Allreduce(flags, result, op)
        same(result, reduce(every))
    pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    pairs["value"], pairs["index"] = [(rank * 3) % 5, 1.0], rank
    least = np.zeros_like(pairs)
    comm.Allreduce([pairs, MPI.DOUBLE_INT], [least, MPI.DOUBLE_INT], MPI.MINLOC)
    values = [(each * 3) % 5 for each in range(size)]
    assert (least["value"][0], least["index"][0], least["index"][1]) == (min(values), values.index(min(values)), 0)

    packed = np.zeros(2, [("value", "f8"), ("index", "i4")])
    packed["value"], packed["index"] = pairs["value"], pairs["index"]
    for given in (packed, [packed, MPI.DOUBLE_INT]):
        got = np.zeros_like(packed)
        comm.Allreduce(given, got, MPI.MINLOC)
        assert got.tolist() == least.tolist(), "a packed array has no gaps between its pairs"

    def compose(a, b, datatype):
        # Composes functions x -> k x + d (b after a), an operation that does not commute.
        first, second = np.frombuffer(a, "f8").reshape(-1, 2), np.frombuffer(b, "f8").reshape(-1, 2)
        assert datatype.Get_size() == 16
        second[:] = np.stack([first[:, 0] * second[:, 0], first[:, 1] * second[:, 0] + second[:, 1]], axis=1)

    composed = MPI.Op.Create(compose, commute=False)
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    line = np.tile([1.0 + rank % 2, float(rank)], 3)
    got = np.zeros(6)
    comm.Allreduce([line, pair], [got, pair], composed)
    k, d = 1.0, 0.0
    for each in range(size):
        k, d = k * (1.0 + each % 2), d * (1.0 + each % 2) + each
    same(got, np.tile([k, d], 3))
    composed.Free(), pair.Free()


def objects(comm, root):
    size, rank = comm.size, comm.rank
    large = {"of": rank, "text": "x" * (5000 if rank % 2 else 3), "array": np.arange(rank)}
    got = comm.bcast(large if rank == root else None, root)
    assert got["of"] == root and len(got["text"]) == (5000 if root % 2 else 3)
    got = comm.gather((rank, "x" * rank * 100), root)
    assert got == ([(each, "x" * each * 100) for each in range(size)] if rank == root else None)
    assert comm.scatter([each**2 for each in range(size)] if rank == root else None, root) == rank**2
    assert comm.allgather(str(rank)) == [str(each) for each in range(size)]
    assert comm.alltoall([(rank, to) for to in range(size)]) == [(of, rank) for of in range(size)]
    assert comm.allreduce(rank) == sum(range(size))
    assert comm.allreduce(f"{rank}.") == "".join(f"{each}." for each in range(size)), "in rank order"
    assert comm.reduce([rank], lambda x, y: x + y, root) == (list(range(size)) if rank == root else None)
    assert comm.scan(rank) == sum(range(rank + 1)) and comm.exscan(rank) == (sum(range(rank)) if rank else None)
    assert comm.allreduce((rank % 2, rank), MPI.MAXLOC) == ((1, 1) if size > 1 else (0, 0))
    comm.barrier()


def started(comm, root):
    """Non-blocking collectives: starts all of them one after another, then waits for all."""
    size, rank = comm.size, comm.rank
    mine, total = given(rank, 40), everybody(comm, 40).sum(axis=0)
    copy, result = (mine if rank == root else np.zeros(40)), np.zeros(40)
    whole, scanned = np.zeros((size, 40)), np.zeros(40)
    requests = [
        comm.Ibarrier(), comm.Ibcast(copy, root), comm.Iallreduce(mine, result), comm.Iallgather(mine, whole),
        comm.Iscan(mine, scanned),
    ]  # fmt: skip
    MPI.Request.Waitall(requests)
    same(copy, given(root, 40)), same(result, total), same(whole, everybody(comm, 40))
    same(scanned, everybody(comm, 40)[: rank + 1].sum(axis=0))
    assert all(request == MPI.REQUEST_NULL for request in requests)


def main():
    world = MPI.COMM_WORLD
    done = 0
    for size in range(1, world.size + 1):
        comm = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
        if comm == MPI.COMM_NULL:
            continue
        assert (comm.size, comm.rank) == (size, world.rank)
        root = size // 2
        for number, count in enumerate([0, 1, 3, 1000, 20_000 if size in (2, 3, 8) else 17]):
            dtype = TYPES[(number + size) % len(TYPES)]
            buffers(comm, count, dtype, root)
            reductions(comm, count, "f8" if dtype == "u1" else dtype, root)
            done += 2
        ragged(comm, root), operators(comm), objects(comm, root), started(comm, root)
        done += 4
        comm.Free()
    world.Barrier()
    if world.rank == 0:
        print(done, "cases of collectives")


if __name__ == "__main__":
    sys.exit(main())
