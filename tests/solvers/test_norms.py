"""Norms against exact arithmetic: all structures, kinds and types, the ends of the range, and what is no number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.norm_tiles import ALONE
from mxpeak.layout.structure import DIAGS, STRUCTURES, UPLOS, WITH_DIAG, WITH_UPLO
from tests.layout.test_structure import definition
from tests.support.roundoff import U

KINDS = ("max", "one", "inf", "fro")
TYPES = {
    **{name: np.dtype(name) for name in ("float64", "float32", "complex128", "complex64", "float16")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
LARGEST, LEAST = np.finfo(np.float64).max, 2.0**-1074


# --- exact norms ------------------------------------------------------------------------------------------------

#: Magnitudes are counted in units of 2^-1174: every fp64 is a whole number of them, and roots of squares have 100 bits.
FINE = 1174


def counted(x: float) -> int:
    """A finite fp64 in units of 2^-1074."""
    numerator, denominator = x.as_integer_ratio()
    return numerator * 2**1074 // denominator


def size_of(x: complex) -> Any:
    """|x| in units, NaN if a part is NaN, else inf if one is."""
    parts = (x.real, x.imag)
    if not all(map(math.isfinite, parts)):
        return math.nan if any(map(math.isnan, parts)) else math.inf
    re, im = map(counted, parts)
    return math.isqrt(re * re + im * im << 2 * (FINE - 1074))


def vector_norm(kind: str, sizes: Sequence[Any]) -> Any:
    """A vector's norm in units, from the sizes of its entries."""
    strange = [x for x in sizes if isinstance(x, float)]
    if strange:
        return math.nan if any(map(math.isnan, strange)) else math.inf
    if kind == "fro":
        return math.isqrt(sum(x * x for x in sizes))
    return sum(sizes) if kind == "one" else max(sizes, default=0)


def rounded(x: Any) -> float:
    """A number of units as the nearest fp64."""
    if isinstance(x, float):
        return x
    try:
        return float(x / 2**FINE)
    except OverflowError:
        return math.inf


def expanded(A: Any, name: str, **options: Any) -> list[list[Any]]:
    """The sizes of all entries of the matrix that a structure makes of A, by its definition."""
    uplo, unit = options.get("uplo", "lower"), options.get("diag") == "unit"
    kl, ku = options.get("kl"), options.get("ku")
    inside = definition(name, uplo, ku if kl is None else kl, ku)  # type: ignore[arg-type]
    mirrored, real = name in ("symmetric", "hermitian", "hermitian-band"), name.startswith("hermitian")

    def entry(i: int, j: int) -> complex:
        if i == j and unit:
            return 1.0
        if i == j and real:
            return complex(A[i, j]).real
        if inside(i, j):
            return complex(A[i, j])
        return complex(A[j, i]) if mirrored and inside(j, i) else 0.0

    return [[size_of(entry(i, j)) for j in range(A.shape[1])] for i in range(A.shape[0])]


def exact_norms(sizes: Sequence[Sequence[Any]]) -> dict[str, float]:
    """The four norms, each rounded once."""
    everything, columns = [x for row in sizes for x in row], list(zip(*sizes))
    return {
        "max": rounded(vector_norm("max", everything)),
        "one": rounded(vector_norm("max", [vector_norm("one", column) for column in columns])),
        "inf": rounded(vector_norm("max", [vector_norm("one", row) for row in sizes])),
        "fro": rounded(vector_norm("fro", everything)),
    }


def agree(found: float, exact: float, kind: str, A: Any) -> None:
    """Within (m + n + 8) roundings, which no order of m or n additions (of m·n, under a root) on any grid exceeds.

    The largest of real entries is exact.  Results near the smallest number are multiples of it: half of one an entry.
    """
    m, n = A.shape
    if kind == "max" and A.dtype.kind != "c":
        np.testing.assert_equal(found, exact)
        return
    bound = (m + n + 8) * U * exact + (m + n) * LEAST if math.isfinite(exact) else 0.0
    assert found == exact or abs(found - exact) <= bound or (math.isnan(found) and math.isnan(exact)), (found, exact)


def check(A: Any, name: str = "general", **options: Any) -> None:
    """All public functions for one matrix against exact norms."""
    sizes = expanded(A, name, **options)
    exact, asked = exact_norms(sizes), {"structure": name, **options}
    at_once = mx.norms(A, **asked)
    same = mx.norms(A, deterministic=True, **asked)
    for kind in KINDS:
        agree(mx.norm(A, kind, **asked), exact[kind], kind, A)
        agree(mx.norm(A, kind, threads=1, **asked), exact[kind], kind, A)  # not the short way of small matrices
        agree(getattr(at_once, kind), exact[kind], kind, A)
        agree(getattr(same, kind), exact[kind], kind, A)
        for norms_of, lines in ((mx.row_norms, sizes), (mx.column_norms, list(zip(*sizes)))):
            found = norms_of(A, kind, **asked)
            assert found.dtype == np.float64
            assert len(found) == A.shape[0 if norms_of is mx.row_norms else 1]
            for value, line in zip(found, lines):
                agree(float(value), rounded(vector_norm(kind, line)), kind, A)


