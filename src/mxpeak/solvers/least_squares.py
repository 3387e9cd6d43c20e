"""Least squares by a QR in low precision and refinement of the augmented system in the working precision.

    [ I   C ] [ r ]   [ f ]     tall A, min ||b - A x||:             C = A,    f = b,  g = 0,  x = y
    [ C^H 0 ] [ y ] = [ g ]     wide A, min ||x|| with A x = b:      C = A^H,  f = 0,  g = b,  x = r

C D = Q R, with powers of two D that scale the columns, is computed in low precision, and only R is kept. R^H R is
nearly D C^H C D. Elimination of r then gives an approximate inverse M^-1 (Björck 1987, corrected seminormal equations):

    y = D R^-1 R^-H D (C^H f - g),    r = f - C y

The residuals of both block rows are computed in the working precision (Björck 1967). The iteration converges like
condition·u of R, as long as each step gains digits. GMRES with M^-1 on the left refines the remaining columns (Carson,
Higham and Pranesh 2020, SIAM J. Sci. Comput. 42). Here, y stands for D^-1 y, and C for C D, which changes no result.

Refinement stops on a backward error for which each column of C has its own unit. With residuals f' and g' of both block
rows, r and y are an exact solution for C + E and b + e with ||e_j|| <= eta·||c_j|| and a similar bound for e, if

    ||f'|| <= eta·(Σ ||c_j|| |y_j| + ||r|| + ||f||),    |g'_j| <= eta·(||c_j|| ||r|| + |g_j|)

because E = -r (r^H C - g^H) / ||r||² removes g' (Stewart 1977). If r itself is as small as the first bound, y solves
C y = f, and the second condition does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, inf, isfinite, nan, sqrt
from typing import Any, NamedTuple

from mxpeak.distributed.spaces import ArraySpace
from mxpeak.errors import Outcome
from mxpeak.kernels.arrays import is_complex_array, probe_vector, random_signs
from mxpeak.kernels.contract import DenseKernels, Matrix, Vector
from mxpeak.kernels.contract.dense import Block, DType
from mxpeak.solvers.accuracy import worst
from mxpeak.solvers.array_factors import CHANGED, sizes_of_terms
from mxpeak.solvers.condition import inverse_one_norm
from mxpeak.solvers.forward_error import UNKNOWN, ErrorBound, bounds_of
from mxpeak.solvers.krylov import cycle, run_cycles, started
from mxpeak.solvers.refine import CLASSICAL_STEPS, GAIN, RESTART, columns_of
from mxpeak.solvers.scaling import powers, scale_rows, shifted

#: GMRES ends a cycle when it has reduced the preconditioned residual by this factor, because the predicted residual has
#: no more digits than R.
REDUCTION = 2.0**-20
#: Number of random vectors and of steps for estimates of the largest and the smallest singular value.
PROBES, POWER_STEPS = 4, 4
#: Largest order of R for which R^-1 takes less time than random vectors, and number of entries of a small A.
INVERTED, SMALL = 256, 2**20
#: Number of corrections with singular values. They are necessary only if the residual is small relative to b.
SVD_STEPS = 3
#: Right-hand sides outside 1/FAR to FAR are scaled, because the squares of their entries may overflow or underflow.
FAR = 2.0**50
#: A matrix with columns outside 1/END to END is scaled, because the augmented system contains squares of their sizes.
END, END_OF_SINGLE = 2.0**200, 2.0**40
#: A changed if one of its singular values differs by more than this part of the largest one.
UNCHANGED = 2.0**-30
Pair = tuple[Block, Block]


class Sensitivity(NamedTuple):
    """Relative changes of x that roundings of A and b cause.

    largest  change of the solution that changes most
    of_A     change if A x is as large as b, which depends only on A
    """

    largest: float
    of_A: float


class Errors(NamedTuple):
    """Backward errors of one column, in units of m·u.

    first     error of the first block row
    second    error of the second block row
    as_zero   error of the second block row if r is replaced by 0; inf for a wide A
    """

    first: float
    second: float
    as_zero: float

    @property
    def eta(self) -> float:
        """Return the backward error."""
        return max(self.first, min(self.second, self.as_zero))

    def gains(self, before: Errors, factor: float) -> bool:
        """Return whether the backward error, or the error of the second block row, fell by a factor."""
        return self.eta * factor <= before.eta or (self.eta <= before.eta and self.second * factor <= before.second)


class QrFactors:
    """The triangle R of C D = Q R, and the augmented system of C, for A of full rank.

    m, n        shape of C, m >= n
    wide        whether C is A^H
    sizes       norms of the columns of C D
    dtype       type in which R was computed
    """

    def __init__(self, kernels: DenseKernels, A: Matrix, dtype: DType):
        xp = kernels.xp
        self.kernels, self.xp, self.A, self.dtype = kernels, xp, A, dtype
        self.wide = A.shape[0] < A.shape[1]
        self.m, self.n = max(A.shape), min(A.shape)
        self.u = float(xp.finfo(A.dtype).eps) / 2
        self.is_complex = is_complex_array(A, xp)
        self.D = powers(self._largest_entries(), xp)
        R = kernels.triangle_of_qr(A.T if self.wide else A, self.D, dtype)
        self.R = xp.astype(self._conj(R) if self.wide else R, A.dtype, copy=False)
        self.sizes = _norms(xp, self.R)

    def _largest_entries(self) -> Vector:
        """Return the largest absolute entry of each column of C in fp64."""
        xp, A, axis = self.xp, self.A, 0 if self.wide else 1
        if self.m * self.n <= SMALL:
            return _widest(xp, xp.max(xp.abs(A), axis=1 - axis))
        return self.kernels.largest_entries(A, *(xp.ones(size, dtype=xp.float64) for size in A.shape))[axis]

    def _conj(self, V: Block) -> Block:
        return self.xp.conj(V) if self.is_complex else V

    def subtract_product(self, F: Block, Y: Block) -> Block:
        """Return F - C D Y."""
        Y = scale_rows(self.xp, self.D, Y)
        if not self.wide:
            return self.kernels.residual(F, self.A, Y)
        return self._conj(self.kernels.residual(self._conj(F), self.A.T, self._conj(Y)))

    def adjoint_product(self, X: Block) -> Block:
        """Return D C^H X."""
        zeros = self.xp.zeros((self.n, X.shape[1]), dtype=X.dtype)
        if self.wide:
            S = self.kernels.residual(zeros, self.A, X)
        else:
            S = self._conj(self.kernels.residual(zeros, self.A.T, self._conj(X)))
        return scale_rows(self.xp, -self.D, S)

    def residual(self, F: Block, G: Block, X: Block, Y: Block) -> Pair:
        """Return the residuals F - X - C D Y and G - D C^H X of both block rows."""
        return self.subtract_product(F - X, Y), G - self.adjoint_product(X)

    def solve(self, F: Block, G: Block) -> Pair:
        """Return M^-1 (F, G): the X and Y that solve the augmented system, up to the error of R."""
        solve = self.kernels.solve_triangle
        Y = solve(self.R, solve(self.R, self.adjoint_product(F) - G, adjoint=True))
        return self.subtract_product(F, Y), Y

    def errors(self, F: Block, G: Block, X: Block, Y: Block, residuals: Pair) -> list[Errors]:
        """Return the backward errors of each column, in units of m·u; inf if they are not finite."""
        xp = self.xp
        f, x = (_norms(xp, V) for V in (residuals[0], X))
        first = self._sizes_of_terms(F, X, Y)
        second = self.sizes[:, None] * x + _widest(xp, xp.abs(G))
        of_g = xp.max(_quotients(xp, _widest(xp, xp.abs(residuals[1])), second), axis=0)
        of_x = xp.full_like(x, inf) if self.wide else _quotients(xp, x, first)
        rows = ((errors / (self.m * self.u)).tolist() for errors in (_quotients(xp, f, first), of_g, of_x))
        return [Errors(*(error if error == error else inf for error in of_column)) for of_column in zip(*rows)]

    def _sizes_of_terms(self, F: Block, X: Block, Y: Block) -> Vector:
        """Return the sizes of the terms of the first block row for each column."""
        xp = self.xp
        return xp.sum(self.sizes[:, None] * _widest(xp, xp.abs(Y)), axis=0) + _norms(xp, X) + _norms(xp, F)

    def columns_with_small_residuals(self, F: Block, X: Block, Y: Block) -> list[int]:
        """Return the columns whose X has lost half of its digits by rounding errors of F - C Y."""
        small = _norms(self.xp, X) < small_residual(self.u) * self._sizes_of_terms(F, X, Y)
        return [j for j, is_small in enumerate(small.tolist()) if is_small]

    def abs_products(self, X: Block, Y: Block) -> Pair:
        """Return |C| D Y and D |C^H| X for X >= 0 and Y >= 0, in fp64."""
        xp, real = self.xp, self.xp.abs(self.A[:1]).dtype

        def product(A: Matrix, V: Block) -> Block:
            zeros = xp.zeros((A.shape[0], V.shape[1]), dtype=real)
            return _widest(xp, sizes_of_terms(self.kernels, A, xp.astype(V, real, copy=False), zeros))

        C, C_T = (self.A.T, self.A) if self.wide else (self.A, self.A.T)
        return product(C, scale_rows(xp, self.D, Y)), self.D[:, None] * product(C_T, X)

    def condition_bound(self) -> float:
        """Return an upper bound of the two-norm condition number of R, or inf if R is large, singular or not finite.

        The bound is computed from R^-1, because ||R||_2² <= ||R||_1·||R||_inf. It is at most n times too large.
        """
        xp, R = self.xp, self.R
        if self.n > INVERTED or not float(xp.min(xp.abs(R.diagonal()))) > 0.0:
            return inf
        squares = 1.0
        for T in (R, self.kernels.solve_triangle(R, xp.eye(self.n, dtype=R.dtype))):
            sizes = _widest(xp, xp.abs(T))
            squares *= float(xp.max(xp.sum(sizes, axis=0))) * float(xp.max(xp.sum(sizes, axis=1)))
        return sqrt(squares) if squares < inf else inf

    def condition(self) -> float:
        """Return an estimate of the two-norm condition number of R, or inf if R is singular or not finite.

        Power iteration with R^H R and its inverse for a few random vectors gives lower bounds of both norms, which are
        rarely too small by a factor of 2.
        """
        xp, R, solve = self.xp, self.R, self.kernels.solve_triangle
        if not float(xp.max(self.sizes)) < inf or not float(xp.min(xp.abs(R.diagonal()))) > 0.0:
            return inf
        zeros = xp.zeros((self.n, PROBES), dtype=R.dtype)

        def squared(V: Block) -> Block:
            W = -self.kernels.residual(zeros, R, V)
            return -self._conj(self.kernels.residual(zeros, R.T, self._conj(W)))

        largest = _power_iteration(xp, squared, self._random())
        inverse = _power_iteration(xp, lambda V: solve(R, solve(R, V, adjoint=True)), self._random())
        return sqrt(largest) * sqrt(inverse) if inverse < inf else inf

    def _random(self) -> Block:
        return self.xp.asarray(random_signs(self.n, PROBES) * probe_vector(self.n)[:, None], dtype=self.R.dtype)

    def sensitivity(self, F: Block, X: Block, Y: Block, condition: float, u: float) -> Sensitivity:
        """Return estimates of the largest relative change of a solution that roundings u of A and b cause.

        To first order, y changes by u·κ·(||y|| + (||f|| + κ·||r||) / ||C D||) for the condition number κ of C D, and x
        by max d_j times that (Wedin 1973). The minimum-norm solution changes by u·κ·||x||.
        """
        if self.wide:
            return Sensitivity(u * condition, u * condition)
        xp, y = self.xp, _widest(self.xp, self.xp.abs(Y))
        change = _norms(xp, Y) + (_norms(xp, F) + condition * _norms(xp, X)) / xp.max(self.sizes)
        relative = _quotients(xp, change * xp.max(self.D), xp.max(self.D[:, None] * y, axis=0))
        return Sensitivity(u * condition * worst(relative.tolist()), u * condition * (1.0 + condition))

    def probe(self) -> Block:
        """Return a random column G. The solution for it shows whether A has full rank."""
        return self.xp.asarray(probe_vector(self.n), dtype=self.R.dtype)[:, None]


def _power_iteration(xp: Any, B: Callable[[Block], Block], V: Block) -> float:
    """Return a lower bound of ||B||_2 for a Hermitian B, or inf if B V is not finite."""
    growth = 0.0
    for _ in range(POWER_STEPS):
        V = B(V / xp.astype(_norms(xp, V), V.dtype))
        growth = float(xp.max(_norms(xp, V)))
        if not 0.0 < growth < inf:
            return inf
    return growth


@dataclass(slots=True)
class AugmentedSolution:
    """The solution (X, Y) of the augmented system, with the errors of the worst column.

    eta        worst backward error, in units of m·u
    history    worst error at the start and after each step
    """

    X: Block
    Y: Block
    outcome: Outcome
    eta: float
    steps: int
    history: list[float]


def solve_augmented(
    factors: QrFactors, F: Block, G: Block, *, target: float, enough: float, gmres_steps: int
) -> AugmentedSolution:
    """Solve for all columns by refinement, and by GMRES for columns whose error still exceeds `enough`.

    Classical refinement ends at an error of `target`, or if a step divides the error by less than GAIN.
    """
    xp = factors.xp
    X, Y = factors.solve(F, G)
    f, g = factors.residual(F, G, X, Y)
    errors = factors.errors(F, G, X, Y, (f, g))
    history, steps = [worst([error.eta for error in errors])], 0
    pending = [j for j, error in enumerate(errors) if target < error.eta < inf]
    while pending and steps < CLASSICAL_STEPS:
        F_p, G_p, X_p, Y_p, f_p, g_p = (columns_of(xp, V, pending) for V in (F, G, X, Y, f, g))
        dX, dY = factors.solve(_without_rounding(xp, f_p, [errors[j] for j in pending], target), g_p)
        X_p, Y_p = X_p + dX, Y_p + dY
        f_p, g_p = factors.residual(F_p, G_p, X_p, Y_p)
        now, continued = factors.errors(F_p, G_p, X_p, Y_p, (f_p, g_p)), []
        for k, j in enumerate(pending):
            if target < now[k].eta and now[k].gains(errors[j], GAIN):
                continued.append(j)
            if now[k].gains(errors[j], 1.0):
                errors[j] = now[k]
                for V, V_p in ((X, X_p), (Y, Y_p), (f, f_p), (g, g_p)):
                    V[:, j] = V_p[:, k]
        steps, pending = steps + 1, continued
        history.append(worst([error.eta for error in errors]))
    etas = [error.eta for error in errors]
    for j in [j for j, eta in enumerate(etas) if not eta <= enough]:
        column = _AugmentedColumn(factors, *(V[:, j : j + 1] for V in (F, G, X, Y)), target=target)
        done = run_cycles(column.residual, column.correct, restart=RESTART, max_steps=gmres_steps, tolerance=enough)
        if done.residual < etas[j]:
            X[:, j : j + 1], Y[:, j : j + 1], etas[j] = column.X, column.Y, done.residual
        steps = max(steps, len(history) - 1 + done.steps)
        if not done.residual <= enough:
            break
    eta = worst(etas)
    if steps > len(history) - 1:
        history.append(eta)
    finite = bool(xp.all(xp.isfinite(X))) and bool(xp.all(xp.isfinite(Y)))
    outcome = Outcome.NOT_FINITE if not finite else Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
    return AugmentedSolution(X, Y, outcome, eta, steps, history)


def small_residual(u: float) -> float:
    """Return the size of a residual r, relative to the terms of b - C y, for which half of its digits are correct.

    A smaller r is computed from r' = b - C y with twice the digits. The solution (r, y') of the augmented system for
    f = r' and g = 0 contains the r of the exact minimizer y + y', because y' is as small as the error of y.
    """
    return sqrt(u)


def _without_rounding(xp: Any, f: Block, errors: list[Errors], target: float) -> Block:
    """Return f with zeros in columns whose error is at most `target`.

    Such a column contains little more than rounding errors of size u·||C||·||y||. Correcting it adds errors of size
    κ·u²·||C||·||y|| to r, which may be large relative to a small r.
    """
    return f * xp.asarray([float(error.first > target) for error in errors], dtype=f.dtype)


class _AugmentedColumn:
    """GMRES for one column (x, y). Both parts are scaled to norm 1, so that both affect the norm of a correction."""

    def __init__(self, factors: QrFactors, F: Block, G: Block, X: Block, Y: Block, *, target: float):
        xp = factors.xp
        self._factors, self._F, self._G, self._target = factors, F, G, target
        self.X, self.Y = xp.asarray(X, copy=True), xp.asarray(Y, copy=True)
        self._scales = [1.0 / (float(norm[0]) or 1.0) for norm in (_norms(xp, X), _norms(xp, Y))]
        self._space = ArraySpace(xp, xp.empty((factors.m + factors.n, 1), dtype=F.dtype))

    def residual(self) -> float:
        """Compute the residuals of both block rows, and return the backward error."""
        residuals = f, g = self._factors.residual(self._F, self._G, self.X, self.Y)
        errors = self._factors.errors(self._F, self._G, self.X, self.Y, residuals)[0]
        self._residuals = _without_rounding(self._factors.xp, f, [errors], self._target), g
        self._eta = errors.eta
        return self._eta

    def correct(self, steps: int) -> list[float]:
        """Correct X and Y by one cycle of at most `steps` steps, and return the predicted errors."""
        Q, rho = started(self._space, self._joined(*self._factors.solve(*self._residuals)), steps)
        d, estimates = cycle(self._operator, Q, rho, steps, REDUCTION * rho)
        dX, dY = self._parts(d)
        self.X, self.Y = self.X + dX, self.Y + dY
        return [self._eta * estimate / rho if rho else 0.0 for estimate in estimates]

    def _operator(self, q: Block) -> Block:
        X, Y = self._parts(q)
        return self._joined(
            *self._factors.solve(-self._factors.subtract_product(-X, Y), self._factors.adjoint_product(X))
        )

    def _joined(self, X: Block, Y: Block) -> Block:
        return self._factors.xp.concat([X * self._scales[0], Y * self._scales[1]])

    def _parts(self, v: Block) -> Pair:
        m = self._factors.m
        return v[:m] / self._scales[0], v[m:] / self._scales[1]


def solve_by_svd(
    kernels: DenseKernels, A: Matrix, B: Block, rcond: float, *, enough: float
) -> tuple[Block, Block, list[float], int, Vector]:
    """Return the X of minimum norm, R = B - A X, the worst error after each correction, the rank and singular values.

    X and R are corrected while their error exceeds `enough`, at most SVD_STEPS times. The backward error
    is that of `QrFactors.errors` for tall A. It does not show whether X has minimum norm.
    """
    X, rank, values = kernels.solve_by_svd(A, B, rcond)
    R = kernels.residual(B, A, X)
    history = [worst(_stationarity(kernels, A, X, R, B))]
    while enough < history[-1] < inf and len(history) <= SVD_STEPS:
        dX, _, _ = kernels.solve_by_svd(A, R, rcond)
        X, R = X + dX, kernels.residual(R, A, dX)
        history.append(worst(_stationarity(kernels, A, X, R, B)))
    return X, R, history, rank, values


def pseudoinverse_condition(kernels: DenseKernels, A: Matrix, rcond: float, values: Vector) -> float:
    """Return ||A||_1·||A^+||_1 of an A of full rank, or NaN if its singular values are no longer `values`."""
    xp, tall = kernels.xp, A.shape[0] >= A.shape[1]
    M = (xp.conj(A.T) if is_complex_array(A, xp) else A.T) if tall else A
    # The solution is (A^+)^H or A^+, because each product with the pseudoinverse is a solution of minimum norm.
    V, _, now = kernels.solve_by_svd(M, xp.eye(M.shape[0], dtype=A.dtype), rcond)
    if not bool(xp.all(xp.abs(now - values) <= UNCHANGED * values[0])):
        return nan
    return float(xp.max(xp.sum(xp.abs(A), axis=0))) * float(xp.max(xp.sum(xp.abs(V), axis=1 if tall else 0)))


def svd_sensitivity(xp: Any, X: Block, R: Block, values: list[float], rank: int, u: float) -> Sensitivity:
    """Return estimates of the largest relative change of X that roundings u of A and B cause.

    A rounding must not exchange the singular vectors of the smallest kept and the largest dropped value. X also changes
    by u·κ·(1 + κ·||r|| / (σ_1·||x||)) with the condition number κ of the kept values (Wedin 1973).
    """
    kept, dropped = values[rank - 1] if rank else 0.0, values[rank] if rank < len(values) else 0.0
    if not kept:
        return Sensitivity(0.0, 0.0)
    kappa = values[0] / kept
    relative = _quotients(xp, _safe_norms(xp, R), values[0] * _safe_norms(xp, X))
    of_gap = values[0] / (kept - dropped) * sqrt(max(len(X), len(R))) if kept > dropped else inf
    sizes = worst(relative.tolist()), 1.0
    return Sensitivity(*(u * max(of_gap, kappa * (1.0 + kappa * size)) for size in sizes))


def central_exponent(xp: Any, A: Matrix) -> int:
    """Return e for which the columns of 2^e A, or its rows if A is wide, have sizes around 1.

    Return 0 if the squares of these sizes are well within the range; usually, only the first row is examined.
    """
    end = END_OF_SINGLE if xp.finfo(A.dtype).bits == 32 else END
    axis = 0 if A.shape[0] >= A.shape[1] else 1
    if 1.0 / end < max(_largest_parts(xp, A[:1], 1)) < end:
        return 0
    sizes = [size for size in _largest_parts(xp, A, axis) if size > 0.0]
    if not sizes or (1.0 / end < min(sizes) and max(sizes) < end):
        return 0
    return -(frexp(min(sizes))[1] + frexp(max(sizes))[1]) // 2


def _largest_parts(xp: Any, V: Block, axis: int) -> list[float]:
    """Return the largest |Re v| or |Im v| of each column (axis 0) or row."""
    sizes = xp.maximum(xp.abs(xp.real(V)), xp.abs(xp.imag(V))) if is_complex_array(V, xp) else xp.abs(V)
    return list(xp.max(sizes, axis=axis).tolist())


def unit_exponents(xp: Any, B: Block) -> list[int]:
    """Return exponents e_j for which the largest |2^e_j b_ij| are in [1/2, 1), or 0 if no square may overflow."""
    sizes = _largest_parts(xp, B, 0)
    return [-frexp(size)[1] if size and not 1.0 / FAR < size < FAR else 0 for size in sizes]


def rounding(xp: Any, x: Block, X: Block, exponents: list[int]) -> ErrorBound:
    """Return the largest changes of x by its conversion to X = 2^e_j x_j, relative to each column and to each entry.

    The changes are inf if X overflows.
    """
    if X.dtype == x.dtype and not any(exponents):
        return ErrorBound(0.0, 0.0)
    back = shifted(xp, xp.astype(X, x.dtype, copy=False), [-e for e in exponents])
    change, size = xp.abs(back - x), xp.abs(x)
    of_columns = _quotients(xp, xp.max(change, axis=0), xp.max(size, axis=0))
    of_entries = xp.max(_quotients(xp, change, size), axis=0)
    return ErrorBound(worst(of_columns.tolist()), worst(of_entries.tolist()))


def _stationarity(kernels: DenseKernels, A: Matrix, X: Block, R: Block, B: Block) -> list[float]:
    """Return the backward error of each column of X, in units of max(m, n)·u, given R, which is nearly B - A X."""
    xp, is_complex = kernels.xp, is_complex_array(A, kernels.xp)
    sizes, zeros = _safe_norms(xp, A), xp.zeros((A.shape[1], B.shape[1]), dtype=A.dtype)
    g = kernels.residual(zeros, A.T, xp.conj(R) if is_complex else R)
    r, f = _safe_norms(xp, R), _safe_norms(xp, kernels.residual(B - R, A, X))
    first = xp.sum(sizes[:, None] * _widest(xp, xp.abs(X)), axis=0) + _safe_norms(xp, B)
    of_g = xp.max(_quotients(xp, _widest(xp, xp.abs(g)), sizes[:, None] * r), axis=0)
    of_g = xp.minimum(of_g, _quotients(xp, r, first))
    u = float(xp.finfo(A.dtype).eps) / 2
    etas = xp.maximum(_quotients(xp, f, first), of_g) / (max(A.shape) * u)
    return [eta if isfinite(eta) else inf for eta in etas.tolist()]


@dataclass(slots=True)
class Solved:
    """A solution of the augmented system and its backward error, to detect that A changed after the solve."""

    factors: QrFactors
    F: Block
    G: Block
    X: Block
    Y: Block
    eta: float

    def unchanged(self) -> bool:
        """Return whether the backward error shows that A and the solution are those of the solve."""
        residuals = self.factors.residual(self.F, self.G, self.X, self.Y)
        now = worst([error.eta for error in self.factors.errors(self.F, self.G, self.X, self.Y, residuals)])
        return now <= CHANGED * (self.eta + 1.0)


def condition_number(solved: Solved) -> float:
    """Return ||A||_1·||A^+||_1 with an estimate for the pseudoinverse A^+, or NaN if A changed."""
    with solved.factors.kernels.computing():
        if not solved.unchanged():
            return nan
        factors = solved.factors
        xp, A, D = factors.xp, factors.A, factors.D
        by_row, by_column = (xp.zeros(size, dtype=xp.float64) for size in A.shape)
        factors.kernels.abs_sums(A, by_row, by_column)

        def from_m(v: Vector) -> Vector:
            """Return (C^H C)^-1 C^H v."""
            return D * _refined(factors, v, xp.zeros(factors.n, dtype=v.dtype))[1]

        def from_n(v: Vector) -> Vector:
            """Return C (C^H C)^-1 v."""
            return _refined(factors, xp.zeros(factors.m, dtype=v.dtype), D * v)[0]

        times, adjoint = (from_n, from_m) if factors.wide else (from_m, from_n)
        rows = A.shape[0]
        norm = inverse_one_norm(times, adjoint, xp.arange(rows), rows, A.dtype, xp)
        return max(1.0, float(xp.max(by_column)) * norm)


def error_bound(solved: Solved) -> ErrorBound:
    """Return bounds of the relative forward error of the solution, Y of a tall and X of a wide A; NaN if A changed.

    The errors of r and y are at most |K^-1| w for the matrix K of the augmented system. w contains the residuals and
    bounds of their rounding errors, |f'| + c·(n + 2)·u·(|C||y| + |r| + |f|) and |g'| + c·(m + 1)·u·(|C^H||r| + |g|).
    `forward_error.bounds_of` estimates the rows of |K^-1| w that belong to the solution.
    """
    with solved.factors.kernels.computing():
        if not solved.unchanged():
            return UNKNOWN
        factors, F, G, X, Y = solved.factors, solved.F, solved.G, solved.X, solved.Y
        xp, m, n = factors.xp, factors.m, factors.n
        c = factors.u * (2.0 * sqrt(2.0) if factors.is_complex else 1.0)
        f, g = (_widest(xp, xp.abs(V)) for V in factors.residual(F, G, X, Y))
        X_abs, Y_abs, F_abs, G_abs = (_widest(xp, xp.abs(V)) for V in (X, Y, F, G))
        C_Y, C_X = factors.abs_products(X_abs, Y_abs)
        W = xp.concat([f + (n + 2) * c * (C_Y + X_abs + F_abs), g + (m + 1) * c * (C_X + G_abs)])
        solution = X_abs if factors.wide else Y_abs * factors.D[:, None]

        def times(v: Vector) -> Vector:
            """Return the rows of K^-1 v that belong to the solution."""
            x, y = _refined(factors, v[:m], v[m:])
            return x if factors.wide else factors.D * y

        def adjoint(v: Vector) -> Vector:
            """Return K^-1 v for a v with zeros in the other rows."""
            zeros = xp.zeros(n if factors.wide else m, dtype=v.dtype)
            return xp.concat(_refined(factors, *((v, zeros) if factors.wide else (zeros, factors.D * v))))

        return bounds_of(xp, times, adjoint, W, solution, F.dtype)


def _refined(factors: QrFactors, f: Vector, g: Vector) -> Pair:
    """Return the solution of one augmented system, refined until a step no longer gains digits."""
    F, G = (factors.xp.astype(v, factors.A.dtype, copy=False)[:, None] for v in (f, g))
    done = solve_augmented(factors, F, G, target=1.0, enough=inf, gmres_steps=0)
    return done.X[:, 0], done.Y[:, 0]


def _widest(xp: Any, V: Block) -> Block:
    return xp.astype(V, xp.float64, copy=False)


def _norms(xp: Any, V: Block) -> Vector:
    """Return the two-norm of each column in fp64."""
    return xp.sqrt(xp.sum(_widest(xp, xp.abs(V)) ** 2, axis=0))


def _safe_norms(xp: Any, V: Block) -> Vector:
    """Return the two-norm of each column in fp64, without overflow or underflow of squares."""
    sizes = _widest(xp, xp.abs(V))
    scales = powers(xp.max(sizes, axis=0), xp)
    return _norms(xp, sizes * scales) / scales


def _quotients(xp: Any, a: Block, b: Block) -> Block:
    """Return a / b, and 0 for 0 / 0."""
    return xp.where(a == 0.0, xp.zeros_like(a), a / xp.where(a == 0.0, xp.ones_like(b), b))
