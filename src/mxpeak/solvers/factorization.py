"""Factors of a matrix, in any precision and on any number of ranks: the interface, and estimates from a few solves.

    A_s = R A C,    P A_s = L U,    A^-1 = C A_s^-1 R

R and C are powers of two. `ArrayFactors` are the factors on one process, from LAPACK, a device or the compiled
elimination of small systems. `SymmetricFactors` are Cholesky or L D L^T factors. `GridFactors` are those on a
process grid. `DeflatedFactors` wrap `ArrayFactors` if one singular value of A is small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from math import inf, log, sqrt
from typing import Any, NamedTuple

from mxpeak.kernels.contract import Vector
from mxpeak.kernels.contract.dense import Block
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.condition import PROBED, SERIAL, Reductions, inverse_one_norm
from mxpeak.solvers.refine import Equations, RefinedColumns, solution_growth

#: If condition·u exceeds this value, with the roundoff u of the factors, 50 steps of GMRES were never enough
#: (experiments with n = 300).
HOPELESS = 2.0**10
#: Relative size of the smallest pivot, or of a correction, that indicates an ill-conditioned matrix.
DOUBT = 2.0**-16
#: Largest part of a random right-hand side that a step of refinement with lagged factors may leave. If A is singular,
#: the part is close to 1.
LAGGED_REMAINDER = 0.75
#: A singular matrix is excluded if the remaining part is at most 1/REDUCED, times 1/sqrt(n), after at most REDUCTIONS
#: steps, because the component of a random right-hand side along a null vector is about 1/sqrt(n).
REDUCED, REDUCTIONS = 16.0, 6


def largest_useful_condition(precision: str) -> float:
    """Return the largest condition number for which GMRES converges with factors in this precision."""
    return HOPELESS / PRECISIONS[precision].u


def coarser_than_fp32(precision: str) -> bool:
    """Return whether a precision is coarser than fp32; a single solve then does not reveal a large condition number."""
    return PRECISIONS[precision].u > PRECISIONS["fp32"].u


class Factorization(ABC):
    """Factors of A_s, and estimates of its condition number; on a grid, all methods are collective.

    n, precision    order of A, precision of the factors
    name            LU, Cholesky or LDL^T
    lagged          whether these are the factors of an earlier matrix, which is close to A
    stable          whether pivoting bounds the growth, so that fp64 factors need no corrections of single rows
    dtype           type of the factors
    A_inf, A_one    ||A_s||_inf and ||A_s||_1
    singular        the first zero pivot, counted from 1; 0 if there is none
    scaled          whether rows and columns are scaled
    condition_of_A  cached by `forward_error.condition_number`
    """

    kernels: Any
    n: int
    precision: str
    name: str = "LU"
    lagged: bool = False
    stable: bool = True
    dtype: Any
    A_inf: float
    A_one: float
    singular: int
    scaled: bool
    condition_of_A: float | None = None
    # Not a `cached_property`, which holds a lock: ranks that are threads compute the value together.
    _condition: float | None = None
    _probe: float | None = None
    _by_gmres: float | None = None

    @abstractmethod
    def solve(self, B: Block) -> Block:
        """Return A_s^-1 B, for a vector or a block of columns in the type of the factors."""

    @abstractmethod
    def solve_transposed(self, B: Block) -> Block:
        """Return A_s^-T B."""

    @abstractmethod
    def equations(self, *, scaled: bool) -> Equations:
        """Return the equations A X = B or, if `scaled`, A_s Y = B_s."""

    @abstractmethod
    def random(self) -> Vector:
        """Return a random vector over the rows of A, with entries of either sign and absolute values of 1 to 2."""

    @abstractmethod
    def is_doubtful(self, equations: Equations, columns: RefinedColumns, enough: float) -> bool:
        """Return whether A may still be singular to working precision, given the refined columns."""

    @property
    @abstractmethod
    def growth(self) -> float:
        """Return max |u_ij| / max |a_ij|, or inf if an entry of U is not finite."""

    @property
    @abstractmethod
    def pivots_balanced(self) -> bool:
        """Return whether the pivots show no sign of singularity; some singular matrices also have such pivots."""

    @property
    @abstractmethod
    def row_indices(self) -> Vector:
        """Return the indices of this rank's rows of A."""

    @property
    def xp(self) -> Any:
        """Return the array namespace of the factors."""
        return self.kernels.xp

    @property
    def reductions(self) -> tuple[Reductions, Reductions]:
        """Return the reductions over the ranks of the rows, and of the columns, of A."""
        return SERIAL, SERIAL

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the kernels compute."""
        return nullcontext()

    @property
    def condition(self) -> float:
        """Return ||A_s||_1·||A_s^-1||_1, with ||A_s^-1||_1 estimated by four to six solves; the result is cached."""
        if self._condition is None:
            self._condition = inf if self.singular else self.A_one * self._inverse_one_norm()
        return self._condition

    def _inverse_one_norm(self) -> float:
        xp, (over_rows, over_columns) = self.xp, self.reductions
        conj: Any = xp.conj if xp.isdtype(self.dtype, "complex floating") else lambda x: x

        def solve_adjoint(c: Vector) -> Vector:
            return conj(self.solve_transposed(conj(c)))

        with self.computing():
            return inverse_one_norm(
                self.solve, solve_adjoint, self.row_indices, self.n, self.dtype, xp, X=over_rows, Y=over_columns
            )

    @property
    def probe(self) -> float:
        """Solve A_s z = s for random s, and return ||A_s||·||z|| / 2 in infinity norms, cached.

        The entries of s have sizes from 1 to 2. The result is a lower bound of ||A_s||·||A_s^-1|| that is rarely far
        below it.

        If A is singular and b is in its range, neither the residual nor a correction shows that x is arbitrary. The
        size of z shows it, and the condition number is then estimated.
        """
        if self._probe is None:
            with self.computing():
                z = self.solve(self.xp.astype(self.random(), self.dtype, copy=False))
                self._probe = self.A_inf * self.equations(scaled=True).unknowns.max_abs(z) / 2.0
        return self._probe

    def condition_by_gmres(self, steps: int) -> float:
        """Solve A_s z = s by GMRES for random s and return ||A_s||·||z|| / ||s||, or inf if GMRES does not converge.

        Factors coarser than fp32 cannot distinguish a large condition number from infinity.
        """
        if self._by_gmres is None:
            with self.computing():
                self._by_gmres = solution_growth(self.equations(scaled=True), self.random(), steps)
        return self._by_gmres

    def singular_to(self, u: float) -> bool:
        """Return whether the condition number is at least 1/u; estimate it only if the probe is large."""
        return not self.probe * u <= PROBED / 2.0 and (self.probe * u >= 1.0 or self.condition * u >= 1.0)

    @property
    def usable_for_gmres(self) -> bool:
        """Return whether GMRES may converge with these factors."""
        return self.lagged or self.condition <= largest_useful_condition(self.precision)

    @property
    def may_hide_singularity(self) -> bool:
        """Return whether the factors are in fp32 and cannot distinguish A from a singular matrix."""
        return self.precision == "fp32" and self.singular_to(PRECISIONS["fp32"].u)


class Convergence(NamedTuple):
    """The convergence of refinement for a random right-hand side.

    contraction  the part that the first step leaves
    steps        the number of steps to an error of n·u; inf if A may be singular
    """

    contraction: float
    steps: float


def convergence(factors: Factorization, equations: Equations) -> Convergence:
    """Refine z = M^-1 s for random s, and predict the number of steps.

    The error of z after p steps is (I - M^-1 A)^p z. If A is singular, this power leaves a null vector of A unchanged.
    """
    d = equations.solve(factors.random()[:, None])
    size = before = equations.unknowns.max_abs(d)
    contraction = inf
    for step in range(1, REDUCTIONS + 1):
        d = d - equations.solve(equations.multiply(d))
        remaining = equations.unknowns.max_abs(d)
        if step == 1 and remaining < inf and size:
            contraction = remaining / size
        if remaining * REDUCED * sqrt(factors.n) <= size:
            rate = max(remaining / size, equations.u) if size else equations.u
            return Convergence(contraction, step * log(factors.n * equations.u) / log(rate))
        if not remaining <= LAGGED_REMAINDER * before:
            break
        before = remaining
    return Convergence(contraction, inf)


def hints_at_singularity(factors: Factorization, equations: Equations, columns: RefinedColumns) -> bool:
    """Return whether the pivots, or one more correction of the worst column, indicate a condition number near 1/u."""
    if columns.R is None or not factors.pivots_balanced:
        return not factors.pivots_balanced
    j = columns.etas.index(max(columns.etas))
    correction = equations.unknowns.max_abs(equations.solve(equations.column(columns.R, j)))
    return not correction <= DOUBT * equations.unknowns.max_abs(equations.column(columns.X, j))
