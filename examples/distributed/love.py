"""Solve Love's integral equation with the midpoint rule:  mpiexec -n 4 python love.py"""

import numpy as np

import mxpeak as mx

n = 20_000
h = 2.0 / n


def love(i, j):
    """Return a_ij for index arrays i of shape (m, 1) and j of shape (1, k)."""
    distance = (i - j) * h
    return (i == j) - h / np.pi / (1.0 + distance**2)


A = mx.DistributedMatrix.from_function(love, n)
x, info = mx.solve(A, np.ones(n))
if A.comm.rank == 0:
    print(info)
    print("u(0) =", x[n // 2])
