"""Divide b and x0 into real right-hand sides and initial guesses for a solver, and combine the solutions.

Each column of b is one right-hand side. If A is real and b or x0 is complex, the real and imaginary parts of a column
are two right-hand sides of the real matrix. Both parts share the tolerance of their column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any

from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.spaces import vector_type
from mxpeak.kernels.arrays import complex_of
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.library.sparse.ranks import distributed_norm
from mxpeak.solvers.gmres_driver import SolveResult


@dataclass(frozen=True, slots=True)
class Side:
    """A right-hand side b, its initial guess x0, and the relative residual `tol` at which it counts as solved."""

    b: Vector
    x0: Vector
    tol: float


class RightHandSideColumns:
    """The columns of b and x0, and the right-hand sides that the solver receives. The constructor is collective."""

    def __init__(self, kernels: SparseKernels, group: RankGroup, B: Any, X0: Any, rtol: float, atol: float):
        self._xp, self._group, self._shape = kernels.xp, group, B.shape
        self._columns, starts = ([V] if V.ndim == 1 else list(V.T) for V in (B, X0))
        is_complex = any(self._xp.isdtype(V.dtype, "complex floating") for V in (B, X0))
        self._split = kernels.parts == 1 and group.largest(float(is_complex)) > 0
        self.tols = [self._tolerance(b, rtol, atol) for b in self._columns]
        fp64 = vector_type(kernels, "fp64")
        self.sides = [
            side
            for b, x0, tol in zip(self._columns, starts, self.tols)
            for side in (self._parts(b, x0, tol) if self._split else [Side(self._typed(b, fp64), x0, tol)])
        ]

    def _typed(self, b: Vector, dtype: Any) -> Vector:
        return self._xp.asarray(b, dtype=dtype)

    def _tolerance(self, b: Vector, rtol: float, atol: float) -> float:
        """Return max(rtol, atol / ||b||), the relative residual at which b counts as solved. Collective."""
        size = distributed_norm(self._group, b, self._xp) if atol else 0.0
        return max(rtol, atol / size) if size else rtol

    def _parts(self, b: Vector, x0: Vector, tol: float) -> list[Side]:
        """Return the real and the imaginary part of a column as two right-hand sides. Collective.

        The residual of each part may be at most tol·||b|| / sqrt(2).
        """
        xp, least = self._xp, tol * distributed_norm(self._group, b, self._xp) / sqrt(2.0)
        sides = []
        for take in (xp.real, xp.imag):
            b_part, x0_part = (xp.asarray(take(xp.asarray(v, dtype=xp.complex128)), copy=True) for v in (b, x0))
            size = distributed_norm(self._group, b_part, xp)
            sides.append(Side(b_part, x0_part, least / size if size else tol))
        return sides

    def shown(self, finished: Sequence[SolveResult], x: Vector) -> Vector:
        """Return x of the current column, given the results of the earlier right-hand sides and x of the current one.

        The real part of a column is solved first. Until it is solved, the imaginary part of x is that of x0.
        """
        if not self._split:
            return x
        side = len(finished)
        if side % 2:
            return complex_of(finished[-1].x, x, self._xp)
        return complex_of(x, self.sides[side + 1].x0, self._xp)

    def combined(self, results: list[SolveResult]) -> list[SolveResult]:
        """Return one result per column, given one per right-hand side. Collective."""
        if not self._split:
            return results
        return [
            self._of_parts(b, results[2 * j : 2 * j + 2], self.sides[2 * j : 2 * j + 2])
            for j, b in enumerate(self._columns)
        ]

    def _of_parts(self, b: Vector, results: list[SolveResult], sides: list[Side]) -> SolveResult:
        """Combine the results of the real and the imaginary part of a column. Collective."""
        real, imag = results
        size = distributed_norm(self._group, b, self._xp)
        norms = [distributed_norm(self._group, side.b, self._xp) for side in sides]

        def both(parts: Iterable[float]) -> float:
            """Return the relative residual of the column, given those of its parts."""
            return hypot(*(part * own for part, own in zip(parts, norms))) / size if size else 0.0

        longer = max(results, key=lambda part: part.steps)
        return SolveResult(
            x=complex_of(real.x, imag.x, self._xp),
            residual=both(part.residual for part in results),
            steps=longer.steps,
            cycles=longer.cycles,
            history=longer.history,
            note=real.note or imag.note,
            finite=real.finite and imag.finite,
            claimed=both(part.claimed for part in results),
        )

    def solution(self, results: list[SolveResult]) -> Any:
        """Return the solutions of all columns in the shape of b."""
        return self._xp.stack([result.x for result in results], axis=1).reshape(self._shape)
