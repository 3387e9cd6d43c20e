"""Interpolate scattered values with Gaussian kernels, from a file:  mpiexec -n 2 python kernel.py"""

import numpy as np
from mpi4py import MPI

import mxpeak as mx

world, n, width = MPI.COMM_WORLD, 1200, 0.1
points = np.random.default_rng(7).random((n, 2))
values = np.sin(4.0 * points[:, 0]) * np.cos(3.0 * points[:, 1])


def kernel(p, q):
    """Return exp(-|p_i - q_j|² / 2w²)."""
    squares = ((p[:, None, :] - q[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-squares / (2.0 * width**2))


if world.rank == 0:
    K = np.lib.format.open_memmap("K.npy", mode="w+", dtype=np.float64, shape=(n, n))
    for i in range(0, n, 200):  # 200 rows at a time
        K[i : i + 200] = kernel(points[i : i + 200], points)
    K[np.arange(n), np.arange(n)] += 1e-3
    K.flush()
world.barrier()

A = mx.DistributedMatrix.from_file("K.npy", comm=world)  # each rank reads its blocks
weights, info = mx.solve(A, values)

if world.rank == 0:
    there = np.array([[0.3, 0.6], [0.5, 0.5]])
    print(info)
    print("interpolated:", kernel(there, points) @ weights)
    print("exact:       ", np.sin(4.0 * there[:, 0]) * np.cos(3.0 * there[:, 1]))
