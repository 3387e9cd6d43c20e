"""Solve one system with LAPACK on the host, in the data type of the input, and check the result.

    [X z] = A^-1 [B s],    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u),    ||A||·||z||·u

The entries of s are random numbers. ||A||·||z|| is rarely far below the condition number and costs one more column. If
eta is small and ||A||·||z||·u is large, the condition number is estimated. If eta is large, the factors are passed to
refinement. The check takes O(n²) operations in few calls, because calls are expensive. At n = 50, LAPACK takes 14 µs,
a NumPy function takes 1 µs, and a BLAS wrapper of SciPy takes a third of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.kernels import choose
from mxpeak.kernels.arrays import probe_vector
from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.contract.dense import FEW_COLUMNS, PivotedLU, SymmetricFactor, Triangle
from mxpeak.library.dense.info import Estimates, SolveInfo, note_of_singularity
from mxpeak.library.dense.inputs import lies_well
from mxpeak.library.types import Array, own_precision, roundoff
from mxpeak.solvers.accuracy import SAMPLED, plain_lu
from mxpeak.solvers.array_factors import ArrayFactors, MatrixNorms, ScaledMatrix
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.forward_error import ErrorBound, error_bound
from mxpeak.solvers.residual import backward_error
from mxpeak.solvers.scaling import Ends, balanced, safe_minimum
from mxpeak.solvers.symmetric_factors import CHOLESKY, SymmetricFactors

#: Below this order, a row-major matrix is transposed into a copy for one call of LAPACK; from this order on, the copy
#: costs more than separate calls for factors and solves.
COPIED_BELOW = 256
#: From this order on, two solves with a vector take less time than one with two columns, which takes fewer calls.
INDIVIDUALLY_FROM = 128
#: Number of entries whose absolute values are summed together, so that they stay in the second-level cache.
CACHED = 1 << 16
#: Letters that denote a type and the type of its absolute values in the names of LAPACK routines.
LETTERS = {np.dtype(name): letters for name, letters in zip("dfDF", (("d", "d"), ("s", "s"), ("z", "d"), ("c", "s")))}


class Routines(NamedTuple):
    """SciPy's BLAS and LAPACK routines for one type and its real type, with its roundoff u and safe minimum."""

    gesv: Callable[..., Any]
    getrf: Callable[..., Any]
    getrs: Callable[..., Any]
    gecon: Callable[..., Any]
    lange: Callable[..., Any]
    gemv: Callable[..., Any]
    gemm: Callable[..., Any]
    potrf: Callable[..., Any]
    potrs: Callable[..., Any]
    pocon: Callable[..., Any]
    geqrf: Callable[..., Any]
    trtrs: Callable[..., Any]
    trtri: Callable[..., Any]
    trsv: Callable[..., Any]
    symv: Callable[..., Any]
    symm: Callable[..., Any]
    sums: Callable[..., Any]
    largest: Callable[..., Any]
    argmax: Callable[..., Any]
    sums_of_triangle: Callable[..., Any]
    sizes: Callable[[Array], Array]
    real: np.dtype[Any]
    precision: str
    u: float
    low: float


@cache
def routines(dtype: np.dtype[Any]) -> Routines:
    """Return SciPy's BLAS and LAPACK routines for a type. SciPy is imported on first use."""
    from scipy.linalg import blas, lapack

    of, real = LETTERS[dtype]
    return Routines(
        **{
            name: getattr(lapack, of + name)
            for name in (
                "gesv",
                "getrf",
                "getrs",
                "gecon",
                "lange",
                "potrf",
                "potrs",
                "pocon",
                "geqrf",
                "trtrs",
                "trtri",
            )
        },
        **{name: getattr(blas, of + name) for name in ("gemv", "gemm", "trsv")},
        symv=getattr(blas, of + ("hemv" if dtype.kind == "c" else "symv")),
        symm=getattr(blas, of + ("hemm" if dtype.kind == "c" else "symm")),
        sums=getattr(blas, real + "gemv"),
        sums_of_triangle=getattr(blas, real + "symv"),
        largest=getattr(lapack, real + "lange"),
        argmax=getattr(blas, f"i{real}amax"),
        sizes=_sizes if dtype.kind == "c" else np.abs,
        real=np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype,
        precision=own_precision(dtype),
        u=roundoff(dtype),
        low=safe_minimum(np, dtype),
    )


