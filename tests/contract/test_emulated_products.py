"""Test products of fp64 matrices by INT8 residues: componentwise errors for any spans of exponents, and the counts."""

from __future__ import annotations

import platform
import re
from fractions import Fraction
from itertools import combinations
from math import gcd, log2, prod
from types import SimpleNamespace
from typing import Any

import llvmlite.binding
import numpy as np
import pytest

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.emulation import (
    DEPTH,
    MAX_MODULI,
    MODULI,
    USUAL,
    WORD,
    Emulation,
    moduli_for,
    part_residues,
    residues,
)
from mxpeak.kernels.host.engine import matrix_engines
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.lu.emulation import by_sgemm, by_tiles, packing, residue_ir, tile_products
from mxpeak.kernels.reference import emulation as reference
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.backends import BACKENDS, Backend, backend_named, sizes
from tests.support.blocks import WIDE, matrix, numbers, panel
from tests.support.hpl_ranks import solve, system
from tests.support.roundoff import U

#: The host's two methods. The tiles are those of the software model, which needs no processor with AMX.
HOST_ENGINES = {"host by SGEMM": None, "host by tiles": matrix_engines.SOFTWARE_INT8}


@pytest.fixture(params=[*BACKENDS, *HOST_ENGINES])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each backend, and each method of the host."""
    if request.param not in HOST_ENGINES:
        return backend_named(request.param)
    kernels = HostKernels(2, poison=True, engines=())
    kernels.int8_engine = HOST_ENGINES[request.param]
    return Backend(request.param, kernels)


#: Half the distance of subnormal numbers: the rounding error of results below the normal range.
HALF_TINIEST = WIDE(2.0) ** -1075


def in_bounds(R: Any, C: Any, A: Any, B: Any) -> bool:
    """|C - A B - found| <= (8+p) u |A||B| + p u |C| for p parts; terms of k·2^-64 are those of longdouble."""
    parts = -(-A.shape[1] // DEPTH)
    A, B, C = (M.astype(WIDE) for M in (A, B, C))
    unit = (8 + parts) * U + (A.shape[1] + 1) * WIDE(2.0) ** -64
    bound = unit * (np.abs(A) @ np.abs(B)) + parts * U * np.abs(C) + HALF_TINIEST
    return bool(np.all(np.abs(R.astype(WIDE) - (C - A @ B)) <= bound))


def subtracted(backend: Backend, C: Any, A: Any, B: Any) -> tuple[Any, Emulation]:
    """Return C - A B as the backend emulates it, and the counts."""
    found = matrix(backend, C)
    counts = backend.kernels.subtract_emulated_product(found, matrix(backend, A), matrix(backend, B))
    return numbers(backend, found), counts


def as_native(backend: Backend, R: Any, C: Any, A: Any, B: Any) -> bool:
    """Return whether the same entries are NaN or infinite as in native fp64, and the others are within its bound."""
    native = matrix(backend, C)
    backend.kernels.subtract_product(native, matrix(backend, A), matrix(backend, B))
    native = numbers(backend, native)
    finite = np.isfinite(native)
    with np.errstate(all="ignore"):
        bound = 2 * U * ((A.shape[1] + 1) * (np.abs(A) @ np.abs(B)) + np.abs(C))
    same = np.array_equal(R[~finite], native[~finite], equal_nan=True)
    return same and bool(np.all(np.abs(R[finite] - native[finite]) <= bound[finite]))


def graded(rng: Any, k: int, span: float, m: int = 23, n: int = 19) -> tuple[Any, Any]:
    """Return factors whose columns and rows are scaled by up to 2^span in opposite directions: terms are similar."""
    scale = np.exp2(np.round(np.linspace(0, span, k)))
    return rng.standard_normal((m, k)) / scale, scale[:, None] * rng.standard_normal((k, n))


# --- constants


def test_moduli_are_coprime_and_sums_with_words_are_exact() -> None:
    assert all(gcd(a, b) == 1 for a, b in combinations(MODULI, 2))
    assert max(MODULI) == 256
    assert MAX_MODULI * 128 * 2**WORD <= 2**53
    for count in (1, 2, USUAL, MAX_MODULI):
        constants = residues(count)
        assert constants.product == prod(MODULI[:count])
        for m, words in zip(constants.moduli, zip(*constants.words)):
            fraction = sum(word << WORD * (len(words) - 1 - w) for w, word in enumerate(words))
            inverse = pow(constants.product // m, -1, m)
            assert fraction == (inverse << WORD * len(words)) // m


def test_the_number_of_moduli_is_the_smallest_that_holds_the_integers() -> None:
    for count in (1, 15, MAX_MODULI):
        bits = log2(prod(MODULI[:count])) - 1.15
        assert moduli_for(bits - 1e-9) == count
        assert moduli_for(bits + 1e-9) == (count + 1 if count < MAX_MODULI else 0)
    assert moduli_for(float("inf")) == 0


def test_counts_add_up() -> None:
    assert Emulation(1, 0, 2, 15) + Emulation(3, 1, 0, 17) == Emulation(4, 1, 2, 17)


def test_the_reference_restores_integers_exactly(rng: Any) -> None:
    for count in (2, USUAL, MAX_MODULI):
        bits = int((log2(prod(MODULI[:count])) - 5) / 2)
        A, B = (
            [[int(x) << max(bits - 50, 0) | 1 for x in row] for row in rng.integers(-(2**49), 2**49, (4, 4))]
            for _ in "AB"
        )
        A, B = (np.array([[x >> max(0, 50 - bits) for x in row] for row in M], object) for M in (A, B))
        assert np.array_equal(reference.integer_product(A, B, count), A.dot(B)), count


def test_residues_of_large_integers_are_exact(rng: Any) -> None:
    """The integers have up to 110 bits, the most that spans of 57 bits need."""
    x = np.rint(np.ldexp(rng.random((3, 400)) - 0.5, rng.integers(1, 111, (3, 400))))
    x[0, :4] = 128, -128, 0, 2.0**109
    R = np.empty(x.shape, np.float32)
    for m in MODULI:
        by_sgemm.to_residues(x, np.array([m, *part_residues(m)], np.float64), R)
        assert np.all(np.abs(R) <= m / 2), m
        assert all((int(a) - int(r)) % m == 0 for a, r in zip(x.flat, R.flat)), m


def test_the_largest_residues_are_multiplied_exactly() -> None:
    """Sums of 1024 products of ±128 are the largest integers of SGEMM; two chunks are added in INT32."""
    for k in (by_sgemm.EXACT, by_sgemm.EXACT + 1):
        A, B = np.full((2, k), 128.0), np.full((3, k), -128.0)
        for R, m in zip(by_sgemm.products_by_sgemm(A, B, MODULI), MODULI):
            assert np.all((R.astype(int) + k * 128 * 128) % m == 0), (k, m)


# --- accuracy


def test_errors_are_below_the_bound_on_ragged_shapes(backend: Backend, rng: Any) -> None:
    shapes = ((0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (31, 17, 5), (37, 97, 61))
    for m, n, k in (*shapes, *sizes(backend, (5, 7, 1100), interpreted=((33, 40, 70),))):
        A, B, C = (rng.standard_normal(shape) for shape in ((m, k), (k, n), (m, n)))
        found, counts = subtracted(backend, C, A, B)
        assert in_bounds(found, C, A, B), (m, n, k)
        assert counts.native == counts.widened == 0
        assert counts.emulated == (1 if m * n * k else 0)
        assert counts.moduli <= USUAL


def test_operands_may_be_panels_and_parts_of_matrices(backend: Backend, rng: Any) -> None:
    A, B, C = (rng.standard_normal(shape) for shape in ((37, 19), (19, 41), (37, 41)))
    R = matrix(backend, C)
    backend.kernels.subtract_emulated_product(R[5:, 7:], panel(backend, A)[5:], matrix(backend, B)[:, 7:])
    R = numbers(backend, R)
    assert in_bounds(R[5:, 7:], C[5:, 7:], A[5:], B[:, 7:])
    assert np.array_equal(R[:5], C[:5])
    assert np.array_equal(R[:, :7], C[:, :7])
    by_columns = panel(backend, C)
    backend.kernels.subtract_emulated_product(by_columns, matrix(backend, A), panel(backend, B))
    assert in_bounds(numbers(backend, by_columns), C, A, B)


def test_graded_factors_get_more_moduli_and_lose_no_accuracy(backend: Backend, rng: Any) -> None:
    """Rows of A fall by 2^span while columns of B rise: rounded to 53 bits of their lines, all digits would be lost."""
    used = []
    for span in sizes(backend, 0, 10, 20, 30, 40, 50, interpreted=(0, 50)):
        A, B = graded(rng, 64, span)
        C = rng.standard_normal((23, 19))
        found, counts = subtracted(backend, C, A, B)
        assert in_bounds(found, C, A, B), span
        assert (counts.emulated, counts.native) == (1, 0), span
        assert counts.widened == (counts.moduli > USUAL)
        used.append(counts.moduli)
    assert used == sorted(used)
    assert used[0] <= USUAL < used[-1] <= MAX_MODULI


def test_spans_beyond_all_moduli_are_computed_natively(backend: Backend, rng: Any) -> None:
    A, B = graded(rng, 64, 120)
    C = np.zeros((23, 19))
    found, counts = subtracted(backend, C, A, B)
    assert counts == Emulation(native=1)
    assert as_native(backend, found, C, A, B)


def test_entries_that_underflow_when_they_are_scaled(backend: Backend) -> None:
    """The only nonzero term of the entry of A B is the product of a tiny number and a large one."""
    A, B, C = np.array([[2.0**1000, 2.0**-100]]), np.array([[0.0], [2.0**100]]), np.zeros((1, 1))
    for sign in (1.0, -1.0):
        found, counts = subtracted(backend, C, sign * A, B)
        assert found == [[-sign]]
        assert counts == Emulation(native=1)


def test_rows_and_columns_of_very_different_sizes(backend: Backend, rng: Any) -> None:
    """Different sizes of rows or columns, from 2^-1000 to 2^1000, do not affect the accuracy."""
    A, B, C = rng.standard_normal((9, 30)), rng.standard_normal((30, 8)), np.zeros((9, 8))
    by_row, by_column = np.exp2(np.linspace(-1000, 900, 9).round()), np.exp2(np.linspace(-1000, 100, 8).round())
    R, counts = subtracted(backend, C, by_row[:, None] * A, B * by_column)
    assert in_bounds(R, C, by_row[:, None] * A, B * by_column)
    assert (counts.emulated, counts.widened) == (1, 0)
    sizes_within = np.exp2(rng.integers(-1000, 900, (9, 30)))
    R, counts = subtracted(backend, C, A * sizes_within, B)
    assert in_bounds(R, C, A * sizes_within, B)
    assert counts.emulated + counts.native == 1


def test_subnormal_numbers_and_zeros(backend: Backend, rng: Any) -> None:
    A, B, C = rng.standard_normal((6, 11)), rng.standard_normal((11, 7)) * 2.0**500, rng.standard_normal((6, 7))
    A[1], A[2], B[:, 3] = A[1] * 2.0**-1060, 0.0, 0.0
    A[3, 1:], A[4, :] = 0.0, 2.0**-1074
    R, counts = subtracted(backend, C, A, B)
    assert in_bounds(R, C, A, B)
    assert np.array_equal(R[2], C[2])
    assert np.array_equal(R[:, 3], C[:, 3])
    assert counts.emulated == 1
    tiny, small = A * 2.0**-1000, np.full((11, 7), 2.0**-30)
    R, _ = subtracted(backend, np.zeros((6, 7)), tiny, small)
    assert in_bounds(R, np.zeros((6, 7)), tiny, small)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_spread_as_in_native_products(backend: Backend, rng: Any, value: float) -> None:
    for spoiled in (0, 1):
        factors, C = [rng.standard_normal((19, 7)), rng.standard_normal((7, 11))], rng.standard_normal((19, 11))
        factors[spoiled][3, 5] = value
        found, counts = subtracted(backend, C, *factors)
        assert as_native(backend, found, C, *factors)
        assert counts == Emulation(native=1)


def test_results_beyond_the_range_are_infinite(backend: Backend) -> None:
    A, B = np.full((2, 3), 2.0**1000), np.full((3, 2), -(2.0**1000))
    with np.errstate(over="ignore"):  # Triton's interpreter computes with NumPy
        found, counts = subtracted(backend, np.zeros((2, 2)), A, B)
    assert np.all(found == np.inf)
    assert counts.emulated == 1


def test_a_long_product_is_split(backend: Backend, rng: Any) -> None:
    if backend.interpreted:
        pytest.skip("the same code as in smaller products, which would take a minute")
    for k, parts in ((DEPTH + 5, 2), (3 * DEPTH, 3)):
        A, B, C = rng.standard_normal((3, k)), rng.standard_normal((k, 4)), rng.standard_normal((3, 4))
        found, counts = subtracted(backend, C, A, B)
        assert in_bounds(found, C, A, B)
        assert counts.emulated == (1 if backend.name == "reference" else parts)


def test_blocks_are_independent(backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN in one block leaves the others emulated."""
    if backend.name == "reference":
        pytest.skip("the reference has one block")
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.lu.emulation.BLOCK", 16)
    monkeypatch.setattr(by_sgemm, "BLOCK", 16)
    monkeypatch.setattr(by_tiles, "block_side", lambda k: 16)
    A, B, C = rng.standard_normal((40, 9)), rng.standard_normal((9, 33)), rng.standard_normal((40, 33))
    A[20, 3] = np.nan
    R, counts = subtracted(backend, C, A, B)
    rows = [i for i in range(40) if i != 20]
    assert np.isnan(R[20]).all()
    assert in_bounds(R[rows], C[rows], A[rows], B)
    assert (counts.emulated, counts.native) == (6, 3)


