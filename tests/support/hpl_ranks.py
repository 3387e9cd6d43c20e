"""Create HPL's system, and solve it on thread ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout import lcg
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.solvers.residual import ResidualNorms, residual_norms
from mxpeak.spans import Spans

Edit = Callable[[Any, Any], None]


def host() -> Kernels:
    return HostKernels(1, poison=True)


def solve(
    n: int,
    nb: int,
    shape: ProcessGrid,
    options: PivotedLuOptions,
    make: Callable[[], Kernels] = host,
    edit: Edit | None = None,
) -> tuple[list[float], ResidualNorms, int]:
    """Solve HPL's system of order n on thread ranks; return x in global order, the norms, the singular column."""

    def body(comm: Any) -> Any:
        kernels = make()
        grid = make_grid(shape, comm)
        assert grid is not None
        A = dist_matrix(grid, n, n + 1, nb, kernels)
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
        if edit is not None:
            edit(A, kernels)
        singular = factorize(A, options, kernels, Spans())
        x = solve_augmented(A, kernels)
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
        if edit is not None:
            edit(A, kernels)
        norms = residual_norms(A, x, kernels)
        places = [A.cols.to_global(jl) for jl in range(len(x))]
        return dict(zip(places, x)) if grid.p == 0 else {}, norms, singular

    results = run_ranks(shape.size, body)
    x: dict[int, float] = {}
    for part, norms, singular in results:
        x.update(part)
        assert (norms, singular) == results[0][1:] or np.isnan(norms.residual), "all ranks must agree"
    return [x[j] for j in range(n)], results[0][1], results[0][2]


@cache
def system(n: int) -> tuple[Any, Any]:
    """Return HPL's A and b of order n, generated entry by entry."""
    both = np.array([[lcg.value(lcg.state(100, 1 + i + j * n)) for j in range(n + 1)] for i in range(n)])
    return both.reshape(n, n + 1)[:, :n], both.reshape(n, n + 1)[:, n]
