"""Calls of MPI on neighbours, distributed arrays, shared positions of files, sequential files, and windows over memory of the
program: a program for four ranks that asserts what the standard says, and that runs with any MPI."""

import os
import sys
import tempfile

import numpy as np

from hotlease import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
# Whether calls that are invalid for sequential files are refused: Open MPI does not refuse them.
IS_STRICT = "Open MPI" not in MPI.Get_library_version()


def neighbours_of_a_line():
    line = comm.Create_cart([size], periods=[False])
    before, behind = line.Shift(0, 1)
    assert list(line.inedges) == list(line.outedges) == [before, behind] and line.indegree == line.outdegree == 2
    got = np.full((2, 3), -1.0)
    line.Neighbor_allgather(np.arange(3.0) + 10 * rank, got)
    for block, source in zip(got, (before, behind)):
        assert (block == (-1 if source == MPI.PROC_NULL else np.arange(3) + 10 * source)).all(), "beyond an end nothing is written"
    got[:] = -1
    line.Neighbor_alltoall(np.array([[rank, 0.0, 1.0], [rank, 2.0, 3.0]]), got)
    assert before == MPI.PROC_NULL or got[0].tolist() == [before, 2, 3]
    assert behind == MPI.PROC_NULL or got[1].tolist() == [behind, 0, 1]
    assert line.neighbor_allgather({rank: "x"}) == [None if each == MPI.PROC_NULL else {each: "x"} for each in (before, behind)]
    assert line.neighbor_alltoall([("before", rank), ("behind", rank)]) == [
        None if before == MPI.PROC_NULL else ("behind", before),
        None if behind == MPI.PROC_NULL else ("before", behind),
    ]
    line.Free()


def neighbours_that_are_one_rank():
    """Two ranks in a ring: each is before and behind the other. Also one rank that is its own neighbour."""
    ring = comm.Create_cart([2, 2], periods=[True, True])
    row, column = ring.Get_coords(ring.rank)
    vertical, horizontal = ring.Get_cart_rank([1 - row, column]), ring.Get_cart_rank([row, 1 - column])
    assert list(ring.inedges) == [vertical, vertical, horizontal, horizontal]
    got = np.zeros(4, "i4")
    ring.Neighbor_alltoall(np.arange(4, dtype="i4") + 10 * ring.rank, got)
    # Blocks that are sent up arrive from below, and the other way round.
    assert got.tolist() == [10 * vertical + 1, 10 * vertical, 10 * horizontal + 3, 10 * horizontal + 2], got
    assert ring.neighbor_alltoall([(ring.rank, n) for n in range(4)]) == [
        (vertical, 1), (vertical, 0), (horizontal, 3), (horizontal, 2)
    ]  # fmt: skip
    twin = ring.Dup()
    twin.Neighbor_allgather(np.array([ring.rank], "i4"), got)
    assert got.tolist() == list(ring.inedges)
    twin.Free(), ring.Free()


def graphs():
    # A star: rank 0 in the middle.
    index, edges = [3, 4, 5, 6], [1, 2, 3, 0, 0, 0]
    star = comm.Create_graph(index, edges)
    assert star.Get_topology() == MPI.GRAPH and star.is_topo and isinstance(star, MPI.Graphcomm)
    assert tuple(star.Get_dims()) == (4, 6) and [list(each) for each in star.Get_topo()] == [index, edges]
    assert star.Get_neighbors_count(0) == 3 and list(star.Get_neighbors(2)) == [0] and star.nneighbors == (3 if rank == 0 else 1)
    assert star.neighbor_allgather(rank) == list(star.neighbors)
    fails(lambda: star.Get_neighbors(7))
    got = np.zeros((star.nneighbors, 2))
    star.Neighbor_allgather(np.array([rank, 0.5]), got)
    assert got[:, 0].tolist() == list(star.neighbors) and (got[:, 1] == 0.5).all()
    star.Free()
    part = comm.Create_graph([0, 1, 2], [1, 0])
    assert (part == MPI.COMM_NULL) == (rank > 1)
    if part != MPI.COMM_NULL:
        assert part.neighbor_alltoall([rank]) == [1 - rank]
        part.Free()


