"""Solve HPG-MxP's problem on thread ranks, and with an oracle for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from mxpeak.comm.base import Communicator
from mxpeak.distributed.stencil import Form, Hierarchy, StencilProblem, make_stencil, weights
from mxpeak.distributed.system import InnerIteration, MixedSystem
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.solvers.krylov import Solve, gmres_ir
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]


Triple = tuple[int, int, int]


KINDS = ("greedy", "jpl", "levels", "natural", "surface_last")


TOLERANCE = 1e-9


def global_matrix(shape: Triple, nonsymmetric: bool) -> Any:
    """Return 27 - T ⊗ T ⊗ T with T = tridiag(1, 1, 1); non-symmetric: add ±1/2 next to the diagonal in z."""
    identities, T = (
        [sp.diags([value] * (2 * k + 1), range(-k, k + 1), shape=(n, n)) for n in reversed(shape)]
        for k, value in ((0, 1.0), (1, 1.0))
    )
    A = 27.0 * reduce(sp.kron, identities) - reduce(sp.kron, T)
    if nonsymmetric:
        skew = sp.diags([-0.5, 0.5], [-1, 1], shape=(shape[2],) * 2)
        A = A + sp.kron(sp.kron(skew, identities[1]), identities[2])
    return A.tocsr()


def local_groups(shape: Triple, kind: str) -> Array:
    """Return the group of each point of a box: octants of parity, wavefronts, natural order or random colors."""
    z, y, x = np.indices(shape[::-1]).reshape(3, -1)
    if kind == "greedy":
        return x % 2 + 2 * (y % 2) + 4 * (z % 2)
    if kind == "levels":
        return x + 2 * y + 4 * z
    if kind in ("natural", "surface_last"):
        return np.arange(math.prod(shape))
    kernels, group = ReferenceSparse(), np.empty(math.prod(shape), int)
    order = kernels.order(kernels.stencil_rows(Box(*shape), weights()), kind)
    for g, (begin, end) in enumerate(zip(order.starts, order.starts[1:])):
        group[order.new_to_old[begin:end]] = g
    return group


class BlockLevel:
    """One level over all ranks: x += M^-1 (b - A x), with M block diagonal over the ranks and D + L in each block.

    `lower` is the number of entries of M, and `points` are the points of the next level.
    """

    def __init__(self, shape: Triple, grid: Triple, kind: str, nonsymmetric: bool, dtype: Any):
        A = global_matrix(shape, nonsymmetric)
        box: Triple = tuple(n // p for n, p in zip(shape, grid))  # type: ignore[assignment]
        z, y, x = np.indices(shape[::-1]).reshape(3, -1)
        rank = (z // box[2] * grid[1] + y // box[1]) * grid[0] + x // box[0]
        group = local_groups(box, kind)[((z % box[2]) * box[1] + y % box[1]) * box[0] + x % box[0]]
        entries = A.tocoo()
        inside = rank[entries.row] == rank[entries.col]
        if kind == "surface_last":
            group += (np.bincount(entries.row, ~inside) > 0) * math.prod(box)
        of_m = (inside & (group[entries.col] < group[entries.row])) | (entries.row == entries.col)
        M = sp.csr_matrix((entries.data * of_m, (entries.row, entries.col)), A.shape).astype(dtype)
        M.eliminate_zeros()
        self.A, self._rest, self.lower = A.astype(dtype), (A - M).astype(dtype), M.nnz
        self._order = np.argsort(group, kind="stable")  # in this order M is lower triangular, and equals its factor L
        in_order = M[self._order][:, self._order].tocsc()
        self._M = splu(in_order, permc_spec="NATURAL", diag_pivot_thresh=0.0)
        assert self._M.L.nnz == M.nnz
        self.points = np.flatnonzero((x % 2 == 0) & (y % 2 == 0) & (z % 2 == 0))

    def sweep(self, b: Array, x: Array) -> Array:
        """Return x after one forward sweep."""
        swept = np.empty_like(x)
        swept[self._order] = self._M.solve((b - self._rest @ x)[self._order])
        return swept


@dataclass(frozen=True)
class Oracle:
    """The problem with its levels, with the finest level first."""

    levels: tuple[BlockLevel, ...]

    def cycle(self, b: Array, depth: int = 0) -> Array:
        """Return M^-1 b."""
        level = self.levels[depth]
        x = level.sweep(b, np.zeros_like(b))
        if depth + 1 < len(self.levels):
            x[level.points] += self.cycle((b - level.A @ x)[level.points], depth + 1)
            x = level.sweep(b, x)
        return x


@cache
def oracle(shape: Triple, grid: Triple, kind: str = "greedy", nonsymmetric: bool = False, dtype: Any = np.float64) -> Oracle:  # fmt: skip  # noqa: E501
    """Return all levels of a global problem that is distributed over a grid of ranks."""
    sides = [tuple(n >> depth for n in shape) for depth in range(LEVELS)]
    return Oracle(tuple(BlockLevel(side, grid, kind, nonsymmetric, dtype) for side in sides))  # type: ignore[arg-type]


@dataclass
class Steps:
    """The steps of the oracle's solve: estimates and true residuals relative to ||b||."""

    estimates: list[float]
    history: list[float]

    @property
    def count(self) -> int:
        return len(self.estimates)


