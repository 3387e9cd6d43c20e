"""Generators of the HPL-MxP matrices by name: the distribution of the entries and of the diagonal.

    name          off the diagonal         on the diagonal
    sqrt-n        U[-1, 1]                 c·√n, c = 5/8                  mild scaling (Dongarra and Luszczek 2025)
    gaussian      N(0, 1/3)                c·√n, c = 5/8                  the same variance, another distribution
    ddd           U[-1, 1]                 theta·Σ|a_ij|, theta = 5/(4√n)  departure from diagonal dominance
    fasi-higham   A = L(alpha) U(beta)     1 + i·alpha·beta               a given cond(A) in the infinity norm
    dominant-n    U[-1, 1]                 n                              for debugging
    icl           U[-1/2, 1/2]             Σ|a_ij|                        of the first reference code; for tests
    hpl           U[-1/2, 1/2]             as drawn                       of Netlib HPL; needs pivoting

The sums are over j != i. U(beta) is unit upper triangular with -beta above its diagonal, and L(alpha) is unit lower
triangular with -alpha below. The LU factors of this A are known in advance, and its condition number has a closed
form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import expm1, floor, inf, isfinite, log1p, sqrt

from mxpeak.configs.lu import GENERATORS
from mxpeak.errors import UsageError
from mxpeak.layout.entries import Entries

#: c of the diagonal c·√n, from the paper. It is 8 % above 1/√3, the limit above which no eigenvalue is near 0
#: (circular law).
SQRT_SCALE = 0.625
#: The ratio alpha / beta in fasi-higham.
RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Generator:
    """A named matrix of order n (entries and diagonal), and its right-hand side b."""

    name: str
    entries: Entries
    right_side: Entries  # b_i = right_side.value(i, 0)
    diagonal: float | None  # the value of every a_ii if the diagonal is constant
    row_sum: float | None  # theta of a_ii = theta·Σ_{j != i} |a_ij|; if both are None, a_ii is as drawn


@dataclass(frozen=True, slots=True)
class GeneratorParameters:
    """The parameters of a generator.

    scale       c or theta of the diagonal; None selects the default of the generator
    condition   the condition number of fasi-higham
    """

    n: int
    seed: int = 100
    scale: float | None = None
    condition: float = 1000.0


#: Generators with a scalable diagonal.
SCALED = ("sqrt-n", "gaussian", "ddd")


def register(name: str, make: Callable[[GeneratorParameters], Generator]) -> None:
    """Register a generator for `generator` and the option --generator; raise ValueError if the name is taken."""
    if name in MAKERS:
        raise ValueError(f"the generator {name} is already registered; use another name")
    MAKERS[name] = make
    GENERATORS.append(name)


def generator(
    name: str, n: int, *, seed: int = 100, scale: float | None = None, condition: float = 1000.0
) -> Generator:
    """Return the named generator for order n; `scale` is c or theta, and `condition` is cond(A) of fasi-higham.

    The right-hand side b is column n of the sequence that generates A. For icl, b has its own sequence; for
    fasi-higham, b is U[-1, 1]. Raises UsageError for an unknown name, or if the generator does not use `scale`.
    """
    if name not in MAKERS:
        raise UsageError(f"unknown generator {name!r}; use one of {', '.join(MAKERS)}")
    if scale is not None and name not in SCALED:
        raise UsageError(
            f"--diagonal-scale {scale:g} does not apply to the generator {name}, which has no diagonal to "
            "scale; remove --diagonal-scale, or use --generator sqrt-n, gaussian or ddd"
        )
    return MAKERS[name](GeneratorParameters(n, seed, scale, condition))


def _uniform(n: int, seed: int) -> tuple[Entries, Entries]:
    """Return the entries of A, uniform in [-1, 1], and the entries of b, the next column of the same sequence."""
    A = Entries("lcg", n, seed=seed, scale=-2.0, shift=1.0)
    return A, _next_column(A)


def _next_column(A: Entries) -> Entries:
    return Entries(A.kind, A.n, seed=A.seed, first=1 + A.n * A.n, scale=A.scale, shift=A.shift)


def _root_scale(parameters: GeneratorParameters) -> float:
    c = SQRT_SCALE if parameters.scale is None else parameters.scale
    if not 0.0 < c < inf:
        raise UsageError(
            f"--diagonal-scale {c:g} is out of range, because the first pivot c*sqrt(N) must be positive "
            f"and finite; use, for example, {SQRT_SCALE}"
        )
    return c * sqrt(parameters.n)


def _sqrt_n(parameters: GeneratorParameters) -> Generator:
    return Generator("sqrt-n", *_uniform(parameters.n, parameters.seed), diagonal=_root_scale(parameters), row_sum=None)


def _gaussian(parameters: GeneratorParameters) -> Generator:
    A = Entries("gaussian", parameters.n, seed=parameters.seed, scale=1.0 / sqrt(3.0))
    return Generator("gaussian", A, _next_column(A), diagonal=_root_scale(parameters), row_sum=None)


def _ddd(parameters: GeneratorParameters) -> Generator:
    """Return the generator of the matrix whose diagonal is theta times that of a diagonally dominant matrix.

    This is mxpeak's interpretation of "departure from diagonal dominance"; the paper gives no formula. Σ|a_ij| is
    about n/2, so theta = 2·(5/8)/√n makes the diagonal about (5/8)·√n.
    """
    n, theta = parameters.n, parameters.scale
    if theta is None:
        theta = 2.0 * SQRT_SCALE / sqrt(n)
    elif not 0.0 < theta < 1.0:
        wanted = "the first pivot would be 0" if theta <= 0.0 else "the matrix would be diagonally dominant"
        raise UsageError(
            f"--diagonal-scale {theta:g} is out of range, because with a_ii = theta*sum|a_ij| {wanted}; use "
            f"0 < theta < 1 (about {2.0 * SQRT_SCALE / sqrt(max(n, 2)):.3g} for N={n}), or --generator "
            "dominant-n"
        )
    # A single entry has no off-diagonal sum, and a diagonal of 0 would make A singular, so the entry remains as drawn.
    return Generator("ddd", *_uniform(n, parameters.seed), diagonal=None, row_sum=theta if n > 1 else None)


def _dominant_n(parameters: GeneratorParameters) -> Generator:
    return Generator("dominant-n", *_uniform(parameters.n, parameters.seed), diagonal=float(parameters.n), row_sum=None)


def _icl(parameters: GeneratorParameters) -> Generator:
    """Return the generator of the first reference code, with a_ii = Σ_{j != i} |a_ij|.

    Such a matrix can be singular, for example a 2×2 matrix whose a_12 and a_21 have the same sign. With these seeds,
    only the matrices of orders 1 to 3 are singular; the diagonals of these matrices therefore remain random.
    """
    n = parameters.n
    A, b = (Entries("lcg", n, seed=own, scale=1.0, shift=-0.5) for own in (1, 2))
    return Generator("icl", A, b, diagonal=None, row_sum=1.0 if n > 3 else None)


def _hpl(parameters: GeneratorParameters) -> Generator:
    A = Entries("lcg", parameters.n, seed=parameters.seed, scale=-1.0, shift=0.5)
    return Generator("hpl", A, _next_column(A), diagonal=None, row_sum=None)


def _fasi_higham(parameters: GeneratorParameters) -> Generator:
    beta = unit_factors_beta(parameters.n, parameters.condition)
    A = Entries("unit-factors", parameters.n, alpha=RATIO * beta, beta=beta)
    return Generator("fasi-higham", A, _uniform(parameters.n, parameters.seed)[1], diagonal=None, row_sum=None)


#: Functions that make a generator, by its name.
MAKERS: dict[str, Callable[[GeneratorParameters], Generator]] = {
    "sqrt-n": _sqrt_n,
    "ddd": _ddd,
    "fasi-higham": _fasi_higham,
    "gaussian": _gaussian,
    "dominant-n": _dominant_n,
    "icl": _icl,
    "hpl": _hpl,
}


def unit_factors_beta(n: int, condition: float) -> float:
    """Return the beta for which cond(A) = `condition` in fasi-higham, by bisection.

    cond(A) grows from 1 at beta = 0 without bound. For n = 1, A is (1) for any beta, and the function returns 0.
    """
    if n == 1:
        return 0.0
    if not (isfinite(condition) and condition > 1.0):
        raise UsageError(
            f"--condition {condition:g} is out of range, because cond(A) = |A|·|A^-1| >= |A·A^-1| = 1, and "
            "only A = I reaches 1; use a finite number above 1"
        )
    low, high = 0.0, 1.0 / n
    while unit_factors_condition(n, high) < condition:
        low, high = high, 2.0 * high
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if unit_factors_condition(n, middle) < condition else (low, middle)
    return high


def unit_factors_condition(n: int, beta: float) -> float:
    """Return the condition number ||A||·||A^-1|| of fasi-higham in the infinity norm, in O(1)."""
    return unit_factors_norm(n, beta) * unit_factors_inverse_norm(n, beta)


def unit_factors_inverse_norm(n: int, beta: float) -> float:
    """Return ||A^-1|| = 1 + beta·(1 + alpha)·(q^(n-1) - 1)/(q - 1) of fasi-higham, with q = (1 + alpha)(1 + beta).

    Both inverse factors are nonnegative. Therefore, the norm is the largest entry of x = U^-1 y with y = L^-1 e, that
    is, y_i = (1 + alpha)^i. The largest entry is x_0, because x_i - x_{i+1} = beta·x_{i+1} - alpha·y_i >= 0 for beta
    >= alpha, and x_0 = 1 + beta·Σ_{i>0} x_i = 1 + beta·Σ_{i>0} (1 + alpha)^i (1 + beta)^(i-1).
    """
    alpha = RATIO * beta
    q_less_1 = alpha + beta + alpha * beta
    exponent = (n - 1) * log1p(q_less_1)
    if exponent > 700.0:  # e^709 is near the largest double; every valid condition is far below
        return inf
    return 1.0 + beta * (1.0 + alpha) * expm1(exponent) / q_less_1 if q_less_1 else 1.0


def unit_factors_norm(n: int, beta: float) -> float:
    """Return ||A|| of fasi-higham in the infinity norm, the largest sum of |a_ij| over a row i.

    As a function of i, the sums are quadratic between i = 1/beta and i = 1/alpha. They are convex before 1/alpha, and
    concave after it with a vertex at n - 1/2 + 1/beta, beyond the last row. Therefore, the largest sum is at one of
    these two points, in the first row or in the last row.
    """
    breaks = (min(1.0 / part, float(n)) if part else float(n) for part in (beta, RATIO * beta))
    rows = {0, n - 1} | {min(floor(x) + k, n - 1) for x in breaks for k in (0, 1, 2)}
    return max(_row_sum(n, beta, i) for i in rows)


def _row_sum(n: int, beta: float, i: int) -> float:
    """Return the sum of |a_ij| over row i of fasi-higham, in O(1).

    The sum is alpha·Σ_{j<i} |1 - j·beta| + 1 + i·alpha·beta + (n-1-i)·beta·|1 - i·alpha|.
    """
    alpha = RATIO * beta
    positive = i if i * beta <= 1.0 else floor(1.0 / beta) + 1  # the number of terms 1 - j·beta >= 0
    below = 2.0 * _partial(positive, beta) - _partial(i, beta)
    return alpha * below + 1.0 + i * alpha * beta + (n - 1 - i) * beta * abs(1.0 - i * alpha)


def _partial(count: int, beta: float) -> float:
    """Return Σ (1 - j·beta) over 0 <= j < count, in closed form."""
    return count - 0.5 * beta * count * (count - 1)