def distributed_graphs():
    # Each rank sends to the next two ranks, and receives from the two ranks before it.
    second = (rank + 2) % size
    ring = comm.Create_dist_graph_adjacent([left, second], [right, second])
    assert ring.Get_topology() == MPI.DIST_GRAPH and isinstance(ring, MPI.Distgraphcomm)
    assert tuple(ring.Get_dist_neighbors_count()) == (2, 2, False)
    sources, destinations, weights = ring.Get_dist_neighbors()
    assert (list(sources), list(destinations), weights) == ([left, second], [right, second], None)
    assert ring.neighbor_allgather(rank) == [left, second]
    assert ring.neighbor_alltoall(["to right", "to second"]) == ["to right", "to second"]
    # Blocks of different lengths: rank n sends n + 1 numbers to the next rank, and twice as many to the rank after that.
    counts_out, counts_in = [rank + 1, 2 * (rank + 1)], [left + 1, 2 * (second + 1)]
    given = np.arange(3.0 * (rank + 1)) + 100 * rank
    got = np.full(sum(counts_in) + 1, -1.0)
    ring.Neighbor_alltoallv([given, counts_out], [got, (counts_in, [0, counts_in[0] + 1]), MPI.DOUBLE])
    assert (got[: left + 1] == np.arange(left + 1) + 100 * left).all() and got[left + 1] == -1
    assert (got[left + 2 :] == np.arange(second + 1, 3 * (second + 1)) + 100 * second).all()
    got = np.full(left + second + 2, -1.0)
    ring.Neighbor_allgatherv(np.full(rank + 1, float(rank)), [got, [left + 1, second + 1]])
    assert got.tolist() == [left] * (left + 1) + [second] * (second + 1)
    # Counts of equal blocks, and columns of matrices.
    two = np.zeros(5, "i4")
    ring.Neighbor_alltoall([np.array([rank, rank, 7, 8], "i4"), 2, MPI.INT], [two, 2, MPI.INT])
    assert two.tolist() == [left, left, 7, 8, 0]
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    matrix, received = np.arange(4.0).reshape(2, 2) + 10 * rank, np.full((2, 2), -1.0)
    ring.Neighbor_alltoallw([matrix, [1, 1], [0, 8], [column, column]], [received, [1, 1], [8, 0], [column, column]])
    assert received[:, 1].tolist() == [10 * left, 10 * left + 2] and received[:, 0].tolist() == [10 * second + 1, 10 * second + 3]
    column.Free()
    # Messages of the program are not mixed up with messages of neighbour collectives.
    request = ring.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
    assert ring.neighbor_allgather(("block", rank)) == [("block", left), ("block", second)]
    ring.send("message", right, 0)
    assert request.wait() == "message"
    ring.Free()

    weighted = comm.Create_dist_graph_adjacent([left], [right], [left + 1], [rank + 1])
    sources, destinations, weights = weighted.Get_dist_neighbors()
    assert weighted.Get_dist_neighbors_count()[2] and [list(each) for each in weights] == [[left + 1], [rank + 1]]
    weighted.Free()
    # Rank 0 gives all edges: from each rank to all ranks behind it.
    edges = [(one, other) for one in range(size) for other in range(one + 1, size)]
    degrees = [size - 1 - one for one in range(size)]
    given = (list(range(size)), degrees, [other for _, other in edges]) if rank == 0 else ([], [], [])
    order = comm.Create_dist_graph(*given)
    sources, destinations, _ = order.Get_dist_neighbors()
    assert sorted(sources) == list(range(rank)) and sorted(destinations) == list(range(rank + 1, size))
    assert order.neighbor_allgather(rank) == list(sources) and (order.indegree, order.outdegree) == (rank, size - 1 - rank)
    order.Free()


