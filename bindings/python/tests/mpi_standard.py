"""Calls of MPI other than messages and collectives of arrays: a program for four ranks that asserts what the standard says,
and that runs with any MPI."""

import os
import sys
import tempfile

import numpy as np

from hotlease import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size


def fails(call, code=None):
    try:
        call()
    except MPI.Exception as error:
        assert code is None or error.Get_error_class() == code, error
        return
    raise AssertionError("no error")


def null_handles():
    nulls = (MPI.COMM_NULL, MPI.GROUP_NULL, MPI.OP_NULL, MPI.DATATYPE_NULL, MPI.REQUEST_NULL, MPI.MESSAGE_NULL,
             MPI.INFO_NULL, MPI.ERRHANDLER_NULL, MPI.FILE_NULL)  # fmt: skip
    assert not any(nulls) and MPI.BOTTOM is not None and MPI.ROOT < 0 and comm and MPI.SUM and MPI.INT
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    assert comm.Get_errhandler() == MPI.ERRORS_RETURN
    other, request = comm.Idup()
    request.Wait()
    assert MPI.Comm.Compare(comm, other) == MPI.CONGRUENT and other != comm
    assert other.sendrecv(rank, right, source=left) == left
    other.Free()
    assert other == MPI.COMM_NULL and not other
    info = MPI.Info.Create()
    info.Set("a", "b")
    assert info.Get("a") == "b" and info.Get_nkeys() == 1 and info.Get_nthkey(0) == "a"
    info.Free()
    assert info == MPI.INFO_NULL


def attributes():
    gone = []
    copied = MPI.Comm.Create_keyval(lambda of, key, value: value + 1, lambda of, key, value: gone.append(value))
    kept = MPI.Comm.Create_keyval()
    one = comm.Dup()
    one.Set_attr(copied, 1), one.Set_attr(kept, 5)
    two = one.Dup()
    assert (two.Get_attr(copied), two.Get_attr(kept), one.Get_attr(kept)) == (2, None, 5)
    one.Delete_attr(kept)
    assert one.Get_attr(kept) is None
    two.Free(), one.Free()
    assert gone == [2, 1]
    assert MPI.Comm.Free_keyval(copied) == MPI.Comm.Free_keyval(kept) == MPI.KEYVAL_INVALID
    assert comm.Get_attr(MPI.TAG_UB) >= 32767


def synchronous_sends():
    if rank == 0:
        requests = [comm.Issend(np.arange(n), 1, 3) for n in (0, 10, 100_000)] + [comm.issend("object", 1, 3)]
        assert not any(request.Get_status() for request in requests)
        comm.send("go", 1, 4)
        MPI.Request.Waitall(requests)
        comm.Ssend(b"abc", 1, 5), comm.ssend(None, 1, 5)
    elif rank == 1:
        comm.recv(source=0, tag=4)
        for n in (0, 10, 100_000):
            got, status = np.empty(n, int), MPI.Status()
            comm.Recv(got, 0, 3, status)
            assert status.Get_count(MPI.LONG) == n and (got == np.arange(n)).all()
        assert comm.recv(source=0, tag=3) == "object"
        comm.Recv(bytearray(3), 0, 5), comm.recv(source=0, tag=5)
    request, status = comm.isend("x", rank, 6), MPI.Status()
    receive = comm.Irecv(bytearray(100), rank, 6)
    while not receive.Get_status(status):
        pass
    assert (status.source, status.tag) == (rank, 6) and receive != MPI.REQUEST_NULL
    request.Wait(), receive.Wait()
    assert receive.Get_status() and receive == MPI.REQUEST_NULL


def statuses_and_no_process():
    statuses = [MPI.Status()]
    requests = [comm.Irecv(bytearray(1), rank, 9)]
    assert MPI.Request.Testsome(requests, statuses) == [] and len(statuses) <= 1
    comm.Send(b"x", rank, 9)
    assert MPI.Request.Waitsome(requests, statuses) == [0] and statuses[0].Get_tag() == 9
    MPI.Request.Waitall([], ())
    message = comm.Mprobe(MPI.PROC_NULL)
    assert message and message.recv() is None
    gathered = np.zeros(size, int)
    gathered[rank] = rank
    comm.Allgather(None, gathered)
    assert (gathered == np.arange(size)).all(), "None is in place"
    comm.Isend([None, 0, MPI.BYTE], rank).Free()
    assert comm.recv(source=rank) is None


