"""What HPL-MxP asks of a backend, the reference included, against its definition, on ragged and prime sizes.

Bounds are componentwise.  |computed - exact| of a solve or a factorization is measured by its residual, in the widest
type there is, so that no condition number enters: a factor of 2 over the contract's bound leaves room for that type.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.precision import PRECISIONS
from tests.support.roundoff import U

U32 = 2.0**-24
STORED = {"fp64": (np.float64, U), "fp32": (np.float32, U32)}
EMULATED = ("tf32", "bf16", "fp16", "fp8")
WIDE = np.longdouble

#: n, NB, P, Q: one block, ragged last blocks, more processes than blocks, blocks larger than the matrix.
GRIDS = [(1, 1, 1, 1), (7, 3, 1, 2), (29, 8, 2, 3), (30, 64, 3, 2), (53, 7, 3, 1)]
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (31, 17), (5, 97), (97, 33)]

KINDS = {
    "HPL's": Entries("lcg", 0, seed=100, scale=-1.0, shift=0.5),
    "another lcg": Entries("lcg", 0, seed=2**31 - 1, first=10**12 + 7, scale=1.7, shift=-0.85),
    "gaussian": Entries("gaussian", 0, seed=3, scale=0.6),
    "unit-factors": Entries("unit-factors", 0, alpha=0.013, beta=0.27),
}


@pytest.fixture(scope="module", params=["host", "host with 3 threads", "reference"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each backend, its new arrays full of NaN."""
    if request.param == "reference":
        return ReferenceKernels()
    return HostKernels(1 if request.param == "host" else 3, poison=True)


def fill(kernels: Kernels, values: Any, precision: str = "fp64") -> Any:
    """A matrix of the backend with the given values, cut out of a larger one of NaN."""
    rows, columns = values.shape
    A = kernels.matrix(rows + 3, columns + 5, precision)[1 : rows + 1, 2 : columns + 2]
    A[:] = values
    return A


def zero_pivot(kernels: Kernels, D: Any) -> int:
    """Factor a block; 0, or 1 + the first column whose pivot is zero."""
    singular = kernels.vector(1)
    kernels.factor_block(D, singular)
    return int(kernels.floats(singular)[0])


def column_major(kernels: Kernels, values: Any, precision: str = "fp64") -> Any:
    """A panel of the backend with the given values, cut out of a taller one of NaN."""
    rows, columns = values.shape
    vector = kernels.vector(kernels.panel_size(rows + 5, columns, precision), precision)
    A = kernels.panel(vector, rows + 5, columns)[2 : rows + 2]
    A[:] = values
    return A


def stored(values: Any, precision: str) -> Any:
    """The values as a type holds them."""
    return values.astype(STORED[precision][0])


def poisoned(values: Any, keep: Any) -> Any:
    """The values where `keep` holds, and NaN elsewhere: what is not part of an operand must not be read."""
    return np.where(keep, values, np.nan)


def lower(n: int) -> Any:
    return np.tri(n, k=-1, dtype=bool)


def within(found: Any, expected: Any, bound: Any) -> bool:
    """|found - expected| <= bound, entry by entry, evaluated in the widest type."""
    return bool(np.all(np.abs(np.asarray(found, WIDE) - np.asarray(expected, WIDE)) <= bound))


def globals_of(part: BlockCyclic) -> list[int]:
    return [part.to_global(il) for il in range(part.local_size)]


def parts(n: int, nb: int, P: int, Q: int) -> list[tuple[BlockCyclic, BlockCyclic]]:
    """Every rank's rows and columns."""
    return [(BlockCyclic(n, nb, p, P), BlockCyclic(n, nb, q, Q)) for p, q in product(range(P), range(Q))]


# --- arrays


