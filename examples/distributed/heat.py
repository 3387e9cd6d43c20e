"""Find the temperature of a plate that is heated along a line:  mpiexec -n 2 python heat.py"""

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import mxpeak as mx

world, side = MPI.COMM_WORLD, 64
n = side * side
rows = np.arange(n * world.rank // world.size, n * (world.rank + 1) // world.size)  # rows of this rank
y, x = np.divmod(rows, side)

i, j, a = [rows], [rows], [np.full(len(rows), 4.0)]
for there, other in ((x > 0, rows - 1), (x < side - 1, rows + 1), (y > 0, rows - side), (y < side - 1, rows + side)):
    i.append(rows[there])
    j.append(other[there])
    a.append(np.full(there.sum(), -1.0))
entries = np.concatenate(a), (np.concatenate(i) - rows[0], np.concatenate(j))
A = sp.coo_array(entries, shape=(len(rows), n)).tocsr()
b = np.where(x == side // 2, 1.0, 0.0)  # heated along a line

T, info = mx.gmres(A, b, comm=world)

hottest = world.allreduce(T.max(), MPI.MAX)
if world.rank == 0:
    print(info)
    print(f"hottest: {hottest:.6f}, converged: {info.converged}")