def persistent_requests():
    given, got = np.zeros(3), np.zeros(3)
    send, receive = comm.Send_init(given, right, 8), comm.Recv_init([got, 3, MPI.DOUBLE], left, 8)
    assert isinstance(send, MPI.Prequest) and send and receive != MPI.REQUEST_NULL
    assert send.Wait() and receive.Test() and MPI.Request.Waitany([send, receive]) == MPI.UNDEFINED, "they were not started"
    for turn in range(5):
        given[:], got[:] = 10 * rank + turn, -1
        MPI.Prequest.Startall([receive, send])
        MPI.Prequest.Waitall([receive, send])
        assert (got == 10 * left + turn).all() and send and receive
    # Elements with gaps, and the status of a message.
    matrix = np.full((3, 2), -1.0)
    column = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    columns, synchronous = comm.Recv_init([matrix, 1, column], MPI.ANY_SOURCE, 9), comm.Ssend_init(got, rank, 9)
    for turn in range(2):
        got[:] = np.arange(3) + turn
        columns.Start()
        synchronous.Start()
        status = MPI.Status()
        MPI.Request.Waitall([synchronous])
        columns.Wait(status)
        assert (matrix[:, 0] == np.arange(3) + turn).all() and (matrix[:, 1] == -1).all()
        assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (rank, 9, 3)
    # A request that was cancelled can be started again, and so can a request to no process.
    columns.Start()
    columns.Cancel()
    columns.Wait(status)
    assert status.Is_cancelled() and columns
    nothing = comm.Send_init(given, MPI.PROC_NULL)
    MPI.Prequest.Startall([nothing, columns, synchronous])
    assert len(MPI.Request.Waitsome([nothing])) == 1
    MPI.Request.Waitall([columns, synchronous])
    for each in (send, receive, columns, synchronous, nothing):
        each.Free()
        assert not each and each == MPI.REQUEST_NULL
    column.Free()


def groups():
    world = comm.Get_group()
    assert (world.Get_size(), world.rank) == (size, rank)
    backwards = world.Incl(list(range(size))[::-1])
    assert world.Compare(backwards) == MPI.SIMILAR and world.Compare(world.Excl([])) == MPI.IDENT
    assert backwards.Translate_ranks([0, 1, MPI.PROC_NULL], world) == [size - 1, size - 2, MPI.PROC_NULL]
    first, rest = world.Incl([0, 2]), world.Range_excl([(0, 2, 2)])
    assert MPI.Group.Union(first, rest).Translate_ranks(list(range(size)), world) == [0, 2, 1, 3]
    assert MPI.Group.Intersection(first, rest) == MPI.GROUP_EMPTY and world.Compare(rest) == MPI.UNEQUAL
    assert MPI.Group.Difference(world, first).Translate_ranks([0, 1], world) == [1, 3]
    assert first.Translate_ranks([0, 1], rest) == [MPI.UNDEFINED] * 2 and (first.rank == MPI.UNDEFINED) == (rank % 2 == 1)
    assert comm.Get_group().Translate_ranks([rank], MPI.COMM_SELF.Get_group()) == [0]
    fails(lambda: world.Incl([size]), MPI.ERR_RANK)
    reversed_comm = comm.Create(backwards)
    assert reversed_comm.rank == size - 1 - rank and reversed_comm.Compare(comm) == MPI.SIMILAR
    reversed_comm.Free()
    halves = comm.Create(first if rank % 2 == 0 else rest)
    assert halves.allgather(rank) == [rank % 2, rank % 2 + 2]
    halves.Free()
    for _ in range(2):
        if rank % 2 == 0:
            part = comm.Create_group(world.Incl([2, 0]), 7)
            assert part.rank == 1 - rank // 2 and part.allreduce(rank) == 2
            part.Free()
    world.Free()
    assert world == MPI.GROUP_NULL
    comm.Barrier()