def test_new_arrays_have_the_precision_asked_for(kernels: Kernels) -> None:
    for precision, (dtype, _) in STORED.items():
        for array in (kernels.matrix(5, 3, precision), kernels.vector(7, precision), kernels.operand(7, precision)):
            assert array.dtype == dtype
            assert np.isnan(array).all()
        size = kernels.panel_size(37, 5, precision)
        assert kernels.panel(kernels.vector(size, precision), 37, 5).shape == (37, 5)
    assert kernels.matrix(5, 3).dtype == kernels.vector(7).dtype == np.float64
    assert [name for name in PRECISIONS if kernels.emulates(name)] == list(EMULATED)
    assert all(kernels.operand(7, name).dtype == np.float32 for name in EMULATED)


# --- generation


@lru_cache(maxsize=64)
def whole(entries: Entries, columns: int) -> Any:
    """The generated matrix by its definition."""
    return np.array([[entries.value(i, j) for j in range(columns)] for i in range(entries.n)]).reshape(-1, columns)


def entries_of(kind: str, n: int) -> Entries:
    given = KINDS[kind]
    return Entries(given.kind, n, given.seed, given.first, given.scale, given.shift, given.alpha, given.beta)


def slack(entries: Entries) -> float:
    """How far two correct evaluations of an entry may lie apart.

    The others are made of few roundings in a fixed order and agree bit for bit.  A Gaussian is scale·r·cos(2 pi v) with
    r = sqrt(-2 ln u) <= sqrt(66 ln 2) < 6.77.  Per evaluation: r has 4u (2u of the logarithm halved, a product, a root,
    an ulp to spare), the cosine 2u of its own and up to 2·2 pi·u < 13u from the rounding of 2 pi v, the products 2u;
    that is 21u·r·scale, and twice that for the two of them.
    """
    return 42 * U * 6.77 * abs(entries.scale) if entries.kind == "gaussian" else 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), GRIDS)
def test_generated_entries_are_their_definition(kernels: Kernels, kind: str, n: int, nb: int, P: int, Q: int) -> None:
    entries = entries_of(kind, n)
    for p, q in product(range(P), range(Q)):
        rows, cols = BlockCyclic(n, nb, p, P), BlockCyclic(n + 1, nb, q, Q)  # one column more, as HPL's b
        mine = whole(entries, n + 1)[np.ix_(globals_of(rows), globals_of(cols))]
        for precision, (dtype, u) in STORED.items():
            A = fill(kernels, np.full(mine.shape, np.nan), precision)
            kernels.generate(A, rows, cols, entries, kernels.zeros(0))
            if entries.kind == "gaussian":  # fp64 values a slack apart may round to neighbours in fp32, 2u apart
                further = 2 * u * np.abs(mine) if precision == "fp32" else 0.0
                assert within(A, mine.astype(dtype), slack(entries) + further)
            else:
                assert np.array_equal(A, mine.astype(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), GRIDS)
def test_a_given_diagonal_stands_on_the_diagonal_and_nowhere_else(
    kernels: Kernels, rng: Any, kind: str, n: int, nb: int, P: int, Q: int
) -> None:
    entries, diagonal = entries_of(kind, n), 10.0 + rng.random(n)
    for (rows, cols), precision in product(parts(n, nb, P, Q), STORED):
        i, j = globals_of(rows), globals_of(cols)
        plain, given = (kernels.matrix(len(i), len(j), precision) for _ in range(2))
        kernels.generate(plain, rows, cols, entries, kernels.zeros(0))
        kernels.generate(given, rows, cols, entries, diagonal[i])
        on = np.equal.outer(i, j)
        assert np.array_equal(given[~on], plain[~on])
        assert np.array_equal(given[on], stored(np.broadcast_to(diagonal[i][:, None], on.shape)[on], precision))