def solve_oracle(problem: Oracle, A: Any, tolerance: float, restart: int = 30, max_steps: int = 300) -> Steps:
    """Run GMRES-IR by its definition: fp64 residuals with A, all else in the type of the oracle's levels."""
    inner = problem.levels[0].A
    b, x, steps = A.sum(1).A1, np.zeros(A.shape[0]), Steps([], [1.0])
    scale = float(np.linalg.norm(b))
    while steps.history[-1] > tolerance and steps.count < max_steps:
        r = b - A @ x
        rho = float(np.linalg.norm(r))
        Q, H = [(r / rho).astype(inner.dtype)], np.zeros((restart + 1, restart))
        for k in range(restart):
            w = inner @ problem.cycle(Q[k])
            for _ in range(2):
                h = np.array([float(q.astype(float) @ w.astype(float)) for q in Q])
                w = (w - h @ np.array(Q, float)).astype(inner.dtype)
                H[: k + 1, k] += h
            H[k + 1, k] = np.linalg.norm(w.astype(float))
            Q.append((w / H[k + 1, k]).astype(inner.dtype))
            target = rho * np.eye(k + 2)[0]
            t, *_ = np.linalg.lstsq(H[: k + 2, : k + 1], target, rcond=None)
            steps.estimates.append(float(np.linalg.norm(target - H[: k + 2, : k + 1] @ t)) / scale)
            if steps.estimates[-1] <= tolerance or steps.count == max_steps:
                break
        x = x + problem.cycle((t @ np.array(Q[:-1], float)).astype(inner.dtype))
        steps.history.append(float(np.linalg.norm(b - A @ x)) / scale)
    return steps


@dataclass(frozen=True)
class Solved:
    """The steps of one solver, and its final state."""

    solve: Solve
    max_error: float
    values: tuple[str, ...]
    vectors: str


DOUBLE = Form(("fp64",) * LEVELS, "fp64", "sell")


def mixed_form(
    values: Sequence[str] | str,
    vectors: str = "fp32",
    storage: str = "sell",
    tolerance: float = 0.0,
    basis: str | None = None,
    mg_vectors: str | None = None,
) -> Form:
    """Return the matrices of the mixed solver, with one format for all levels or one per level."""
    each = (values,) * LEVELS if isinstance(values, str) else tuple(values)
    return Form(each, vectors, storage, mixed=True, tolerance=tolerance, basis=basis, mg_vectors=mg_vectors)


def system_of(
    kernels: Any, comm: Communicator, problem: StencilProblem, hierarchy: Hierarchy, restart: int
) -> MixedSystem:
    """Return the system A x = b for GMRES-IR."""
    top = hierarchy.top
    inner = InnerIteration(top.A, lambda q: cycle(top, q), restart, basis=hierarchy.basis)
    return MixedSystem(kernels, comm, hierarchy.outer, problem.b, inner, Spans())


def solved(
    comm: Communicator,
    shape: Triple,
    grid: Triple,
    forms: Sequence[Form],
    kind: str = "greedy",
    nonsymmetric: bool = False,
    tolerance: float = TOLERANCE,
    restart: int = 30,
    kernels: Any = None,
) -> list[Solved]:
    """Solve the global problem in each form, and return this rank's results. Collective."""
    kernels = HostKernels(1).sparse if kernels is None else kernels
    box = Box.of(comm.rank, tuple(n // p for n, p in zip(shape, grid)), grid)  # type: ignore[arg-type]
    problem = make_stencil(kernels, comm, box.levels(LEVELS), forms, kind, weights(nonsymmetric=nonsymmetric), Spans())
    outcomes = []
    for k, hierarchy in enumerate(problem.hierarchies):
        system = system_of(kernels, comm, problem, hierarchy, restart)
        how = {"reduction": system.reduction, "tolerance": tolerance}
        done = gmres_ir(system, system.norm_of_b(), restart=restart, max_steps=300, **how)
        values = tuple(level.A.A.values for level in problem.levels(k))
        outcomes.append(Solved(done, system.max_error(1.0), values, hierarchy.top.A.A.vectors))
    return outcomes


def smallest_eigenvalue(shape: Triple) -> float:
    """Return the smallest eigenvalue of the symmetric part, 27 - T ⊗ T ⊗ T; T's largest is 1 + 2 cos(π/(n + 1))."""
    return 27.0 - math.prod(1.0 + 2.0 * math.cos(math.pi / (n + 1)) for n in shape)


def error_bound(shape: Triple, residual: float, nonsymmetric: bool = False) -> float:
    """Return a bound: max |x - 1| <= ||A^-1||·||b - A x|| <= residual·||b|| / λ, with `smallest_eigenvalue` λ.

    The bound includes the roundings of x and of the residual, with 27 products and sums per row.
    """
    b = global_matrix(shape, nonsymmetric).sum(1)
    norm_b, rounding = float(np.linalg.norm(b)), 27 * U * 53 * math.sqrt(math.prod(shape))
    return (residual * norm_b + rounding) / smallest_eigenvalue(shape)


def agree(actual: Sequence[float], wanted: Sequence[float]) -> None:
    """Check the number of residuals, and each one within the roundings of 27 products and sums per row and step."""
    assert len(actual) == len(wanted)
    for k, (one, other) in enumerate(zip(actual, wanted), start=1):
        assert one == pytest.approx(other, abs=27 * k * U)
