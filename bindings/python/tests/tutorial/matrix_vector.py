"""A matrix times a vector, both distributed by rows over all ranks."""

import numpy as np

from hotlease import MPI


def matvec(comm, A, x):
    m = A.shape[0]
    p = comm.Get_size()
    xg = np.zeros(m * p, dtype="d")
    comm.Allgather([x, MPI.DOUBLE], [xg, MPI.DOUBLE])
    return np.dot(A, xg)


comm = MPI.COMM_WORLD
rows = 6
n = rows * comm.size
whole = np.arange(n * n, dtype="d").reshape(n, n) % 7
vector = np.arange(n, dtype="d")
mine = slice(comm.rank * rows, (comm.rank + 1) * rows)
product = matvec(comm, whole[mine], vector[mine])
assert np.array_equal(product, (whole @ vector)[mine])
norm = comm.allreduce(float(product @ product))
if comm.rank == 0:
    print("the square of its norm:", norm)
