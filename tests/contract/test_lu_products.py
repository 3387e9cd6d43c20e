"""Test the products with matrices and triangles for HPL and HPL-MxP on every backend, with ragged and prime sizes.

Bounds are componentwise, and twice those of the contract; see `blocks.WIDE`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.lu import gemm_probe
from mxpeak.precision import PRECISIONS
from tests.support.backends import Backend, backend_named, each, sizes
from tests.support.blocks import (
    GRIDS,
    SHAPES,
    STORED,
    WIDE,
    globals_of,
    matrix,
    numbers,
    operands,
    panel,
    parts,
    poisoned,
    rounded,
    stored,
    stored_as,
    vector,
    within,
)
from tests.support.roundoff import U
from tests.support.turns import for_each

# --- products


def summed_in(backend: Backend, precision: str) -> float:
    """Return the unit roundoff of the sums of products: tensor cores add those of fp8 numbers in about 14 bits."""
    return 2.0**-14 if precision == "fp8" and backend.on_gpu else STORED[stored_as(precision)][1]


def test_cutting_an_update_into_columns_changes_no_bit_unless_cuts_show(backend: Backend, rng: Any) -> None:
    """Updates are cut at multiples of 64 columns."""
    m, n, k, cut = 45, 330, 96, 128
    for precision in PRECISIONS:
        format_ = stored_as(precision)
        A, B, C = (stored(rng.random(shape) - 0.5, format_) for shape in ((m, k), (k, n), (m, n)))
        whole, parts = matrix(backend, C, format_), matrix(backend, C, format_)
        left, right = operands(backend, A, B, precision)
        backend.kernels.subtract_product(whole, left, right)
        for columns in (slice(cut), slice(cut, None)):
            backend.kernels.subtract_product(parts[:, columns], left, right[:, columns])
        same = np.array_equal(numbers(backend, whole), numbers(backend, parts))
        assert same or backend.kernels.cuts_show(precision), precision


#: Formats that Triton multiplies; its interpreter has no products of bf16 numbers.
BY_TRITON = {"fp16", "fp8"}


def test_products_of_rounded_operands_have_the_error_of_the_type_they_are_summed_in(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = ((0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (31, 17, 5), (37, 97, 61))
    for gemm in each(backend, monkeypatch, "gemm", "library", "triton"):
        by_triton = BY_TRITON | ({"bf16"} if backend.on_gpu else set())
        few = shapes[-2:] if backend.interpreted and gemm == "library" else shapes
        for precision, (m, n, k) in product(by_triton if gemm == "triton" else PRECISIONS, few):
            format_ = stored_as(precision)
            A, B, C = (stored(rng.random(shape) - 0.5, format_) for shape in ((m, k), (k, n), (m, n)))
            actual = matrix(backend, C, format_)
            backend.kernels.subtract_product(actual, *operands(backend, A, B, precision))
            A, B = rounded(A, precision), rounded(B, precision)
            bound = 2 * summed_in(backend, precision) * ((k + 1) * (np.abs(A) @ np.abs(B)) + np.abs(C))
            exact = C.astype(WIDE) - A.astype(WIDE) @ B.astype(WIDE)
            assert within(numbers(backend, actual), exact, bound), (gemm, precision, m, n, k)


def test_products_with_panels_and_with_parts_of_operands(backend: Backend, rng: Any) -> None:
    A, B, C = (rng.random(shape) - 0.5 for shape in ((37, 19), (19, 41), (37, 41)))
    for precision, (_, u) in STORED.items():
        A_, B_, C_ = (stored(M, precision) for M in (A, B, C))
        actual = matrix(backend, C_, precision)
        left, right = panel(backend, A_, precision), matrix(backend, B_, precision)
        backend.kernels.subtract_product(actual, left, right)
        exact = C_.astype(WIDE) - A_.astype(WIDE) @ B_.astype(WIDE)
        assert within(numbers(backend, actual), exact, 2 * u * (20 * (np.abs(A_) @ np.abs(B_)) + np.abs(C_)))
    for precision in PRECISIONS:
        format_ = stored_as(precision)
        L, R = operands(backend, stored(A, format_), stored(B, format_), precision)
        actual = matrix(backend, np.zeros((37, 41)), format_)
        backend.kernels.subtract_product(actual[5:37, 7:41], L[5:], R[:, 7:])
        exact = -(numbers(backend, L).astype(WIDE) @ numbers(backend, R).astype(WIDE))
        exact[:5], exact[:, :7] = 0, 0
        # k+1 products of at most 1/4, twice
        assert within(numbers(backend, actual), exact, 40 * summed_in(backend, precision) * 19 / 4)


def test_what_is_not_finite_spoils_its_row_of_a_product_and_no_other(backend: Backend, rng: Any) -> None:
    kernels = backend.kernels
    # Triton's interpreter converts NaN in fp8 to a number.
    for precision, value in product(
        ("fp64", "fp32", "bf16", *(() if backend.interpreted else ("fp8",))), (np.nan, np.inf)
    ):
        format_ = stored_as(precision)
        A, B = rng.random((19, 7)), rng.random((7, 11)) + 1.0
        A[5, 3] = value
        C, y = matrix(backend, np.zeros((19, 11)), format_), kernels.xp.zeros(19)
        kernels.subtract_product(C, *operands(backend, A, B, precision))
        kernels.add_matvec(y, matrix(backend, A, format_), vector(backend, B[:, 0]))
        for row_is_finite in (np.isfinite(numbers(backend, C)).all(axis=1), np.isfinite(numbers(backend, y))):
            assert list(np.flatnonzero(~row_is_finite)) == [5]


@for_each("precision", STORED)
def test_a_digest_is_that_of_the_definition_and_tells_every_bit(backend: Backend, rng: Any, precision: str) -> None:
    kernels, values = backend.kernels, stored(rng.standard_normal((13, 7)), precision)
    A = matrix(backend, values, precision)
    first = kernels.digest(A)
    assert first == backend_named("reference").kernels.digest(values)
    assert kernels.digest(matrix(backend, values, precision)) == first, "gaps between rows are not read"
    assert kernels.digest(A[:, :6]) != first
    words = f"i{values.itemsize}"
    for bit in (0, 8 * values.itemsize - 1):
        changed = values.copy()
        changed.view(words)[4, 5] ^= np.array(1).astype(words) << bit
        assert kernels.digest(matrix(backend, changed, precision)) != first
    swapped = values.copy()
    swapped[[2, 3]] = swapped[[3, 2]]
    assert kernels.digest(matrix(backend, swapped, precision)) != first


def test_a_probe_is_one_product_of_random_numbers_in_its_precision(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, seen = backend.kernels, []
    real = kernels.subtract_product
    monkeypatch.setattr(kernels, "subtract_product", lambda *args: (seen.append(args), real(*args)))
    for precision in PRECISIONS:
        seen.clear()
        gemm_probe(kernels, 13, 7, 5, precision)()
        ((C, A, B),) = seen
        assert (C.shape, A.shape, B.shape) == ((13, 7), (13, 5), (5, 7))
        assert C.dtype == kernels.matrix(1, 1, stored_as(precision)).dtype
        assert A.dtype == B.dtype == kernels.operand_buffer(1, 1, precision, "left").dtype
        A, B = numbers(backend, A), numbers(backend, B)
        assert np.array_equal(A, rounded(A, precision))
        assert len(np.unique(A)) > 13
        assert len(np.unique(B)) > 13
        assert within(numbers(backend, C), -(A.astype(WIDE) @ B), 30 * summed_in(backend, precision))


# --- matrices and triangles times vectors


def triton_shapes(backend: Backend) -> tuple[tuple[int, int], ...]:
    """Return shapes with more than a Triton tile in both directions."""
    return sizes(backend, *SHAPES, (37, 150), interpreted=((0, 3), (3, 0), (1, 1), (19, 150)))


def triton_ranks(backend: Backend) -> list[Any]:
    """Return ranks of several grids; for Triton's interpreter also one with more than a tile both ways."""
    if backend.interpreted:
        return [*parts(7, 3, 1, 2), parts(29, 8, 2, 3)[3], parts(5, 4, 3, 1)[2], parts(149, 9, 5, 1)[2]]
    return [rank for grid in [(0, 4, 2, 2), *GRIDS, (149, 9, 1, 1)] for rank in parts(*grid)]


