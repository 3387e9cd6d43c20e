"""One system on the host in the type that it comes in: LAPACK's solver, and a check of what it gives.

    [X z] = A^-1 [B s],    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u),    ||A||·||z||·u

s are random numbers: ||A||·||z|| is seldom far below the condition, and costs one column more.  Where eta is small and
the other not, the condition is estimated; where eta is large, the factors go on to refinement.  The check costs O(n²)
and few calls: at n = 50 LAPACK takes 14 us and any function of NumPy one, SciPy's wrappers of BLAS the third of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.kernels import choose
from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.contract.dense import PivotedLU
from mxpeak.library.dense.factoring import Estimates, Factors, probe
from mxpeak.library.dense.info import SolveInfo, note_of_singularity
from mxpeak.library.dense.range_scaling import least
from mxpeak.library.dense.refinement import SAMPLED, plain_lu
from mxpeak.library.types import Array, own_precision, roundoff
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.residual import backward_error
from mxpeak.solvers.scaling import Ends, balanced

#: Below this order a matrix by rows is copied as its transpose, for one call of LAPACK; from it on that copy costs more
#: than a call each for factors and solves.
COPIED_BELOW = 256
#: Entries whose absolute values are summed up together, so that they stay in the second-level cache.
CACHED = 1 << 16
#: The letters of a type and of its absolute values in LAPACK's names.
LETTERS = {np.dtype(name): letters for name, letters in zip("dfDF", (("d", "d"), ("s", "s"), ("z", "d"), ("c", "s")))}


class Routines(NamedTuple):
    """SciPy's wrappers of a type, three of them for its absolute values; its roundoff, and the least safe number."""

    gesv: Callable[..., Any]
    getrf: Callable[..., Any]
    getrs: Callable[..., Any]
    gecon: Callable[..., Any]
    lange: Callable[..., Any]
    gemv: Callable[..., Any]
    gemm: Callable[..., Any]
    sums: Callable[..., Any]
    largest: Callable[..., Any]
    argmax: Callable[..., Any]
    sizes: Callable[[Array], Array]
    real: np.dtype[Any]
    precision: str
    u: float
    low: float


@cache
def routines(dtype: np.dtype[Any]) -> Routines:
    """Those of a type.  SciPy is imported when they are first wanted."""
    from scipy.linalg import blas, lapack

    of, real = LETTERS[dtype]
    return Routines(
        **{name: getattr(lapack, of + name) for name in ("gesv", "getrf", "getrs", "gecon", "lange")},
        **{name: getattr(blas, of + name) for name in ("gemv", "gemm")},
        sums=getattr(blas, real + "gemv"),
        largest=getattr(lapack, real + "lange"),
        argmax=getattr(blas, f"i{real}amax"),
        sizes=_sizes if dtype.kind == "c" else np.abs,
        real=np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype,
        precision=own_precision(dtype),
        u=roundoff(dtype),
        low=least(dtype),
    )


def _sizes(A: Array) -> Array:
    """|a_ij| of complex numbers, inf where it overflows."""
    with np.errstate(over="ignore"):
        return np.abs(A)


@lru_cache(maxsize=64)
def _ones(n: int, dtype: np.dtype[Any]) -> Array:
    return np.ones(n, dtype)


class Direct(NamedTuple):
    """X of A X = B, and A's factors in its own type, by LAPACK or elimination.

    of           LAPACK's routines of the type
    history      the worst backward error, and that after a correction if there was one
    enough       whether it is as small as a stable solver's
    grown        ||A||·||z||·u
    LU(), pivots of A^T if `transposed`, else of A; pivots from 0
    """

    of: Routines
    X: Array
    history: tuple[float, ...]
    enough: bool
    grown: float
    LU: Callable[[], Array]
    pivots: Array
    transposed: bool
    A_inf: float
    A_one: float
    A_max: float

    def condition(self) -> float:
        """||A||_1·||A^-1||_1, estimated (Higham 1988); both are ||·||_inf of A^T, whose factors these may be."""
        rcond, _ = self.of.gecon(self.LU(), self.A_one, norm="I" if self.transposed else "1")
        return 1.0 / rcond if rcond else inf

    def factors(self, kernels: DenseKernels) -> Factors:
        """A's factors as refinement takes them."""
        lu = PivotedLU(np.asfortranarray(self.LU()), self.pivots + np.int32(1), transposed=True, singular=0)
        norms = self.A_inf, self.A_one, self.A_max
        return Factors(kernels, self.of.precision, False, lu, self.transposed, None, *norms, None)


def solve_directly(A: Array, B: Array) -> Direct | None:
    """Solve A X = B, A (n, n) and B (n,) or (n, k) of one type; None if A wants scaling, or a pivot is zero."""
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
    Z[:k], Z[k] = B.T, probe(n)
    transposed = by_rows and n >= COPIED_BELOW
    if transposed:
        LU, pivots, zero = of.getrf(W)
        for part in (Z[:1], Z[1:]) if k == 1 else (Z,):  # BLAS takes a third of the time of two vectors for one
            of.getrs(LU, pivots, part.T, trans=1, overwrite_b=1)
    else:
        LU, pivots, _, zero = of.gesv(A, Z.T, overwrite_b=1)
    if zero:
        return None
    X, history = Z[:k].T, []
    enough = plain_lu(n, k, is_complex=A.dtype.kind == "c")
    for correct in (k <= SAMPLED, False):
        R, eta, suits = _residual(W, by_rows, of, A_inf, X, B)
        history.append(eta)
        if not correct or not enough < eta < inf:
            break
        X += of.getrs(LU, pivots, R, trans=transposed)[0]
    grown = A_inf * of.lange("M", Z[k]) * of.u
    x, solved = Z[0].copy() if B.ndim == 1 else X.copy("C"), suits and eta <= enough
    return Direct(of, x, tuple(history), solved, grown, lambda: LU, pivots, transposed, A_inf, A_one, A_max)


