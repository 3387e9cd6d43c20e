"""What HPL and HPL-MxP ask of a backend, the reference included, against its definition, on ragged and prime sizes.

Bounds are componentwise; `blocks.WIDE` says what the factor of 2 over the contract's is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxpeak.bench.lu import gemm_probe
from mxpeak.precision import PRECISIONS
from tests.support.backends import Backend, backend_named
from tests.support.blocks import (
    GRIDS,
    LOW,
    SHAPES,
    STORED,
    WIDE,
    globals_of,
    lower,
    matrix,
    numbers,
    operands,
    panel,
    parts,
    poisoned,
    stored,
    stored_as,
    vector,
    within,
)
from tests.support.roundoff import U


def each(backend: Backend, monkeypatch: pytest.MonkeyPatch, choice: str, *values: str) -> Iterator[str]:
    """Torch with each of these choices of equal results in turn; the others as they are."""
    for value in values if backend.on_torch else ("",):
        if value:
            monkeypatch.setattr(backend.kernels, choice, value)
        yield value


def sizes(backend: Backend, *of_all: Any, interpreted: Any = ()) -> tuple[Any, ...]:
    """The sizes to be tested; of Triton's interpreter, which takes milliseconds a tile, only the chosen ones."""
    return interpreted if backend.interpreted and interpreted else of_all


def upper_triangle(rng: Any, n: int) -> Any:
    """The diagonal between 1 and 2, |u_ij| < 1/2 above it."""
    return np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n))


def unit_lower_triangle(rng: Any, n: int) -> Any:
    """What is stored of L, |l_ij| < 1/2."""
    return np.tril(rng.random((n, n)) - 0.5, -1)


# --- arrays


def test_new_arrays_have_the_precision_asked_for(backend: Backend) -> None:
    kernels, xp = backend.kernels, backend.kernels.xp
    types = {"fp64": xp.float64, "fp32": xp.float32}
    for precision, dtype in types.items():
        size = kernels.panel_size(37, 5, precision)
        column_major = kernels.panel(kernels.buffer(size, precision), 37, 5)
        assert column_major.shape == (37, 5)
        for array in (kernels.matrix(5, 3, precision), kernels.buffer(7, precision), column_major):
            assert array.dtype == dtype
            assert np.isnan(numbers(backend, array)).all()
    assert kernels.matrix(5, 3).dtype == kernels.buffer(7).dtype == xp.float64
    for precision in PRECISIONS:
        buffer = kernels.operand_buffer(7, 3, precision, "left")
        assert len(buffer) == kernels.operand_size(7, 3, precision, "left")
        assert np.isnan(numbers(backend, buffer)).all()
        if not backend.on_torch and precision not in backend.native:
            assert buffer.dtype == types["fp64" if precision == "fp64" else "fp32"]
    emulated = [name for name in PRECISIONS if kernels.emulates(name)]
    if backend.on_gpu:
        assert "fp16" not in emulated  # which every GPU multiplies
    else:
        assert emulated == [name for name in LOW if name not in backend.native]


def test_rows_of_tensors_begin_on_lines_and_not_in_one_set_of_a_cache(torch_backend: Backend) -> None:
    from mxpeak.kernels.torch.device import TYPES

    kernels = torch_backend.kernels
    for precision in PRECISIONS:
        itemsize = TYPES[precision].itemsize
        for k in (1, 31, 64, 512, 1000, 1024, 4096):
            buffer = kernels.operand_buffer(k, 3, precision, "right")
            B = kernels.operand_matrix(buffer, k, 3, precision, "right")
            assert (B.shape, B.stride(0)) == ((k, 3), 1)
            assert B.stride(1) * itemsize % 128 == 0
            assert B.stride(1) * itemsize % 1024 != 0
            A = kernels.operand_matrix(buffer, 3, k, precision, "left")
            assert (A.shape, A.stride(1), A.data_ptr()) == ((3, k), 1, B.data_ptr())
    for precision, columns in product(STORED, (1, 512, 1000, 4096)):
        ld = kernels.matrix(2, columns, precision).stride(0) * TYPES[precision].itemsize
        assert ld % 128 == 0
        assert ld % 4096 != 0


