"""Verify an LU: compare (A - LU) v for random signs v with the largest effect of rounding.

Every product of the update has two operands with independent rounding errors. The errors are relative, with a variance
of u_low²/6 for rounding to nearest and evenly distributed significands. At the lower end of the range, the errors are
absolute, with a variance of q²/12, where q is the least spacing of the format. For v of random signs, entry i of (A -
LU) v is then a sum of independent terms, and its variance is

    sigma_i² = u_low²/3·s_i + q²/12·Σ_k t_k + [u_32²·(NB/6 + N/(3·NB)) + u_64²·N]·(s_i + t_i)
    t_k = Σ_{j>=k} u_kj²             s_i = Σ_{k<i} l_ik² t_k

Two passes over the factors, t = (U∘U) 1 and s = (L∘L) t, compute every sigma_i. The brackets contain the sums in fp32
(each of N/NB updates rounds an entry once, and NB products are added sequentially), and the evaluation of (A - LU) v
in fp64. If the entries are not random, equal entries have equal errors, and sums have errors of one sign: then s_i =
(Σ_{k<i} |l_ik| sqrt(t_k))², and (NB² + (N/NB)²)/3 replaces NB/6 + N/(3·NB). If A was transformed to S A T, the
variance of the roundings in this transformation is added, and the factors are compared with S A T.

A bound of the form N·u_low·||L||·||U|| would reject no factors: N·u_low exceeds 1 for fp16 from N = 2048 on. This
bound does not grow. With s_i ~ 0.7·t_i and ||A v||_i² ~ t_i, as for sqrt-n at any N, 8·sigma is 8·0.58·0.83·2^-11 =
0.19 % of ||A v|| for fp16. At N = 10^6 and NB = 1024, the fp32 term is 8·1.3·2^-24·sqrt(171 + 326) = 0.0014 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt

from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.spaces import DistSpace
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.transformations import Transformation, transformed_product

#: Number of random vectors.
PROBES = 3
#: Largest deviation of an entry in sigma: among 10^8 normal numbers one exceeds 5.7, among 10^12 one exceeds 7.1.
SIGMAS = 8.0


#: Number of rows per average, and the largest mean of (deviation / sigma)² due to rounding. Measured means are between
#: 0.01 and 0.6, and up to 3.5 for fasi-higham with a condition number of 1e15, whose factors have equal entries, so
#: that errors add up. A mean of 192 squared normal numbers exceeds 2 with a probability below 1e-13.
GROUP, MEAN_SQUARE = 64, 4.0


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of comparing (A - LU) v with the effect of rounding; it passes if error, worst and spread are small.

    error    ||(A - LU) v||_2 / ||A v||_2 of the probe with the largest ratio of error to bound
    bound    SIGMAS·||sigma||_2 / ||A v||_2 of this probe; if it is 1 or more for a probe, the comparison proves nothing
    worst    max_i |((A - LU) v)_i| / (SIGMAS·sigma_i); the limit is 1
    spread   mean of (((A - LU) v)_i / sigma_i)² over the worst 64 rows, relative to its limit; the limit is 1
    """

    passed: bool
    error: float
    bound: float
    worst: float
    spread: float
    probes: int
    seed: int


def prove(
    system: GeneratedSystem,
    factors: DistMatrix,
    low: str,
    kernels: Kernels,
    transformations: Sequence[Transformation],
    seed: int,
) -> Proof:
    """Compare (A - LU) v, or (S A T - LU) v after transformations, with its rounding bound. Collective over the grid.

    The comparison takes about 10·N² flops. The seed must be unknown while the factors are computed, because factors
    can be adapted to satisfy three known vectors.
    """
    prover = _Prover(system, factors, kernels, transformations)
    variance = prover.variance(low, seed + PROBES)
    weights = kernels.xp.pow(variance, -0.5)
    sigma = sqrt(prover.equations.sum_of([float(kernels.xp.sum(variance))])[0])
    squares = kernels.xp.zeros(system.rows.local_size)
    probes = [prover.probe(seed + k, sigma, weights, squares) for k in range(PROBES)]
    spread = prover.spread(squares)
    finite = all(map(isfinite, [spread, *(value for probe in probes for value in probe)]))
    error, bound, _ = max(probes, key=lambda probe: probe[0] / probe[1]) if finite else (nan, nan, nan)
    worst = max(deviation for _, _, deviation in probes) if finite else nan
    passed = finite and all(e <= b < 1.0 for e, b, _ in probes) and worst <= 1.0 and spread <= 1.0
    return Proof(passed, error, bound, worst, spread, PROBES, seed)


