"""Compare generated entries with Netlib's, with the moments of normal numbers, and with a matrix of known factors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import erf, log, sqrt

from hypothesis import given
from hypothesis import strategies as st

from mxpeak.layout import lcg
from mxpeak.layout.entries import MIX, Entries, mixed, normal
from tests.support.turns import for_each

M = N = 100


def entries_of(entries: Entries, rows: int = M, columns: int = N) -> list[list[float]]:
    return [[entries.value(i, j) for j in range(columns)] for i in range(rows)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@given(seed=st.integers(0, 2**31 - 1), n=st.integers(1, 10**8), i=st.integers(0, 10**8 - 1), j=st.integers(0, 10**8))
def test_lcg_with_half_and_minus_one_is_netlibs_value(seed: int, n: int, i: int, j: int) -> None:
    entries = Entries("lcg", n, seed=seed, scale=-1.0, shift=0.5)
    assert entries.value(i % n, j) == lcg.value(lcg.state(seed, 1 + i % n + j * n))


def test_the_first_entries_are_netlibs_numbers() -> None:
    # Seed 100: X(1) = 6364136223846793005·100 + 1 mod 2^64, computed by hand.
    x = (6364136223846793005 * 100 + 1) % 2**64
    assert Entries("lcg", 7, seed=100, scale=-1.0, shift=0.5).value(0, 0) == 0.5 - x / 2**64


def test_the_first_draw_shifts_all_others() -> None:
    a, b = (Entries("gaussian", 10, seed=4, first=first) for first in (1, 14))
    assert b.value(2, 5) == a.value(5, 6)  # 14 + 2 + 50 = 1 + 5 + 60


@for_each(("scale", "shift"), [(2.0, -1.0), (-1.0, 0.5), (0.25, 3.0)])
def test_uniform_entries_fill_their_interval_and_stay_inside(scale: float, shift: float) -> None:
    values = [x for row in entries_of(Entries("lcg", M, seed=100, scale=scale, shift=shift)) for x in row]
    low, high = sorted((shift, shift + scale))
    assert low <= min(values) <= max(values) <= high
    # Of 10^4 draws none falls into an outer 0.2 % with probability 0.998^10000 = 2e-9.
    assert min(values) < low + 0.002 * abs(scale)
    assert max(values) > high - 0.002 * abs(scale)


@for_each("seed", [0, 1, 100, 2**31 - 1])
def test_uniform_entries_have_the_moments_of_the_uniform_distribution(seed: int) -> None:
    values = [x for row in entries_of(Entries("lcg", M, seed=seed, scale=2.0, shift=-1.0)) for x in row]
    # Variance 1/3, and E x^4 - 1/9 = 4/45 for x²; five standard errors are exceeded once in a million draws of a seed.
    assert abs(mean(values)) < 5 * sqrt(1 / 3 / len(values))
    assert abs(mean([x * x for x in values]) - 1 / 3) < 5 * sqrt(4 / 45 / len(values))


@for_each("seed", [0, 1, 100, 2**31 - 1])
@for_each("n", [M, 128])
def test_gaussian_entries_have_the_moments_of_the_normal_distribution(seed: int, n: int) -> None:
    values = [x for row in entries_of(Entries("gaussian", n, seed=seed), n) for x in row]
    # z, z², z³, z⁴ have means 0, 1, 0, 3 and variances 1, 2, 15, 96; five standard errors each.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(mean([x**power for x in values]) - expected) < 5 * sqrt(variance / len(values))


def test_gaussian_entries_follow_the_normal_distribution_function() -> None:
    values = sorted(x for row in entries_of(Entries("gaussian", M, seed=9)) for x in row)
    count = len(values)
    distance = max(abs((k + 0.5) / count - (1 + erf(x / sqrt(2))) / 2) for k, x in enumerate(values))
    # Kolmogorov's bound: farther than sqrt(ln(2/p)/(2·count)) with probability p at most; here p = 1e-6.
    assert distance < sqrt(log(2 / 1e-6) / (2 * count))


@for_each("n", [100, 64])
@for_each(("down", "across"), [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (-1, 1)])
def test_neighbouring_gaussian_entries_are_uncorrelated(n: int, down: int, across: int) -> None:
    A = entries_of(Entries("gaussian", n, seed=5), n, n)
    products = [A[i][j] * A[i + down][j + across] for i, j in product(range(2, n - 2), repeat=2)]
    assert abs(mean(products)) < 5 / sqrt(len(products))  # the product of two independent ones has variance 1


def test_gaussian_entries_scale() -> None:
    plain = Entries("gaussian", N, seed=6)
    scaled = replace(plain, scale=0.25)
    assert all(scaled.value(i, j) == 0.25 * plain.value(i, j) for i, j in product(range(5), repeat=2))


@for_each("z", [0, 2**64 - 1, 2**32 - 1, 2**64 - 2**32])
def test_the_extremes_of_the_bits_give_finite_numbers(z: int) -> None:
    assert abs(normal(z)) < 6.77  # u >= 2^-33, and sqrt(66 ln 2) = 6.7637…


def test_mixing_loses_nothing() -> None:
    # Each of the three steps is invertible, so that the mapping is one-to-one; these are the inverses in reverse order.
    for x in (0, 1, 2**64 - 1, 2**63, 0x0123456789ABCDEF, *lcg.states(3, 1, 100)):
        z = mixed(x)
        assert 0 <= z < 2**64
        z ^= z >> 29 ^ z >> 58
        z = z * pow(MIX, -1, 2**64) % 2**64
        assert z ^ z >> 32 == x


@for_each("n", [1, 2, 3, 7, 20])
@for_each(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.25), (0.0, 1.0), (-0.75, 0.5)])
def test_unit_factors_multiply_to_the_matrix(n: int, alpha: float, beta: float) -> None:
    # Few bits in alpha and beta: all sums are exact.
    L = [[1.0 if i == k else -alpha if i > k else 0.0 for k in range(n)] for i in range(n)]
    U = [[1.0 if k == j else -beta if k < j else 0.0 for j in range(n)] for k in range(n)]
    entries = Entries("unit-factors", n, alpha=alpha, beta=beta)
    for i, j in product(range(n), repeat=2):
        assert entries.value(i, j) == sum(L[i][k] * U[k][j] for k in range(n))
