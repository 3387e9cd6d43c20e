"""The dense kernels of the torch backend against the reference's, in both their forms, on ragged and prime sizes.

Each is held by its definition or by the reference's result, within the error bound of the contract.  On the CPU the
second form, Triton's kernels, runs under its interpreter, which takes milliseconds a program: sizes are small, but more
than a tile.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.comm.exchange import allreduce_by
from mxpeak.comm.threads import run_ranks
from mxpeak.kernels.contract.lu import Panel
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.kernels.torch import panel as torch_panel
from mxpeak.kernels.torch import rows as torch_rows
from mxpeak.kernels.torch.cast import OPERANDS
from mxpeak.kernels.torch.device import TYPES
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.row_moves import local_moves, row_moves
from mxpeak.precision import PRECISIONS
from tests.contract.test_mixed_kernels import (
    GRIDS,
    KINDS,
    SHAPES,
    STORED,
    WIDE,
    diagonally_heavy,
    entries_of,
    globals_of,
    interesting,
    lower,
    oracle,
    parts,
    poisoned,
    same_bits,
    slack,
    stored,
    unit_lower_and_upper,
    whole,
)
from tests.contract.test_mixed_kernels import within as arrays_within
from tests.support.roundoff import U
from tests.support.torch_devices import FORMS, ON_GPU, array, tensor, torch_device

LOW = ("tf32", "bf16", "fp16", "fp8")


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def kernels(request: pytest.FixtureRequest) -> TorchKernels:
    """The backend, its new tensors full of NaN."""
    return TorchKernels(torch_device(request.param), HostKernels(1))


def fill(kernels: TorchKernels, values: Any, precision: str = "fp64") -> torch.Tensor:
    """A matrix of the backend with the given values, cut out of a larger one of NaN."""
    rows, columns = values.shape
    A = kernels.matrix(rows + 3, columns + 5, precision)[1 : rows + 1, 2 : columns + 2]
    A[:] = tensor(np.ascontiguousarray(values))
    return A


def column_major(kernels: TorchKernels, values: Any, precision: str = "fp64") -> torch.Tensor:
    """A panel of the backend with the given values, cut out of a taller one of NaN."""
    rows, columns = values.shape
    vector = kernels.vector(kernels.panel_size(rows + 5, columns, precision), precision)
    A = kernels.panel(vector, rows + 5, columns)[2 : rows + 2]
    A[:] = tensor(np.ascontiguousarray(values))
    return A


def vector_of(values: Any) -> torch.Tensor:
    return tensor(np.array(values, dtype=np.float64))


def numbers(held: torch.Tensor) -> Any:
    """What a tensor holds, as NumPy knows it: an operand's numbers in fp32."""
    if held.dtype == torch.int32:
        held = held.view(torch.float32)
    return array(held.to(torch.float32) if held.itemsize < 4 else held).copy()


def within(found: Any, expected: Any, bound: Any) -> bool:
    """|found - expected| <= bound, entry by entry, of tensors and arrays."""
    return arrays_within(array(found), array(expected), bound)


def equal(found: torch.Tensor, expected: Any, *, equal_nan: bool = False) -> bool:
    """Whether a tensor has these numbers."""
    return np.array_equal(numbers(found), expected, equal_nan=equal_nan)


def summed_in(precision: str) -> float:
    """The unit roundoff of the sums of products: tensor cores add those of FP8 numbers in about 14 bits."""
    return {"fp64": U, "fp8": 2.0**-14 if ON_GPU else 2.0**-24}.get(precision, 2.0**-24)