def test_a_gpu_without_int8_products_is_named() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from mxpeak.kernels.torch.lu.emulation import require_int8

    device: Any = SimpleNamespace(is_gpu=True, chip=SimpleNamespace(name="Tesla P100", major=6, minor=0))
    with pytest.raises(ResourceError, match=r"needs INT8 products .*7\.5.* but Tesla P100 has .* 6\.0; use native"):
        require_int8(device)


# --- INT8 tiles of AMX, computed by loops with the same layouts


def int8_engines() -> list[int]:
    """Provide the software model of the tiles, and AMX if it is present."""
    amx = matrix_engines.is_present(matrix_engines.INT8_ENGINE)
    return [matrix_engines.SOFTWARE_INT8, *[matrix_engines.AMX_INT8] * amx]


@pytest.mark.parametrize("engine", int8_engines())
def test_products_by_tiles_on_several_pieces(rng: Any, engine: int) -> None:
    """The shapes have more than one piece, parts of tiles, and sums that are stored between parts of k."""
    kernels = HostKernels(2, engines=())
    kernels.int8_engine = engine
    rows, columns, steps = tile_products.PIECE_ROWS, tile_products.PIECE_COLUMNS, tile_products.STEPS
    for m, n, k in ((rows + 33, columns + 1, 5), (33, 70, steps * 64 + 65), (65, 31, 2 * steps * 64)):
        A, B, C = rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng.standard_normal((m, n))
        R = C.copy()
        counts = kernels.subtract_emulated_product(R, A, B)
        assert (counts.emulated, counts.widened, counts.native) == (1, 0, 0)
        assert in_bounds(R, C, A, B), (m, n, k)


