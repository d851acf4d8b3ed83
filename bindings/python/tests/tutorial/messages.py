"""Point to point: objects, non-blocking calls, and arrays, with and without an explicit type."""

import numpy as np

from hotlease import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()

if rank == 0:
    comm.send({"a": 7, "b": 3.14}, dest=1, tag=11)
    request = comm.isend(["later", 2], dest=1, tag=12)
    request.wait()
elif rank == 1:
    print("an object:", comm.recv(source=0, tag=11))
    request = comm.irecv(source=0, tag=12)
    print("and another:", request.wait())

if rank == 0:
    comm.Send([np.arange(1000, dtype="i"), MPI.INT], dest=1, tag=77)
    comm.Send(np.arange(100, dtype=np.float64), dest=1, tag=13)
elif rank == 1:
    numbers = np.empty(1000, dtype="i")
    comm.Recv([numbers, MPI.INT], source=0, tag=77)
    status = MPI.Status()
    halves = np.empty(200, dtype=np.float64)
    comm.Recv(halves, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
    count = status.Get_count(MPI.DOUBLE)
    print("arrays:", int(numbers.sum()), float(halves[:count].sum()), count, "of rank", status.Get_source(), "tag", status.Get_tag())

# Each rank sends to one neighbour and receives from the other, all ranks at the same time.
right, left = (rank + 1) % comm.size, (rank - 1) % comm.size
got = comm.sendrecv(f"from {rank}", dest=right, source=left)
everything = comm.gather(got)
if rank == 0:
    print("around:", everything)
