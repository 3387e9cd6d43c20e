"""Solve -Δu = f with finite elements on a square:  mpiexec -n 2 python fem.py"""

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import mxpeak as mx

world, m = MPI.COMM_WORLD, 80  # m×m squares of two triangles each
side = m + 1
n = side * side
first, last = n * world.rank // world.size, n * (world.rank + 1) // world.size  # nodes of this rank


def places(nodes):
    """Return the coordinates of nodes, and whether they are inside; inner nodes move by up to a quarter cell."""
    y, x = np.divmod(nodes, side)
    inside = (x > 0) & (x < m) & (y > 0) & (y < m)
    off = 0.25 * inside * np.array([np.sin(7.0 * nodes), np.cos(5.0 * nodes)])
    return (np.array([x, y]) + off) / m, inside


rows_of_squares = np.arange(max(first // side - 1, 0), min((last - 1) // side + 1, m))
corner = (side * rows_of_squares[:, None] + np.arange(m)).ravel()
lower, upper = (corner, corner + 1, corner + side), (corner + side + 1, corner + side, corner + 1)
triangles = np.concatenate([np.stack(lower, axis=1), np.stack(upper, axis=1)])
triangles = triangles[((triangles >= first) & (triangles < last)).any(axis=1)]

xy, inside = places(triangles)  # (2, triangles, 3)
edges = np.roll(xy, 1, axis=2) - np.roll(xy, -1, axis=2)  # the edge opposite each corner
area = 0.5 * np.abs(edges[0, :, 0] * edges[1, :, 1] - edges[1, :, 0] * edges[0, :, 1])
K = np.einsum("dti,dtj->tij", edges, edges) / (4.0 * area[:, None, None])
K *= inside[:, :, None] & inside[:, None, :]  # u = 0 at the edge of the square

i, j = (np.broadcast_to(nodes, K.shape).ravel() for nodes in (triangles[:, :, None], triangles[:, None, :]))
own = (i >= first) & (i < last)
A = sp.coo_array((K.ravel()[own], (i[own] - first, j[own])), shape=(last - first, n)).tocsr()
A.eliminate_zeros()
(x, y), inside = places(np.arange(first, last))
u = np.sin(np.pi * x) * np.sin(np.pi * y)  # the exact solution
A = A + sp.coo_array(((~inside).astype(float), (np.arange(last - first), np.arange(first, last))), shape=A.shape)
share = np.repeat(area / 3.0, 3)[(triangles.ravel() >= first) & (triangles.ravel() < last)]
weight = np.bincount(triangles[(triangles >= first) & (triangles < last)] - first, share, last - first)
U, info = mx.gmres(A, 2.0 * np.pi**2 * u * weight * inside, comm=world)

error = world.allreduce(np.abs(U - u).max(initial=0.0), MPI.MAX)
if world.rank == 0:
    print(info)
    print(f"largest error: {error:.2e}, converged: {info.converged}")