def _sums(W: Array, of: Routines) -> tuple[Ends, Ends, float]:
    """Least and largest sum of |w_ij| over a row, the same over a column, and the largest |w_ij|; W lies by columns."""
    n = len(W)
    one = _ones(n, of.real)
    across, down = both = np.zeros((2, n), of.real)
    width, A_max = CACHED // n, 0.0
    for part in [slice(j, j + width) for j in range(0, n, width)]:
        sizes = of.sizes(W if width >= n else W[:, part])
        of.sums(1.0, sizes, one[part], 1.0, across, overwrite_y=1)
        of.sums(1.0, sizes, one, 0.0, down[part], overwrite_y=1, trans=1)
        flat = sizes.ravel("K")
        A_max = max(A_max, float(flat[of.argmax(flat)]))
    of_rows, of_columns = both.min(1).tolist()
    return (of_rows, of.largest("M", across)), (of_columns, of.largest("M", down)), A_max


def _residual(W: Array, by_rows: bool, of: Routines, A_inf: float, X: Array, B: Array) -> tuple[Array, float, bool]:
    """R = B - A X; the worst backward error, inf for a NaN; and whether these are sizes by which it can be judged.

    Of many right-hand sides it is that of a random combination, each over its own scale.
    """
    n, k = X.shape
    if k == 1:
        b = B.reshape(n)
        r = of.gemv(-1.0, W, X[:, 0], 1.0, b, trans=by_rows)
        x_inf, b_inf = of.lange("M", X), of.lange("M", b)
        eta = backward_error(of.lange("M", r), A_inf, x_inf, b_inf, n, of.u)
        return r.reshape(n, 1), eta if eta < inf else inf, _suits(x_inf, b_inf, of.low)
    sizes = of.sizes(X).max(0), of.sizes(B).max(0)
    if k > SAMPLED:
        return _mixed_residual(W, by_rows, of, A_inf, X, B, *sizes)
    R = of.gemm(-1.0, W, X, 1.0, B, trans_a=by_rows)
    x_infs, b_infs = (size.tolist() for size in sizes)
    etas = [backward_error(r, A_inf, x, b, n, of.u) for r, x, b in zip(of.sizes(R).max(0).tolist(), x_infs, b_infs)]
    worst = max(etas) if sum(etas) < inf else inf  # a sum is NaN where one of them is, max() may pass over it
    return R, worst, all(_suits(x, b, of.low) for x, b in zip(x_infs, b_infs))


def _suits(x_inf: float, b_inf: float, low: float) -> bool:
    """Whether x is finite, and b neither so tiny that its residual may vanish, nor huge."""
    return x_inf < inf and (low < b_inf < 1.0 / low or b_inf == 0.0)


def _mixed_residual(
    W: Array, by_rows: bool, of: Routines, A_inf: float, X: Array, B: Array, x_inf: Array, b_inf: Array
) -> tuple[Array, float, bool]:
    """`_residual` of a random combination of the columns, whose largest entries are given."""
    n, k = X.shape
    suits = bool(b_inf.min() > of.low) or bool(((b_inf == 0.0) | (b_inf > of.low)).all())
    suits = suits and bool(b_inf.max() < 1.0 / of.low) and bool(x_inf.max() < inf)
    with np.errstate(all="ignore"):
        scale = x_inf + b_inf / A_inf
        w = (probe(k) / np.where(scale > 0.0, scale, 1.0)).astype(X.dtype)  # 0 of x = b = 0
    r = of.gemv(-1.0, W, of.gemv(1.0, X, w), 1.0, of.gemv(1.0, B.T, w, trans=1), trans=by_rows)
    eta = backward_error(of.lange("M", r), A_inf, 1.5 * sqrt(k), 0.0, n, of.u)
    return r, eta if eta < inf else inf, suits


def told(found: Direct, A: Array, b: Array, sides: int, times: dict[str, float], why: str) -> SolveInfo:
    """What there is to say of a system that is solved; A's condition is looked into only where the probe has grown."""
    u, n = found.of.u, len(found.X)
    singular = not found.grown <= PROBED and not found.condition() * u < 1.0
    facts = {
        "n": n,
        "rhs": sides,
        "precision": found.of.precision,
        "iterations": len(found.history) - 1,
        "backward_error": found.history[-1],
        "u": u,
        "times": times,
        "why": why,
        "history": found.history,
        "_row_error": (A, found.X, b, found.history[-1]),
        "_estimates": Estimates(lambda: (found.condition(), found.factors(choose.dense(None)).growth)),
    }
    if singular:
        message = note_of_singularity(found.condition(), found.X.dtype, Outcome.SOLVED)
        facts |= {"ill_conditioned": True, "message": message}
    return SolveInfo.of(facts)