def derived_datatypes():
    matrix = np.arange(12.0).reshape(3, 4) + 100 * rank
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    assert (column.Get_size(), column.Get_extent(), column.Get_true_extent()) == (24, (0, 72), (0, 72))
    got = np.full((3, 4), -1.0)
    # Sends the second column; the neighbour receives it as its last column. Then sends a column that the neighbour receives
    # as three consecutive numbers.
    comm.Sendrecv([matrix.reshape(-1)[1:], 1, column], right, 1, [got.reshape(-1)[3:], 1, column], left, 1)
    assert (got[:, 3] == np.arange(1, 12, 4) + 100 * left).all() and (got[:, :3] == -1).all()
    flat = np.empty(3)
    request = comm.Irecv(flat, left, 2)
    comm.Send([matrix, 1, column], right, 2)
    request.Wait()
    assert (flat == np.arange(0, 12, 4) + 100 * left).all()
    status = MPI.Status()
    got[:] = -1
    request = comm.Irecv([got, 1, column], left, 3)
    comm.Send(flat[:2], right, 3)
    request.Wait(status)
    assert status.Get_count(column) == MPI.UNDEFINED and status.Get_count(MPI.DOUBLE) == 2
    assert (got[:2, 0] >= 0).all() and got[2, 0] == -1, "what is not sent is not written"

    # A matrix of two times two blocks.
    whole = np.arange(16, dtype="i4").reshape(4, 4) if rank == 0 else None
    block = MPI.INT.Create_subarray([4, 4], [2, 2], [0, 0]).Create_resized(0, 4).Commit()
    assert block.Get_size() == 16 and block.extent == 4 and block.lb == 0 and block.ub == 4
    part = np.empty((2, 2), "i4")
    comm.Scatterv([whole, ([1] * 4, [0, 2, 8, 10]), block] if rank == 0 else None, part)
    row, col = divmod(rank, 2)
    assert (part == np.arange(16).reshape(4, 4)[2 * row : 2 * row + 2, 2 * col : 2 * col + 2]).all()
    again = np.zeros((4, 4), "i4")
    comm.Allgatherv(part, [again, ([1] * 4, [0, 2, 8, 10]), block])
    assert (again == np.arange(16).reshape(4, 4)).all()

    # Columns become rows.
    square = np.arange(16.0).reshape(4, 4) + 16 * rank
    line = MPI.DOUBLE.Create_vector(4, 1, 4).Create_resized(0, 8).Commit()
    turned = np.zeros((4, 4))
    comm.Sendrecv([square, 4, line], right, 4, turned, left, 4)
    assert (turned == (np.arange(16.0).reshape(4, 4) + 16 * left).T).all()
    comm.Bcast([square, 4, line] if rank == 0 else turned, 0)
    assert rank == 0 or (turned == np.arange(16.0).reshape(4, 4).T).all()

    pair = np.dtype([("letter", "S1"), ("number", "f8")], align=True)
    record = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.CHAR, MPI.DOUBLE]).Commit()
    assert (record.Get_size(), record.Get_extent()) == (9, (0, 16))
    sent = np.array([(b"a", 1.5), (b"b", 2.5)], pair)
    received = np.zeros(2, pair)
    comm.Sendrecv([sent, 2, record], right, 5, [received, 2, record], left, 5)
    assert (received == sent).all()

    picked = MPI.INT.Create_indexed([2, 1], [3, 0])
    hpicked = MPI.INT.Create_hindexed([2, 1], [12, 0])
    blocks = MPI.INT.Create_indexed_block(1, [3, 4, 0]).Commit()
    numbers = np.arange(5, dtype="i4")
    for datatype in (picked.Commit(), hpicked.Commit(), blocks, picked.Dup().Commit()):
        three = np.empty(3, "i4")
        comm.Sendrecv([numbers, 1, datatype], rank, 6, three, rank, 6)
        assert three.tolist() == [3, 4, 0], "in the order of the datatype"
    packed = bytearray(12)
    assert picked.Pack_size(1, comm) >= 12 and picked.Pack(numbers, packed, 0, comm) == 12
    back = np.full(5, -1, "i4")
    assert picked.Unpack(packed, 0, back, comm) == 12 and back.tolist() == [0, -1, -1, 3, 4]
    fortran = MPI.INT.Create_subarray([2, 3], [1, 3], [1, 0], order=MPI.ORDER_FORTRAN).Commit()
    three = np.empty(3, "i4")
    comm.Sendrecv([np.arange(6, dtype="i4"), 1, fortran], rank, 6, three, rank, 6)
    assert three.tolist() == [1, 3, 5]
    for datatype in (column, block, line, record, blocks, fortran):
        datatype.Free()


