"""Create the operands of probes: random matrices, and triangular matrices whose solves neither grow nor vanish."""

from __future__ import annotations

from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid


def filled(kernels: Kernels, A: Matrix, seed: int) -> Matrix:
    """Fill A with random numbers in [-1/2, 1/2] and return A."""
    m, n = A.shape
    uniform = kernels.matrix(m, n, _type(A))
    entries = Entries("lcg", m, seed=seed, scale=-1.0, shift=0.5)
    kernels.generate(uniform, BlockCyclic(m, 64, 0, 1), BlockCyclic(n, 64, 0, 1), entries)
    kernels.copy(uniform, A)
    return A


def near_one(kernels: Kernels, A: Matrix, rows: BlockCyclic, cols: BlockCyclic) -> Matrix:
    """Fill A with ones on the diagonal and small numbers elsewhere, so that solves neither grow nor vanish; return A.

    A is this rank's part of an n×n matrix that is distributed by `rows` and `cols`.
    """
    n, (height, width) = rows.n, A.shape
    block = kernels.matrix(height, width, _type(A))
    entries = Entries("lcg", n, seed=3, scale=-1.0 / n, shift=0.5 / n)
    kernels.generate(block, rows, cols, entries, kernels.xp.ones(rows.local_size))
    kernels.copy(block, A)
    return A


def triangle(kernels: Kernels, k: int, name: str) -> Matrix:
    """Return a triangular k×k matrix in the format `name`."""
    whole = BlockCyclic(k, 64, 0, 1)
    return near_one(kernels, kernels.panel(kernels.buffer(kernels.panel_size(k, k, name), name), k, k), whole, whole)


def _type(A: Matrix) -> str:
    return "fp32" if A.dtype.itemsize == 4 else "fp64"


def alone() -> Grid:
    """Return a process grid that contains only this rank."""
    grid = make_grid(ProcessGrid(1, 1), Solo())
    assert grid is not None, "one rank fills a grid of one"
    return grid