def test_a_few_numbers_travel_both_ways(backend: Backend) -> None:
    kernels = backend.kernels
    v = kernels.xp.asarray([1.0, 2.0, 3.0])
    arrive = kernels.fetch(v)
    v[:] = 0.0
    assert arrive() == [1.0, 2.0, 3.0]
    assert v.tolist() == [0.0, 0.0, 0.0]
    assert kernels.indices([4, 0, 2]).tolist() == [4, 0, 2]


def test_the_array_namespace_makes_fp64_and_no_warnings(backend: Backend) -> None:
    xp = backend.kernels.xp
    made = [xp.zeros(2), xp.ones(2), xp.empty(2), xp.full(2, 0.5), xp.asarray([1.0, 2.0]), xp.eye(2)]
    assert all(x.dtype == xp.float64 for x in made)
    assert xp.zeros(2, dtype=xp.float32).dtype == xp.float32
    assert xp.asarray([1, 2]).dtype == xp.full(2, 3).dtype == xp.int64
    assert len({str(getattr(x, "device", "cpu")) for x in [*made, backend.kernels.buffer(1)]}) == 1
    column = xp.asarray(matrix(backend, np.arange(6.0).reshape(3, 2))[:, 1], copy=True)
    assert backend.numpy(column).flags.c_contiguous
    huge, zero = xp.full(1, 1e308), xp.zeros(1)
    found = [xp.multiply(huge, huge), xp.pow(zero, -0.5), xp.multiply(zero, xp.pow(zero, -1.0)), xp.sqrt(-huge)]
    assert np.array_equal([x.tolist()[0] for x in found], [np.inf, np.inf, np.nan, np.nan], equal_nan=True)


def test_copies_turn_where_the_orders_differ(backend: Backend, rng: Any) -> None:
    for shape, precision in product([(0, 3), (1, 1), (1, 70), (97, 1), (67, 131)], STORED):
        values = stored(rng.random(shape), precision)
        for source, target in product((matrix, panel), repeat=2):
            out = target(backend, np.zeros(shape), precision)
            backend.kernels.copy(source(backend, values, precision), out)
            assert np.array_equal(numbers(backend, out), values)


def test_what_is_begun_aside_is_there_once_it_is_joined(backend: Backend) -> None:
    kernels = backend.kernels
    with kernels.side_stream():
        v = kernels.xp.zeros(1)
    kernels.join()
    kernels.wait()
    assert v.tolist() == [0.0]
    begin = kernels.stopwatch.mark()
    assert kernels.stopwatch.seconds(begin, kernels.stopwatch.mark()) >= 0.0


def test_facts_say_what_computes_and_where(backend: Backend) -> None:
    kernels = backend.kernels
    facts, device = kernels.facts(), kernels.device_facts()
    assert facts["kernels"] == kernels.name == backend.name.split()[0]
    assert facts.keys() >= {"blas"}
    if not backend.on_torch:
        assert (device, kernels.transport) == ({}, None)
        return
    assert facts["torch"]
    assert ("triton" in facts) == kernels.device.triton
    where, transport = ("cuda:0", "device memory") if backend.on_gpu else ("cpu", "host memory")
    assert device["device"] == where
    assert (set(device) == {"device"}) == (not backend.on_gpu)
    assert kernels.transport.name == transport


# --- rounding


def interesting(backend: Backend) -> Any:
    """Numbers of fp32 by their bits: all upper halves, below them what makes ties or their neighbours; and random ones.

    A format that keeps p bits cuts 24 - p: 13 for fp16 and tf32, 16 for bf16, 20 for fp8.  Half of the last place is
    bit 12, 15 or 19; each appears alone, with an odd last bit above it, and one fp32 number to either side.  For
    Triton's interpreter: all signs and exponents, and of the other 7 bits of an upper half those at a carry or a tie.
    """
    lows = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    uppers = np.arange(2**16, dtype=np.uint32)
    if backend.interpreted:
        uppers = uppers[np.isin(uppers & 0x7F, [0, 1, 7, 8, 9, 0x17, 0x18, 0x19, 0x7F])]
    bits = uppers[:, None] << 16 | np.array(lows, dtype=np.uint32)
    more = np.random.default_rng(8).integers(0, 2**32, 2**13 if backend.interpreted else 2**17, dtype=np.uint32)
    return np.concatenate([bits.ravel(), more]).view(np.float32).reshape(-1, 1024)