def blocks_of_several_types():
    """Transposes the blocks of a matrix with distributed rows: each rank sends columns and receives rows."""
    mine = np.arange(2.0 * 2 * size).reshape(2, 2 * size) + 100 * rank
    got = np.zeros((2, 2 * size))
    two = MPI.DOUBLE.Create_vector(2, 2, 2 * size).Commit()
    places = [16 * to for to in range(size)]
    comm.Alltoallw([mine, [1] * size, places, [two] * size], [got, ([1] * size, places), [two] * size])
    for of in range(size):
        theirs = np.arange(2.0 * 2 * size).reshape(2, 2 * size) + 100 * of
        assert (got[:, 2 * of : 2 * of + 2] == theirs[:, 2 * rank : 2 * rank + 2]).all()
    # Sends a number to one rank, and nothing to the other ranks.
    counts = [1 if to == right else 0 for to in range(size)]
    into = np.zeros(1, "f4")
    incoming = [1 if of == left else 0 for of in range(size)]
    request = comm.Ialltoallw([np.array([rank], "f4"), counts, [0] * size, [MPI.FLOAT] * size],
                              [into, incoming, [0] * size, [MPI.FLOAT] * size])  # fmt: skip
    request.Wait()
    assert into[0] == left
    two.Free()


def grids():
    assert MPI.Compute_dims(12, 2) == [4, 3] and MPI.Compute_dims(6, [0, 3]) == [2, 3] and MPI.Compute_dims(8, 3) == [2, 2, 2]
    grid = comm.Create_cart([2, 2], periods=[True, False])
    assert grid.Get_topology() == MPI.CART and comm.Get_topology() == MPI.UNDEFINED
    assert (grid.Get_dim(), list(grid.dims), [bool(each) for each in grid.periods]) == (2, [2, 2], [True, False])
    row, column = grid.Get_coords(grid.rank)
    assert (row, column) == divmod(grid.rank, 2) and grid.Get_cart_rank([row, column]) == grid.rank
    assert grid.Get_cart_rank([row + 2, column]) == grid.rank, "it goes round"
    fails(lambda: grid.Get_cart_rank([0, 2]))
    assert grid.Shift(0, 1) == (grid.Get_cart_rank([row - 1, column]),) * 2
    assert grid.Shift(1, 1) == ((MPI.PROC_NULL, grid.rank + 1) if column == 0 else (grid.rank - 1, MPI.PROC_NULL))
    line = grid.Sub([False, True])
    assert line.size == 2 and line.rank == column and line.allgather(row) == [row] * 2 and list(line.dims) == [2]
    twin = grid.Dup()
    assert twin.Get_topo()[0] == [2, 2] and isinstance(twin, MPI.Cartcomm)
    line3 = comm.Create_cart([3])
    assert (line3 == MPI.COMM_NULL) == (rank == 3)
    for each in (grid, line, twin, line3):
        if each != MPI.COMM_NULL:
            each.Free()


def memory():
    room = MPI.Alloc_mem(16)
    numbers = np.frombuffer(room, "f8")
    numbers[:] = 1.0, 2.0
    assert len(room) == 16 and bytes(room[8:16]) == np.array([2.0]).tobytes() and MPI.Get_address(room) == numbers.ctypes.data
    same = MPI.memory.fromaddress(room.address, room.nbytes)
    same[0:8] = np.array([3.0]).tobytes()
    assert numbers[0] == 3.0 and not room.readonly and MPI.memory.frombuffer(b"abc", readonly=True).readonly
    assert MPI.memory(b"abc").tobytes() == b"abc" and room.toreadonly().readonly and room[0] == numbers.tobytes()[0]
    comm.Sendrecv(room, right, 1, same, left, 1)
    del numbers
    MPI.Free_mem(room)