@for_each("precision", STORED)
def test_products_with_a_vector_have_the_error_of_fp64(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.lu.triangle.STRIP", 500)
    for m, n in triton_shapes(backend):
        A = stored(rng.random((m, n)) - 0.5, precision)
        for op, transposed in ((A, False), (A.T, True)):
            x, y = rng.random(op.shape[1]) - 0.5, rng.random(op.shape[0]) - 0.5
            actual = vector(backend, y)
            backend.kernels.add_matvec(actual, matrix(backend, A, precision), vector(backend, x), transposed=transposed)
            size = np.abs(op.astype(WIDE)) @ np.abs(x)
            bound = 2 * U * ((op.shape[1] + 1) * size + np.abs(y))
            assert within(numbers(backend, actual), y + op.astype(WIDE) @ x, bound), (m, n, transposed)


@for_each("precision", STORED)
def test_products_with_several_vectors_have_the_error_of_fp64(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    for widened in ("mxpeak.kernels.torch.lu.triangle.STRIP", "mxpeak.kernels.host.lu.lu.WIDENED"):
        monkeypatch.setattr(widened, 500)  # so that a strip is smaller than the matrix
    for (m, n), sides in product(((0, 3), (3, 0), (1, 1), (1, 5), (5, 1), (37, 150)), (1, 3, 7)):
        A = stored(rng.random((m, n)) - 0.5, precision)
        for op, transposed in ((A, False), (A.T, True)):
            X, Y = rng.random((op.shape[1], sides)) - 0.5, rng.random((op.shape[0], sides)) - 0.5
            actual = matrix(backend, Y, "fp64")
            given = matrix(backend, A, precision), matrix(backend, X, "fp64")
            backend.kernels.add_matvec(actual, *given, transposed=transposed)
            bound = 2 * U * ((op.shape[1] + 1) * (np.abs(op.astype(WIDE)) @ np.abs(X)) + np.abs(Y))
            assert within(numbers(backend, actual), Y + op.astype(WIDE) @ X, bound), (m, n, sides, transposed)


@for_each("precision", STORED)
def test_two_products_at_once_are_those_of_each(backend: Backend, rng: Any, precision: str) -> None:
    for m, n in triton_shapes(backend):
        A, x, y = stored(rng.random((m, n)) - 0.5, precision), rng.random((2, n)) - 0.5, rng.random((2, m)) - 0.5
        actual, given = [vector(backend, k) for k in y], [vector(backend, k) for k in x]
        backend.kernels.add_two_matvecs(*actual, matrix(backend, A, precision), *given)
        for k in range(2):
            bound = 2 * U * ((n + 1) * (np.abs(A.astype(WIDE)) @ np.abs(x[k])) + np.abs(y[k]))
            assert within(numbers(backend, actual[k]), y[k] + A.astype(WIDE) @ x[k], bound), (m, n, k)


def operand_sums(A: Any, precision: str, x: Any) -> tuple[Any, Any]:
    """Return the sums that `add_operand_sums` adds, and the sums of absolute values."""
    wide, low = A.astype(WIDE), (A if precision in STORED else rounded(A, precision)).astype(WIDE)
    if len(x) == 1:
        x = np.stack([x[0], 0.0 * x[0], x[0], np.ones_like(x[0])])
    terms = [(low, x[0]), (wide, x[1]), (wide, x[2]), (wide * wide, x[3])]
    u, v, w, q = (M @ part for M, part in terms)
    u_size, v_size, w_size, q_size = (np.abs(M) @ np.abs(part) for M, part in terms)
    return np.stack([u + v, w, q]), np.stack([u_size + v_size, w_size, q_size])


@for_each("precision", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_sums_of_rows_rounded_and_as_they_are(backend: Backend, rng: Any, precision: str) -> None:
    """Rows are longer than the pieces that are rounded, and contain numbers near the smallest of a format, and NaN."""
    kept = precision if precision in STORED else "fp32"
    u = U if precision in STORED else STORED["fp32"][1]
    for m, n in [*triton_shapes(backend), *sizes(backend, (9, 4500), interpreted=())]:
        A = stored(rng.random((m, n)) - 0.5, kept)
        if m > 1 and n > 1:
            A[0] *= A.dtype.type(2.0**-12)
            A[m - 1, n - 1] = np.nan
        for count in (1, 4):
            x, y = rng.random((count, n)) - 0.5, rng.random((3, m)) - 0.5
            found = matrix(backend, y, "fp64")
            backend.kernels.add_operand_sums(found, matrix(backend, A, kept), precision, matrix(backend, x, "fp64"))
            sums, (more, magnitudes) = numbers(backend, found), operand_sums(A, precision, x)
            right, bound = y + more, 2 * u * ((2 * n + 3) * magnitudes + np.abs(y))
            usual = ~np.isnan(right)
            assert np.array_equal(~np.isnan(sums), usual), (m, n, count)
            assert within(sums[usual], right[usual], bound[usual]), (m, n, count)


@for_each("precision", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_sums_of_rows_that_begin_or_end_with_a_diagonal_block(backend: Backend, rng: Any, precision: str) -> None:
    """These are rows of U and L, whose entries in the other triangle of the block are never read."""
    kept = precision if precision in STORED else "fp32"
    u = U if precision in STORED else STORED["fp32"][1]
    shapes = sizes(backend, (1, 0), (2, 3), (7, 5), (5, 2100), (530, 6), interpreted=((1, 0), (7, 5), (19, 131)))
    for (m, other), part, count in product(shapes, ("upper", "lower"), (1, 4)):
        n = m + other
        i, j = np.arange(m)[:, None], np.arange(n)
        inside = j >= i if part == "upper" else j < i + other
        A = stored(rng.random((m, n)) - 0.5, kept)
        x, y = rng.random((count, n)) - 0.5, rng.random((6 if part == "upper" else 3, m)) - 0.5
        actual, local = matrix(backend, y, "fp64"), matrix(backend, poisoned(A, inside), kept)
        backend.kernels.add_operand_sums(actual, local, precision, matrix(backend, x, "fp64"), part)
        A = np.where(inside, A, A.dtype.type(0))
        columns = [slice(m, None), slice(m)] if part == "upper" else [slice(None)]
        parts = [operand_sums(A[:, one], precision, x[:, one]) for one in columns]
        more, magnitudes = (np.concatenate(those) for those in zip(*parts))
        bound = 2 * u * ((2 * n + 3) * magnitudes + np.abs(y))
        assert within(numbers(backend, actual), y + more, bound), (m, other, part, count)


@for_each("precision", ["tf32", "bf16"])
def test_squares_of_small_entries_by_small_weights_are_within_fp32(backend: Backend, rng: Any, precision: str) -> None:
    """Entries of 2^-57 squared and multiplied by a weight of 2^-40 would underflow in fp32."""
    m, n = 5, 40
    A = stored((rng.random((m, n)) - 0.5) * 2.0**-57, "fp32")
    x, y = rng.random((4, n)) - 0.5, (rng.random((3, m)) - 0.5) * 2.0**-150
    x[3] = (x[3] + 1.0) * 2.0**-40
    actual = matrix(backend, y, "fp64")
    backend.kernels.add_operand_sums(actual, matrix(backend, A, "fp32"), precision, matrix(backend, x, "fp64"))
    more, sizes = operand_sums(A, precision, x)
    bound = 2 * STORED["fp32"][1] * ((2 * n + 3) * sizes[2] + np.abs(y[2]))
    assert within(numbers(backend, actual)[2], y[2] + more[2], bound)


@for_each("precision", ["tf32", "bf16"])
def test_sums_of_rounded_rows_may_be_beyond_fp32(backend: Backend, rng: Any, precision: str) -> None:
    """Entries with a flipped exponent bit have such sums, which show the row of the error."""
    m, n = 9, 40
    A = stored(rng.random((m, n)) - 0.5, "fp32")
    A[4, 20], A[4, 22], A[7, 3] = 3e38, 3.3e38, -2e38
    for count in (4, 1):
        x = rng.random((count, n)) + 1.0
        x[1:2] *= 1e60  # fp32 does not hold these either
        actual = matrix(backend, np.zeros((3, m)), "fp64")
        backend.kernels.add_operand_sums(actual, matrix(backend, A, "fp32"), precision, matrix(backend, x, "fp64"))
        right, sizes = operand_sums(A, precision, x)
        assert within(numbers(backend, actual), right, 2 * STORED["fp32"][1] * (2 * n + 3) * sizes), count


@for_each("precision", ["tf32", "bf16", "fp16", "fp8"])
def test_columns_that_are_not_rounded_may_be_beyond_the_format(backend: Backend, rng: Any, precision: str) -> None:
    m, n = 6, 30
    A, x = stored(rng.random((m, n)) - 0.5, "fp32"), rng.random((4, n)) - 0.5
    A[2:, 7:9], x[0, 7:9] = 1e5 if precision.startswith("fp") else np.finfo(np.float32).max, 0.0
    actual = matrix(backend, np.zeros((3, m)), "fp64")
    backend.kernels.add_operand_sums(actual, matrix(backend, A, "fp32"), precision, matrix(backend, x, "fp64"))
    beyond = A[:, 7:9].astype(WIDE)
    A[:, 7:9] = 0.0
    right, sizes = operand_sums(A, precision, x)
    more, more_sizes = operand_sums(beyond, "fp64", x[:, 7:9])
    assert within(numbers(backend, actual), right + more, 2 * STORED["fp32"][1] * (2 * n + 3) * (sizes + more_sizes))


@for_each("precision", STORED)
@for_each("form", ["plain", "absolute", "squared"])
def test_a_triangle_times_a_vector_reads_only_the_triangle(
    backend: Backend, rng: Any, form: str, precision: str
) -> None:
    apply = {"plain": lambda T: T, "absolute": np.abs, "squared": np.square}[form]
    for (rows, cols), part in product(triton_ranks(backend), ("lower", "upper")):
        n, i, j = rows.n, globals_of(rows), globals_of(cols)
        A = stored(rng.random((len(i), len(j))) - 0.5, precision)
        keep = np.greater.outer(i, j) if part == "lower" else ~np.greater.outer(i, j)
        keep = keep.reshape(A.shape)
        T = apply(np.where(keep, A, 0).astype(WIDE))
        x, y = rng.random(len(j)) - 0.5, rng.random(len(i)) - 0.5
        actual, local = vector(backend, y), matrix(backend, poisoned(A, keep), precision)
        backend.kernels.add_triangle_matvec(actual, local, vector(backend, x), rows, cols, part, form)
        # n products and sums; squaring is one rounding more.
        bound = 2 * U * ((len(j) + 2) * (np.abs(T) @ np.abs(x)) + np.abs(y))
        assert within(numbers(backend, actual), y + T @ x, bound), (n, rows, cols, part)


@for_each("precision", STORED)
def test_the_largest_entry_of_the_upper_triangle(backend: Backend, rng: Any, precision: str) -> None:
    for rows, cols in triton_ranks(backend):
        i, j = globals_of(rows), globals_of(cols)
        upper = ~np.greater.outer(i, j).reshape((len(i), len(j)))
        values = stored(rng.random(upper.shape) - 0.7, precision)
        local = matrix(backend, poisoned(values, upper), precision)
        largest = np.abs(values[upper]).max() if upper.any() else 0.0
        assert backend.kernels.max_abs_upper(local, rows, cols) == largest
        for at in map(tuple, np.argwhere(upper)[[0, -1]] if upper.any() else ()):
            for value in (-np.inf, np.nan):
                local[at] = value
                found = backend.kernels.max_abs_upper(local, rows, cols)
                assert np.isnan(found) if np.isnan(value) else found == np.inf
            local[at] = float(values[at])


@for_each("precision", STORED)
def test_largest_entries_and_sums_of_rows_and_columns(backend: Backend, rng: Any, precision: str) -> None:
    kernels = backend.kernels
    for m, n in triton_shapes(backend):
        values = stored(rng.random((m, n)) - 0.7, precision)
        by_row, by_column = kernels.buffer(m), kernels.buffer(n)
        if precision == "fp64" or backend.on_torch:  # HPL's norms are those of an fp64 matrix
            kernels.abs_sums(matrix(backend, values, precision), by_row, by_column)
            for actual, axis in ((by_row, 1), (by_column, 0)):
                exact = np.abs(values.astype(WIDE)).sum(axis=axis)
                assert within(numbers(backend, actual), exact, 2 * values.shape[axis] * U * exact)
        for special in (None, -np.inf, np.nan):
            if special is not None and values.size:
                values[m // 2, n // 3] = special
            A = matrix(backend, values, precision)
            kernels.row_max(A, by_row)
            kernels.column_max(A, by_column)
            for actual, axis in ((by_row, 1), (by_column, 0)):
                exact = np.abs(values).max(axis=axis, initial=0.0)
                assert np.array_equal(numbers(backend, actual), exact, equal_nan=True)


@for_each("precision", STORED)
def test_scaling_by_powers_of_two_is_exact_and_by_others_rounds_thrice_at_most(
    backend: Backend, rng: Any, precision: str
) -> None:
    for m, n in triton_shapes(backend):
        values = stored(rng.random((m, n)) - 0.5, precision)
        # Each factor alone is beyond the range of fp32, but their product is not.
        powers = np.ldexp(1.0, 140 + rng.integers(-9, 9, m)), np.ldexp(1.0, -140 + rng.integers(-9, 9, n))
        for by_row, by_column in (powers, (rng.random(m) + 0.5, rng.random(n) + 0.5)):
            A = matrix(backend, values, precision)
            backend.kernels.scale_rows_columns(A, vector(backend, by_row), vector(backend, by_column))
            exact = values.astype(WIDE) * by_row[:, None] * by_column
            # two products, and the rounding to A's type
            bound = 0.0 if by_row is powers[0] else 3.1 * STORED[precision][1] * np.abs(exact)
            assert within(numbers(backend, A), exact, bound)


@for_each("precision", STORED)
def test_pairs_of_rows_and_of_columns_are_combined_with_one_rounding(
    backend: Backend, rng: Any, precision: str
) -> None:
    for m, n in triton_shapes(backend):
        x, y = (stored(rng.random((m, n)) - 0.5, precision) for _ in range(2))
        for combine, size, across in (("combine_rows", m, True), ("combine_columns", n, False)):
            r, s = (rng.random(size) + 0.5 for _ in range(2))
            # two blocks of one matrix in different rows or columns
            whole = matrix(backend, np.concatenate((x, y), axis=0 if across else 1), precision)
            X, Y = (whole[:m], whole[m:]) if across else (whole[:, :n], whole[:, n:])
            getattr(backend.kernels, combine)(X, Y, vector(backend, r), vector(backend, s))
            factors = [f[:, None] if across else f for f in (r, s)]
            a, b = x.astype(WIDE), y.astype(WIDE)
            for actual, exact in ((X, (a + b) * factors[0]), (Y, (a - b) * factors[1])):
                # the sum and the product in fp64, and the rounding to the type of X
                bound = (STORED[precision][1] + 2.1 * U) * np.abs(exact)
                assert within(numbers(backend, actual), exact, bound)


def test_reciprocal_powers_bring_numbers_between_a_half_and_one(backend: Backend, rng: Any) -> None:
    def powers_of(x: Any) -> Any:
        powers = backend.kernels.buffer(len(x))
        backend.kernels.reciprocal_powers(powers, vector(backend, x))
        return numbers(backend, powers)

    exact = np.ldexp(1.0, np.arange(-1022, 1024))
    x = np.concatenate([exact, np.nextafter(exact, 0)[1:], np.nextafter(exact, np.inf), rng.random(97) * 1e5])
    assert ((x * powers_of(x) > 0.5) & (x * powers_of(x) <= 1)).all()
    assert (np.frexp(powers_of(x))[0] == 0.5).all()  # powers of two
    assert list(powers_of([0.0, np.inf, np.nan, 4.0])) == [1.0, 1.0, 1.0, 0.25]
    assert len(powers_of([])) == 0


def test_multiples_are_added_and_squares_summed_in_fp64(backend: Backend, rng: Any) -> None:
    kernels = backend.kernels
    for n in (0, 1, 7, 97):
        A, y = rng.random((n, 5)) - 0.5, rng.random(n) - 0.5
        x, column = A[:, 3], matrix(backend, A)[:, 3]
        for x_, factor in product((column, vector(backend, x)), (1.0, -1.0, 0.3)):
            sum_ = vector(backend, y)
            kernels.add_scaled(sum_, factor, x_)
            exact = y + factor * x.astype(WIDE)
            bound = 1.1 * U * (np.abs(factor * x) + np.abs(exact))  # a product and a sum
            assert within(numbers(backend, sum_), exact, bound)
            assert abs(factor) != 1.0 or np.array_equal(numbers(backend, sum_), y + factor * x)
        exact = (x.astype(WIDE) ** 2).sum()
        assert within(kernels.sum_squares(vector(backend, x)), exact, 2 * n * U * exact)