@pytest.mark.parametrize("engine", int8_engines())
def test_the_largest_sums_of_tiles(engine: int) -> None:
    """All terms are equal: every residue occurs DEPTH times in a sum."""
    kernels = HostKernels(1, engines=())
    kernels.int8_engine = engine
    for value in (127.0, 128.0, 2.0**52 - 1, 3.0**33):
        A, B, C = np.full((2, DEPTH), value), np.full((DEPTH, 3), -value), np.zeros((2, 3))
        assert kernels.subtract_emulated_product(C, A, B).emulated == 1
        assert in_bounds(C, np.zeros((2, 3)), A, B), value


def test_packed_residues_are_exact(rng: Any) -> None:
    """The integers have few or all digits, including the largest digits and halves of moduli."""
    few, all_digits = (residue_ir.DIGIT * d for d in (residue_ir.FEW_DIGITS, residue_ir.DIGITS))
    for bits, count in ((few - 2, residue_ir.FEW_DIGITS), (all_digits - 10, residue_ir.DIGITS)):
        x = np.rint(np.ldexp(rng.random((3, 400)) - 0.5, rng.integers(1, bits + 1, (3, 400))))
        x[0, :6] = (
            128,
            -128,
            0,
            2.0 ** (bits - 1),
            sum(2.0**14 * 2.0 ** (15 * d) for d in range(3)),
            -(2.0**44) - 2.0**29,
        )
        table = np.array([by_tiles.digit_residues(m) for m in MODULI], np.float32)
        operands = by_tiles.Operands.of(by_tiles.Memory(), len(MODULI), 3, 3, 400)
        p = np.full(3, bits)
        scaled = [np.ldexp(x, -bits) for _ in range(2)]
        packing.pack(0, 1, *scaled, p, p, count, table, *operands)
        for t, m in enumerate(MODULI):
            left = operands.left[t].reshape(-1, 32, 64).transpose(1, 0, 2).reshape(32, -1)
            right = operands.right[t].view(np.int8).reshape(-1, 32, 4).transpose(1, 0, 2).reshape(32, -1)
            assert np.array_equal(left, right)
            assert not left[3:].any()
            assert not left[:, 400:].any()
            assert all((int(a) - int(r)) % m == 0 for a, r in zip(x.flat, left[:3, :400].flat)), m