def cases(name: str, square: bool) -> list[dict[str, Any]]:
    """All that can be said of a structure."""
    if name == "band":
        return [{"kl": kl, "ku": ku} for kl, ku in ((0, 0), (2, 1), (0, 3), (5, 0), (40, 40))]
    if name not in WITH_UPLO:
        return [{}]
    if name in WITH_DIAG:
        return [{"uplo": uplo, "diag": diag} for uplo, diag in product(UPLOS, DIAGS)]
    widths = [{"kl": 0}, {"ku": 2}, {"kl": 40, "ku": 40}] if name == "hermitian-band" else [{}]
    return [{"uplo": uplo, **width} for uplo, width in product(UPLOS, widths)]


def shapes(name: str) -> list[tuple[int, int]]:
    squares = [(11, 11), (1, 1)]
    return squares if name in ("triangular", "symmetric", "hermitian", "hermitian-band") else [(13, 7), (5, 11), (1, 1)]


def random_matrix(rng: Any, shape: tuple[int, int], dtype: Any, scale: float = 1.0) -> Any:
    with np.errstate(over="ignore", under="ignore"):
        x = rng.standard_normal(shape) * scale
        return (x + 1j * scale * rng.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)


def unread(m: int, n: int, name: str, **options: Any) -> list[tuple[int, int]]:
    """The places that a structure never reads."""
    kl, ku = options.get("kl"), options.get("ku")
    inside = definition(name, options.get("uplo", "lower"), ku if kl is None else kl, ku)  # type: ignore[arg-type]
    unit = options.get("diag") == "unit"
    return [(i, j) for i, j in product(range(m), range(n)) if not inside(i, j) or (unit and i == j)]


def poisoned(A: Any, name: str, **options: Any) -> Any:
    """A with NaN in all that must not be read: other triangle, outside of the band, ones, imaginary diagonal."""
    A = A.copy()
    for place in unread(*A.shape, name, **options):
        A[place] = np.nan
    if name.startswith("hermitian") and A.dtype.kind == "c":
        for i in range(len(A)):
            A[i, i] = complex(A[i, i].real, np.nan)
    return A


# --- structures, kinds, types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_has_the_norms_of_its_definition_in_every_type(rng: Any, name: str) -> None:
    for dtype, shape in product(TYPES.values(), shapes(name)):
        for options in cases(name, shape[0] == shape[1]):
            check(poisoned(random_matrix(rng, shape, dtype), name, **options), name, **options)


@pytest.mark.parametrize("name", STRUCTURES)
def test_zeros_ones_and_nothing_at_all(name: str) -> None:
    empty = [(0, 0)] if shapes(name)[0] == (11, 11) else [(0, 0), (0, 5), (5, 0)]
    for dtype, shape in product(TYPES.values(), [*empty, *shapes(name)]):
        for options in cases(name, True):
            for A in (np.zeros(shape, dtype), np.ones(shape, dtype), -np.zeros(shape, dtype)):
                check(A, name, **options)


@pytest.mark.parametrize("name", STRUCTURES)
def test_nan_counts_wherever_it_is_read_and_nowhere_else(rng: Any, name: str) -> None:
    m, n = (5, 5) if shapes(name)[0] == (11, 11) else (6, 4)
    for dtype, options in product((np.dtype(np.float64), np.dtype(np.complex64)), cases(name, True)):
        clean = poisoned(random_matrix(rng, (m, n), dtype), name, **options)
        hidden = unread(m, n, name, **options)
        asked = {"structure": name, **options}
        assert all(map(math.isfinite, mx.norms(clean, **asked)))
        for place, value in product(product(range(m), range(n)), (np.nan, -np.nan, np.inf)):
            A = clean.copy()
            A[place] = value
            for norms in (mx.norms(A, **asked), mx.norms(A, deterministic=True, **asked)):
                if place in hidden:
                    assert all(map(math.isfinite, norms))
                elif math.isnan(value):
                    assert all(map(math.isnan, norms)), (place, norms)
                else:
                    assert all(map(math.isinf, norms)), (place, norms)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
def test_an_entry_with_one_part_inf_and_the_other_nan_is_nan(dtype: Any, deterministic: bool) -> None:
    for part in (complex(np.inf, np.nan), complex(np.nan, -np.inf), complex(1.0, np.nan), complex(np.nan, 0.0)):
        A = np.ones((3, 4), dtype)
        A[1, 2] = part
        assert all(map(math.isnan, mx.norms(A, deterministic=deterministic)))
        assert np.isnan(mx.column_norms(A, "one")).tolist() == [False, False, True, False]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_the_nan_that_inf_minus_inf_leaves_counts(name: str, deterministic: bool) -> None:
    """Processors set the sign bit of that NaN, which must not make it a small number."""
    with np.errstate(invalid="ignore"):
        left = np.array([np.inf]) - np.array([np.inf])
    A = np.ones((3, 4), TYPES[name])
    A[1, 2] = left.astype(A.dtype)[0]
    for kind in KINDS:
        assert math.isnan(mx.norm(A, kind, deterministic=deterministic)), kind


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_inf_without_nan_is_inf_and_nan_beside_it_wins(name: str, deterministic: bool) -> None:
    A = np.ones((7, 5), TYPES[name])
    A[2, 3] = -np.inf
    assert all(map(math.isinf, mx.norms(A, deterministic=deterministic)))
    A[6, 0] = np.nan
    found = mx.norms(A, deterministic=deterministic)
    assert all(map(math.isnan, found)), found


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_one_entry_among_zeros_is_the_norm_wherever_it_stands(name: str, deterministic: bool) -> None:
    m, n = 6, 5
    for value, (i, j), kind in product((np.nan, np.inf, 0.25), product(range(m), range(n)), (*KINDS, None)):
        A = np.zeros((m, n), TYPES[name])
        A[i, j] = value
        found = mx.norms(A, deterministic=deterministic) if kind is None else [
            mx.norm(A, kind, deterministic=deterministic)
        ]  # fmt: skip
        np.testing.assert_array_equal(found, [value] * len(found))