def rounded(x: Any, precision: str) -> Any:
    """x rounded by others' code; tf32 by its bits: the lower 13 off, rounded to nearest even."""
    if precision in STORED:
        return x
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


@pytest.mark.parametrize("precision", LOW)
def test_casts_are_others_casts_bit_for_bit(backend: Backend, precision: str) -> None:
    kernels, x = backend.kernels, interesting(backend)
    expected = rounded(x, precision)
    with np.errstate(all="ignore"):  # signalling NaNs; and the interpreter's arithmetic
        source = matrix(backend, x, "fp32")
        for side in ("left", "right"):
            buffer = kernels.operand_buffer(*x.shape, precision, side)
            target = kernels.operand_matrix(buffer, *x.shape, precision, side)
            kernels.cast(source, target, precision)
            assert same_bits(numbers(backend, target), expected)
        wide = kernels.matrix(*x.shape, "fp32")
        kernels.cast(source, wide, precision)
        assert same_bits(numbers(backend, wide), expected)


#: (x, what it is rounded to): ties go to the even number; largest and smallest numbers, and beyond.
EDGES = {
    "fp16": [
        (65519.0, 65504.0),
        (65520.0, np.inf),
        (-65520.0, -np.inf),
        (-1e-9, -0.0),
        (2.0**-25, 0.0),
        (3 * 2.0**-25, 2.0**-23),
        (1 + 2.0**-11, 1.0),
        (1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ],
    "bf16": [(3.4e38, np.inf), (1 + 2.0**-8, 1.0), (3 * 2.0**-134, 2.0**-132)],
    "tf32": [(3.4028234663852886e38, np.inf), (-0.0, -0.0), (1 + 3 * 2.0**-11, 1 + 2.0**-9)],
    "fp8": [
        (464.0, 448.0),
        (465.0, np.nan),
        (np.inf, np.nan),
        (2.0**-10, 0.0),
        (3 * 2.0**-10, 2.0**-8),
        (17.0, 16.0),
        (19.0, 20.0),
    ],
}


def test_casts_at_the_edges(backend: Backend) -> None:
    for precision, cases in EDGES.items():
        x, expected = np.array(cases, dtype=np.float32).T
        with np.errstate(all="ignore"):  # the interpreter's arithmetic
            found, _ = operands(backend, x[None, :], x[:, None], precision)
        assert same_bits(numbers(backend, found)[0], expected), precision


def test_the_definition_rounds_fp64_once() -> None:
    reference = backend_named("reference").kernels
    target = reference.matrix(1, 3, "fp32")
    for precision, half in (("bf16", 2.0**-8), ("fp16", 2.0**-11), ("tf32", 2.0**-11), ("fp8", 2.0**-4)):
        # By way of fp32, the 2^-40 above the tie would be lost, and the tie go to the even 1.
        reference.cast(np.array([[1 + half, 1 + half + 2.0**-40, -1 - half - 2.0**-40]]), target, precision)
        assert list(target[0]) == [1.0, 1 + 2 * half, -1 - 2 * half]


def test_a_cast_writes_its_own_block_and_keeps_its_source(backend: Backend, rng: Any) -> None:
    kernels = backend.kernels
    shapes = sizes(backend, *SHAPES, (67, 131), interpreted=((0, 3), (5, 97), (67, 33)))
    for precision, (m, n) in product(PRECISIONS, shapes):
        format_ = stored_as(precision)
        values = stored(rng.standard_normal((m, n)) * 100, format_)
        source, around = matrix(backend, values, format_), kernels.matrix(m + 3, n + 5, format_)
        kernels.cast(source, around[1 : m + 1, 2 : n + 2], precision)
        targets = [(around[1 : m + 1, 2 : n + 2], around)]
        for side in ("left", "right"):
            buffer = kernels.operand_buffer(m, n, precision, side)
            target = kernels.operand_matrix(buffer, m, n, precision, side)
            kernels.cast(source, target, precision)
            targets.append((target, buffer))
        for target, room in targets:
            assert np.array_equal(numbers(backend, target), rounded(values, precision))
            everything = numbers(backend, room)
            if room is around or precision not in backend.native:  # whose operands are filled up with zeros
                assert np.isnan(everything).sum() == everything.size - m * n
        assert np.array_equal(numbers(backend, source), values)


# --- products


def summed_in(backend: Backend, precision: str) -> float:
    """The unit roundoff of the sums of products: tensor cores add those of FP8 numbers in about 14 bits."""
    return 2.0**-14 if precision == "fp8" and backend.on_gpu else STORED[stored_as(precision)][1]


#: What Triton multiplies; its interpreter has no products of bf16 numbers.
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
            found = matrix(backend, C, format_)
            backend.kernels.subtract_product(found, *operands(backend, A, B, precision))
            A, B = rounded(A, precision), rounded(B, precision)
            bound = 2 * summed_in(backend, precision) * ((k + 1) * (np.abs(A) @ np.abs(B)) + np.abs(C))
            exact = C.astype(WIDE) - A.astype(WIDE) @ B.astype(WIDE)
            assert within(numbers(backend, found), exact, bound), (gemm, precision, m, n, k)


def test_products_with_panels_and_with_parts_of_operands(backend: Backend, rng: Any) -> None:
    A, B, C = (rng.random(shape) - 0.5 for shape in ((37, 19), (19, 41), (37, 41)))
    for precision, (_, u) in STORED.items():
        A_, B_, C_ = (stored(M, precision) for M in (A, B, C))
        found = matrix(backend, C_, precision)
        left, right = panel(backend, A_, precision), matrix(backend, B_, precision)
        backend.kernels.subtract_product(found, left, right)
        exact = C_.astype(WIDE) - A_.astype(WIDE) @ B_.astype(WIDE)
        assert within(numbers(backend, found), exact, 2 * u * (20 * (np.abs(A_) @ np.abs(B_)) + np.abs(C_)))
    for precision in PRECISIONS:
        format_ = stored_as(precision)
        L, R = operands(backend, stored(A, format_), stored(B, format_), precision)
        found = matrix(backend, np.zeros((37, 41)), format_)
        backend.kernels.subtract_product(found[5:37, 7:41], L[5:], R[:, 7:])
        exact = -(numbers(backend, L).astype(WIDE) @ numbers(backend, R).astype(WIDE))
        exact[:5], exact[:, :7] = 0, 0
        # k+1 products of at most 1/4, twice
        assert within(numbers(backend, found), exact, 40 * summed_in(backend, precision) * 19 / 4)


def test_what_is_not_finite_spoils_its_row_of_a_product_and_no_other(backend: Backend, rng: Any) -> None:
    kernels = backend.kernels
    # Triton's interpreter makes a number of FP8's NaN.
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


@pytest.mark.parametrize("precision", STORED)
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


# --- factors of a block, and solves with it


def diagonally_heavy(rng: Any, n: int) -> Any:
    return rng.random((n, n)) - 0.5 + n * np.eye(n)


def factored(backend: Backend, values: Any, precision: str = "fp64") -> tuple[Any, float]:
    """A block's factors, and 0 or 1 + the first column whose pivot is zero."""
    D, singular = panel(backend, values, precision), backend.kernels.buffer(1)
    backend.kernels.factor_block(D, singular)
    return numbers(backend, D), singular.tolist()[0]


@pytest.mark.parametrize("precision", STORED)
def test_factors_of_a_block_multiply_back_to_it(backend: Backend, rng: Any, precision: str) -> None:
    _, u = STORED[precision]
    for n in (0, 1, 2, 7, 16, 33, 64, 97, 192):
        values = stored(diagonally_heavy(rng, n), precision)
        D, singular = factored(backend, values, precision)
        D_ref, singular_ref = factored(backend_named("reference"), values, precision)
        assert singular == singular_ref == 0.0
        L, T = np.tril(D.astype(WIDE), -1) + np.eye(n, dtype=WIDE), np.triu(D.astype(WIDE))
        # n steps of a product and a difference; the quotients may come from a reciprocal, one rounding more.
        assert within(L @ T, values, 2 * (n + 1) * u * (np.abs(L) @ np.abs(T)))
        # |l_ij| < 0.6/n and |u_ij| < 0.6 off the diagonal, n on it: |L^-1||L| and |U||U^-1| have row sums below 3 and
        # 5, and a change of D below 2·(n+1)·u·(n+1) an entry shows at most 15 times as large; twice that for two
        # eliminations.
        assert within(D, D_ref, 30 * 2 * (n + 1) ** 2 * u)


@pytest.mark.parametrize("precision", STORED)
def test_the_first_zero_pivot_is_reported_and_its_column_left_as_it_is(
    backend: Backend, rng: Any, precision: str
) -> None:
    for n, j in [(1, 0), (2, 0), (2, 1), (7, 3), (33, 15), (33, 16), (33, 32), (97, 64)]:
        # Factors of small integers with pivots of ±1: every step is exact, in any order.
        L = np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)
        T = np.triu(rng.integers(-1, 2, (n, n)), 1) + np.diag(rng.choice([-1.0, 1.0], n))
        T[j, j] = 0.0
        below = rng.integers(1, 5, n - j - 1)
        values, expected = L @ T, np.tril(L, -1) + T
        values[j + 1 :, j] += below
        D, singular = factored(backend, values, precision)
        assert singular == 1.0 + j
        if backend.on_gpu:  # whose library may divide by the zero, and multiply by what comes of that
            continue
        assert np.array_equal(D[:, :j], expected[:, :j])
        assert np.array_equal(D[: j + 1], expected[: j + 1])
        if not backend.on_torch:  # whose library divides what lies below by the zero
            assert np.array_equal(D[j + 1 :, j], below)
    for n in (1, 5, 40):
        assert factored(backend, np.zeros((n, n)), precision)[1] == 1.0