def neighbours_without_waiting():
    line = comm.Create_dist_graph_adjacent([left], [right])
    got = np.full(1, -1, "i4")
    if rank == 0:
        assert comm.recv(source=1) == "begun"
    request = line.Ineighbor_allgather(np.array([rank], "i4"), got)
    if rank == 1:
        assert not request.Test(), "rank 0 has not begun"
        comm.send("begun", 0)
    request.Wait()
    assert got[0] == left and request == MPI.REQUEST_NULL
    # Several collectives at a time, with messages of the program among them.
    many = np.full((6, 2), -1.0)
    requests = [line.Ineighbor_alltoall(np.array([rank, number], "f8"), many[number]) for number in range(6)]
    requests.insert(3, line.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG))
    line.send("message", right, 0)
    assert MPI.Request.waitall(requests)[3] == "message"
    assert many.tolist() == [[left, number] for number in range(6)]
    line.Free()
    second = (rank + 2) % size
    ring = comm.Create_dist_graph_adjacent([left, second], [right, second])
    counts_out, counts_in = [rank + 1, 2 * (rank + 1)], [left + 1, 2 * (second + 1)]
    got, numbers = np.full(sum(counts_in), -1.0), np.full(left + second + 2, -1.0)
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    matrix, received = np.arange(4.0).reshape(2, 2) + 10 * rank, np.full((2, 2), -1.0)
    requests = [
        ring.Ineighbor_alltoallv([np.arange(3.0 * (rank + 1)) + 100 * rank, counts_out], [got, counts_in]),
        ring.Ineighbor_allgatherv(np.full(rank + 1, float(rank)), [numbers, [left + 1, second + 1]]),
        ring.Ineighbor_alltoallw([matrix, [1, 1], [0, 8], [column] * 2], [received, [1, 1], [8, 0], [column] * 2]),
    ]
    while not MPI.Request.Testall(requests):
        pass
    assert (got[: left + 1] == np.arange(left + 1) + 100 * left).all()
    assert (got[left + 1 :] == np.arange(second + 1, 3 * (second + 1)) + 100 * second).all()
    assert numbers.tolist() == [left] * (left + 1) + [second] * (second + 1)
    assert received[:, 1].tolist() == [10 * left, 10 * left + 2] and received[:, 0].tolist() == [10 * second + 1, 10 * second + 3]
    column.Free(), ring.Free()
    # Beyond an end of the grid, nothing is sent and nothing is written.
    grid = comm.Create_cart([size], periods=[False])
    before, behind = grid.Shift(0, 1)
    got = np.full((2, 3), -1.0)
    grid.Ineighbor_allgather(np.arange(3.0) + 10 * rank, got).Wait()
    for block, source in zip(got, (before, behind)):
        assert (block == (-1 if source == MPI.PROC_NULL else np.arange(3) + 10 * source)).all()
    grid.Free()