@pytest.mark.parametrize("name", TYPES)
def test_long_lines_of_any_layout_have_the_norms_of_their_definition(rng: Any, name: str) -> None:
    for (m, n), scale in product(((3, 2503), (2503, 3), (1, 4099)), (1.0, float(ml_dtypes.finfo(TYPES[name]).tiny))):
        A = random_matrix(rng, (m, n), TYPES[name], scale)
        A[m // 2, n // 2] = 1.0
        exact = exact_norms(expanded(A, "general"))
        padded = np.full((m + 2, n + 3), np.nan, A.dtype)
        padded[1:-1, 2:-1] = A
        for B in (
            A,
            np.asfortranarray(A),
            padded[1:-1, 2:-1],
            padded[1:-1, 2:-1][::-1, ::-1],
            np.repeat(A, 2, 1)[:, ::2],
        ):
            for kind, threads in product(KINDS, (None, 1)):
                agree(mx.norm(B, kind, threads=threads), exact[kind], kind, A)


# --- the ends of the range --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_norms_at_the_ends_of_the_range(rng: Any, name: str) -> None:
    dtype = TYPES[name]
    info = ml_dtypes.finfo(dtype)
    largest, least, tiny = float(info.max), float(info.smallest_subnormal), float(info.tiny)
    for scale in (largest / 64, tiny, least * 3, least * 1000, math.sqrt(largest), math.sqrt(tiny)):
        check(random_matrix(rng, (7, 5), dtype, scale))
        check(random_matrix(rng, (6, 6), dtype, scale), "hermitian", uplo="upper")
    one_huge = random_matrix(rng, (5, 9), dtype, least * 100)
    one_huge[3, 4] = largest
    check(one_huge)
    check(np.full((3, 4), least, dtype))
    check(np.full((3, 4), largest, dtype))
    both = np.array([[largest, least], [1.0, tiny]]).astype(dtype)
    check(both)
    check(both, "triangular", diag="unit")


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_a_norm_just_below_the_largest_number_is_finite_and_one_above_is_inf(name: str) -> None:
    dtype, top = TYPES[name], 2.0**1023
    below = np.array([[top, top - 2.0**971]]).astype(dtype)  # 2^1024 - 2^971 together: the largest number
    assert mx.norms(below)[:3] == (top, top, LARGEST)
    assert mx.norms(below.T, deterministic=True)[:3] == (top, LARGEST, top)
    above = np.array([[top, top]]).astype(dtype)
    assert mx.norms(above)[:3] == (top, top, math.inf)
    assert mx.norm(above, "inf", deterministic=True) == math.inf
    assert mx.norm(above, "fro") == pytest.approx(math.sqrt(2.0) * top, rel=4 * U)
    triple = np.array([[3.0, 4.0]]).astype(dtype) * 2.0**1021
    assert mx.norm(triple) == 5.0 * 2.0**1021
    for deterministic in (False, True):
        assert mx.norm(np.full((2, 2), LARGEST, dtype), deterministic=deterministic) == math.inf
        assert mx.norm(np.full((2, 2), LARGEST, dtype), "max", deterministic=deterministic) == LARGEST


def test_a_complex_entry_whose_parts_are_finite_may_be_infinite_and_is_so_without_a_warning() -> None:
    A = np.array([[complex(LARGEST, LARGEST), 1.0]])
    for deterministic in (False, True):
        assert mx.norms(A, deterministic=deterministic) == (math.inf,) * 4
    A = np.array([[complex(3.0 * LEAST, 4.0 * LEAST), complex(3e307, 4e307)]])
    assert mx.norm(A[:, :1], "max") == 5.0 * LEAST
    assert mx.norm(A, "max") == pytest.approx(5e307, rel=4 * U)


def test_denormals_alone_keep_their_norm() -> None:
    A = np.full((8, 8), LEAST)
    assert mx.norms(A) == (LEAST, 8 * LEAST, 8 * LEAST, 8 * LEAST)
    assert mx.norms(A, deterministic=True) == (LEAST, 8 * LEAST, 8 * LEAST, 8 * LEAST)


def test_huge_and_tiny_entries_far_apart_in_a_long_line() -> None:
    for places in ((0, 4999), (4999, 0), (2047, 2048)):
        A = np.full((1, 5000), 1e-300)
        A[0, places] = 3e300, 4e300
        for B in (A, A.T, A.astype(np.complex128)):
            assert mx.norm(B) == pytest.approx(5e300, rel=4 * U)
            assert mx.norm(B, deterministic=True) == pytest.approx(5e300, rel=8 * U)


# --- accuracy ---------------------------------------------------------------------------------------------------

MANY = 10_000_000


@pytest.fixture(scope="module")
def many() -> Any:
    return np.random.default_rng(3).random(MANY, dtype=np.float32)


def ulps(found: float, exact: float) -> float:
    return abs(found - exact) / np.spacing(exact)


def test_ten_million_ones_are_counted_exactly() -> None:
    A = np.ones(MANY, np.float32)
    for deterministic in (False, True):
        assert mx.norm(A, "one", deterministic=deterministic) == MANY
        assert mx.norm(A, "fro", deterministic=deterministic) == math.sqrt(MANY)
        found = mx.norms(A.reshape(2500, 4000), deterministic=deterministic)
        assert found == (1.0, 2500.0, 4000.0, math.sqrt(MANY))


def test_ten_million_random_numbers_where_naive_summation_fails(many: Any) -> None:
    wide = many.astype(np.float64)
    one, fro = math.fsum(wide), math.sqrt(math.fsum(wide * wide))
    naive = float(np.cumsum(many)[-1])  # one after the other, in the type of the matrix
    assert abs(naive - one) > 1e-6 * one, "or this test shows nothing"
    # Blocks of 2048 by vectors: less than (2048/8 + 10^7/2048) roundings in the worst case, of which few add up.
    assert ulps(mx.norm(many, "one"), one) <= 16
    assert ulps(mx.norm(many, "fro"), fro) <= 16
    # Without rounding up to the last few additions.
    assert ulps(mx.norm(many, "one", deterministic=True), one) <= 4
    assert ulps(mx.norm(many, "fro", deterministic=True), fro) <= 4
    columns = wide.reshape(2500, 4000)
    largest = max(math.fsum(columns[:, j]) for j in range(0, 4000, 40))
    assert mx.norm(many.reshape(2500, 4000)[:, ::40], "one") == pytest.approx(largest, rel=16 * U)


@pytest.mark.parametrize("name", ["float64", "float32", "complex128", "complex64"])
def test_slates_tolerance_is_met_with_room(rng: Any, name: str) -> None:
    """SLATE asks for an exact maximum of real entries, and else for 10·eps times the root of what is summed up."""
    dtype, (m, n) = TYPES[name], (211, 307)
    A, eps = random_matrix(rng, (m, n), dtype), float(np.finfo(dtype).eps)
    sizes = np.abs(A.astype(np.clongdouble if dtype.kind == "c" else np.longdouble))
    exact = {
        "max": (sizes.max(), 1), "one": (sizes.sum(axis=0).max(), m), "inf": (sizes.sum(axis=1).max(), n),
        "fro": (np.sqrt((sizes * sizes).sum()), m * n),
    }  # fmt: skip
    for kind, (value, terms) in exact.items():
        for deterministic in (False, True):
            found = mx.norm(A, kind, deterministic=deterministic)
            error = float(abs(found - value) / value) / math.sqrt(terms)
            assert error <= eps, "a tenth of what is allowed"
            assert error == 0.0 or kind != "max" or dtype.kind == "c"


# --- how it lies in memory --------------------------------------------------------------------------------------

STEPS = st.sampled_from([1, 2, 3, -1, -2, -3])


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 23), st.integers(0, 23)),
    offsets=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    steps=st.tuples(STEPS, STEPS),
    order=st.sampled_from("CF"),
    turned=st.booleans(),
    name=st.sampled_from(sorted(TYPES)),
    structure=st.sampled_from(["general", "trapezoid", "hessenberg", "band"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_piece_of_any_array_has_the_norms_of_its_copy(
    shape: tuple[int, int], offsets: tuple[int, int], steps: tuple[int, int], order: str, turned: bool, name: str,
    structure: str, seed: int,
) -> None:  # fmt: skip
    larger = [offset + abs(step) * max(size, 1) + 2 for size, offset, step in zip(shape, offsets, steps)]
    whole = np.full(larger, np.nan, TYPES[name], order=order)
    down, right = (
        slice(o, o + abs(s) * k, s) if s > 0 else slice(o + abs(s) * k - 1, o - 1 if o else None, s)
        for k, o, s in zip(shape, offsets, steps)
    )
    A = whole[down, right]
    A = A[: shape[0], : shape[1]]
    A[:] = random_matrix(np.random.default_rng(seed), A.shape, TYPES[name])
    A = A.T if turned else A
    options = {"kl": 2, "ku": 3} if structure == "band" else {}
    exact = exact_norms(expanded(A, structure, **options))
    found = mx.norms(A, structure=structure, **options)
    same = mx.norms(A, structure=structure, deterministic=True, **options)
    for kind in KINDS:
        agree(getattr(found, kind), exact[kind], kind, A)
        agree(getattr(same, kind), exact[kind], kind, A)
    assert same == mx.norms(np.ascontiguousarray(A), structure=structure, deterministic=True, **options)


def tiles_of(A: Any, heights: Sequence[int], widths: Sequence[int]) -> list[list[Any]]:
    """A in tiles that lie apart, every other one by columns."""
    downs, rights = pairwise([0, *accumulate(heights)]), list(pairwise([0, *accumulate(widths)]))
    return [[np.array(A[i:i1, j:j1], order="CF"[(i + j) % 2]) for j, j1 in rights] for i, i1 in downs]


@pytest.mark.parametrize("name", TYPES)
def test_deterministic_norms_have_the_same_bits_in_any_order_tiles_and_threads(rng: Any, name: str) -> None:
    n = 379 if TYPES[name].itemsize == 2 else 263
    A = random_matrix(rng, (n, n), TYPES[name])
    assert A.nbytes > ALONE, "several threads must have something to do"
    F, B = np.asfortranarray(A), mx.from_tiles(tiles_of(A, (100, 1, 60, n - 161), (7, 200, n - 207)))
    for structure, options in (("general", {}), ("trapezoid", {"uplo": "upper"}), ("hermitian", {"uplo": "lower"}),
                               ("triangular", {"diag": "unit"}), ("band", {"kl": 40, "ku": 9})):  # fmt: skip
        asked: dict[str, Any] = {"structure": structure, **options}
        expected = mx.norms(A, deterministic=True, threads=1, **asked)
        columns = mx.column_norms(A, threads=1, **asked)
        for threads, M in product((1, 2, 3), (A, F, B)):
            assert mx.norms(M, deterministic=True, threads=threads, **asked) == expected
            assert np.array_equal(mx.column_norms(M, threads=threads, **asked), columns)
        for kind in KINDS:
            assert mx.norm(F, kind, deterministic=True, **asked) == getattr(expected, kind)


@pytest.mark.parametrize("name", TYPES)
def test_deterministic_norms_of_the_transposed_matrix_have_the_same_bits(rng: Any, name: str) -> None:
    A = random_matrix(rng, (331, 97), TYPES[name])
    ours = mx.norms(A, deterministic=True)
    for turned in (mx.norms(A.T, deterministic=True), mx.norms(np.array(A.T), deterministic=True)):
        assert (turned.max, turned.one, turned.inf) == (ours.max, ours.inf, ours.one)
    for kind in KINDS:
        assert np.array_equal(mx.row_norms(A, kind), mx.column_norms(A.T, kind))
    lower = mx.norms(A, structure="trapezoid", uplo="lower", deterministic=True)
    upper = mx.norms(A.T, structure="trapezoid", uplo="upper", deterministic=True)
    assert (lower.max, lower.one, lower.inf) == (upper.max, upper.inf, upper.one)


# --- what may be handed in --------------------------------------------------------------------------------------


def test_integers_lists_vectors_and_foreign_byte_orders_are_taken() -> None:
    assert mx.norms([[1, -2], [3, 4]]) == (4.0, 6.0, 7.0, math.sqrt(30))
    assert mx.norm(np.array([[True, False], [True, True]]), "one") == 2.0
    assert mx.norm(np.array([[-128, 127]], np.int8), "inf") == 255.0
    assert mx.norm(np.array([3, 4], np.uint16)) == 5.0
    assert mx.norms(np.array([3.0, -4.0])) == (4.0, 7.0, 4.0, 5.0), "a vector is a column"
    assert mx.norm(np.array([[3.0, 4.0]], ">f8")) == 5.0
    assert mx.norm(np.array([[3.0 + 4.0j]], ">c8")) == 5.0
    crooked = np.frombuffer(bytearray(8 * 6 + 1), np.uint8)[1:].view(np.float64).reshape(2, 3)
    crooked[:] = [[1, 2, 2], [4, 0, 0]]
    assert not crooked.flags.aligned
    assert mx.norms(crooked) == (4.0, 5.0, 5.0, 5.0)
    frozen = np.ones((3, 3))
    frozen.flags.writeable = False
    assert mx.norm(frozen) == 3.0
    assert mx.norm(np.ma.array([[3.0, 4.0]])) == 5.0, "nothing is masked"
    assert mx.norm(np.broadcast_to(2.0, (3, 4)), "inf") == 8.0


def test_kinds_have_the_names_that_numpy_and_lapack_know() -> None:
    A = np.array([[1.0, -2.0], [3.0, 5.0]])
    for kind, aliases in (("one", (1, 1.0, "1")), ("inf", (np.inf, math.inf, "infinity")), ("fro", ("frobenius",))):
        for alias in aliases:
            assert mx.norm(A, alias) == mx.norm(A, kind)
    assert mx.norm(A) == mx.norm(A, "fro")
    assert mx.column_norms(A, "inf").tolist() == mx.column_norms(A, "max").tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([["a", "b"]]), ("float64", "bfloat16", "astype")),
        (np.array([[1, None]], dtype=object), ("object", "float64")),
        (np.ones((2, 2), np.longdouble), ("float64", "complex128")),
        (np.ones((2, 2), np.clongdouble), ("float64", "complex128")),
        (np.ones((2, 2), "M8[s]"), ("datetime64", "float64")),
        (np.ones((2, 2, 2)), ("3 dimensions",)),
        (np.float64(3.0), ("0 dimensions",)),
        ([[1.0, 2.0], [3.0]], ("not a numeric array",)),
        (np.ma.masked_greater(np.array([[1.0, 9.0]]), 5.0), ("masked", "filled(0)")),
        (scipy.sparse.csr_matrix(np.eye(3)), ("sparse", "toarray()", "scipy.sparse.linalg.norm")),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused_with_a_way_out(values: Any, says: tuple[str, ...]) -> None:
    for norms_of in (mx.norm, mx.norms, mx.column_norms, mx.row_norms):
        with pytest.raises(UsageError) as error:
            norms_of(values)
        assert all(word in str(error.value) for word in says), str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"structure": "diagonal"}, STRUCTURES),
        ({"structure": "triangular", "uplo": "L"}, UPLOS),
        ({"structure": "triangular", "diag": "U"}, DIAGS),
        ({"structure": "general", "uplo": "lower"}, WITH_UPLO),
        ({"structure": "symmetric", "diag": "unit"}, WITH_DIAG),
        ({"structure": "symmetric"}, ("2x3", "general")),
        ({"structure": "triangular"}, ("2x3", "trapezoid")),
        ({"structure": "hermitian-band", "kl": 1}, ("2x3", "band")),
        ({"structure": "band", "kl": 1}, ("kl", "ku")),
        ({"structure": "band", "kl": 1, "ku": -1}, ("ku = -1",)),
        ({"kl": 1}, ("band", "hermitian-band")),
        ({"threads": 0}, ("threads = 0", "at least one")),
        ({"threads": -2}, ("threads = -2", "at least one")),
        ({"device": "tpu"}, ("auto", "cpu")),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_choices(options: dict[str, Any], says: tuple[str, ...]) -> None:
    for norms_of in (mx.norm, mx.norms, mx.column_norms, mx.row_norms):
        with pytest.raises(UsageError) as error:
            norms_of(np.ones((2, 3)), **options)
        assert all(word in str(error.value) for word in says), str(error.value)