@pytest.mark.parametrize("with_diagonal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), GRIDS)
def test_products_and_sums_of_a_matrix_that_is_not_stored(
    kernels: Kernels, rng: Any, kind: str, n: int, nb: int, P: int, Q: int, with_diagonal: bool
) -> None:
    entries, diagonal, x = entries_of(kind, n), rng.random(n) * n, rng.random(n) - 0.5
    A = whole(entries, n).copy()
    if with_diagonal:
        np.fill_diagonal(A, diagonal)
    for rows, cols in parts(n, nb, P, Q):
        i, j = globals_of(rows), globals_of(cols)
        mine, given = A[np.ix_(i, j)].astype(WIDE), diagonal[i] if with_diagonal else kernels.zeros(0)
        y, sums, squares = (kernels.vector(len(i)) for _ in range(3))
        kernels.generated_matvec(y, rows, cols, entries, given, x[j])
        kernels.generated_row_sums(sums, squares, rows, cols, entries, given)
        # n products and n - 1 sums, in any order; and each entry may be off by its slack.
        off = slack(entries)
        size = np.abs(mine)
        assert within(y, mine @ x[j], 2 * len(j) * U * (size @ np.abs(x[j])) + off * np.abs(x[j]).sum())
        assert within(sums, size.sum(axis=1), 2 * len(j) * U * size.sum(axis=1) + off * len(j))
        square = (size**2).sum(axis=1)
        assert within(squares, square, 2 * len(j) * U * square + 2.1 * off * size.sum(axis=1))


@pytest.mark.parametrize(("n", "nb", "Q"), [(0, 4, 1), (1, 1, 1), (61, 8, 3), (30, 64, 2), (128, 5, 4)])
@pytest.mark.parametrize("seed", [0, 100, 2**63 + 5])
def test_signs_belong_to_their_global_index(kernels: Kernels, n: int, nb: int, Q: int, seed: int) -> None:
    expected = np.array([-1.0 if lcg.state(seed, 1 + j) >= 2**63 else 1.0 for j in range(n)])
    for q in range(Q):
        cols = BlockCyclic(n, nb, q, Q)
        v = kernels.vector(cols.local_size)
        kernels.signs(v, cols, seed)
        assert np.array_equal(v, expected[globals_of(cols)])


# --- rounding


@lru_cache(maxsize=1)
def interesting() -> Any:
    """Numbers of fp32 by their bits: all upper halves, below them what makes ties or their neighbours; and random ones.

    A format that keeps p bits cuts 24 - p: 13 for fp16 and tf32, 16 for bf16, 20 for fp8.  Half of the last place is
    bit 12, 15 or 19; each appears alone, with an odd last bit above it, and one fp32 number to either side.
    """
    lows = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    bits = np.arange(2**16, dtype=np.uint32)[:, None] << 16 | np.array(lows, dtype=np.uint32)
    more = np.random.default_rng(8).integers(0, 2**32, 2**17, dtype=np.uint32)
    return np.concatenate([bits.ravel(), more]).view(np.float32).reshape(-1, 1024)


def oracle(x: Any, precision: str) -> Any:
    """x rounded by others' code; tf32 by its bits: the lower 13 off, rounded to nearest even."""
    if precision == "tf32":
        bits = x.view(np.uint32)
        cut = (bits + 0x0FFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(x), x, cut.view(np.float32))
    type_ = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}[precision]
    with np.errstate(all="ignore"):
        return x.astype(type_).astype(np.float32)


def same_bits(found: Any, expected: Any) -> bool:
    """The same numbers with the same signs, zeros' too; a NaN is a NaN."""
    nan = np.isnan(expected)
    bits = (a[~nan].view(np.uint32) for a in (np.ascontiguousarray(found), np.ascontiguousarray(expected)))
    return bool(np.isnan(found[nan]).all()) and np.array_equal(*bits)


@pytest.mark.parametrize("precision", EMULATED)
def test_casts_are_others_casts_bit_for_bit(kernels: Kernels, precision: str) -> None:
    x = interesting()
    target = fill(kernels, np.zeros(x.shape), "fp32")
    with np.errstate(all="ignore"):  # signalling NaNs
        source = fill(kernels, x, "fp32")
    kernels.cast(source, target, precision)
    assert same_bits(target, oracle(x, precision))


