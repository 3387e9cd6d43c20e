"""Compare norms with exact arithmetic: all structures, kinds and types, the limits of the range, and NaN."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.configs.norms import STRUCTURES
from mxpeak.kernels.host.norms.tile_table import SERIAL_BELOW
from tests.support.exact_norms import (
    KINDS,
    LEAST,
    agree,
    cases,
    exact_norms,
    expanded,
    poisoned,
    rounded,
    shapes,
    tiles_of,
    unread,
    vector_norm,
)
from tests.support.norm_tiles import TYPES, random_values
from tests.support.notes import note_case
from tests.support.roundoff import U

LARGEST = np.finfo(np.float64).max


# --- comparison with exact norms --------------------------------------------------------------------------------


def check(A: Any, name: str = "general", **options: Any) -> None:
    """Compare all public functions for one matrix with exact norms."""
    sizes = expanded(A, name, **options)
    exact, settings = exact_norms(sizes), {"structure": name, **options}
    at_once = mx.norms(A, **settings)
    same = mx.norms(A, deterministic=True, **settings)
    for kind in KINDS:
        agree(mx.norm(A, kind, **settings), exact[kind], kind, A)
        agree(mx.norm(A, kind, threads=1, **settings), exact[kind], kind, A)  # not the fast path of small matrices
        agree(getattr(at_once, kind), exact[kind], kind, A)
        agree(getattr(same, kind), exact[kind], kind, A)
        for norms_of, lines in ((mx.row_norms, sizes), (mx.column_norms, list(zip(*sizes)))):
            norms = norms_of(A, kind, **settings)
            assert norms.dtype == np.float64
            assert len(norms) == A.shape[0 if norms_of is mx.row_norms else 1]
            for value, line in zip(norms, lines):
                agree(float(value), rounded(vector_norm(kind, line)), kind, A)


# --- structures, kinds, types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_has_the_norms_of_its_definition_in_every_type(rng: Any, name: str) -> None:
    for dtype, shape, options in product(TYPES.values(), shapes(name), cases(name)):
        with note_case(dtype=dtype, shape=shape, options=options):
            check(poisoned(random_values(rng, shape, dtype), name, **options), name, **options)


@pytest.mark.parametrize("name", STRUCTURES)
def test_zeros_ones_and_nothing_at_all(name: str) -> None:
    empty = [(0, 0)] if shapes(name)[0] == (11, 11) else [(0, 0), (0, 5), (5, 0)]
    every = product(*map(enumerate, (TYPES.values(), [*empty, *shapes(name)], cases(name))))
    for (i, dtype), (j, shape), (k, options) in every:
        turn, rest = divmod(i + j + k, 2)  # every second one: each shape and options still have all three
        if rest == 0:
            A = (np.zeros(shape, dtype), np.ones(shape, dtype), -np.zeros(shape, dtype))[turn % 3]
            with note_case(dtype=dtype, shape=shape, options=options):
                check(A, name, **options)


@pytest.mark.parametrize("name", STRUCTURES)
def test_nan_counts_wherever_it_is_read_and_nowhere_else(rng: Any, name: str) -> None:
    m, n = (4, 4) if shapes(name)[0] == (11, 11) else (5, 3)
    for turn, options in enumerate(cases(name)):
        dtype = np.dtype((np.float64, np.complex64)[(turn + list(STRUCTURES).index(name)) % 2])
        clean = poisoned(random_values(rng, (m, n), dtype), name, **options)
        hidden = unread(m, n, name, **options)
        settings = {"structure": name, **options}
        assert all(map(math.isfinite, mx.norms(clean, **settings)))
        for at, value in product(np.ndindex(m, n), (np.nan, -np.nan, np.inf)):
            A = clean.copy()
            A[at] = value
            for norms in (mx.norms(A, **settings), mx.norms(A, deterministic=True, **settings)):
                expected = math.isfinite if at in hidden else math.isnan if math.isnan(value) else math.isinf
                assert all(map(expected, norms)), (at, value, norms)


BOTH_WAYS = (False, True)


def test_an_entry_with_one_part_inf_and_the_other_nan_is_nan() -> None:
    parts = (complex(np.inf, np.nan), complex(np.nan, -np.inf), complex(1.0, np.nan), complex(np.nan, 0.0))
    for dtype, part in product((np.complex128, np.complex64), parts):
        A = np.ones((3, 4), dtype)
        A[1, 2] = part
        for deterministic in BOTH_WAYS:
            assert all(map(math.isnan, mx.norms(A, deterministic=deterministic))), (dtype, part)
        assert np.isnan(mx.column_norms(A, "one")).tolist() == [False, False, True, False]


def test_the_nan_that_inf_minus_inf_leaves_counts() -> None:
    """Processors set the sign bit of that NaN, which must not make it a small number."""
    with np.errstate(invalid="ignore"):
        nan = np.array([np.inf]) - np.array([np.inf])
    for dtype, kind, deterministic in product(TYPES.values(), KINDS, BOTH_WAYS):
        A = np.ones((3, 4), dtype)
        A[1, 2] = nan.astype(dtype)[0]
        assert math.isnan(mx.norm(A, kind, deterministic=deterministic)), (dtype, kind, deterministic)


def test_inf_gives_inf_and_nan_takes_precedence() -> None:
    for dtype, deterministic in product(TYPES.values(), BOTH_WAYS):
        A = np.ones((7, 5), dtype)
        A[2, 3] = -np.inf
        assert all(map(math.isinf, mx.norms(A, deterministic=deterministic))), (dtype, deterministic)
        A[6, 0] = np.nan
        assert all(map(math.isnan, mx.norms(A, deterministic=deterministic))), (dtype, deterministic)


def test_one_entry_among_zeros_is_the_norm_at_any_position() -> None:
    for dtype, value, at in product(TYPES.values(), (np.nan, np.inf, 0.25), np.ndindex(5, 4)):
        A = np.zeros((5, 4), dtype)
        A[at] = value
        for deterministic in BOTH_WAYS:
            found = [mx.norm(A, kind, deterministic=deterministic) for kind in KINDS]
            with note_case(dtype=dtype, value=value, at=at, deterministic=deterministic):
                np.testing.assert_array_equal([*found, *mx.norms(A, deterministic=deterministic)], [value] * 8)


@pytest.mark.parametrize("name", TYPES)
def test_long_lines_of_any_layout_have_the_norms_of_their_definition(rng: Any, name: str) -> None:
    tiny = float(ml_dtypes.finfo(TYPES[name]).tiny)
    for (m, n), scale in (((2, 2503), 1.0), ((2503, 2), tiny), ((1, 4099), 1.0), ((1, 4099), tiny)):
        A = random_values(rng, (m, n), TYPES[name], scale)
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
        check(random_values(rng, (7, 5), dtype, scale))
        check(random_values(rng, (6, 6), dtype, scale), "hermitian", uplo="upper")
    one_huge = random_values(rng, (5, 9), dtype, least * 100)
    one_huge[3, 4] = largest
    check(one_huge)
    check(np.full((3, 4), least, dtype))
    check(np.full((3, 4), largest, dtype))
    both = np.array([[largest, least], [1.0, tiny]]).astype(dtype)
    check(both)
    check(both, "triangular", diag="unit")


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_norm_just_below_the_largest_number_is_finite_and_one_above_is_inf(dtype: Any) -> None:
    top = 2.0**1023
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
    for columns in ((0, 4999), (4999, 0), (2047, 2048)):
        A = np.full((1, 5000), 1e-300)
        A[0, columns] = 3e300, 4e300
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
    one_norm, fro = math.fsum(wide), math.sqrt(math.fsum(wide * wide))
    naive = float(np.cumsum(many)[-1])  # one after the other, in the type of the matrix
    assert abs(naive - one_norm) > 1e-6 * one_norm, "or this test shows nothing"
    # Blocks of 2048 by vectors: less than (2048/8 + 10^7/2048) roundings in the worst case, of which few add up.
    assert ulps(mx.norm(many, "one"), one_norm) <= 16
    assert ulps(mx.norm(many, "fro"), fro) <= 16
    # Without rounding up to the last few additions.
    assert ulps(mx.norm(many, "one", deterministic=True), one_norm) <= 4
    assert ulps(mx.norm(many, "fro", deterministic=True), fro) <= 4
    columns = wide.reshape(2500, 4000)
    largest = max(math.fsum(columns[:, j]) for j in range(0, 4000, 40))
    assert mx.norm(many.reshape(2500, 4000)[:, ::40], "one") == pytest.approx(largest, rel=16 * U)


@pytest.mark.parametrize("name", ["float64", "float32", "complex128", "complex64"])
def test_errors_are_well_below_slates_tolerance(rng: Any, name: str) -> None:
    """SLATE requires an exact maximum of real entries; other errors may be 10·eps times the root of their terms."""
    dtype, (m, n) = TYPES[name], (211, 307)
    A, eps = random_values(rng, (m, n), dtype), float(np.finfo(dtype).eps)
    sizes = np.abs(A.astype(np.clongdouble if dtype.kind == "c" else np.longdouble))
    exact = {
        "max": (sizes.max(), 1),
        "one": (sizes.sum(axis=0).max(), m),
        "inf": (sizes.sum(axis=1).max(), n),
        "fro": (np.sqrt((sizes * sizes).sum()), m * n),
    }
    for kind, (value, terms) in exact.items():
        for deterministic in (False, True):
            found = mx.norm(A, kind, deterministic=deterministic)
            error = float(abs(found - value) / value) / math.sqrt(terms)
            assert error <= eps, "a tenth of what is allowed"
            assert error == 0.0 or kind != "max" or dtype.kind == "c"


# --- memory layouts ---------------------------------------------------------------------------------------------

STEPS = st.sampled_from([1, 2, 3, -1, -2, -3])


@settings(max_examples=80, deadline=None)
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
    shape: tuple[int, int],
    offsets: tuple[int, int],
    steps: tuple[int, int],
    order: str,
    turned: bool,
    name: str,
    structure: str,
    seed: int,
) -> None:
    larger = [offset + abs(step) * max(size, 1) + 2 for size, offset, step in zip(shape, offsets, steps)]
    whole = np.full(larger, np.nan, TYPES[name], order=order)
    down, right = (
        slice(o, o + abs(s) * k, s) if s > 0 else slice(o + abs(s) * k - 1, o - 1 if o else None, s)
        for k, o, s in zip(shape, offsets, steps)
    )
    A = whole[down, right]
    A = A[: shape[0], : shape[1]]
    A[:] = random_values(np.random.default_rng(seed), A.shape, TYPES[name])
    A = A.T if turned else A
    options = {"kl": 2, "ku": 3} if structure == "band" else {}
    exact = exact_norms(expanded(A, structure, **options))
    norms = mx.norms(A, structure=structure, **options)
    same = mx.norms(A, structure=structure, deterministic=True, **options)
    for kind in KINDS:
        agree(getattr(norms, kind), exact[kind], kind, A)
        agree(getattr(same, kind), exact[kind], kind, A)
    assert same == mx.norms(np.ascontiguousarray(A), structure=structure, deterministic=True, **options)


@pytest.mark.parametrize("name", TYPES)
def test_deterministic_norms_have_the_same_bits_in_any_order_tiles_and_threads(rng: Any, name: str) -> None:
    n = 379 if TYPES[name].itemsize == 2 else 263
    A = random_values(rng, (n, n), TYPES[name])
    assert A.nbytes > SERIAL_BELOW, "several threads must have something to do"
    F, B = np.asfortranarray(A), mx.from_tiles(tiles_of(A, (100, 1, 60, n - 161), (7, 200, n - 207)))
    for structure, options in (
        ("general", {}),
        ("trapezoid", {"uplo": "upper"}),
        ("hermitian", {"uplo": "lower"}),
        ("triangular", {"diag": "unit"}),
        ("band", {"kl": 40, "ku": 9}),
    ):
        settings: dict[str, Any] = {"structure": structure, **options}
        expected = mx.norms(A, deterministic=True, threads=1, **settings)
        columns = mx.column_norms(A, threads=1, **settings)
        for threads, M in product((1, 2, 3), (A, F, B)):
            assert mx.norms(M, deterministic=True, threads=threads, **settings) == expected
            assert np.array_equal(mx.column_norms(M, threads=threads, **settings), columns)
        for kind in KINDS:
            assert mx.norm(F, kind, deterministic=True, **settings) == getattr(expected, kind)


@pytest.mark.parametrize("name", TYPES)
def test_deterministic_norms_of_the_transposed_matrix_have_the_same_bits(rng: Any, name: str) -> None:
    A = random_values(rng, (331, 97), TYPES[name])
    ours = mx.norms(A, deterministic=True)
    for turned in (mx.norms(A.T, deterministic=True), mx.norms(np.array(A.T), deterministic=True)):
        assert (turned.max, turned.one, turned.inf) == (ours.max, ours.inf, ours.one)
    for kind in KINDS:
        assert np.array_equal(mx.row_norms(A, kind), mx.column_norms(A.T, kind))
    lower = mx.norms(A, structure="trapezoid", uplo="lower", deterministic=True)
    upper = mx.norms(A.T, structure="trapezoid", uplo="upper", deterministic=True)
    assert (lower.max, lower.one, lower.inf) == (upper.max, upper.inf, upper.one)