@pytest.mark.parametrize("kind", ["two", 2, -1, "max ", None, "", [1], np.nan, -np.inf])
def test_unknown_kinds_are_refused_with_the_choices(kind: Any) -> None:
    for norm_of in (mx.norm, mx.column_norms, mx.row_norms):
        with pytest.raises(UsageError, match="max, one, inf, fro"):
            norm_of(np.ones((2, 2)), kind)


def test_a_device_that_is_not_there_is_no_usage_error() -> None:
    with pytest.raises(ResourceError, match="cpu"):
        mx.norm(np.ones((2, 2)), device="cuda")


# --- tiles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_matrix_in_ragged_tiles_has_the_norms_of_the_matrix(rng: Any, name: str) -> None:
    m, n = (23, 23) if shapes(name)[0] == (11, 11) else (23, 17)
    heights, widths = (5, 1, 0, 13, 4), (2, 7, 1, n - 10)
    for dtype, options in product(TYPES.values(), cases(name, True)):
        A = poisoned(random_matrix(rng, (m, n), dtype), name, **options)
        exact = exact_norms(expanded(A, name, **options))
        M = mx.from_tiles(tiles_of(A, heights, widths))
        assert M.shape == (m, n)
        for deterministic in (False, True):
            found = mx.norms(M, structure=name, deterministic=deterministic, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(mx.row_norms(M, "one", structure=name, **options),
                              mx.row_norms(A, "one", structure=name, **options), equal_nan=True)  # fmt: skip


@pytest.mark.parametrize("uplo", UPLOS)
@pytest.mark.parametrize("structure", ["triangular", "symmetric", "hermitian"])
def test_tiles_of_the_unread_triangle_need_not_be_there(rng: Any, structure: str, uplo: str) -> None:
    A, sizes = random_matrix(rng, (20, 20), np.dtype(np.complex128)), (6, 6, 6, 2)
    exact = exact_norms(expanded(A, structure, uplo=uplo))
    rows: list[list[Any]] = tiles_of(A, sizes, sizes)
    for i, j in product(range(4), range(4)):
        if (j > i) if uplo == "lower" else (j < i):
            rows[i][j] = None
    mapping = {(i, j): tile for i, row in enumerate(rows) for j, tile in enumerate(row) if tile is not None}
    for M in (mx.from_tiles(rows), mx.from_tiles(mapping), mx.from_tiles(mapping, sizes, sizes)):
        found = mx.norms(M, structure=structure, uplo=uplo)
        for kind in KINDS:
            agree(getattr(found, kind), exact[kind], kind, A)
        turned = mx.norms(M.T, structure=structure, uplo={"lower": "upper", "upper": "lower"}[uplo])
        agree(turned.one, exact["inf"], "inf", A)
        agree(turned.inf, exact["one"], "one", A)


def test_tiles_are_not_copied_and_may_lie_anyhow(rng: Any) -> None:
    A = rng.standard_normal((12, 10))
    big = np.full((40, 40), np.nan)
    pieces = {
        (0, 0): big[1:22:3, 20:10:-2],
        (0, 1): big[20:6:-2, 25:30],
        (1, 0): big.T[30:35, :5],
        (1, 1): big[35:, :5],
    }
    pieces[1, 1] = pieces[1, 1][::-1, ::-1]
    for (i, j), piece in pieces.items():
        piece[:] = A[7 * i : 7 + 5 * i, 5 * j : 5 + 5 * j]
    M = mx.from_tiles(pieces)
    assert mx.norms(M, deterministic=True) == mx.norms(A, deterministic=True)
    pieces[1, 1][2, 3] = 1e6
    assert mx.norm(M, "max") == 1e6, "a later change shows: nothing was copied"


def test_no_tiles_at_all_make_an_empty_matrix() -> None:
    assert mx.norms(mx.from_tiles({})) == (0.0, 0.0, 0.0, 0.0)
    assert mx.from_tiles([]).shape == (0, 0)


def test_tiles_that_are_read_and_missing_are_missed() -> None:
    M = mx.from_tiles({(1, 1): np.ones((2, 3)), (1, 0): np.ones((2, 5))}, heights=[4, 2], widths=[5, 3])
    assert M.shape == (6, 8)
    for norms_of in (mx.norm, mx.norms, mx.column_norms, mx.row_norms):
        with pytest.raises(UsageError, match="hold 16 of the 48 entries that structure 'general' reads"):
            norms_of(M)
    A = np.arange(1.0, 17.0).reshape(4, 4)
    lower = mx.from_tiles([[A[:2, :2], None], [A[2:, :2], A[2:, 2:]]])
    assert mx.norm(lower, "inf", structure="symmetric") == mx.norm(A, "inf", structure="symmetric")
    with pytest.raises(UsageError, match="hold 6 of the 10 entries that structure 'symmetric' reads"):
        mx.norm(lower, "inf", structure="symmetric", uplo="upper")


def test_sizes_of_block_rows_may_be_an_array() -> None:
    M = mx.from_tiles({(0, 0): np.ones((2, 3)), (1, 0): np.ones((1, 3))}, np.array([2, 1]), np.array([3]))
    assert M.shape == (3, 3)
    assert mx.norm(M, "one") == 3.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([[np.ones((2, 2)), np.ones((3, 2))]],), ("(0, 1)", "(3, 2)", "2 rows")),
        (([[np.ones((2, 2))], [np.ones((2, 3))]],), ("(1, 0)", "(2, 3)", "2 columns")),
        (([[np.ones((2, 2)), None]],), ("block column 1", "widths")),
        (([[np.ones((2, 2))], [None]],), ("block row 1", "heights")),
        (({(0, 0): np.ones((2, 2)), (2, 0): np.ones((2, 2))},), ("block row 1", "heights")),
        (({(1, 0): np.ones((2, 2))}, [2], [2]), ("(1, 0)", "1x1")),
        (({(-1, 0): np.ones((2, 2))}, [2], [2]), ("(-1, 0)", "1x1")),
        (({(0, 0): np.ones((2, 2))}, [3], [2]), ("(0, 0)", "(2, 2)", "3 rows")),
        (([[np.ones((2, 2)), np.ones((2, 2), np.float32)]],), ("float32", "float64")),
        (([[np.ones(4)]],), ("(0, 0)", "1 dimensions")),
        (([[np.array([["x"]])]],), ("(0, 0)", "float64")),
    ],
)
def test_tiles_that_make_no_matrix_are_refused(arguments: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        mx.from_tiles(*arguments)
    assert all(word in str(error.value) for word in says), str(error.value)


# --- band storage -----------------------------------------------------------------------------------------------


def banded(A: Any, kl: int, ku: int, order: str, spare: int = 0) -> Any:
    """LAPACK's band storage of A, NaN where it holds no entry; `spare` rows more, as a factorization has them."""
    m, n = A.shape
    AB = np.full((kl + ku + 1 + spare, n), np.nan, A.dtype, order=order)
    for i, j in product(range(m), range(n)):
        if -kl <= j - i <= ku:
            AB[ku + i - j, j] = A[i, j]
    return AB


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("m", "n"), [(11, 11), (7, 13), (13, 7), (1, 5), (5, 1), (0, 3), (3, 0)])
def test_band_storage_has_the_norms_of_the_band(rng: Any, m: int, n: int, order: str) -> None:
    for dtype, (kl, ku), spare in product(TYPES.values(), ((0, 0), (1, 0), (0, 2), (3, 1), (4, 6)), (0, 2)):
        A = random_matrix(rng, (m, n), dtype)
        exact = exact_norms(expanded(A, "band", kl=kl, ku=ku))
        M = mx.from_band(banded(A, kl, ku, order, spare), kl, ku, m)
        assert M.shape == (m, n)
        for deterministic in (False, True):
            found = mx.norms(M, deterministic=deterministic)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(mx.column_norms(M), mx.column_norms(A, structure="band", kl=kl, ku=ku))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("uplo", UPLOS)
