"""Messages between two or three members: a program for three members."""

import gc
import os
import signal
import threading
import time
import weakref

import numpy as np

from hotlease import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
LARGE = 1 << 21


def raises(kind, call):
    try:
        call()
    except MPI.Exception as error:
        assert error.kind == kind, error
        return error
    raise AssertionError(f"no {kind}")


def everyone_with_everyone():
    """Large and small messages, all at the same time, received by rank or in any order."""
    for count in (0, 1, 100, LARGE // 8):
        into = [np.empty(count) for _ in range(size)]
        requests = [comm.Irecv(into[of], of, 5) for of in range(size)]
        requests += [comm.Isend(np.full(count, rank * 10.0 + to), to, 5) for to in range(size)]
        statuses = []
        MPI.Request.Waitall(requests, statuses)
        for of in range(size):
            assert (into[of] == of * 10 + rank).all()
            assert (statuses[of].Get_source(), statuses[of].Get_count(MPI.DOUBLE)) == (of, count)


def probe_returns_the_status_of_a_message():
    if rank == 0:
        comm.Send([np.arange(3, dtype="i4"), MPI.INT], 1, 8)
        comm.send("object", 1, 9)
        comm.Send(b"abc", 1, 10)
        comm.send([1, 2], 1, 11)
    elif rank == 1:
        status = MPI.Status()
        comm.Probe(0, 8, status)
        assert (status.source, status.tag, status.Get_count(MPI.INT), status.Get_count(MPI.DOUBLE)) == (0, 8, 3, MPI.UNDEFINED)
        error = raises("Truncated", lambda: comm.Recv(np.empty(2, "i4"), 0, 8))
        assert error.Get_error_class() == MPI.ERR_TRUNCATE and "12 bytes" in str(error)
        numbers = np.empty(10, "i4")
        comm.Recv(numbers, 0, 8, status)
        assert numbers[: status.Get_count(MPI.INT)].tolist() == [0, 1, 2]
        assert comm.recv(source=MPI.ANY_SOURCE, tag=9, status=status) == "object" and status.Get_tag() == 9
        message = comm.Mprobe(0, 10)
        room = bytearray(5)
        message.Recv(room)
        assert room == b"abc\0\0"
        assert comm.mprobe(0, 11).recv() == [1, 2]
        assert comm.improbe(0) is None and not comm.Iprobe()
        none = MPI.Status()
        comm.Recv(room, MPI.PROC_NULL, status=none)
        comm.send("lost", MPI.PROC_NULL)
        assert none.source == MPI.PROC_NULL and none.Get_count() == 0 and comm.recv(source=MPI.PROC_NULL) is None


def several_requests():
    if rank == 0:
        for tag in (3, 1, 2):
            comm.recv(source=1, tag=0)
            comm.send(f"message {tag}", 1, tag)
        assert comm.recv(source=1) == "end"
    elif rank == 1:
        requests = [comm.irecv(source=0, tag=tag) for tag in (1, 2, 3)]
        assert MPI.Request.testany(requests)[1] is False and not MPI.Request.Testall(requests)
        seen = []
        for _ in requests:
            comm.send(None, 0, 0)
            index, got = MPI.Request.waitany(requests)
            seen.append((index, got))
        assert seen == [(2, "message 3"), (0, "message 1"), (1, "message 2")], seen
        assert MPI.Request.waitany(requests) == (MPI.UNDEFINED, None) and MPI.Request.Waitsome(requests) is None
        assert MPI.Request.testall(requests)[0]
        request, status = comm.Irecv(bytearray(3), 0, 99), MPI.Status()
        request.Cancel()
        request.Wait(status)
        assert status.Is_cancelled() and request == MPI.REQUEST_NULL
        comm.send("end", 0)


def memory_is_kept_until_a_request_has_ended():
    if rank == 0:
        array = np.arange(LARGE // 8, dtype="f8")
        alive = weakref.ref(array)
        comm.Isend(array, 1, 7)
        del array
        gc.collect()
        assert alive() is not None, "no rank waits for it, and it is being sent"
        comm.send("go", 1, 8)
        assert comm.recv(source=1, tag=9) == "got it"
        comm.Iprobe()
        deadline = time.monotonic() + 20
        while alive() is not None and time.monotonic() < deadline:
            comm.Isend(b"", MPI.PROC_NULL), comm.sendrecv(None, 0, 1, source=0)
        assert alive() is None, "it is let go when it was sent"
    elif rank == 1:
        comm.recv(source=0, tag=8)
        array = np.empty(LARGE // 8)
        comm.Recv(array, 0, 7)
        assert array[-1] == LARGE // 8 - 1
        comm.send("got it", 0, 9)


def control_c_ends_a_wait_and_nothing_else():
    if rank == 0:
        waits = [lambda: comm.recv(source=1, tag=70), lambda: comm.Recv(bytearray(1), 1, 70), lambda: comm.Probe(1, 70),
                 lambda: comm.Irecv(bytearray(1), 1, 70).Wait(), lambda: comm.Ibarrier().Wait()]  # fmt: skip
        for wait in waits:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                wait()
            except KeyboardInterrupt:
                timer.join()
                continue
            raise AssertionError("nothing ended it")
    comm.send(rank, (rank + 1) % size, 71)
    assert comm.recv(source=(rank - 1) % size, tag=71) == (rank - 1) % size
    # Although rank 0's wait was interrupted, its barrier continues.
    if rank != 0:
        comm.Ibarrier().Wait()


def other_threads_run_while_one_waits():
    if rank == 0:
        counted = []
        thread = threading.Thread(target=lambda: counted.append(comm.recv(source=1, tag=30)))
        thread.start()
        comm.send("from the other thread", 1, 31)
        thread.join(20)
        assert counted == ["after all"]
    elif rank == 1:
        assert comm.recv(source=0, tag=31) == "from the other thread"
        comm.send("after all", 0, 30)


def an_operator_that_raises_is_the_cause_at_its_rank():
    def fails(a, b, datatype):
        raise KeyError("on purpose")

    group = comm.Dup()
    try:
        group.Allreduce(np.ones(3), np.zeros(3), MPI.Op.Create(fails))
    except MPI.Exception as error:
        assert error.kind in ("OperatorPanicked", "CollectiveFailed"), error
        if error.kind == "OperatorPanicked":
            assert isinstance(error.__cause__, KeyError) and "on purpose" in str(error)
    else:
        raise AssertionError("no error")
    group.Free()


def counts_that_differ_are_told():
    group = comm.Dup()
    error = None
    try:
        group.Bcast(np.zeros(3 if rank == 0 else 4), 0)
        group.Barrier()
    except MPI.Exception as caught:
        error = caught
    # Rank 0 may already have sent its part, and then learns at the barrier that another rank left first.
    assert error is not None and error.kind in ("Mismatch", "CollectiveFailed", "MemberLeft"), error
    group.Free()


def a_pickling_error_is_raised_on_every_rank():
    for call in (lambda given: comm.bcast(given, 0), lambda given: comm.allgather(given), lambda given: comm.gather(given, 1)):
        try:
            call(lambda: 1) if rank == 0 else call("fine")
            raised = None
        except BaseException as error:
            raised = error
        assert rank == 2 or raised is not None, call
        assert rank == 0 or raised is None or "rank 0 could not pickle" in str(raised)
    assert comm.allreduce(1) == size


def machines_and_copies():
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert node.size == size and node.Compare(comm) == MPI.CONGRUENT and comm.Compare(comm) == MPI.IDENT
    copy = comm.Dup()
    copy.send("in the copy", (rank + 1) % size)
    assert not comm.Iprobe()
    assert copy.recv() == "in the copy"
    copy.Free()
    raises("Finished", copy.Barrier)
    assert MPI.Op.Create(lambda a, b, t: None, True).Is_commutative() and MPI.SUM(2, 3) == 5


for test in [each for each in list(globals().values()) if callable(each) and getattr(each, "__module__", "") == "__main__"][1:]:
    test()
    comm.Barrier()
if rank == 0:
    print("all messages")