def distributed_arrays():
    """Compares each rank's part, by its datatype, with the indices that the part should have."""
    block, cyclic, none, default = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE, MPI.DISTRIBUTE_DFLT_DARG

    def owned(length, kind, argument, processes, place):
        if kind == none:
            return list(range(length))
        width = argument if argument != default else -(-length // processes) if kind == block else 1
        if kind == block:
            return list(range(place * width, min((place + 1) * width, length)))
        return [index for index in range(length) if index // width % processes == place]

    for lengths, kinds, arguments, grid in (
        ((10,), (block,), (default,), (4,)),
        ((10,), (cyclic,), (3,), (4,)),
        ((6, 7), (block, cyclic), (default, 2), (2, 2)),
        ((5, 3, 4), (cyclic, none, block), (default, default, 3), (2, 1, 2)),
        ((2, 3), (block, none), (default, default), (4, 1)),
    ):
        for order, letter in ((MPI.ORDER_C, "C"), (MPI.ORDER_FORTRAN, "F")):
            kind = MPI.INT.Create_darray(size, rank, lengths, kinds, arguments, grid, order).Commit()
            whole = np.arange(np.prod(lengths), dtype="i4").reshape(lengths, order=letter)
            places = np.unravel_index(rank, grid)
            indices = [owned(*each) for each in zip(lengths, kinds, arguments, grid, places)]
            expected = whole[np.ix_(*indices)].flatten(order=letter)
            assert kind.Get_size() == 4 * expected.size and kind.Get_extent() == (0, 4 * whole.size), (lengths, kinds)
            got = np.full(expected.size, -1, "i4")
            comm.Sendrecv([whole.flatten(order=letter), 1, kind], rank, 1, got, rank, 1)
            assert (got == expected).all(), (lengths, kinds, letter, got, expected)
            kind.Free()


def shared_positions():
    path = comm.bcast(os.path.join(tempfile.mkdtemp(), "file") if rank == 0 else None)
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    assert file.Get_position_shared() == 0
    comm.Barrier()
    # Ranks write records of several lengths, in any order; no record overwrites another record.
    for number in range(25):
        file.Write_shared(f"<{rank} {number:0{1 + rank}}>".encode())
    file.Sync(), comm.Barrier(), file.Sync()
    end = file.Get_position_shared()
    assert end == file.Get_size()
    comm.Barrier()
    # Open MPI 4.1 moves both positions.
    assert file.Get_position() == 0 or "hotlease" not in MPI.Get_library_version()
    text = bytearray(end)
    file.Read_at(0, text)
    records = [each.split() for each in text.decode().strip("<>").split("><")]
    for of in range(size):
        numbers = [int(number) for who, number in records if int(who) == of]
        assert numbers == list(range(25)), "those of one rank are in their order"
    # Each part is read by one rank.
    file.Seek_shared(0)
    assert file.Get_position_shared() == 0
    comm.Barrier()
    parts, part, status = [], bytearray(7), MPI.Status()
    while True:
        file.Read_shared(part, status)
        if status.Get_count() == 0:
            break
        parts.append(bytes(part[: status.Get_count()]))
    assert sorted(sum(comm.allgather(parts), [])) == sorted(bytes(text[at : at + 7]) for at in range(0, end, 7))
    # Positions count in units of the view, and the writes are in the order of ranks.
    file.Set_view(4, MPI.INT)
    assert file.Get_position_shared() == 0
    comm.Barrier()
    file.Write_ordered(np.full(rank + 1, rank, "i4"))
    file.Sync(), comm.Barrier(), file.Sync()
    assert file.Get_position_shared() == size * (size + 1) // 2
    numbers = np.zeros(size * (size + 1) // 2, "i4")
    file.Read_at_all(0, numbers)
    assert numbers.tolist() == [of for of in range(size) for _ in range(of + 1)]
    comm.Barrier()
    file.Seek_shared(-2, MPI.SEEK_CUR)
    own = np.zeros(1, "i4")
    if rank < 2:
        file.Read_shared(own)
        assert own[0] == size - 1
    comm.Barrier()
    file.Seek_shared(1)
    file.Read_ordered(own)
    assert own[0] == numbers[1 + rank]
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_WRONLY | MPI.MODE_APPEND | MPI.MODE_DELETE_ON_CLOSE)
    assert file.Get_position_shared() == file.Get_size()
    file.Close()
    if rank == 0:
        os.rmdir(os.path.dirname(path))


def files_in_sequence():
    path = comm.bcast(os.path.join(tempfile.mkdtemp(), "file") if rank == 0 else None)
    fails(lambda: MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_SEQUENTIAL), MPI.ERR_AMODE)
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY | MPI.MODE_SEQUENTIAL)
    file.Write_ordered(np.full(2, rank, "i4"))
    comm.Barrier()
    for _ in range(10):
        file.Write_shared(np.full(1, rank, "i4"))
    if IS_STRICT:
        places = [lambda: file.Write_at(0, b"x"), lambda: file.Write(b"x"), lambda: file.Seek(0), file.Get_position,
                  file.Get_position_shared, lambda: file.Seek_shared(0), lambda: file.Set_size(0)]  # fmt: skip
        for each in places:
            fails(each, MPI.ERR_UNSUPPORTED_OPERATION)
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_RDONLY | MPI.MODE_SEQUENTIAL | MPI.MODE_DELETE_ON_CLOSE)
    assert file.Get_size() == 4 * (2 * size + 10 * size)
    own = np.zeros(2, "i4")
    file.Read_ordered(own)
    assert own.tolist() == [rank] * 2
    if IS_STRICT:
        fails(lambda: file.Set_view(0, MPI.INT))
        fails(lambda: file.Read_at(0, own), MPI.ERR_UNSUPPORTED_OPERATION)
        file.Set_view(MPI.DISPLACEMENT_CURRENT, MPI.INT)
        assert file.Get_view()[0] == 8 * size, "it begins where the last one was left"
    numbers = np.zeros(10, "i4")
    file.Read_shared(numbers)
    everything = np.sort(np.concatenate(comm.allgather(numbers)))
    assert (everything == np.repeat(np.arange(size), 10)).all()
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE)
    if IS_STRICT:
        fails(lambda: file.Set_view(MPI.DISPLACEMENT_CURRENT, MPI.INT))
    file.Close()
    if rank == 0:
        os.rmdir(os.path.dirname(path))