@pytest.mark.parametrize(
    ("precision", "x", "expected"),
    [
        ("fp16", 65519.0, 65504.0), ("fp16", 65520.0, np.inf), ("fp16", -65520.0, -np.inf), ("fp16", -1e-9, -0.0),
        ("fp16", 2.0**-25, 0.0), ("fp16", 3 * 2.0**-25, 2.0**-23), ("fp16", 1 + 2.0**-11, 1.0),
        ("fp16", 1 + 3 * 2.0**-11, 1 + 2.0**-9), ("bf16", 3.4e38, np.inf), ("bf16", 1 + 2.0**-8, 1.0),
        ("bf16", 3 * 2.0**-134, 2.0**-132), ("tf32", 3.4028234663852886e38, np.inf), ("tf32", -0.0, -0.0),
        ("tf32", 1 + 3 * 2.0**-11, 1 + 2.0**-9), ("fp8", 464.0, 448.0), ("fp8", 465.0, np.nan), ("fp8", np.inf, np.nan),
        ("fp8", 2.0**-10, 0.0), ("fp8", 3 * 2.0**-10, 2.0**-8), ("fp8", 17.0, 16.0), ("fp8", 19.0, 20.0),
    ],
)  # fmt: skip
def test_casts_at_the_edges(kernels: Kernels, precision: str, x: float, expected: float) -> None:
    target = kernels.matrix(1, 1, "fp32")
    kernels.cast(fill(kernels, np.array([[x]]), "fp32"), target, precision)
    assert same_bits(target, np.array([[expected]], dtype=np.float32))


def test_the_definition_rounds_fp64_once(reference: Kernels) -> None:
    target = reference.matrix(1, 3, "fp32")
    for precision, half in (("bf16", 2.0**-8), ("fp16", 2.0**-11), ("tf32", 2.0**-11), ("fp8", 2.0**-4)):
        # By way of fp32, the 2^-40 above the tie would be lost, and the tie go to the even 1.
        reference.cast(np.array([[1 + half, 1 + half + 2.0**-40, -1 - half - 2.0**-40]]), target, precision)
        assert list(target[0]) == [1.0, 1 + 2 * half, -1 - 2 * half]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_cast_writes_its_own_block_and_keeps_its_source(
    kernels: Kernels, rng: Any, precision: str, m: int, n: int
) -> None:
    held = "fp64" if precision == "fp64" else "fp32"
    values = stored(rng.standard_normal((m, n)) * 100, held)
    source, around = fill(kernels, values, held), kernels.matrix(m + 3, n + 5, held)
    operand = kernels.shaped(kernels.operand(m * n, precision), m, n)
    kernels.cast(source, around[1 : m + 1, 2 : n + 2], precision)
    kernels.cast(source, operand, precision)
    expected = oracle(values, precision) if kernels.emulates(precision) else values
    assert np.array_equal(operand, expected)
    assert np.array_equal(around[1 : m + 1, 2 : n + 2], expected)
    assert np.array_equal(source, values)
    assert np.isnan(around).sum() == around.size - m * n


# --- factors and solves


def diagonally_heavy(rng: Any, n: int) -> Any:
    return rng.random((n, n)) - 0.5 + n * np.eye(n)


def unit_lower_and_upper(F: Any) -> tuple[Any, Any]:
    """L and U out of the block that holds both, in the widest type."""
    wide = np.array(F, WIDE)
    return np.tril(wide, -1) + np.eye(len(wide), dtype=WIDE), np.triu(wide)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 16, 33, 64, 97, 192])