def test_what_is_not_finite_reaches_the_factors_of_a_block(backend: Backend, rng: Any) -> None:
    for precision, value in product(STORED, (np.nan, np.inf)):
        values = diagonally_heavy(rng, 40)
        values[4, 3] = value
        D, singular = factored(backend, values, precision)
        assert singular == 0.0 or backend.on_gpu  # whose library takes NaN for zero
        assert not np.isfinite(D[4, 3:]).any()  # l_43, and with it all that it is multiplied by


def test_solves_with_the_diagonal_block_multiply_back(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.blas.STRIP", 200)
    kernels = backend.kernels
    for trsm in each(backend, monkeypatch, "trsm", "library", "inverse"):
        for precision, (m, n) in product(STORED, SHAPES):
            _, u = STORED[precision]
            B, T, L = rng.random((m, n)) - 0.5, upper_triangle(rng, n), unit_lower_triangle(rng, m)
            if backend.on_torch:  # |U^-1||U| and |L^-1||L| have row sums below 3: so have products with the inverse
                T, L = np.triu(T, 1) / (n + 1) + np.diag(T.diagonal()), L / (m + 1)
            B, T, L = (stored(M, precision) for M in (B, T, L))
            times = 8 if trsm == "inverse" else 2

            X = matrix(backend, B, precision)
            kernels.solve_right_upper(X, panel(backend, poisoned(T, ~lower(n)), precision), precision)
            W = numbers(backend, X).astype(WIDE)
            size = 2.5 * np.abs(W).max(initial=0) if backend.on_torch else np.abs(W) @ np.abs(T)
            assert within(W @ T, B, times * (n + 1) * u * size), (trsm, precision, m, n)

            X = matrix(backend, B, precision)
            kernels.solve_unit_lower(panel(backend, poisoned(L, lower(m)), precision), X, precision)
            W, I_L = numbers(backend, X).astype(WIDE), L + np.eye(m, dtype=WIDE)
            size = 1.5 * np.abs(W).max(initial=0) if backend.on_torch else np.abs(I_L) @ np.abs(W)
            assert within(I_L @ W, B, times * (m + 1) * u * size), (trsm, precision, m, n)


def test_a_zero_on_the_diagonal_makes_a_solution_that_is_not_finite(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    T = diagonally_heavy(rng, 40)
    T[3, 3] = 0.0
    for _ in each(backend, monkeypatch, "trsm", "library", "inverse"):
        for precision in STORED:
            B, x = matrix(backend, np.ones((5, 40)), precision), vector(backend, np.ones(40))
            backend.kernels.solve_right_upper(B, panel(backend, T, precision), precision)
            backend.kernels.solve_upper(matrix(backend, T, precision), x)
            assert not np.isfinite(numbers(backend, B)[:, 3]).any()
            assert not np.isfinite(numbers(backend, x)[3])


@pytest.mark.parametrize("precision", STORED)
def test_triangular_solves_of_a_vector_have_the_error_of_fp64(backend: Backend, rng: Any, precision: str) -> None:
    kernels = backend.kernels
    for n in (0, 1, 2, 7, 33, 97):
        T, L = (stored(M, precision).astype(np.float64) for M in (upper_triangle(rng, n), unit_lower_triangle(rng, n)))
        U_, L_ = poisoned(T, ~lower(n)), poisoned(L, lower(n))
        b = rng.random(n) - 0.5
        x = vector(backend, b)
        kernels.solve_upper(matrix(backend, U_, precision), x)
        found = numbers(backend, x).astype(WIDE)
        assert within(T @ found, b, 2 * n * U * (np.abs(T) @ np.abs(found)))
        for part, op, block in (("upper", T, U_), ("lower", L + np.eye(n), L_)):
            solve = kernels.block_solver(matrix(backend, block, precision), part)
            for transposed, _ in product((False, True), range(2)):
                A, b = (op.T if transposed else op), rng.random(n) - 0.5
                x = vector(backend, b)
                solve(x, transposed=transposed)
                found, inverse = numbers(backend, x).astype(WIDE), np.abs(np.linalg.inv(A))
                if backend.on_torch:
                    # The contract's 2n·u for the inverse and its product; as much for the exact solution, which is not.
                    exact = np.linalg.solve(A, b)
                    assert within(found, exact, 4 * (n + 1) * U * (inverse @ (np.abs(A) @ (inverse @ np.abs(b)))))
                else:
                    assert within(A @ found, b, 2 * n * U * (np.abs(A) @ np.abs(found)))


# --- matrices and triangles times vectors


def triton_shapes(backend: Backend) -> tuple[tuple[int, int], ...]:
    """More than a tile of Triton's both ways."""
    return sizes(backend, *SHAPES, (37, 150), interpreted=((0, 3), (3, 0), (1, 1), (19, 150)))


def triton_ranks(backend: Backend) -> list[Any]:
    """Ranks of several grids; of Triton's interpreter one that has all, and one with more than a tile both ways."""
    if backend.interpreted:
        return [*parts(7, 3, 1, 2), parts(29, 8, 2, 3)[3], parts(5, 4, 3, 1)[2], parts(149, 9, 5, 1)[2]]
    return [rank for grid in [(0, 4, 2, 2), *GRIDS, (149, 9, 1, 1)] for rank in parts(*grid)]


@pytest.mark.parametrize("precision", STORED)
def test_products_with_a_vector_have_the_error_of_fp64(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.triangle.STRIP", 500)
    for m, n in triton_shapes(backend):
        A = stored(rng.random((m, n)) - 0.5, precision)
        for op, transposed in ((A, False), (A.T, True)):
            x, y = rng.random(op.shape[1]) - 0.5, rng.random(op.shape[0]) - 0.5
            found = vector(backend, y)
            backend.kernels.add_matvec(found, matrix(backend, A, precision), vector(backend, x), transposed=transposed)
            size = np.abs(op.astype(WIDE)) @ np.abs(x)
            bound = 2 * U * ((op.shape[1] + 1) * size + np.abs(y))
            assert within(numbers(backend, found), y + op.astype(WIDE) @ x, bound), (m, n, transposed)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("form", ["plain", "absolute", "squared"])
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
        found, local = vector(backend, y), matrix(backend, poisoned(A, keep), precision)
        backend.kernels.add_triangle_matvec(found, local, vector(backend, x), rows, cols, part, form)
        # n products and sums; squaring is one rounding more.
        bound = 2 * U * ((len(j) + 2) * (np.abs(T) @ np.abs(x)) + np.abs(y))
        assert within(numbers(backend, found), y + T @ x, bound), (n, rows, cols, part)


@pytest.mark.parametrize("precision", STORED)
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


@pytest.mark.parametrize("precision", STORED)
def test_largest_entries_and_sums_of_rows_and_columns(backend: Backend, rng: Any, precision: str) -> None:
    kernels = backend.kernels
    for m, n in triton_shapes(backend):
        values = stored(rng.random((m, n)) - 0.7, precision)
        by_row, by_column = kernels.buffer(m), kernels.buffer(n)
        if precision == "fp64" or backend.on_torch:  # HPL's norms are of an fp64 matrix
            kernels.abs_sums(matrix(backend, values, precision), by_row, by_column)
            for found, axis in ((by_row, 1), (by_column, 0)):
                exact = np.abs(values.astype(WIDE)).sum(axis=axis)
                assert within(numbers(backend, found), exact, 2 * values.shape[axis] * U * exact)
        for special in (None, -np.inf, np.nan):
            if special is not None and values.size:
                values[m // 2, n // 3] = special
            A = matrix(backend, values, precision)
            kernels.row_max(A, by_row)
            kernels.column_max(A, by_column)
            for found, axis in ((by_row, 1), (by_column, 0)):
                exact = np.abs(values).max(axis=axis, initial=0.0)
                assert np.array_equal(numbers(backend, found), exact, equal_nan=True)


@pytest.mark.parametrize("precision", STORED)
def test_scaling_by_powers_of_two_is_exact_and_by_others_rounds_thrice_at_most(
    backend: Backend, rng: Any, precision: str
) -> None:
    for m, n in triton_shapes(backend):
        values = stored(rng.random((m, n)) - 0.5, precision)
        # Beyond the range of fp32 one by one, but not together.
        powers = np.ldexp(1.0, 140 + rng.integers(-9, 9, m)), np.ldexp(1.0, -140 + rng.integers(-9, 9, n))
        for by_row, by_column in (powers, (rng.random(m) + 0.5, rng.random(n) + 0.5)):
            A = matrix(backend, values, precision)
            backend.kernels.scale_rows_columns(A, vector(backend, by_row), vector(backend, by_column))
            exact = values.astype(WIDE) * by_row[:, None] * by_column
            # two products, and the rounding to A's type
            bound = 0.0 if by_row is powers[0] else 3.1 * STORED[precision][1] * np.abs(exact)
            assert within(numbers(backend, A), exact, bound)


def test_reciprocal_powers_bring_numbers_between_a_half_and_one(backend: Backend, rng: Any) -> None:
    def found(x: Any) -> Any:
        powers = backend.kernels.buffer(len(x))
        backend.kernels.reciprocal_powers(powers, vector(backend, x))
        return numbers(backend, powers)

    exact = np.ldexp(1.0, np.arange(-1022, 1024))
    x = np.concatenate([exact, np.nextafter(exact, 0)[1:], np.nextafter(exact, np.inf), rng.random(97) * 1e5])
    assert ((x * found(x) > 0.5) & (x * found(x) <= 1)).all()
    assert (np.frexp(found(x))[0] == 0.5).all()  # powers of two
    assert list(found([0.0, np.inf, np.nan, 4.0])) == [1.0, 1.0, 1.0, 0.25]
    assert len(found([])) == 0


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