def memory_that_is_attached():
    win = MPI.Win.Create_dynamic(comm=comm)
    assert win.flavor == MPI.WIN_FLAVOR_DYNAMIC and win.attrs == (0, 0, 1)
    floats, numbers = np.full(size, -1.0), np.arange(4, dtype="i4") + 10 * rank
    win.Attach(floats), win.Attach(numbers)
    places = comm.allgather((MPI.Get_address(floats), MPI.Get_address(numbers)))
    got = np.zeros(4, "i4")
    win.Fence()
    win.Get(got, right, places[right][1])
    win.Fence()
    assert (got == np.arange(4) + 10 * right).all(), "what was there when it was attached"
    for to in range(size):
        win.Put(np.array([10.0 * rank + to]), to, places[to][0] + 8 * rank)
    win.Fence()
    assert (floats == 10 * np.arange(size) + rank).all()
    # Every other number, and the number that the owner has written since.
    stride = MPI.INT.Create_vector(2, 1, 2).Commit()
    win.Put([np.array([7, 8], "i4"), 2, MPI.INT], right, (places[right][1] + 4, 1, stride))
    win.Fence()
    assert numbers.tolist() == [10 * rank, 7, 10 * rank + 2, 8]
    numbers[0] = 99 + rank
    win.Fence()
    win.Get(got[:1], left, places[left][1])
    win.Fence()
    assert got[0] == 99 + left
    stride.Free()
    # A counter of rank 1, whose owner only waits.
    numbers[:] = 0
    win.Fence()
    seen = []
    for _ in range(10):
        before = np.zeros(1, "i4")
        win.Lock(1, MPI.LOCK_SHARED)
        win.Fetch_and_op(np.ones(1, "i4"), before, 1, places[1][1] + 8)
        win.Unlock(1)
        seen.append(int(before[0]))
    assert sorted(sum(comm.allgather(seen), [])) == list(range(10 * size))
    win.Lock(rank)
    assert numbers.tolist() == [0, 0, 10 * size if rank == 1 else 0, 0]
    win.Unlock(rank)
    # Other regions are attached instead of this region; all further regions remain attached.
    comm.Barrier()
    win.Detach(numbers)
    more = [np.full(3, 1000.0 * number + rank) for number in range(5)]
    for each in more:
        win.Attach(each)
    their = comm.allgather([MPI.Get_address(each) for each in more])
    some = np.zeros(3)
    win.Fence()
    for number, place in enumerate(their[left]):
        win.Get(some, left, place)
        win.Fence()
        assert (some == 1000 * number + left).all()
    win.Put(np.array([5.0]), right, places[right][0])
    win.Fence()
    assert floats[0] == 5
    if "hotlease" in MPI.Get_library_version():
        fails(lambda: win.Get(got, right, places[right][1]), MPI.ERR_RMA_RANGE)
        fails(lambda: win.Get(some, right, their[right][0] + 8), MPI.ERR_RMA_RANGE)
        fails(lambda: win.Attach(floats[1:]), MPI.ERR_RMA_ATTACH)
        fails(lambda: win.Detach(numbers), MPI.ERR_RMA_ATTACH)
        fails(lambda: win.Shared_query(0), MPI.ERR_RMA_FLAVOR)
    win.Fence()
    # After memory is detached, it contains the data that other ranks wrote before.
    win.Lock(right, MPI.LOCK_SHARED)
    win.Put(np.array([6.0]), right, their[right][4] + 8)
    win.Unlock(right)
    comm.Barrier()
    for each in more:
        win.Detach(each)
    assert more[4][1] == 6 and (more[3] == 3000 + rank).all()
    win.Free()
    assert win == MPI.WIN_NULL and floats[0] == 5