def test_factors_of_a_block_multiply_back_to_it(
    kernels: Kernels, reference: Kernels, rng: Any, n: int, precision: str
) -> None:
    _, u = STORED[precision]
    values = stored(diagonally_heavy(rng, n), precision)
    D, D_ref = column_major(kernels, values, precision), column_major(reference, values, precision)
    assert zero_pivot(kernels, D) == zero_pivot(reference, D_ref) == 0
    L, T = unit_lower_and_upper(D)
    # n steps of a product and a difference; the quotients may come from a reciprocal, one rounding more.
    backward = 2 * (n + 1) * u * (np.abs(L) @ np.abs(T))
    assert within(L @ T, values, backward)
    # |l_ij| < 0.6/n and |u_ij| < 0.6 off the diagonal, n on it: |L^-1||L| and |U||U^-1| have row sums below 3 and 5,
    # and a change of D below 2·(n+1)·u·(n+1) an entry shows at most 15 times as large; twice that for two eliminations.
    assert within(D, D_ref, 30 * 2 * (n + 1) ** 2 * u)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("n", "j"), [(1, 0), (2, 0), (2, 1), (7, 3), (33, 15), (33, 16), (33, 32), (97, 64)])
def test_a_zero_pivot_is_reported_and_its_column_left_as_it_is(
    kernels: Kernels, rng: Any, n: int, j: int, precision: str
) -> None:
    # Factors of small integers with pivots of ±1: every step is exact, in any order.
    L = np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)
    T = np.triu(rng.integers(-1, 2, (n, n)), 1) + np.diag(rng.choice([-1.0, 1.0], n))
    T[j, j] = 0.0
    below = rng.integers(1, 5, n - j - 1)
    values = L @ T
    values[j + 1 :, j] += below
    D = column_major(kernels, values, precision)
    assert zero_pivot(kernels, D) == 1 + j
    assert np.array_equal(D[:, :j], (np.tril(L, -1) + T)[:, :j])
    assert np.array_equal(D[:j], (np.tril(L, -1) + T)[:j])
    assert D[j, j] == 0.0
    assert np.array_equal(D[j + 1 :, j], below)


@pytest.mark.parametrize("precision", STORED)
def test_the_first_zero_pivot_counts(kernels: Kernels, precision: str) -> None:
    for n in (1, 5, 40):
        assert zero_pivot(kernels, column_major(kernels, np.zeros((n, n)), precision)) == 1


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_factors(kernels: Kernels, rng: Any, value: float, precision: str) -> None:
    values = diagonally_heavy(rng, 40)
    values[4, 3] = value
    D = column_major(kernels, values, precision)
    assert zero_pivot(kernels, D) == 0
    assert not np.isfinite(D[4, 3:]).any()  # l_43, and with it all that it is multiplied by


@pytest.mark.parametrize("precision", STORED)
def test_a_zero_on_the_diagonal_makes_a_solution_that_is_not_finite(kernels: Kernels, rng: Any, precision: str) -> None:
    T = diagonally_heavy(rng, 40)
    T[3, 3] = 0.0
    B, x = fill(kernels, np.ones((5, 40)), precision), np.ones(40)
    kernels.solve_right_upper(B, column_major(kernels, T, precision))
    kernels.solve_upper(fill(kernels, T, precision), x)
    assert not np.isfinite(B[:, 3]).any()
    assert not np.isfinite(x[3])


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_solves_with_the_diagonal_block_multiply_back(
    kernels: Kernels, rng: Any, m: int, n: int, precision: str
) -> None:
    _, u = STORED[precision]
    B = stored(rng.random((m, n)) - 0.5, precision)

    T = stored(np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n)), precision)
    X = fill(kernels, B, precision)
    kernels.solve_right_upper(X, column_major(kernels, poisoned(T, ~lower(n)), precision))
    W = np.array(X, WIDE)
    assert within(W @ T, B, 2 * n * u * (np.abs(W) @ np.abs(T)))

    L = stored(np.tril(rng.random((m, m)) - 0.5, -1), precision)
    X = fill(kernels, B, precision)
    kernels.solve_unit_lower(column_major(kernels, poisoned(L, lower(m)), precision), X)
    W, I_L = np.array(X, WIDE), L + np.eye(m, dtype=WIDE)
    assert within(I_L @ W, B, 2 * m * u * (np.abs(I_L) @ np.abs(W)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 33, 97])