def operands(kernels: TorchKernels, A: Any, B: Any, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands of a product, rounded to a precision."""
    made = []
    for side, values in (("left", A), ("right", B)):
        vector = kernels.operand(kernels.operand_size(*values.shape, precision, side), precision)
        place = kernels.left_operand if side == "left" else kernels.right_operand
        made.append(place(vector, *values.shape))
        kernels.cast(fill(kernels, values, "fp64" if precision == "fp64" else "fp32"), made[-1], precision)
    return made[0], made[1]


# --- arrays


def test_new_arrays_have_the_precision_asked_for(kernels: TorchKernels) -> None:
    for precision in TYPES:
        vector = kernels.operand(7, precision)
        assert vector.dtype == OPERANDS[precision]
        assert np.isnan(numbers(vector)).all()
    for precision in STORED:
        for new in (kernels.matrix(5, 3, precision), kernels.vector(7, precision)):
            assert new.dtype == TYPES[precision]
            assert np.isnan(numbers(new)).all()
        size = kernels.panel_size(37, 5, precision)
        assert kernels.panel(kernels.vector(size, precision), 37, 5).shape == (37, 5)
    emulated = [name for name in PRECISIONS if kernels.emulates(name)]
    assert emulated == list(LOW) or (ON_GPU and "fp16" not in emulated)  # which every GPU multiplies


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_begin_on_lines_and_not_in_one_set_of_a_cache(kernels: TorchKernels, precision: str) -> None:
    itemsize = TYPES[precision].itemsize
    for k in (1, 31, 64, 512, 1000, 1024, 4096):
        vector = kernels.operand(kernels.operand_size(k, 3, precision, "right"), precision)
        B = kernels.right_operand(vector, k, 3)
        assert B.shape == (k, 3)
        assert B.stride(0) == 1
        assert B.stride(1) * itemsize % 128 == 0
        assert B.stride(1) * itemsize % 1024 != 0
        A = kernels.left_operand(vector, 3, k)
        assert (A.shape, A.stride(1), A.data_ptr()) == ((3, k), 1, B.data_ptr())
    if precision in STORED:
        for columns in (1, 512, 1000, 4096):
            ld = kernels.matrix(2, columns, precision).stride(0) * itemsize
            assert ld % 128 == 0
            assert ld % 4096 != 0


def test_a_few_numbers_travel_both_ways(kernels: TorchKernels) -> None:
    v = kernels.vector(3)
    kernels.assign(v, 1.5)
    assert kernels.floats(v) == [1.5, 1.5, 1.5]
    kernels.assign(v, [1.0, 2.0, 3.0])
    arrive = kernels.fetch(v)
    v.zero_()
    assert arrive() == [1.0, 2.0, 3.0]
    assert kernels.indices([4, 0, 2]).tolist() == [4, 0, 2]
    assert kernels.floats(kernels.zeros(2)) == [0.0, 0.0]
    assert kernels.floats(kernels.copied(kernels.zeros(2))) == [0.0, 0.0]


def test_copies_turn_where_the_orders_differ(kernels: TorchKernels, rng: Any) -> None:
    for shape, precision in product([(0, 3), (1, 1), (1, 70), (97, 1), (67, 131)], STORED):
        values = stored(rng.random(shape), precision)
        for source, target in product((fill, column_major), repeat=2):
            out = target(kernels, np.zeros(shape), precision)
            kernels.copy(source(kernels, values, precision), out)
            assert equal(out, values)


# --- generation


@pytest.mark.parametrize("with_diagonal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [*GRIDS, (139, 16, 1, 1)])
def test_generated_entries_are_their_definition(
    kernels: TorchKernels, rng: Any, kind: str, n: int, nb: int, P: int, Q: int, with_diagonal: bool
) -> None:
    entries, diagonal = entries_of(kind, n), rng.random(n) * n
    A = whole(entries, n + 1).copy()
    if with_diagonal:
        A[np.arange(n), np.arange(n)] = diagonal
    for p, q in product(range(P), range(Q)):
        rows, cols = BlockCyclic(n, nb, p, P), BlockCyclic(n + 1, nb, q, Q)  # one column more, as HPL's b
        mine, given = A[np.ix_(globals_of(rows), globals_of(cols))], diagonal[globals_of(rows)]
        for precision, (dtype, u) in STORED.items():
            found = fill(kernels, np.full(mine.shape, np.nan), precision)
            kernels.generate(found, rows, cols, entries, vector_of(given if with_diagonal else []))
            if entries.kind == "gaussian":  # fp64 values a slack apart may round to neighbours in fp32, 2u apart
                further = 2 * u * np.abs(mine) if precision == "fp32" else 0.0
                assert within(found, mine.astype(dtype), slack(entries) + further)
            else:
                assert equal(found, mine.astype(dtype))


@pytest.mark.parametrize("with_diagonal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [*GRIDS, (139, 16, 1, 1)])
def test_products_and_sums_of_a_matrix_that_is_not_stored(
    kernels: TorchKernels, rng: Any, kind: str, n: int, nb: int, P: int, Q: int, with_diagonal: bool
) -> None:
    entries, diagonal, x = entries_of(kind, n), rng.random(n) * n, rng.random(n) - 0.5
    A = whole(entries, n).copy()
    if with_diagonal:
        np.fill_diagonal(A, diagonal)
    for rows, cols in parts(n, nb, P, Q):
        i, j = globals_of(rows), globals_of(cols)
        mine, given = A[np.ix_(i, j)].astype(WIDE), vector_of(diagonal[i] if with_diagonal else [])
        y, sums, squares = (kernels.vector(len(i)) for _ in range(3))
        kernels.generated_matvec(y, rows, cols, entries, given, vector_of(x[j]))
        kernels.generated_row_sums(sums, squares, rows, cols, entries, given)
        # n products and n - 1 sums, in any order; and each entry may be off by its slack.
        off, size = slack(entries), np.abs(mine)
        assert within(y, mine @ x[j], 2 * len(j) * U * (size @ np.abs(x[j])) + off * np.abs(x[j]).sum())
        assert within(sums, size.sum(axis=1), 2 * len(j) * U * size.sum(axis=1) + off * len(j))
        square = (size**2).sum(axis=1)
        assert within(squares, square, 2 * len(j) * U * square + 2.1 * off * size.sum(axis=1))


@pytest.mark.parametrize(("n", "nb", "Q"), [(0, 4, 1), (1, 1, 1), (61, 8, 3), (30, 64, 2), (128, 5, 4)])
@pytest.mark.parametrize("seed", [0, 100, 2**63 + 5])
def test_signs_belong_to_their_global_index(kernels: TorchKernels, n: int, nb: int, Q: int, seed: int) -> None:
    expected = np.array([-1.0 if lcg.state(seed, 1 + j) >= 2**63 else 1.0 for j in range(n)])
    for q in range(Q):
        cols = BlockCyclic(n, nb, q, Q)
        v = kernels.vector(cols.local_size)
        kernels.signs(v, cols, seed)
        assert equal(v, expected[globals_of(cols)])


# --- rounding


@pytest.mark.parametrize("precision", LOW)
def test_casts_are_others_casts_bit_for_bit(kernels: TorchKernels, precision: str) -> None:
    x = interesting()
    with np.errstate(all="ignore"):
        source = fill(kernels, x, "fp32")
    into = {"left": kernels.left_operand, "right": kernels.right_operand}
    for side, place in into.items():
        target = place(kernels.operand(kernels.operand_size(*x.shape, precision, side), precision), *x.shape)
        with np.errstate(all="ignore"):  # the interpreter's arithmetic
            kernels.cast(source, target, precision)
        assert same_bits(numbers(target), oracle(x, precision))
    wide = kernels.matrix(*x.shape, "fp32")
    kernels.cast(source, wide, precision)
    assert same_bits(numbers(wide), oracle(x, precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (67, 131)])
def test_a_cast_writes_its_own_block_and_keeps_its_source(
    kernels: TorchKernels, rng: Any, precision: str, m: int, n: int
) -> None:
    held = "fp64" if precision == "fp64" else "fp32"
    values = stored(rng.standard_normal((m, n)) * 100, held)
    source = fill(kernels, values, held)
    expected = oracle(values, precision) if precision in LOW else values
    for side, place in (("left", kernels.left_operand), ("right", kernels.right_operand)):
        vector = kernels.operand(kernels.operand_size(m, n, precision, side), precision)
        target = place(vector, m, n)
        kernels.cast(source, target, precision)
        assert np.array_equal(numbers(target), expected)
        assert np.isnan(numbers(vector)).sum() == vector.numel() - m * n
    assert equal(source, values)


# --- products


#: What Triton multiplies; its interpreter has no products of bf16 numbers.
BY_TRITON = ("fp16", "bf16", "fp8") if ON_GPU else ("fp16", "fp8")


@pytest.mark.parametrize(("precision", "gemm"), [*product(PRECISIONS, ["library"]), *product(BY_TRITON, ["triton"])])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (31, 17, 5), (37, 97, 61)])
def test_products_of_rounded_operands_have_the_error_of_the_type_they_are_summed_in(
    kernels: TorchKernels, rng: Any, m: int, n: int, k: int, precision: str, gemm: str
) -> None:
    held = "fp64" if precision == "fp64" else "fp32"
    A, B, C = (stored(rng.random(shape) - 0.5, held) for shape in ((m, k), (k, n), (m, n)))
    C_ = fill(kernels, C, held)
    kernels.gemm = gemm
    kernels.subtract_product(C_, *operands(kernels, A, B, precision))
    A, B = (M if precision in STORED else oracle(M, precision) for M in (A, B))
    exact = C.astype(WIDE) - A.astype(WIDE) @ B.astype(WIDE)
    assert within(C_, exact, 2 * summed_in(precision) * ((k + 1) * (np.abs(A) @ np.abs(B)) + np.abs(C)))
    kernels.gemm = "library"


def test_products_with_panels_and_blocks_of_matrices(kernels: TorchKernels, rng: Any) -> None:
    A, B, C = rng.random((31, 5)) - 0.5, rng.random((5, 17)) - 0.5, rng.random((31, 17)) - 0.5
    for precision, (_, u) in STORED.items():
        held = [stored(M, precision) for M in (A, B, C)]
        C_ = fill(kernels, held[2], precision)
        kernels.subtract_product(C_, column_major(kernels, held[0], precision), fill(kernels, held[1], precision))
        exact = held[2].astype(WIDE) - held[0].astype(WIDE) @ held[1].astype(WIDE)
        assert within(C_, exact, 2 * u * (6 * (np.abs(A) @ np.abs(B)) + np.abs(C)))


def test_parts_of_operands_multiply_parts_of_the_matrix(kernels: TorchKernels, rng: Any) -> None:
    A, B = stored(rng.random((37, 19)) - 0.5, "fp32"), stored(rng.random((19, 41)) - 0.5, "fp32")
    for precision in (*STORED, *LOW):
        held = "fp64" if precision == "fp64" else "fp32"
        L, R = operands(kernels, A, B, precision)
        C = fill(kernels, np.zeros((37, 41)), held)
        kernels.subtract_product(C[5:37, 7:41], L[5:], R[:, 7:])
        exact = -(numbers(L).astype(WIDE) @ numbers(R).astype(WIDE))
        exact[:5], exact[:, :7] = 0, 0
        assert within(C, exact, 40 * summed_in(precision) * 19 / 4)  # k+1 products of at most 1/4, twice


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_row_of_a_product_and_no_other(
    kernels: TorchKernels, rng: Any, value: float
) -> None:
    # Triton's interpreter makes a number of FP8's NaN.
    interpreted = kernels.device.triton and not ON_GPU
    for precision in ("fp64", "fp32", "bf16", *(() if interpreted else ("fp8",))):
        held = "fp64" if precision == "fp64" else "fp32"
        A, B = rng.random((19, 7)), rng.random((7, 11)) + 1.0
        A[5, 3] = value
        C = fill(kernels, np.zeros((19, 11)), held)
        kernels.subtract_product(C, *operands(kernels, A, B, precision))
        assert list(np.flatnonzero(~np.isfinite(numbers(C)).all(axis=1))) == [5]
        if precision in STORED:
            y = kernels.zeros(19)
            kernels.add_matvec(y, fill(kernels, A, precision), vector_of(B[:, 0]))
            assert list(np.flatnonzero(~np.isfinite(numbers(y)))) == [5]


def test_a_probe_is_one_product_of_that_precision(kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = kernels.subtract_product
    monkeypatch.setattr(kernels, "subtract_product", lambda *args: (seen.append(args), real(*args)))
    for precision in PRECISIONS:
        seen.clear()
        kernels.gemm_probe(13, 7, 5, precision)()
        ((C, A, B),) = seen
        assert (C.shape, A.shape, B.shape) == ((13, 7), (13, 5), (5, 7))
        assert C.dtype == (torch.float64 if precision == "fp64" else torch.float32)
        assert A.dtype == B.dtype == OPERANDS[precision]
        assert within(C, -(numbers(A).astype(WIDE) @ numbers(B).astype(WIDE)), 30 * summed_in(precision))
        assert np.any(numbers(C) != 0)


# --- factors and solves


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 33, 97])
def test_factors_of_a_block_multiply_back_to_it(kernels: TorchKernels, rng: Any, n: int, precision: str) -> None:
    _, u = STORED[precision]
    values = stored(diagonally_heavy(rng, n), precision)
    D, D_ref = column_major(kernels, values, precision), values.copy()
    singular, singular_ref = kernels.vector(1), np.ones(1)
    kernels.factor_block(D, singular)
    ReferenceKernels().factor_block(D_ref, singular_ref)
    assert kernels.floats(singular) == list(singular_ref) == [0.0]
    L, T = unit_lower_and_upper(numbers(D))
    assert within(L @ T, values, 2 * (n + 1) * u * (np.abs(L) @ np.abs(T)))
    # The bound of the same comparison in test_mixed_kernels, where it is derived.
    assert within(D, D_ref, 30 * 2 * (n + 1) ** 2 * u)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("n", "j"), [(1, 0), (2, 1), (7, 3), (33, 15), (33, 32), (97, 64)])
def test_the_first_zero_pivot_is_reported_and_what_came_before_it_stands(
    kernels: TorchKernels, rng: Any, n: int, j: int, precision: str
) -> None:
    # Factors of small integers with pivots of ±1: every step is exact, in any order.
    L = np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)
    T = np.triu(rng.integers(-1, 2, (n, n)), 1) + np.diag(rng.choice([-1.0, 1.0], n))
    T[j, j] = 0.0
    D, singular = column_major(kernels, L @ T, precision), kernels.vector(1)
    kernels.factor_block(D, singular)
    assert kernels.floats(singular) == [1.0 + j]
    found, expected = numbers(D), np.tril(L, -1) + T
    if not ON_GPU:  # whose library may divide by the zero, and multiply by what comes of that
        assert np.array_equal(found[:, :j], expected[:, :j])
        assert np.array_equal(found[: j + 1], expected[: j + 1])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_factors(kernels: TorchKernels, rng: Any, value: float) -> None:
    values = diagonally_heavy(rng, 40)
    values[4, 3] = value
    D, singular = column_major(kernels, values), kernels.vector(1)
    kernels.factor_block(D, singular)
    assert kernels.floats(singular) == [0.0] or ON_GPU  # whose library takes NaN for zero
    assert not np.isfinite(numbers(D)[4, 3:]).any()


@pytest.mark.parametrize("trsm", ["library", "inverse"])
@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_solves_with_the_diagonal_block_multiply_back(
    kernels: TorchKernels, rng: Any, monkeypatch: pytest.MonkeyPatch, m: int, n: int, precision: str, trsm: str
) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.blas.STRIP", 200)
    _, u = STORED[precision]
    B = stored(rng.random((m, n)) - 0.5, precision)
    kernels.trsm = trsm

    T = stored(np.triu(rng.random((n, n)) - 0.5, 1) / (n + 1) + np.diag(1.0 + rng.random(n)), precision)
    X = fill(kernels, B, precision)
    kernels.solve_right_upper(X, column_major(kernels, poisoned(T, ~lower(n)), precision))
    W = numbers(X).astype(WIDE)
    # |U^-1||U| has row sums below 3: so has the product with the inverse, against the bound of the solve.
    assert within(W @ T, B, (2 if trsm == "library" else 8) * (n + 1) * u * np.abs(W).max(initial=0) * 2.5)

    L = stored(np.tril(rng.random((m, m)) - 0.5, -1) / (m + 1), precision)
    X = fill(kernels, B, precision)
    kernels.solve_unit_lower(column_major(kernels, poisoned(L, lower(m)), precision), X)
    W, I_L = numbers(X).astype(WIDE), L + np.eye(m, dtype=WIDE)
    assert within(I_L @ W, B, (2 if trsm == "library" else 8) * (m + 1) * u * np.abs(W).max(initial=0) * 1.5)


@pytest.mark.parametrize("trsm", ["library", "inverse"])
def test_a_zero_on_the_diagonal_makes_a_solution_that_is_not_finite(kernels: TorchKernels, rng: Any, trsm: str) -> None:
    T, kernels.trsm = diagonally_heavy(rng, 40), trsm
    T[3, 3] = 0.0
    for precision in STORED:
        B, x = fill(kernels, np.ones((5, 40)), precision), vector_of(np.ones(40))
        kernels.solve_right_upper(B, column_major(kernels, T, precision))
        kernels.solve_upper(fill(kernels, T, precision), x)
        assert not np.isfinite(numbers(B)[:, 3]).any()
        assert not np.isfinite(numbers(x)[3])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 33, 97])
def test_triangular_solves_of_a_vector_have_the_error_of_fp64(
    kernels: TorchKernels, rng: Any, n: int, precision: str, transposed: bool
) -> None:
    b = rng.random(n) - 0.5
    T = stored(np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n)), precision).astype(WIDE)
    L = stored(np.tril(rng.random((n, n)) - 0.5, -1), precision).astype(WIDE)
    I_L = L + np.eye(n, dtype=WIDE)
    for solve, A, held in (
        (kernels.solve_upper, T, poisoned(T, ~lower(n))),
        (kernels.solve_lower, I_L, poisoned(L, lower(n))),
    ):
        x = vector_of(b)
        solve(fill(kernels, held.astype(np.float64), precision), x, transposed=transposed)
        op, found = (A.T if transposed else A), numbers(x).astype(WIDE)
        assert within(op @ found, b, 2 * n * U * (np.abs(op) @ np.abs(found)))


# --- panels


@pytest.mark.parametrize("panel_on", ["device", "host"])
@pytest.mark.parametrize(("m", "jb", "il0"), [(1, 1, 0), (13, 5, 5), (61, 16, 16), (200, 37, 74)])
def test_panel_is_the_reference_panel(
    kernels: TorchKernels, rng: Any, m: int, jb: int, il0: int, panel_on: str
) -> None:
    values, rows, plan = rng.random((m, jb)) - 0.5, BlockCyclic(m + il0, jb, 0, 1), panel_plan(jb, 4, 2, "right")
    A, L1 = column_major(kernels, values), column_major(kernels, np.zeros((jb, jb)))
    pivots, kernels.panel_on = kernels.vector(jb + 1), panel_on
    kernels.factor_panel(Panel(A, L1, pivots, rows, il0, jb, plan, "right"), None)
    A_ref, L1_ref, pivots_ref = values.copy(), np.zeros((jb, jb)), np.zeros(jb + 1)
    ReferenceKernels().factor_panel(Panel(A_ref, L1_ref, pivots_ref, rows, il0, jb, plan, "right"), None)
    assert kernels.floats(pivots) == list(pivots_ref)
    # |L| <= 1 and |U| <= growth; two eliminations in different orders differ by jb·u·growth²: 100 covers the constant.
    bound = 100 * jb * U * max(1.0, np.abs(L1_ref).max()) ** 2
    assert within(L1, L1_ref, bound)
    assert within(A[jb:], A_ref[jb:], bound)


@pytest.mark.parametrize("panel_on", ["device", "host"])
def test_a_column_of_zeros_is_named(kernels: TorchKernels, panel_on: str) -> None:
    values = np.ones((9, 3)) * [1.0, 2.0, 0.5]  # columns 1 and 2 vanish once column 0 is eliminated
    A, L1, pivots = column_major(kernels, values), column_major(kernels, np.zeros((3, 3))), kernels.vector(4)
    kernels.panel_on = panel_on
    panel = Panel(A, L1, pivots, BlockCyclic(9, 3, 0, 1), 0, 3, panel_plan(3, 2, 2, "right"), "right")
    kernels.factor_panel(panel, None)
    assert kernels.floats(pivots)[3] == 2.0


def test_what_is_not_finite_reaches_the_factors_of_a_panel(kernels: TorchKernels, rng: Any) -> None:
    for value in (np.nan, np.inf):
        values = rng.random((40, 6)) - 0.5
        values[11, 2] = value
        A, L1 = column_major(kernels, values), column_major(kernels, np.zeros((6, 6)))
        kernels.panel_on = "device"
        panel = Panel(A, L1, kernels.vector(7), BlockCyclic(40, 6, 0, 1), 0, 6, panel_plan(6, 2, 2, "left"), "left")
        kernels.factor_panel(panel, None)
        assert not (np.isfinite(numbers(A[6:])).all() and np.isfinite(numbers(L1)).all())


def test_panel_over_a_process_column_has_the_pivots_of_one_process() -> None:
    n, nb, jb, P = 97, 8, 8, 3
    matrix = np.random.default_rng(7).random((n, jb)) - 0.5

    def factor(comm: Any) -> tuple[list[float], Any]:
        kernels = TorchKernels(torch_device(), HostKernels(1))
        rows = BlockCyclic(n, nb, comm.rank, P)
        A = column_major(kernels, matrix[globals_of(rows)])
        L1, pivots = column_major(kernels, np.zeros((jb, jb))), kernels.vector(jb + 1)
        theirs = kernels.candidate(jb)

        def exchange(candidate: Any) -> None:
            allreduce_by(comm, candidate, theirs, kernels.better_candidate)

        top = jb if comm.rank == 0 else 0
        kernels.factor_panel(Panel(A, L1, pivots, rows, 0, top, panel_plan(jb, 4, 2, "left"), "left"), exchange)
        return kernels.floats(pivots), numbers(L1)

    A_ref, L1_ref, pivots_ref = matrix.copy(), np.zeros((jb, jb)), np.zeros(jb + 1)
    plan = panel_plan(jb, jb, 2, "right")
    ReferenceKernels().factor_panel(
        Panel(A_ref, L1_ref, pivots_ref, BlockCyclic(n, nb, 0, 1), 0, jb, plan, "right"), None
    )
    for pivots, L1 in run_ranks(P, factor):
        assert pivots == list(pivots_ref)
        assert within(L1, L1_ref, 100 * jb * U)


def test_a_panel_travels_as_one_piece_and_leaves_its_neighbours_alone(kernels: TorchKernels, rng: Any) -> None:
    values = rng.random((13, 5))
    for part in (column_major(kernels, values), column_major(kernels, values)[13:], vector_of(values[0])):
        before = numbers(part)
        room = torch_panel._flat(part).cpu().clone()
        there = torch_panel._shaped_like(part, room)
        assert np.array_equal(there, before)
        there += 1.0
        torch_panel._flat(part).copy_(room)
        assert equal(part, before + 1.0)
    whole = kernels.panel(kernels.vector(kernels.panel_size(18, 5)), 18, 5)
    whole.fill_(7.0)
    A = whole[2:15]
    room = torch_panel._flat(A).cpu().clone()
    torch_panel._shaped_like(A, room)[:] = values
    torch_panel._flat(A).copy_(room)
    assert equal(A, values)
    assert equal(whole[:2], np.full((2, 5), 7.0))
    assert equal(whole[15:], np.full((3, 5), 7.0))


@pytest.mark.parametrize("columns", [0, 1, 7])
def test_row_moves_do_what_swaps_one_by_one_do(
    kernels: TorchKernels, rng: Any, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(torch_rows, "STRIP", 3)
    n, j0, jb = 53, 6, 11
    pivots = [int(rng.integers(j0 + i, n)) for i in range(jb)]
    moves = local_moves(row_moves(j0, pivots), j0, BlockCyclic(n, jb, 0, 1))
    values = rng.random((n, columns))
    expected = values.copy()
    for i, pivot in enumerate(pivots):
        expected[[j0 + i, pivot]] = expected[[pivot, j0 + i]]
    lists = [kernels.indices(part) for part in (moves.my_sources, moves.my_targets, moves.out_rows[0])]
    A = fill(kernels, values)
    kernels.permute_rows(A, j0, *lists)
    assert equal(A, expected)
    out = kernels.shaped(kernels.vector(jb * columns), jb, columns)
    kernels.gather_rows(fill(kernels, values), lists[0], out)
    assert equal(out, values[moves.my_sources])
    kernels.scatter_rows(out, lists[0], A)
    assert np.array_equal(numbers(A)[moves.my_sources], numbers(out))


# --- triangles, maxima, sums


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (37, 150)])
def test_products_with_a_vector_have_the_error_of_fp64(
    kernels: TorchKernels, rng: Any, monkeypatch: pytest.MonkeyPatch, m: int, n: int, precision: str
) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.triangle.STRIP", 500)
    A = stored(rng.random((m, n)) - 0.5, precision)
    for op, transposed in ((A, False), (A.T, True)):
        x, y = rng.random(op.shape[1]) - 0.5, rng.random(op.shape[0]) - 0.5
        found = vector_of(y)
        kernels.add_matvec(found, fill(kernels, A, precision), vector_of(x), transposed=transposed)
        size = np.abs(op.astype(WIDE)) @ np.abs(x)
        assert within(found, y + op.astype(WIDE) @ x, 2 * U * ((op.shape[1] + 1) * size + np.abs(y)))


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("form", ["plain", "absolute", "squared"])
@pytest.mark.parametrize("part", ["lower", "upper"])
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [(0, 4, 2, 2), *GRIDS, (149, 9, 1, 1)])
def test_a_triangle_times_a_vector_reads_only_the_triangle(
    kernels: TorchKernels, rng: Any, n: int, nb: int, P: int, Q: int, part: str, form: str, precision: str
) -> None:
    A = stored(rng.random((n, n)) - 0.5, precision)
    keep = lower(n) if part == "lower" else ~lower(n)
    T = {"plain": lambda T: T, "absolute": np.abs, "squared": np.square}[form](np.where(keep, A, 0).astype(WIDE))
    x, y = rng.random(n) - 0.5, rng.random(n) - 0.5
    for rows, cols in parts(n, nb, P, Q):
        i, j = globals_of(rows), globals_of(cols)
        mine, found = np.ix_(i, j), vector_of(y[i])
        local = fill(kernels, poisoned(A, keep)[mine], precision)
        kernels.add_triangle_matvec(found, local, vector_of(x[j]), rows, cols, part, form)
        size = np.abs(T[mine]) @ np.abs(x[j])
        # n products and sums; squaring is one rounding more.
        assert within(found, y[i] + T[mine] @ x[j], 2 * U * ((len(j) + 2) * size + np.abs(y[i])))


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("n", "nb", "P", "Q"), [(0, 4, 2, 2), *GRIDS, (149, 9, 1, 1)])
def test_the_largest_entry_of_the_upper_triangle(
    kernels: TorchKernels, rng: Any, n: int, nb: int, P: int, Q: int, precision: str
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
            local[tuple(at)] = float(mine[tuple(at)])


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (37, 150)])
def test_largest_entries_and_sums_of_rows_and_columns(
    kernels: TorchKernels, rng: Any, m: int, n: int, precision: str
) -> None:
    values = stored(rng.random((m, n)) - 0.7, precision)
    by_row, by_column = kernels.vector(m), kernels.vector(n)
    kernels.abs_sums(fill(kernels, values, precision), by_row, by_column)
    for found, axis in ((by_row, 1), (by_column, 0)):
        exact = np.abs(values.astype(WIDE)).sum(axis=axis)
        assert within(found, exact, 2 * values.shape[axis] * U * exact)
    for special in (None, -np.inf, np.nan):
        if special is not None and values.size:
            values[m // 2, n // 3] = special
        kernels.row_max(fill(kernels, values, precision), by_row)
        kernels.column_max(fill(kernels, values, precision), by_column)
        assert equal(by_row, np.abs(values).max(axis=1, initial=0.0), equal_nan=True)
        assert equal(by_column, np.abs(values).max(axis=0, initial=0.0), equal_nan=True)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (37, 150)])
def test_scaling_by_powers_of_two_is_exact_and_by_others_rounds_thrice_at_most(
    kernels: TorchKernels, rng: Any, m: int, n: int, precision: str
) -> None:
    values = stored(rng.random((m, n)) - 0.5, precision)
    # Beyond the range of fp32 one by one, but not together.
    by_row, by_column = np.ldexp(1.0, 140 + rng.integers(-9, 9, m)), np.ldexp(1.0, -140 + rng.integers(-9, 9, n))
    A = fill(kernels, values, precision)
    kernels.scale_rows_columns(A, vector_of(by_row), vector_of(by_column))
    assert equal(A, values.astype(WIDE) * by_row[:, None] * by_column)
    by_row, by_column = rng.random(m) + 0.5, rng.random(n) + 0.5
    A = fill(kernels, values, precision)
    kernels.scale_rows_columns(A, vector_of(by_row), vector_of(by_column))
    exact = values.astype(WIDE) * by_row[:, None] * by_column
    assert within(A, exact, 3.1 * STORED[precision][1] * np.abs(exact))  # two products, and the rounding to A's type


def test_reciprocal_powers_bring_numbers_between_a_half_and_one(kernels: TorchKernels, rng: Any) -> None:
    exact = np.ldexp(1.0, np.arange(-1022, 1024))
    x = np.concatenate([exact, np.nextafter(exact, 0)[1:], np.nextafter(exact, np.inf), rng.random(97) * 1e5])
    powers = kernels.vector(len(x))
    kernels.reciprocal_powers(powers, vector_of(x))
    found = numbers(powers)
    assert ((x * found > 0.5) & (x * found <= 1)).all()
    assert (np.frexp(found)[0] == 0.5).all()  # powers of two
    powers = kernels.vector(4)
    kernels.reciprocal_powers(powers, vector_of([0.0, np.inf, np.nan, 4.0]))
    assert kernels.floats(powers) == [1.0, 1.0, 1.0, 0.25]
    kernels.reciprocal_powers(powers[:0], powers[:0])


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0])
def test_powers_of_entries(kernels: TorchKernels, rng: Any, exponent: float) -> None:
    x = rng.random(97) * 100
    found = vector_of(x)
    kernels.power(found, exponent)
    # A root, a quotient or a power of the library is off by an ulp, 2u, at most; twice that for two of them in turn.
    assert within(found, x.astype(WIDE) ** exponent, 4 * U * x**exponent)
    special = vector_of([0.0, np.inf, np.nan])
    kernels.power(special, exponent)
    expected = [np.inf, 0.0, np.nan] if exponent < 0 else [0.0, np.inf, np.nan]
    assert equal(special, expected, equal_nan=True)


@pytest.mark.parametrize("n", [0, 1, 7, 97])
def test_sums_and_products_of_vectors(kernels: TorchKernels, rng: Any, n: int) -> None:
    A, y = fill(kernels, rng.random((n, 5)) - 0.5), rng.random(n) - 0.5
    for x, factor in product((A[:, 3], kernels.copied(A[:, 3])), (1.0, -1.0, 0.3)):
        found, x_ = vector_of(y), numbers(x)
        kernels.add_scaled(found, factor, x)
        exact = y + factor * x_.astype(WIDE)
        assert within(found, exact, 1.1 * U * (np.abs(factor * x_) + np.abs(exact)))  # a product and a sum
    x = kernels.copied(A[:, 3])
    found, x_ = vector_of(y), numbers(x)
    kernels.multiply(found, x)
    assert equal(found, x_ * y)
    wide = x_.astype(WIDE)
    assert within(kernels.sum_squares(x), (wide**2).sum(), 2 * n * U * (wide**2).sum())
    assert within(kernels.sum_abs(x), np.abs(wide).sum(), 2 * n * U * np.abs(wide).sum())
    assert kernels.max_abs(x) == np.abs(x_).max(initial=0.0)
    if n:
        x[n // 2] = np.nan
        assert np.isnan(kernels.max_abs(x))


def test_facts_say_what_computes_and_where(kernels: TorchKernels) -> None:
    facts = kernels.facts()
    assert facts["kernels"] == kernels.name == "torch"
    assert facts["torch"] == torch.__version__
    assert ("triton" in facts) == kernels.device.triton
    place, transport = ("cuda:0", "device memory") if ON_GPU else ("cpu", "host memory")
    assert kernels.device_facts()["device"] == place
    assert (set(kernels.device_facts()) == {"device"}) == (not ON_GPU)
    assert kernels.transport.name == transport


def test_what_is_begun_beside_is_there_once_it_is_joined(kernels: TorchKernels) -> None:
    assert kernels.stopwatch is kernels.device
    with kernels.side_stream():
        v = kernels.zeros(1)
    kernels.join()
    kernels.wait()
    assert kernels.floats(v) == [0.0]