def test_words_of_fractions_restore_an_integer_exactly_enough() -> None:
    """Compare with exact fractions: the exact words end at their unit, and the last word has 53 bits of the rest."""
    for count in (1, 2, 15, USUAL, 20, MAX_MODULI):
        words, M = by_tiles.fraction_words(count)
        assert len(words) % 2 == 0
        for m, of_modulus in zip(MODULI, words.T):
            exact = Fraction(pow(prod(MODULI[:count]) // m, -1, m), m)
            error = abs(sum(map(Fraction, of_modulus)) - exact)
            assert float(error) * 128 * count * M <= 2.0 ** (2 * 52 - 1 - 53 - 3), count
            assert of_modulus[0] * 2.0**WORD == int(exact * 2**WORD)


def test_the_int8_tile_is_four_instructions_of_amx() -> None:
    """The assembly of the steps is assembled for a processor that need not be present."""
    if platform.machine() != "x86_64":
        pytest.skip("this processor's compiler does not assemble x86 instructions")
    inputs = ",".join("r" * 5)
    text = matrix_engines._amx_steps("tdpbssd", matrix_engines.PACKED, "A").replace("\n", "\\0A")
    code = (
        "define void @tile(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) {\n"
        f'call void asm sideeffect "{text}", "{inputs},~{{rax}},~{{rcx}},~{{rdx}},~{{rsi}},~{{rdi}},~{{r8}},~{{r9}}"'
        "(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e)\nret void\n}\n"
    )
    target = llvmlite.binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu="sapphirerapids")
    binary = machine.emit_object(llvmlite.binding.parse_assembly(code))
    # VEX.128.F2.0F38.W0 5E: TDPBSSD with the second source in tmm6 or tmm7
    assert len(re.findall(rb"\xc4\xe2[\x43\x4b]\x5e", binary)) == 4


# --- whole factorizations


class Emulating(HostKernels):
    """Host kernels whose fp64 updates are emulated."""

    def __init__(self, counts: list[Emulation]):
        super().__init__(1, poison=True, engines=())
        self._counts = counts

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        self._counts.append(self.subtract_emulated_product(C, A, B))


@pytest.mark.parametrize("spread", [0, 400])
def test_an_lu_with_emulated_updates_is_as_accurate_as_a_native_one(spread: int, rng: Any) -> None:
    """HPL's system on two ranks, also with rows of sizes from 2^-spread to 1.

    The rows of U12 then have very different sizes: most updates need more moduli, and some are native.
    """
    n, counts = 131, list[Emulation]()
    powers = np.exp2(-rng.integers(0, spread + 1, n).astype(float))

    def scale_rows(A: Any, kernels: Any) -> None:
        rows = [A.rows.to_global(il) for il in range(A.local.shape[0])]
        A.local[:] *= powers[rows][:, None]

    edit = scale_rows if spread else None
    x, norms, singular = solve(n, 16, ProcessGrid(1, 2), PivotedLuOptions(), lambda: Emulating(counts), edit)
    assert singular == 0
    assert norms.scaled(n, 2 * U) < 16
    total = sum(counts, Emulation())
    assert total.emulated > 8
    assert (total.widened > 0, total.native > 0) == (spread > 0, spread > 0), total
    if not spread:
        A, b = system(n)
        assert np.max(np.abs(A @ np.array(x) - b)) <= n * U * 16 * np.abs(A).sum(axis=1).max() * np.max(np.abs(x))
