"""Run the studies of HPL-MxP on ranks, on hosts or devices: each rank generates its blocks of every matrix.

pivots, norms   LU in fp64 with partial pivoting and without pivoting
gmres           GMRES without a preconditioner, for a list of diagonal scales
generators      GMRES without a preconditioner, for every generator
pivoting        whole runs of HPL-MxP without pivoting, with butterflies and with partial pivoting, for every generator
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from mxpeak.bench.harness import check_grids, open_bench
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import PIVOTING, HplMxpCase, HplMxpConfig
from mxpeak.bench.hpl_mxp.rules import convergence_factor, predicted_steps
from mxpeak.bench.lu import LuBench
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.configs.grid import squarest
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.spaces import DistSpace
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.generators import Generator, generator
from mxpeak.layout.lu_schedule import lu_steps
from mxpeak.layout.row_moves import RowOrder
from mxpeak.records import Result
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.triangular import Factored
from mxpeak.solvers.residual import backward_error
from mxpeak.solvers.transformations import Pivoting, Transformation, preconditioned
from mxpeak.spans import Spans
from mxpeak.verbs.study.unpreconditioned import THRESHOLD, Krylov, UnpreconditionedSystem, full_gmres

#: Block size of the matrices, which are small enough for one process.
NB = 64
U = 2.0**-53


@dataclass(frozen=True, slots=True)
class StudyGrid:
    """The process grid and the kernels of a study."""

    grid: Grid
    kernels: Kernels

    def system(self, made: Generator, n: int) -> GeneratedSystem:
        """Return the matrix and the right-hand side of a generator. Collective."""
        return GeneratedSystem(self.grid, n, NB, made, self.kernels)

    def norm(self, system: GeneratedSystem) -> float:
        """Return ||A||_inf. Collective."""
        return DistSpace(self.kernels, self.grid.all, system.rows.local_size, counts=True).max_abs(system.row_sums())


@contextmanager
def opened(comm: Communicator, device: str) -> Iterator[StudyGrid]:
    """Bind the cores, load the kernels, and yield the squarest grid of all ranks. Collective."""
    config = HplMxpConfig(n=(1,), nb=(NB,), device=device, warmup="none")
    with open_bench(LuBench, check_grids, config, comm, {}) as bench:
        grid = bench.grid(*squarest(comm.size))
        assert grid is not None, "the grid includes all ranks"
        yield StudyGrid(grid, bench.kernels)


def uniform(n: int, seed: int) -> Generator:
    """Return the generator `sqrt-n` without its diagonal."""
    return replace(generator("sqrt-n", n, seed=seed), diagonal=None)


def pivots(ranks: StudyGrid, n: int, seed: int) -> list[float]:
    """Return |u_ii| of an LU with partial pivoting in fp64, on every rank. Collective."""
    kernels, grid, xp = ranks.kernels, ranks.grid, ranks.kernels.xp
    system, A = ranks.system(uniform(n, seed), n), dist_matrix(grid, n, n, NB, kernels)
    system.store(A)
    pivoted_lu.factorize(A, pivoted_lu.PivotedLuOptions(), kernels, Spans(), order=RowOrder(n))
    diagonal = xp.zeros(n)
    for step in lu_steps(n, NB, grid.P, grid.Q):
        if (grid.p, grid.q) == (step.p, step.q):
            diagonal[step.j0 : step.j1] = xp.abs(xp.linalg.diagonal(A[step.j0 : step.j1, step.j0 : step.j1]))
    grid.all.allreduce(diagonal, "sum")
    return list(diagonal.tolist())


def residual_norms(ranks: StudyGrid, n: int, seed: int, *, pivoting: bool) -> dict[str, Any]:
    """Solve A x = b by LU in fp64, and return three norms of b - A x and HPL's check. Collective.

    Norms that are not finite are None.
    """
    kernels, grid, xp = ranks.kernels, ranks.grid, ranks.kernels.xp
    system, A = ranks.system(uniform(n, seed), n), dist_matrix(grid, n, n, NB, kernels)
    system.store(A)
    order, transformations = RowOrder(n), list[Transformation]()
    if pivoting:
        pivoted_lu.factorize(A, pivoted_lu.PivotedLuOptions(), kernels, Spans(), order=order)
        transformations.append(Pivoting(order, A.rows, grid.column, xp))
    else:
        lu.factorize(A, lu.MixedLuOptions("fp64"), kernels, Spans())
    x = preconditioned(Factored(A, kernels).solve, system.b, transformations)
    r = system.b - system.multiply(x)
    over_rows = DistSpace(kernels, grid.all, len(r), counts=grid.q == 0)
    over_columns = DistSpace(kernels, grid.all, len(x), counts=grid.p == 0)
    x_inf, r_inf, b_inf = over_columns.max_abs(x), over_rows.max_abs(r), over_rows.max_abs(system.b)
    scaled = backward_error(r_inf, ranks.norm(system), x_inf, b_inf, n, U)
    norms = {
        "norm_1": over_rows.sum_of([float(xp.sum(xp.abs(r)))])[0],
        "norm_2": over_rows.norm(r),
        "norm_inf": r_inf,
        "scaled_residual": scaled,
    }
    finite = {name: value if isfinite(value) else None for name, value in norms.items()}
    return {**finite, "passed": bool(scaled < THRESHOLD)}


def unpreconditioned(ranks: StudyGrid, case: HplMxpCase) -> dict[str, Any]:
    """Run GMRES without a preconditioner, and return its steps and those that the circular law predicts. Collective."""
    n, kernels, grid = case.n, ranks.kernels, ranks.grid
    system = ranks.system(generator(case.generator, n, seed=case.seed, scale=case.diagonal_scale), n)

    def multiply(q: Vector) -> Vector:
        return system.on_columns(system.multiply(q))

    space = DistSpace(kernels, grid.all, system.cols.local_size, counts=grid.p == 0)
    went: Krylov = full_gmres(
        UnpreconditionedSystem(n, system.on_columns(system.b), multiply, space, ranks.norm(system))
    )
    return {**went.figures(n), "predicted_factor": convergence_factor(case), "predicted_steps": predicted_steps(case)}


def pivoting_case(result: Result) -> dict[str, Any]:
    """Return growth, iterations and check of a run of HPL-MxP; the iterations are None if the check failed."""
    problem, check = result.problem, result.validation
    solved = check["residual"] is not None and check["residual"] < THRESHOLD
    names = ("n", "seed", "generator", "pivoting", "precision")
    return {
        **{name: problem[name] for name in names},
        "growth": _finite(problem["growth"]),
        "condition": _finite(problem["condition"]),
        "iterations": check["iterations"] if solved else None,
        "scaled_residual": _finite(check["residual"]),
        "proven": bool(check["lu_proof"]["passed"]),
    }


def pivoting_runs(comm: Communicator, settings: dict[str, Any], seeds: list[int]) -> Iterator[dict[str, Any]]:
    """Run HPL-MxP with each kind of pivoting, and yield the case of each run on every rank. Collective."""
    for seed in seeds:
        for pivoting in PIVOTING:
            config = HplMxpConfig(
                nb=(NB,), seed=seed, pivoting=pivoting, mode="explore", warmup="none", **settings
            )  # fmt: skip
            for result in hpl_mxp.run(config, comm, origins={}):
                yield pivoting_case(result)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