def reductions_of_rare_types():
    one = np.array([1, 10**18 + rank], "g")
    total = np.zeros_like(one)
    comm.Allreduce(one, total)
    assert total[0] == size and total[1] == 4 * np.longdouble(10**18) + 6, "more digits than a double has"
    comm.Allreduce(one, total, MPI.MAX)
    assert total[1] == np.longdouble(10**18) + 3
    for value, datatype in (("f4", MPI.FLOAT_INT), ("f8", MPI.DOUBLE_INT), ("i8", MPI.LONG_INT), ("i2", MPI.SHORT_INT),
                            ("g", MPI.LONG_DOUBLE_INT)):  # fmt: skip
        pairs = np.zeros(2, np.dtype([("value", value), ("index", "i4")], align=True))
        pairs["value"], pairs["index"] = [(rank * 3) % 5, 1], rank
        for op, value in ((MPI.MAXLOC, 4), (MPI.MINLOC, 0)):
            got = np.zeros_like(pairs)
            comm.Allreduce([pairs, 2, datatype], [got, 2, datatype], op)
            values = [(each * 3) % 5 for each in range(size)]
            assert got["value"][0] == value and got["index"].tolist() == [values.index(value), 0], (datatype, got)


def files():
    path = comm.bcast(os.path.join(tempfile.mkdtemp(), "file") if rank == 0 else None)
    fails(lambda: MPI.File.Open(comm, path), MPI.ERR_NO_SUCH_FILE)
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    assert file.Get_size() == 0
    comm.Barrier()
    assert file.Get_amode() == MPI.MODE_CREATE | MPI.MODE_RDWR and file.Get_group().size == size
    # Each rank writes its own part, and reads its neighbour's part.
    part, status = np.arange(3, dtype="i4") + 10 * rank, MPI.Status()
    file.Write_at_all(12 * rank, part, status)
    assert status.Get_count(MPI.INT) == 3
    file.Sync(), comm.Barrier(), file.Sync()
    got = np.zeros(3, "i4")
    file.Read_at(12 * left, got)
    assert (got == np.arange(3) + 10 * left).all() and file.Get_size() == 12 * size
    # Columns of a matrix: each rank sees every fourth number.
    column = MPI.INT.Create_vector(3, 1, size).Create_resized(0, 12 * size).Commit()
    comm.Barrier()
    file.Set_size(0)
    file.Set_view(4 * rank, MPI.INT, column)
    file.Write_all(part)
    assert file.Get_position() == 3 and file.Get_byte_offset(1) == 4 * (rank + size)
    file.Sync(), comm.Barrier(), file.Sync()
    file.Seek(1)
    file.Read(got[:2], status)
    assert got[:2].tolist() == part[1:].tolist() and status.Get_count(MPI.INT) == 2
    file.Set_view()
    whole = np.zeros((3, size), "i4")
    request = file.Iread_at(0, whole)
    request.Wait(status)
    assert (whole == np.arange(3)[:, None] + 10 * np.arange(size)).all() and status.Get_count(MPI.INT) == 3 * size
    # Elements with gaps in memory, and a read at the end of the file.
    file.Read_at(0, [whole, 1, column], status)
    assert whole[:, 0].tolist() == [0, 10, 20]
    file.Read_at(12 * size - 4, got, status)
    assert status.Get_count(MPI.INT) == 1
    comm.Barrier()
    file.Set_view(0, MPI.BYTE)
    file.Write_ordered(f"{rank:0{rank + 1}}".encode())
    file.Sync(), comm.Barrier(), file.Sync()
    text = bytearray(10)
    file.Read_at_all(0, text)
    assert text == b"0010020003", text
    file.Seek(-1, MPI.SEEK_END)
    file.Read(bytearray(2), status)
    assert status.Get_count() == 1
    file.Set_atomicity(True)
    assert file.Get_atomicity()
    file.Write_at(0, b"x")
    file.Close()
    assert file == MPI.FILE_NULL
    fails(lambda: MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_EXCL | MPI.MODE_WRONLY))
    file = MPI.File.Open(comm, path, MPI.MODE_WRONLY | MPI.MODE_APPEND | MPI.MODE_DELETE_ON_CLOSE)
    assert file.Get_position() == file.Get_size()
    file.Close()
    assert not os.path.exists(path)
    if rank == 0:
        os.rmdir(os.path.dirname(path))