def test_triangular_solves_of_a_vector_have_the_error_of_fp64(
    kernels: Kernels, rng: Any, n: int, precision: str, transposed: bool
) -> None:
    b = rng.random(n) - 0.5
    T = stored(np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n)), precision).astype(WIDE)
    L = stored(np.tril(rng.random((n, n)) - 0.5, -1), precision).astype(WIDE)
    I_L = L + np.eye(n, dtype=WIDE)
    for solve, A, held in (
        (kernels.solve_upper, T, poisoned(T, ~lower(n))),
        (kernels.solve_lower, I_L, poisoned(L, lower(n))),
    ):
        x = b.copy()
        solve(fill(kernels, held, precision), x, transposed=transposed)
        op = A.T if transposed else A
        assert within(op @ x.astype(WIDE), b, 2 * n * U * (np.abs(op) @ np.abs(x)))


# --- products


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (31, 17, 5), (37, 97, 61)])
def test_products_of_rounded_operands_have_the_error_of_the_type_they_are_held_in(
    kernels: Kernels, rng: Any, m: int, n: int, k: int, by_columns: bool, precision: str
) -> None:
    held = "fp64" if precision == "fp64" else "fp32"
    _, u = STORED[held]
    A, B, C = (stored(rng.random(shape) - 0.5, held) for shape in ((m, k), (k, n), (m, n)))
    A_, B_ = (kernels.shaped(kernels.operand(M.size, precision), *M.shape) for M in (A, B))
    kernels.cast(fill(kernels, A, held), A_, precision)
    kernels.cast(fill(kernels, B, held), B_, precision)
    C_ = fill(kernels, C, held)
    kernels.subtract_product(C_, column_major(kernels, A_, held) if by_columns else A_, B_)
    A, B = (M if precision in STORED else oracle(M, precision) for M in (A, B))
    exact = C.astype(WIDE) - A.astype(WIDE) @ B.astype(WIDE)
    assert within(C_, exact, 2 * u * ((k + 1) * (np.abs(A) @ np.abs(B)) + np.abs(C)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_row_of_a_product_and_no_other(kernels: Kernels, rng: Any, value: float) -> None:
    for precision in STORED:
        A, B = rng.random((19, 7)), rng.random((7, 11))
        A[5, 3] = value
        C, y = fill(kernels, np.zeros((19, 11)), precision), np.zeros(19)
        kernels.subtract_product(C, fill(kernels, A, precision), fill(kernels, B, precision))
        kernels.add_matvec(y, fill(kernels, A, precision), B[:, 0].copy())
        for row_is_finite in (np.isfinite(C).all(axis=1), np.isfinite(y)):
            assert list(np.flatnonzero(~row_is_finite)) == [5]


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_products_with_a_vector_have_the_error_of_fp64(
    kernels: Kernels, rng: Any, m: int, n: int, precision: str
) -> None:
    A = stored(rng.random((m, n)) - 0.5, precision)
    for op, transposed in ((A, False), (A.T, True)):
        x, y = rng.random(op.shape[1]) - 0.5, rng.random(op.shape[0]) - 0.5
        found = y.copy()
        kernels.add_matvec(found, fill(kernels, A, precision), x, transposed=transposed)
        size = np.abs(op.astype(WIDE)) @ np.abs(x)
        assert within(found, y + op.astype(WIDE) @ x, 2 * U * ((op.shape[1] + 1) * size + np.abs(y)))


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("form", ["plain", "absolute", "squared"])
@pytest.mark.parametrize("part", ["lower", "upper"])
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [(0, 4, 2, 2), *GRIDS])
def test_a_triangle_times_a_vector_reads_only_the_triangle(
    kernels: Kernels, rng: Any, n: int, nb: int, P: int, Q: int, part: str, form: str, precision: str
) -> None:
    A = stored(rng.random((n, n)) - 0.5, precision)
    keep = lower(n) if part == "lower" else ~lower(n)
    T = {"plain": lambda T: T, "absolute": np.abs, "squared": np.square}[form](np.where(keep, A, 0).astype(WIDE))
    x, y = rng.random(n) - 0.5, rng.random(n) - 0.5
    for rows, cols in parts(n, nb, P, Q):
        i, j = globals_of(rows), globals_of(cols)
        mine, found = np.ix_(i, j), y[i]
        local = fill(kernels, poisoned(A, keep)[mine], precision)
        kernels.add_triangle_matvec(found, local, x[j], rows, cols, part, form)
        size = np.abs(T[mine]) @ np.abs(x[j])
        # n products and sums; squaring is one rounding more.
        assert within(found, y[i] + T[mine] @ x[j], 2 * U * ((len(j) + 2) * size + np.abs(y[i])))


# --- maxima, scaling, sums


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [(0, 4, 2, 2), *GRIDS])
def test_the_largest_entry_of_the_upper_triangle(
    kernels: Kernels, rng: Any, n: int, nb: int, P: int, Q: int, precision: str
) -> None:
    A = stored(rng.random((n, n)) - 0.7, precision)
    for rows, cols in parts(n, nb, P, Q):
        i, j = globals_of(rows), globals_of(cols)
        mine, upper = A[np.ix_(i, j)].copy(), ~np.greater.outer(i, j)
        local = fill(kernels, poisoned(mine, upper), precision)
        assert kernels.max_abs_upper(local, rows, cols) == (np.abs(mine[upper]).max() if upper.any() else 0.0)
        for at in np.argwhere(upper)[[0, -1]] if upper.any() else ():
            for value in (-np.inf, np.nan):
                local[tuple(at)] = value
                found = kernels.max_abs_upper(local, rows, cols)
                assert np.isnan(found) if np.isnan(value) else found == np.inf
            local[tuple(at)] = mine[tuple(at)]


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_largest_entries_of_rows_and_columns(kernels: Kernels, rng: Any, m: int, n: int, precision: str) -> None:
    values = stored(rng.random((m, n)) - 0.7, precision)
    for special in (None, -np.inf, np.nan):
        if special is not None and values.size:
            values[m // 2, n // 3] = special
        by_row, by_column = kernels.vector(m), kernels.vector(n)
        kernels.row_max(fill(kernels, values, precision), by_row)
        kernels.column_max(fill(kernels, values, precision), by_column)
        assert np.array_equal(by_row, np.abs(values).max(axis=1, initial=0.0), equal_nan=True)
        assert np.array_equal(by_column, np.abs(values).max(axis=0, initial=0.0), equal_nan=True)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_scaling_by_powers_of_two_is_exact_and_by_others_rounds_thrice_at_most(
    kernels: Kernels, rng: Any, m: int, n: int, precision: str
) -> None:
    values = stored(rng.random((m, n)) - 0.5, precision)
    # Beyond the range of fp32 one by one, but not together.
    by_row, by_column = np.ldexp(1.0, 140 + rng.integers(-9, 9, m)), np.ldexp(1.0, -140 + rng.integers(-9, 9, n))
    A = fill(kernels, values, precision)
    kernels.scale_rows_columns(A, by_row, by_column)
    assert np.array_equal(A, values.astype(WIDE) * by_row[:, None] * by_column)
    by_row, by_column = rng.random(m) + 0.5, rng.random(n) + 0.5
    A = fill(kernels, values, precision)
    kernels.scale_rows_columns(A, by_row, by_column)
    exact = values.astype(WIDE) * by_row[:, None] * by_column
    assert within(A, exact, 3.1 * STORED[precision][1] * np.abs(exact))  # two products, and the rounding to A's type


def test_reciprocal_powers_bring_numbers_between_a_half_and_one(kernels: Kernels, rng: Any) -> None:
    exact = np.ldexp(1.0, np.arange(-1022, 1024))
    x = np.concatenate([exact, np.nextafter(exact, 0)[1:], np.nextafter(exact, np.inf), rng.random(97) * 1e5])
    powers = kernels.vector(len(x))
    kernels.reciprocal_powers(powers, x)
    assert ((x * powers > 0.5) & (x * powers <= 1)).all()
    assert (np.frexp(powers)[0] == 0.5).all()  # powers of two
    powers, special = kernels.vector(4), np.array([0.0, np.inf, np.nan, 4.0])
    kernels.reciprocal_powers(powers, special)
    assert list(powers) == [1.0, 1.0, 1.0, 0.25]
    kernels.reciprocal_powers(powers[:0], special[:0])


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0])
def test_powers_of_entries(kernels: Kernels, rng: Any, exponent: float) -> None:
    x = rng.random(97) * 100
    found = x.copy()
    kernels.power(found, exponent)
    # A root, a quotient or a power of the library is off by an ulp, 2u, at most; twice that for two of them in turn.
    assert within(found, x.astype(WIDE) ** exponent, 4 * U * x**exponent)
    special = np.array([0.0, np.inf, np.nan])
    kernels.power(special, exponent)
    assert np.array_equal(special, [np.inf, 0.0, np.nan] if exponent < 0 else [0.0, np.inf, np.nan], equal_nan=True)
    kernels.power(special[:0], exponent)