def test_half_of_a_hermitian_band_in_storage_has_its_norms(rng: Any, uplo: str, order: str) -> None:
    for dtype, k in product(TYPES.values(), (0, 1, 3)):
        A = poisoned(random_matrix(rng, (11, 11), dtype), "hermitian-band", uplo=uplo, kl=k)
        exact = exact_norms(expanded(A, "hermitian-band", uplo=uplo, kl=k))
        kl, ku = (k, 0) if uplo == "lower" else (0, k)
        M = mx.from_band(banded(A, kl, ku, order), kl, ku)
        for deterministic in (False, True):
            found = mx.norms(M, structure="hermitian-band", uplo=uplo, kl=k, deterministic=deterministic)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)


def test_of_a_stored_band_nothing_else_is_read() -> None:
    A = np.triu(np.tril(np.ones((6, 6)), 1), -2)  # kl = 2, ku = 1
    M = mx.from_band(np.ones((4, 6)), 2, 1)
    for options in ({}, {"structure": "band", "kl": 1, "ku": 1}, {"structure": "band", "kl": 9, "ku": 9},
                    {"structure": "triangular"}, {"structure": "triangular", "uplo": "upper", "diag": "unit"},
                    {"structure": "hessenberg"}, {"structure": "symmetric"},
                    {"structure": "hermitian-band", "kl": 2}):  # fmt: skip
        assert mx.norms(M, **options) == mx.norms(A, **options)
        assert mx.norms(M.T, **options) == mx.norms(A.T, **options)
        assert mx.row_norms(M, "one", **options).tolist() == mx.row_norms(A, "one", **options).tolist()