def windows_over_memory_of_the_program():
    numbers = np.full(size, -1.0)
    win = MPI.Win.Create(numbers, 8, comm=comm)
    assert win.flavor == MPI.WIN_FLAVOR_CREATE and win.Get_attr(MPI.WIN_BASE) == numbers.ctypes.data
    assert win.Get_attr(MPI.WIN_SIZE) == 8 * size and len(win.tomemory()) == 8 * size
    got = np.zeros(size)
    win.Fence()
    win.Get(got, right)
    win.Fence()
    assert (got == -1).all(), "what was there when it was made"
    for to in range(size):
        win.Put(np.array([10.0 * rank + to]), to, rank)
    win.Fence()
    assert (numbers == 10 * np.arange(size) + rank).all()
    numbers[:] = rank
    win.Fence()
    win.Get(got, left)
    win.Fence()
    assert (got == left).all(), "what the owner has written since"
    win.Accumulate(np.ones(size), 0)
    win.Fence()
    assert rank != 0 or (numbers == size).all()
    # A counter of rank 1, whose owner only waits.
    numbers[:] = 0
    win.Fence()
    seen = []
    for _ in range(10):
        before = np.zeros(1)
        win.Lock(1, MPI.LOCK_SHARED)
        win.Fetch_and_op(np.ones(1), before, 1, 2)
        win.Unlock(1)
        seen.append(before[0])
    assert sorted(sum(comm.allgather(seen), [])) == list(range(10 * size))
    if rank == 1:
        win.Lock(1)
        assert numbers.tolist() == [0, 0, 10 * size, 0]
        numbers[3] = 5
        win.Unlock(1)
    comm.Barrier()
    win.Lock(1)
    win.Get(got, 1)
    win.Unlock(1)
    assert got.tolist() == [0, 0, 10 * size, 5]
    comm.Barrier()
    # An epoch between neighbours.
    numbers[:] = 100 + rank
    world = comm.Get_group()
    win.Post(world.Incl([left]))
    win.Start(world.Incl([right]))
    win.Get(got[:1], right, 1)
    win.Put(np.array([float(rank)]), right, 0)
    win.Complete()
    win.Wait()
    assert got[0] == 100 + right and numbers.tolist() == [left] + [100 + rank] * (size - 1)
    win.Free()
    assert win == MPI.WIN_NULL and numbers[1] == 100 + rank
    # Only rank 0 has memory.
    shared = np.zeros(size, "i4") if rank == 0 else None
    win = MPI.Win.Create(shared, 4, comm=comm)
    win.Fence()
    win.Put(np.array([rank + 1], "i4"), 0, rank)
    win.Fence()
    assert rank != 0 or shared.tolist() == list(range(1, size + 1))
    win.Free()


def fails(call, code=None):
    try:
        call()
    except MPI.Exception as error:
        assert code is None or error.Get_error_class() == code, error
        return
    raise AssertionError("no error")


comm.Set_errhandler(MPI.ERRORS_RETURN)
for test in (neighbours_of_a_line, neighbours_that_are_one_rank, graphs, distributed_graphs, neighbours_without_waiting, distributed_arrays,
             shared_positions, files_in_sequence, memory_that_is_attached, windows_over_memory_of_the_program):  # fmt: skip
    if len(sys.argv) < 2 or test.__name__ in sys.argv[1:]:
        test()
        comm.Barrier()
if rank == 0:
    print("as the standard says")