def test_assigning_one_number_fills_and_a_list_is_taken_in_order(kernels: Kernels) -> None:
    v = kernels.vector(3)
    kernels.assign(v, 1.5)
    assert list(v) == [1.5, 1.5, 1.5]
    kernels.assign(v, [1.0, 2.0, 3.0])
    assert list(v) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("n", [0, 1, 7, 97])
def test_sums_and_products_of_vectors(kernels: Kernels, rng: Any, n: int) -> None:
    A, y = fill(kernels, rng.random((n, 5)) - 0.5), rng.random(n) - 0.5
    for x, factor in product((A[:, 3], A[:, 3].copy()), (1.0, -1.0, 0.3)):
        found = y.copy()
        kernels.add_scaled(found, factor, x)
        exact = y + factor * x.astype(WIDE)
        assert within(found, exact, 1.1 * U * (np.abs(factor * x) + np.abs(exact)))  # a product and a sum
        if abs(factor) == 1.0:
            assert np.array_equal(found, y + factor * x)
    x = A[:, 3].copy()
    found = y.copy()
    kernels.multiply(found, x)
    assert np.array_equal(found, x * y)
    exact = (x.astype(WIDE) ** 2).sum()
    assert within(kernels.sum_squares(x), exact, 2 * n * U * exact)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_probe_is_one_product_of_that_precision(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    seen = []
    real = kernels.subtract_product
    monkeypatch.setattr(kernels, "subtract_product", lambda C, A, B: (seen.append((C, A, B)), real(C, A, B)))
    probe = kernels.gemm_probe(13, 7, 5, precision)
    probe()
    ((C, A, B),) = seen
    assert (C.shape, A.shape, B.shape) == ((13, 7), (13, 5), (5, 7))
    assert C.dtype == (np.float64 if precision == "fp64" else np.float32)
    assert A.dtype == B.dtype == kernels.operand(0, precision).dtype
    for operand in (A, B) if kernels.emulates(precision) else ():
        assert np.array_equal(operand, oracle(np.ascontiguousarray(operand), precision))
    assert np.isfinite(C).all()