@pytest.mark.parametrize("name", STRUCTURES)
def test_what_lies_outside_of_the_stored_band_is_zero(rng: Any, name: str) -> None:
    kl, ku = 2, 1
    A = random_matrix(rng, (7, 7), TYPES["complex128"])
    M = mx.from_band(banded(A, kl, ku, "F"), kl, ku)
    for i, j in product(range(7), range(7)):
        A[i, j] *= -kl <= j - i <= ku
    for options in cases(name, True):
        exact = exact_norms(expanded(A, name, **options))
        for deterministic in (False, True):
            found = mx.norms(M, structure=name, deterministic=deterministic, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(mx.row_norms(M, structure=name, **options), mx.row_norms(A, structure=name, **options))


def test_a_mirrored_band_whose_triangle_is_not_stored_is_refused() -> None:
    M = mx.from_band(np.ones((3, 6)), 2, 0)
    assert mx.norm(M, "inf", structure="hermitian-band", kl=2) == 5.0
    for options in ({"structure": "symmetric", "uplo": "upper"},
                    {"structure": "hermitian-band", "kl": 2, "uplo": "upper"}):  # fmt: skip
        with pytest.raises(UsageError, match="say uplo='lower'"):
            mx.norm(M, "inf", **options)
    with pytest.raises(UsageError, match="has no kl"):
        mx.norm(M, kl=1)


@pytest.mark.parametrize(
    ("AB", "kl", "ku", "says"),
    [
        (np.ones((3, 5)), 2, 1, "takes 4 rows"),
        (np.ones(5), 0, 0, "takes 1 rows"),
        (np.ones((3, 5)), -1, 1, "0 or more"),
        (np.ones((3, 5)), 1, -1, "0 or more"),
        (np.ones((3, 5), object), 1, 1, "float64"),
    ],
)
def test_band_storage_that_does_not_fit_is_refused(AB: Any, kl: int, ku: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mx.from_band(AB, kl, ku)


# --- ScaLAPACK's layout, on one rank ----------------------------------------------------------------------------


def descriptor(m: int, n: int, mb: int, nb: int, lld: int) -> list[int]:
    return [1, 0, m, n, mb, nb, 0, 0, lld]


@pytest.mark.parametrize("name", STRUCTURES)
def test_scalapacks_array_on_one_rank_has_the_norms_of_the_matrix(rng: Any, name: str) -> None:
    m, n = (11, 11) if shapes(name)[0] == (11, 11) else (13, 7)
    for dtype, options in product(TYPES.values(), cases(name, True)):
        A = poisoned(random_matrix(rng, (m, n), dtype), name, **options)
        exact = exact_norms(expanded(A, name, **options))
        padded = np.full((m + 5, n), np.nan, dtype, order="F")
        padded[:m] = A
        flat = padded.ravel(order="F")
        forms = [(np.asfortranarray(A), m), (padded, m + 5), (flat, m + 5), (flat[: -5 or None], m + 5), (A, m)]
        for (local, lld), (mb, nb) in product(forms, ((3, 2), (64, 64))):
            M = mx.from_scalapack(local, descriptor(m, n, mb, nb, lld))
            assert M.shape == (m, n)
            found = mx.norms(M, structure=name, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)


def test_scalapacks_empty_matrices_have_norm_0() -> None:
    for m, n in ((0, 0), (0, 3), (3, 0)):
        for local in (np.zeros((m, n)), np.zeros(m * n), np.zeros(5)):
            assert mx.norms(mx.from_scalapack(local, descriptor(m, n, 2, 2, max(m, 1)))) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("local", "desc", "options", "says"),
    [
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0], {}, "9 entries"),
        (np.ones((4, 4)), [502, 0, 4, 4, 2, 2, 0, 0, 4], {}, "DTYPE"),
        (np.ones((4, 4)), [1, 0, -4, 4, 2, 2, 0, 0, 4], {}, "M=-4"),
        (np.ones((4, 4)), [1, 0, 4, 4, 0, 2, 0, 0, 4], {}, "MB=0"),
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 1, 0, 4], {}, "RSRC=1"),
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, -1, 4], {}, "CSRC=-1"),
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 3], {}, "LLD = 3"),
        (np.ones((3, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "4x4 local entries"),
        (np.ones((4, 3)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "4x4 local entries"),
        (np.ones(15), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "take 16"),
        (np.ones(18), [1, 0, 4, 4, 2, 2, 0, 0, 5], {}, "take 19"),
        (np.ones((4, 4), object), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "float64"),
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {"grid": (2, 3)}, r"2\*3 = 6"),
        (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {"order": "C"}, "row or column"),
    ],
)
def test_descriptors_that_do_not_fit_are_refused(local: Any, desc: list[int], options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mx.from_scalapack(local, desc, **options)