def _sizes(A: Array) -> Array:
    """Return |a_ij| of a complex matrix, with inf for absolute values that overflow."""
    with np.errstate(over="ignore"):
        return np.abs(A)


@lru_cache(maxsize=64)
def _ones(n: int, dtype: np.dtype[Any]) -> Array:
    return np.ones(n, dtype)


class DirectSolution(NamedTuple):
    """The solution X of A X = B and the factors of A in its own type, from LAPACK or from the small LU.

    of           LAPACK's routines for the type
    history      the worst backward error, followed by that after the correction if one was necessary
    enough       whether the last error is as small as that of a stable solver
    probe        ||A||·||z||·u for the solution z of A z = s with a random s
    LU, pivots   the factors of A^T if `transposed`, otherwise of A; pivots are counted from 0
    norms        ||A||_inf, ||A||_1 and max |a_ij|
    """

    of: Routines
    X: Array
    history: tuple[float, ...]
    enough: bool
    probe: float
    LU: Callable[[], Array]
    pivots: Array
    transposed: bool
    norms: tuple[float, float, float]
    name: str = "LU"

    def condition(self) -> float:
        """Estimate the condition number ||A||_1·||A^-1||_1 from the factors (Higham 1988).

        For factors of A^T, the estimate uses infinity norms.
        """
        rcond, _ = self.of.gecon(self.LU(), self.norms[1], norm="I" if self.transposed else "1")
        return 1.0 / rcond if rcond else inf

    def factors(self, kernels: DenseKernels, A: Array) -> ArrayFactors:
        """Convert the factors of A to the `ArrayFactors` that refinement uses."""
        lu = PivotedLU(np.asfortranarray(self.LU()), self.pivots + np.int32(1), transposed=True, singular=0)
        norms = MatrixNorms(*self.norms)
        matrix = ScaledMatrix(kernels, A, self.transposed, None, norms.inf, norms, None)
        return ArrayFactors(matrix, lu, self.of.precision)

    def error_bound(self, A: Any, b: Array) -> ErrorBound:
        """Return bounds of the forward error of X."""
        n, A = len(A), A if lies_well(A) else np.array(A)
        factors = self.factors(choose.dense(None), A)
        return error_bound(factors, self.X.reshape(n, -1), b.reshape(n, -1), self.history[-1], b.size // n)

    def growth(self) -> float:
        """Return max |u_ij| / max |a_ij|."""
        return self.factors(choose.dense(None), self.LU()).growth


class CholeskySolution(NamedTuple):
    """The solution X of A X = B, and the Cholesky factor of A in its own type.

    The factor is from LAPACK or from the compiled factorization.

    of       LAPACK's routines for the type
    history  the worst backward error, followed by that after the correction if one was necessary
    enough   whether the last error is as small as that of a stable solver
    probe    ||A||·||z||·u for the solution z of A z = s with a random s
    C        the factor of A, or of its conjugate if `of_conjugate`, in column-major order
    lower    whether C is lower triangular
    norm     ||A||_inf
    W        a matrix with the diagonal of A
    """

    of: Routines
    X: Array
    history: tuple[float, ...]
    enough: bool
    probe: float
    C: Callable[[], Array]
    lower: bool
    norm: float
    W: Array
    of_conjugate: bool
    name: str = CHOLESKY

    @property
    def largest(self) -> float:
        """Return max |a_ii|."""
        return float(np.abs(self.W.diagonal().real).max())

    def condition(self) -> float:
        """Estimate the condition number ||A||_1·||A^-1||_1 from the factor (Higham 1988)."""
        rcond, _ = self.of.pocon(self.C(), self.norm, uplo="L" if self.lower else "U")
        return 1.0 / rcond if rcond else inf

    def error_bound(self, A: Any, b: Array) -> ErrorBound:
        """Return bounds of the forward error of X."""
        n = len(A)
        norms = MatrixNorms(self.norm, self.norm, self.largest)
        matrix = ScaledMatrix(choose.dense(None), A, True, None, self.norm, norms, None)
        C = Triangle(self.C(), self.lower, True)
        F = SymmetricFactor(C, None, transposed=self.of_conjugate, breakdown=0)
        factors = SymmetricFactors(matrix, F, self.of.precision)
        return error_bound(factors, self.X.reshape(n, -1), b.reshape(n, -1), self.history[-1], b.size // n)

    def growth(self) -> float:
        """Return max l_ii² / max |a_ii|."""
        return float(np.abs(self.C().diagonal()).max()) ** 2 / self.largest


def solve_by_lapack(A: Array, B: Array) -> DirectSolution | None:
    """Solve A X = B for A (n, n) and B (n,) or (n, k) of one type, and check the result.

    Returns None if A needs scaling or a pivot is zero.
    """
    of, n = routines(A.dtype), len(A)
    by_rows = not A.flags.f_contiguous
    W = np.ascontiguousarray(A).T if by_rows else A
    across, down, A_max = _sums(W, of)
    rows, columns = (down, across) if by_rows else (across, down)
    if not balanced(rows, columns):
        return None
    A_inf, A_one = rows[1], columns[1]
    k = 1 if B.ndim == 1 else B.shape[1]
    Z = np.empty((k + 1, n), A.dtype)
    Z[:k], Z[k] = B.T, probe_vector(n)
    transposed = by_rows and n >= COPIED_BELOW
    if transposed:
        LU, pivots, zero = of.getrf(W)
        for part in (Z[:1], Z[1:]) if k == 1 else (Z,):  # BLAS solves for one vector in a third of the time for two
            of.getrs(LU, pivots, part.T, trans=1, overwrite_b=1)
    else:
        LU, pivots, _, zero = of.gesv(A, Z.T, overwrite_b=1)
    if zero:
        return None
    X, history = Z[:k].T, []
    enough = plain_lu(n, k, is_complex=A.dtype.kind == "c")
    products = Products(
        lambda x, b: of.gemv(-1.0, W, x, 1.0, b, trans=by_rows),
        lambda X, B: of.gemm(-1.0, W, X, 1.0, B, trans_a=by_rows),
    )
    for correct in (k <= SAMPLED, False):
        R, eta, suits = checked_residual(products, of, A_inf, X, B)
        history.append(eta)
        if not correct or not enough < eta < inf:
            break
        X += of.getrs(LU, pivots, R, trans=transposed)[0]
    probe = A_inf * of.lange("M", Z[k]) * of.u
    x, solved = Z[0].copy() if B.ndim == 1 else X.copy("C"), suits and eta <= enough
    return DirectSolution(of, x, tuple(history), solved, probe, lambda: LU, pivots, transposed, (A_inf, A_one, A_max))


def solve_by_cholesky(A: Triangle, B: Array) -> CholeskySolution | None:
    """Solve A X = B for a positive definite A, in the type of A and B, and check the result.

    Returns None if A needs scaling or a leading minor is not positive.
    """
    of, n, by_rows = routines(A.dtype), len(A), not A.array.flags.f_contiguous
    W, lower = (np.ascontiguousarray(A.array).T, not A.lower) if by_rows else (A.array, A.lower)
    conj = by_rows and A.dtype.kind == "c"  # W is the conjugate of A
    B = np.conj(B) if conj else B
    sums = _sums_of_triangle(W, of, lower=lower)
    A_inf = of.largest("M", sums)
    ends = min(sums.tolist()), A_inf  # for few numbers, NumPy's minimum takes longer
    if not balanced(ends, ends):
        return None
    k = 1 if B.ndim == 1 else B.shape[1]
    Z = np.empty((k + 1, n), A.dtype)
    Z[:k], Z[k] = B.T, probe_vector(n)
    C, minor = of.potrf(W, lower=lower, clean=0)
    if minor:
        return None
    _solve_cholesky(of, C, Z.T, lower=lower)
    products = Products(
        lambda x, b: of.symv(-1.0, W, x, 1.0, b, lower=lower), lambda X, B: of.symm(-1.0, W, X, 1.0, B, lower=lower)
    )
    X, history = Z[:k].T, []
    enough = plain_lu(n, k, is_complex=A.dtype.kind == "c")
    for correct in (k <= SAMPLED, False):
        R, eta, suits = checked_residual(products, of, A_inf, X, B)
        history.append(eta)
        if not correct or not enough < eta < inf:
            break
        _solve_cholesky(of, C, R := np.array(R, order="F"), lower=lower)
        X += R
    probe = A_inf * of.lange("M", Z[k]) * of.u
    x = Z[0].copy() if B.ndim == 1 else X.copy("C")
    x = np.conj(x, out=x) if conj else x
    return CholeskySolution(of, x, tuple(history), suits and eta <= enough, probe, lambda: C, lower, A_inf, W, by_rows)


def _solve_cholesky(of: Routines, C: Array, B: Array, *, lower: bool) -> None:
    """Overwrite B with A^-1 B, given the Cholesky factor C of A.

    A few columns of a large matrix are solved individually, which is faster.
    """
    if B.shape[1] > FEW_COLUMNS or len(C) < INDIVIDUALLY_FROM:
        of.potrs(C, B, lower=lower, overwrite_b=1)
        return
    across = 2 if C.dtype.kind == "c" else 1
    for j in range(B.shape[1]):
        for form in (0, across) if lower else (across, 0):
            of.trsv(C, B[:, j], lower=lower, trans=form, overwrite_x=1)


def _sums(W: Array, of: Routines) -> tuple[Ends, Ends, float]:
    """Return (minimum, maximum) of the row sums and of the column sums of |w_ij|, and max |w_ij|. W is column-major."""
    n = len(W)
    ones = _ones(n, of.real)
    across, down = both = np.zeros((2, n), of.real)
    width, A_max = CACHED // n, 0.0
    for part in [slice(j, j + width) for j in range(0, n, width)]:
        sizes = of.sizes(W if width >= n else W[:, part])
        of.sums(1.0, sizes, ones[part], 1.0, across, overwrite_y=1)
        of.sums(1.0, sizes, ones, 0.0, down[part], overwrite_y=1, trans=1)
        flat = sizes.ravel("K")
        A_max = max(A_max, float(flat[of.argmax(flat)]))
    of_rows, of_columns = both.min(1).tolist()
    return (of_rows, of.largest("M", across)), (of_columns, of.largest("M", down)), A_max


def _sums_of_triangle(W: Array, of: Routines, *, lower: bool) -> Array:
    """Return the row sums of |w_ij| of a Hermitian column-major W, of which one triangle is read."""
    n = len(W)
    ones, sums = _ones(n, of.real), np.zeros(n, of.real)
    width = max(1, CACHED // n)
    for j in range(0, n, width):
        own = slice(j, min(j + width, n))
        rest = slice(own.stop, n) if lower else slice(0, j)
        corner = of.sizes(W[own, own])
        if W.dtype.kind == "c":  # the imaginary parts of the diagonal are not read
            np.fill_diagonal(corner, abs(W.diagonal()[own].real))
        sums[own] += of.sums_of_triangle(1.0, corner, ones[own], lower=lower)
        if rest.start < rest.stop:
            block = of.sizes(W[rest, own])
            sums[rest] += of.sums(1.0, block, ones[own])
            sums[own] += of.sums(1.0, block, ones[rest], trans=1)
    return sums


class Products(NamedTuple):
    """The functions that compute b - A x for vectors, and B - A X for blocks in column-major order."""

    vector: Callable[[Array, Array], Array]
    block: Callable[[Array, Array], Array]


def checked_residual(products: Products, of: Routines, A_inf: float, X: Array, B: Array) -> tuple[Array, float, bool]:
    """Return R = B - A X, the largest backward error (inf for NaN), and whether this error is reliable.

    The error is not reliable if X or B is near the limits of the range. For many right-hand sides, the error is that of
    a random combination of the columns, each relative to its own scale.
    """
    n, k = X.shape
    if k == 1:
        b = B.reshape(n)
        r = products.vector(X[:, 0], b)
        x_inf, b_inf = of.lange("M", X), of.lange("M", b)
        eta = backward_error(of.lange("M", r), A_inf, x_inf, b_inf, n, of.u)
        return r.reshape(n, 1), eta if eta < inf else inf, _in_range(x_inf, b_inf, of.low)
    sizes = of.sizes(X).max(0), of.sizes(B).max(0)
    if k > SAMPLED:
        return _sampled_residual(products, of, A_inf, X, B, *sizes)
    R = products.block(X, B)
    x_infs, b_infs = (size.tolist() for size in sizes)
    etas = [backward_error(r, A_inf, x, b, n, of.u) for r, x, b in zip(of.sizes(R).max(0).tolist(), x_infs, b_infs)]
    worst = max(etas) if sum(etas) < inf else inf  # a sum with a NaN is NaN, whereas max() may ignore a NaN
    return R, worst, all(_in_range(x, b, of.low) for x, b in zip(x_infs, b_infs))


def _in_range(x_inf: float, b_inf: float, low: float) -> bool:
    """Return whether x is finite, and b is neither too large nor so small that the residual may underflow."""
    return x_inf < inf and (low < b_inf < 1.0 / low or b_inf == 0.0)


def _sampled_residual(
    products: Products, of: Routines, A_inf: float, X: Array, B: Array, x_inf: Array, b_inf: Array
) -> tuple[Array, float, bool]:
    """Compute `checked_residual` for a random combination of the columns of X and B.

    `x_inf` and `b_inf` are the largest absolute values of the columns.
    """
    n, k = X.shape
    suits = bool(b_inf.min() > of.low) or bool(((b_inf == 0.0) | (b_inf > of.low)).all())
    suits = suits and bool(b_inf.max() < 1.0 / of.low) and bool(x_inf.max() < inf)
    with np.errstate(all="ignore"):
        scale = x_inf + b_inf / A_inf
        w = (probe_vector(k) / np.where(scale > 0.0, scale, 1.0)).astype(X.dtype)  # a scale of 0 means x = b = 0
    r = products.vector(of.gemv(1.0, X, w), of.gemv(1.0, B.T, w, trans=1))
    eta = backward_error(of.lange("M", r), A_inf, 1.5 * sqrt(k), 0.0, n, of.u)
    return r, eta if eta < inf else inf, suits


def info_of(
    solution: DirectSolution | CholeskySolution, A: Array | Triangle, b: Array, times: dict[str, float], why: str
) -> SolveInfo:
    """Return the diagnostics of a solved system. If the probe is large, estimate the condition number."""
    u, n = solution.of.u, len(solution.X)
    singular = not solution.probe <= PROBED and not solution.condition() * u < 1.0
    facts = {
        "n": n,
        "rhs": b.size // n,
        "factorization": solution.name,
        "precision": solution.of.precision,
        "iterations": len(solution.history) - 1,
        "backward_error": solution.history[-1],
        "u": u,
        "times": times,
        "why": why,
        "history": solution.history,
        "_row_error": (A, solution.X, b, solution.history[-1]),
        "_estimates": Estimates(lambda: (solution.condition(), solution.growth())),
        "_bounds": Estimates(lambda: solution.error_bound(A, b)),
    }
    if singular:
        message = note_of_singularity(solution.condition(), solution.X.dtype, Outcome.SOLVED)
        facts |= {"ill_conditioned": True, "message": message}
    return SolveInfo.of(facts)
