"""Compute the factors of both LUs of a generated matrix, without copies to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.spans import Spans
from tests.support.roundoff import U
from tests.support.torch_devices import array


def hpl_factors(kernels: TorchKernels, n: int, nb: int, lookahead: int) -> Any:
    """Return HPL's U and the transformed right-hand side."""
    A = dist_matrix(_alone(), n, n + 1, nb, kernels)
    kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
    options = pivoted_lu.PivotedLuOptions(lookahead=lookahead)
    assert pivoted_lu.factorize(A, options, kernels, Spans(stopwatch=kernels.stopwatch)) == 0
    return np.triu(array(A.local))


def mixed_factors(kernels: TorchKernels, n: int, nb: int, lookahead: int) -> Any:
    """Return HPL-MxP's L and U."""
    grid = _alone()
    A = dist_matrix(grid, n, n, nb, kernels, stored_as("fp16"))
    GeneratedSystem(grid, n, nb, generator("sqrt-n", n), kernels).store(A)
    options = lu.MixedLuOptions("fp16", lookahead=lookahead)
    assert lu.factorize(A, options, kernels, Spans(stopwatch=kernels.stopwatch)) == 0
    return array(A.local)


def _alone() -> Grid:
    """Return the grid of one rank."""
    grid = make_grid(ProcessGrid(1, 1), Solo())
    assert grid is not None
    return grid


#: The function for the factors, and the largest difference between two orders of sums, relative to the largest entry:
#: n·u times a condition number, rarely above n² for random matrices; that of sqrt-n is small, but operands are rounded.
FACTORS: dict[str, tuple[Callable[[TorchKernels, int, int, int], Any], Callable[[int], float]]] = {
    "HPL": (hpl_factors, lambda n: n**3 * U),
    "HPL-MxP": (mixed_factors, lambda n: 4.0 * (n * format_of("fp32").u + 2.0 * format_of("fp16").u)),
}
