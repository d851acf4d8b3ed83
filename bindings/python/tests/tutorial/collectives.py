"""Broadcasting, scattering and gathering: objects, and arrays."""

import numpy as np

from hotlease import MPI

comm = MPI.COMM_WORLD
size, rank = comm.Get_size(), comm.Get_rank()

shown = {}
data = {"key1": [7, 2.72, 2 + 3j], "key2": ("abc", "xyz")} if rank == 0 else None
shown["broadcast"] = comm.bcast(data, root=0)
shown["scattered"] = comm.scatter([(each + 1) ** 2 for each in range(size)] if rank == 0 else None, root=0)
shown["gathered"] = comm.gather((rank + 1) ** 2, root=0)

array = np.arange(100, dtype="i") if rank == 0 else np.empty(100, dtype="i")
comm.Bcast(array, root=0)
shown["Broadcast"] = int(array.sum())

rows = np.arange(size * 10, dtype="i").reshape(size, 10) if rank == 0 else None
row = np.empty(10, dtype="i")
comm.Scatter(rows, row, root=0)
shown["Scattered"] = row.tolist()

back = np.empty([size, 10], dtype="i") if rank == 0 else None
comm.Gather(row * 2, back, root=0)
shown["Gathered"] = None if back is None else back.tolist()

total = np.zeros(10)
comm.Allreduce(row.astype(float), total, op=MPI.SUM)
shown["Reduced"] = total.tolist()

counts = [each + 1 for each in range(size)]
mine = np.full(counts[rank], rank, dtype=np.float64)
ragged = np.empty(sum(counts))
comm.Allgatherv(mine, [ragged, counts])
shown["ragged"] = ragged.tolist()

for each in comm.gather(shown) or []:
    print(each)