def windows():
    win = MPI.Win.Allocate(8 * size, 8, comm=comm)
    mine = np.frombuffer(win.tomemory(), "i8")
    mine[:] = -1
    assert win.Get_attr(MPI.WIN_SIZE) == 8 * size and win.Get_attr(MPI.WIN_DISP_UNIT) == 8 and win.Get_group().size == size
    win.Fence()
    for to in range(size):
        win.Put(np.array([10 * rank + to]), to, rank)
    win.Fence()
    assert (mine == 10 * np.arange(size) + rank).all()
    got = np.zeros(size, "i8")
    win.Get(got, right, (0, size, MPI.INT64_T))
    win.Fence()
    assert (got == 10 * np.arange(size) + right).all()
    if "hotlease" in MPI.Get_library_version():
        fails(lambda: win.Put(got, right, 1))
    win.Fence()
    # Every other number.
    stride = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    win.Put([np.array([7, 8]), 2, MPI.INT64_T], right, (1, 1, stride))
    win.Fence()
    assert mine[1] == 7 and mine[3] == 8 and mine[0] == rank
    mine[:] = 0
    win.Fence()
    win.Accumulate(np.full(size, rank + 1), 0)
    win.Fence()
    assert rank != 0 or (mine == sum(range(size + 1))).all()
    # A counter, and a lock around two accesses that belong together.
    seen = []
    win.Lock_all()
    for _ in range(10):
        before = np.zeros(1, "i8")
        win.Fetch_and_op(np.ones(1, "i8"), before, 1, 1)
        win.Flush(1)
        seen.append(int(before[0]))
    win.Unlock_all()
    assert sorted(sum(comm.allgather(seen), [])) == list(range(10 * size)), "each rank gets other numbers"
    for _ in range(10):
        win.Lock(2)
        value = np.zeros(1, "i8")
        win.Get(value, 2)
        win.Flush(2)
        win.Put(value + 1, 2)
        win.Unlock(2)
    comm.Barrier()
    win.Lock(2, MPI.LOCK_SHARED)
    win.Get(value, 2)
    win.Unlock(2)
    assert value[0] == 10 * size
    swapped = np.zeros(1, "i8")
    win.Lock(3)
    win.Compare_and_swap(np.array([rank + 1]), np.zeros(1, "i8"), swapped, 3, 3)
    win.Unlock(3)
    assert sorted(comm.allgather(int(swapped[0])))[0] == 0 and comm.allgather(int(swapped[0])).count(0) == 1
    # An epoch between neighbours.
    win.Fence()
    world = comm.Get_group()
    win.Post(world.Incl([left]))
    win.Start(world.Incl([right]))
    win.Put(np.array([rank]), right, 0)
    win.Complete()
    win.Wait()
    assert mine[0] == left
    win.Free()
    assert win == MPI.WIN_NULL
    shared = MPI.Win.Allocate_shared(8 * size if rank == 0 else 0, 8, comm=comm)
    part, unit = shared.Shared_query(0)
    numbers = np.frombuffer(part, "f8")
    shared.Fence()
    numbers[rank] = rank
    shared.Fence()
    assert unit == 8 and (numbers == np.arange(size)).all()
    del numbers, part
    shared.Fence()
    shared.Free()


tests = [each for each in list(globals().values()) if callable(each) and getattr(each, "__module__", "") == "__main__"][1:]
for test in tests:
    if len(sys.argv) < 2 or test.__name__ in sys.argv[1:]:
        test()
        comm.Barrier()
if rank == 0:
    print("as the standard says")