class _Prover:
    """Computes products with L and U for vectors that are distributed over the rows or over the columns."""

    def __init__(
        self, system: GeneratedSystem, factors: DistMatrix, kernels: Kernels, transformations: Sequence[Transformation]
    ):
        self.system, self.factors, self.kernels, self.transformations = system, factors, kernels, transformations
        self.equations = DistSpace(kernels, system.grid.all, system.rows.local_size, counts=system.grid.q == 0)

    def probe(self, seed: int, sigma: float, weights: Vector, squares: Vector) -> tuple[float, float, float]:
        """Compare (A - LU) v with its bound for one random v; return error, bound and largest deviation.

        Add the squared deviations to `squares`.
        """
        kernels, equations = self.kernels, self.equations
        v = kernels.xp.zeros(self.system.cols.local_size)
        kernels.signs(v, self.system.cols, seed)
        e = self.times_A(v)
        norm = equations.norm(e)
        kernels.add_scaled(e, -1.0, self.times_LU(v))
        error, bound = (equations.norm(e) / norm, SIGMAS * sigma / norm) if norm else (nan, nan)
        e = kernels.xp.multiply(e, weights)  # in units of sigma
        worst = equations.max_abs(e) / SIGMAS
        kernels.add_scaled(squares, 1.0 / PROBES, kernels.xp.square(e))
        return error, bound, worst

    def variance(self, low: str, seed: int) -> Vector:
        """Return sigma_i², the variance of the rounding error in (A - LU) v, for each row i."""
        kernels, xp, n, nb = self.kernels, self.kernels.xp, self.system.n, self.factors.nb
        t = self.triangle("upper", xp.ones(self.system.cols.local_size), "squared")
        s = self.products(self.system.on_columns(t))
        rounds = low not in ("fp32", "fp64")
        u_low = format_of(low).u if rounds else 0.0
        q = format_of(low).spacing if rounds else 0.0
        u_sum, u_64 = format_of(stored_as(low)).u, format_of("fp64").u
        roundings = nb / 6.0 + n / (3.0 * nb) if self.system.random else (nb**2 + (n / nb) ** 2) / 3.0
        sums = u_sum**2 * roundings + u_64**2 * n
        underflow = q**2 / 12.0 * self.equations.sum_of([float(xp.sum(t))])[0]
        variance = xp.full(self.system.rows.local_size, underflow)
        kernels.add_scaled(variance, u_low**2 / 3.0 + sums, s)
        kernels.add_scaled(variance, sums, t)
        return variance + self.variance_of_transformations(u_sum, seed)

    def variance_of_transformations(self, u: float, seed: int) -> float:
        """Return the variance of the rounding errors of S A T.

        For random signs v, ||S A T v||² estimates the squared Frobenius norm. The errors of mixed rows have the size of
        A's rows, even if the differences of these rows are small.
        """
        roundings = sum(transformation.rounding_variance for transformation in self.transformations)
        if not roundings:
            return 0.0
        v = self.kernels.xp.zeros(self.system.cols.local_size)
        self.kernels.signs(v, self.system.cols, seed)
        return u**2 * roundings * self.equations.norm(self.times_A(v)) ** 2 / self.system.n

    def products(self, t: Vector) -> Vector:
        """Return the sums s_i = Σ_{k<i} l_ik² t_k, given t over the columns.

        If A is not random, return s_i = (Σ_{k<i} |l_ik| sqrt(t_k))² instead.
        """
        if self.system.random:
            return self.triangle("lower", t, "squared")
        xp = self.kernels.xp
        return xp.square(self.triangle("lower", xp.sqrt(t), "absolute"))

    def times_A(self, v: Vector) -> Vector:
        """Return S A T v."""
        return transformed_product(self.system.multiply, v, self.transformations)

    def times_LU(self, v: Vector) -> Vector:
        """Return L U v = w + (L - I) w with w = U v."""
        w = self.triangle("upper", v)
        y = self.triangle("lower", self.system.on_columns(w))
        self.kernels.add_scaled(y, 1.0, w)
        return y

    def triangle(self, part: str, x: Vector, form: str = "plain") -> Vector:
        """Return T x, |T| x or (T∘T) x over the rows, with T = U or L - I."""
        y = self.kernels.xp.zeros(self.system.rows.local_size)
        rows, cols = self.system.rows, self.system.cols
        self.kernels.add_triangle_matvec(y, self.factors.local, x, rows, cols, part, form)
        self.system.grid.row.allreduce(y, "sum")
        return y

    def spread(self, squares: Vector) -> float:
        """Return the largest mean squared deviation of a group of rows relative to the limit for its size."""
        values = squares.tolist()
        worst = 0.0
        for begin in range(0, len(values), GROUP):
            group = values[begin : begin + GROUP]
            limit = MEAN_SQUARE * (1.0 + 3.0 / sqrt(PROBES * len(group)))
            worst = max(worst, sum(group) / len(group) / limit, key=lambda x: x if x == x else inf)
        return allreduce_scalar(self.system.grid.all, worst, "max", self.kernels.xp)
