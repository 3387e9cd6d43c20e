"""Test products of 16-bit operands by every engine of this processor, with every shape of its tiles.

Without an engine, the functions that round and store operands are still tested.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.kernels.host.engine import blas, matrix_engines
from mxpeak.kernels.host.engine.matrix_engines import ENGINES, MatrixEngine
from mxpeak.kernels.host.engine.vector_ir import HAS_FP16
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.lu import engine_products, operands
from mxpeak.kernels.host.lu.engine_products import EngineLU
from mxpeak.kernels.host.lu.operands import LeftOperand, RightOperand
from mxpeak.kernels.host.lu.substitution import ORDER
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.precision import PRECISIONS
from tests.support.blocks import WIDE

HERE = [pytest.param(engine, id=engine.name) for engine in ENGINES if engine in matrix_engines.present()] or [
    pytest.param(
        ENGINES[0], id="none", marks=pytest.mark.skip(reason="this processor has no products of 16-bit numbers")
    )
]
U = 2.0**-24


def operand_pair(kernels: HostKernels, engine: MatrixEngine, A: Any, B: Any) -> tuple[Any, Any]:
    """Return both operands of a product."""
    both = []
    for side, values in (("left", A), ("right", B)):
        buffer = kernels.operand_buffer(*values.shape, engine.precision, side)
        both.append(kernels.operand_matrix(buffer, *values.shape, engine.precision, side))
        kernels.cast(values.astype(np.float32), both[-1], engine.precision)
    return both[0], both[1]


def error_in_bounds(C: Any, before: Any, A: Any, B: Any) -> bool:
    """Check |C - (before - A B)| <= (k+1)·u·|A||B| + u·|C|, the contract's bound, doubled for the fp64 sums here."""
    a, b = np.asarray(A).astype(np.float64), np.asarray(B).astype(np.float64)
    bound = (a.shape[1] + 1) * U * (np.abs(a) @ np.abs(b)) + U * np.abs(before)
    return bool(np.all(np.abs(C - (before - a @ b)) <= 2 * bound))


@pytest.mark.parametrize("engine", HERE)
def test_products_of_every_small_shape(engine: MatrixEngine, rng: Any) -> None:
    kernels = HostKernels(poison=True, engines=[engine])
    for m in range(1, 71):
        ns, ks = (int(x) for x in rng.integers(1, 71, 2)), (m, 71 - m, int(rng.integers(1, 71)))
        for n in (m, *ns):
            for k in ks:
                A, B = operand_pair(kernels, engine, rng.standard_normal((m, k)), rng.standard_normal((k, n)))
                around = np.full((m + 2, n + 3), np.nan, np.float32)
                C = around[1 : m + 1, 1 : n + 1]
                C[:] = before = rng.standard_normal((m, n)).astype(np.float32)
                kernels.subtract_product(C, A, B)
                assert error_in_bounds(C, before, A, B), (m, n, k)
                assert np.isnan(around).sum() == around.size - m * n, (m, n, k)


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_a_left_and_columns_of_a_right_operand_are_operands(
    engine: MatrixEngine, threads: int, rng: Any
) -> None:
    """Pieces of an update begin at any row and column; they have few strips (threads share rows) or many."""
    kernels = HostKernels(threads, poison=True, engines=[engine])
    m, k, n = 150, 67, 500
    A, B = operand_pair(kernels, engine, rng.standard_normal((m, k)), rng.standard_normal((k, n)))
    for rows in (slice(0, m), slice(37, 38), slice(31, 121), slice(m, m)):
        for columns in (slice(0, n), slice(45, 46), slice(33, 95), slice(31, 481), slice(9, 9)):
            left, right = A[rows], B[:, columns]
            assert np.array_equal(np.asarray(left), np.asarray(A)[rows])
            assert np.array_equal(np.asarray(right), np.asarray(B)[:, columns])
            C = before = rng.standard_normal((left.shape[0], right.shape[1])).astype(np.float32)
            C = before.copy()
            kernels.subtract_product(C, left, right)
            assert error_in_bounds(C, before, left, right), (rows, columns)


@pytest.mark.parametrize("engine", HERE)
def test_cutting_a_product_changes_no_bit(engine: MatrixEngine, rng: Any) -> None:
    """The parts are bitwise identical, including the signs of zeros; functions that cut an update rely on it."""
    kernels = HostKernels(poison=True, engines=[engine])
    m, k, n = 91, 64, 200
    values, others = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    values[::3], others[:, ::2] = 0.0, -others[:, ::2]
    A, B = operand_pair(kernels, engine, values, others)
    before = rng.standard_normal((m, n)).astype(np.float32)
    before[::3] = np.where(rng.random((31, n)) < 0.5, -0.0, 0.0)
    whole, parts = before.copy(), before.copy()
    kernels.subtract_product(whole, A, B)
    for rows in (slice(0, 5), slice(5, 47), slice(47, m)):
        for columns in (slice(0, 33), slice(33, 129), slice(129, n)):
            kernels.subtract_product(parts[rows, columns], A[rows], B[:, columns])
    assert np.array_equal(whole.view(np.uint32), parts.view(np.uint32))


@pytest.mark.parametrize("engine", HERE)
def test_many_strips_pass_by_in_groups(engine: MatrixEngine, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If k is large, a group is one strip; if it is small, all strips are one group."""
    kernels = HostKernels(poison=True, engines=[engine])
    for k in (9000, 3):
        A, B = operand_pair(kernels, engine, rng.standard_normal((35, k)), rng.standard_normal((k, 131)))
        before = rng.standard_normal((35, 131)).astype(np.float32)
        C = before.copy()
        kernels.subtract_product(C, A, B)
        assert error_in_bounds(C, before, A, B)


@pytest.mark.parametrize("engine", HERE)
def test_infinity_and_nan_stay_in_their_row_or_column(engine: MatrixEngine, rng: Any) -> None:
    kernels = HostKernels(poison=True, engines=[engine])
    for value in (np.nan, np.inf):
        for of in ("left", "right"):
            A, B = rng.random((40, 70)), rng.random((70, 50)) + 1.0
            (A if of == "left" else B)[17, 33] = value
            C = np.zeros((40, 50), np.float32)
            kernels.subtract_product(C, *operand_pair(kernels, engine, A, B))
            lines = np.isfinite(C).all(axis=1 if of == "left" else 0)
            assert list(np.flatnonzero(~lines)) == [17 if of == "left" else 33]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("threads", [1, 3])
def test_operands_are_the_rounded_numbers_and_zeros_behind_them(engine: MatrixEngine, threads: int, rng: Any) -> None:
    if engine.precision == "fp16" and not HAS_FP16:
        pytest.skip("this processor does not round to fp16, and has no engine that would want it")
    kernels, reference = HostKernels(threads), ReferenceKernels()
    for m, k in ((1, 1), (3, 32), (45, 33), (70, 95), (300, 7)):
        values = (rng.standard_normal((m, k)) * 100).astype(np.float32)
        expected = reference.matrix(m, k, "fp32")
        reference.cast(values, expected, engine.precision)
        left = LeftOperand.over(np.full(operands.size(m, k, "left"), operands.NAN_PAIR, np.int32), m, k, engine)
        right = RightOperand.over(np.full(operands.size(m, k, "right"), operands.NAN_PAIR, np.int32), m, k, engine)
        for target in (left, right):
            kernels.cast(values, target, engine.precision)
            assert np.array_equal(np.asarray(target), expected)
        assert not left.pairs.view(np.int16)[:, k:].any()
        assert not right.strips.view(np.int16).reshape(*right.strips.shape, 2).transpose(1, 3, 0, 2)[m:].any()


@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("wide_from", [50, 5000])
def test_a_column_major_lu_uses_the_products_of_an_engine(
    engine: MatrixEngine, wide_from: int, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """|P A - L U| <= (2·u of the format + n·u)·|L||U|, in narrow panels and in wide ones, the last one ragged.

    Run on one thread, and on three, each of which solves for some columns.
    """
    monkeypatch.setattr(engine_products, "WIDE_FROM", wide_from)
    monkeypatch.setattr(blas, "own_threads", lambda: 1 if wide_from == 50 else 3)
    for n in (1, 64, 65, 200, 600):
        A = rng.standard_normal((n, n)).astype(np.float32)
        LU, pivots, lu = np.asfortranarray(A), np.empty(n, np.int32), EngineLU(engine, n)
        assert lu.factor(LU, pivots) == 0
        for i, row in enumerate(pivots):
            A[[i, row - 1]] = A[[row - 1, i]]
        L, R = np.tril(LU, -1).astype(np.float64) + np.eye(n), np.triu(LU).astype(np.float64)
        bound = (2.01 * PRECISIONS[engine.precision].u * (n > lu.NB) + 2 * n * U) * (np.abs(L) @ np.abs(R))
        assert np.all(np.abs(A - L @ R) <= bound), n


def test_a_processor_without_units_rounds_in_software(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = HostKernels(engines=())
    assert all(kernels.emulates(name) for name in ("tf32", "bf16", "fp16", "fp8"))
    monkeypatch.setattr(matrix_engines.numba.config, "CPU_NAME", "generic")
    assert not any(map(matrix_engines.is_present.__wrapped__, matrix_engines.ENGINES))


# --- solves with a panel's block


@pytest.mark.parametrize("threads", [1, 3])
def test_solves_of_many_blocks_multiply_back(threads: int, rng: Any) -> None:
    """Orders of one block, of several, and ragged ones; more right-hand sides than a chunk, and fewer."""
    kernels = [HostKernels(threads, poison=True, engines=())] + [
        HostKernels(threads, poison=True, engines=[engine]) for engine in ENGINES if engine in matrix_engines.present()
    ]
    kernels[0].trsm = "kernel"
    cases = [(host, "fp32", host.engines[0].precision if host.engines else "fp32") for host in kernels]
    for host, stored, precision in [(kernels[0], "fp64", "fp64"), *cases]:
        u, u_low = PRECISIONS[stored].u, 0.0 if precision == stored else PRECISIONS[precision].u
        for n, many in ((64, 40), (70, 801), (129, 1), (200, 403), (449, 50)):
            T, L = rng.random((n, n)) - 0.5 + n * np.eye(n), np.tril(rng.random((n, n)) - 0.5, -1) / n**0.5
            upper, lower = (host.panel(host.buffer(host.panel_size(n, n, stored), stored), n, n) for _ in range(2))
            upper[:], lower[:] = np.where(np.tri(n, k=-1), np.nan, T), np.where(np.tri(n, k=-1), L, np.nan)
            T, L = np.triu(upper).astype(WIDE), np.tril(lower, -1).astype(WIDE) + np.eye(n, dtype=WIDE)
            T[np.tri(n, k=-1, dtype=bool)], L[~np.tri(n, dtype=bool)] = 0.0, 0.0
            X, Y = host.matrix(many, n, stored), host.matrix(n, many, stored)
            X[:] = rng.random((many, n)) - 0.5
            b = X.astype(WIDE)
            Y[:] = X.T
            done = host.solve_right_upper(X, upper, precision), host.solve_unit_lower(lower, Y, precision)
            by_blocks = n > 64 and precision != stored
            assert set(done) == {
                PanelSolve(precision, "blocked-inverse") if by_blocks else PanelSolve(stored, "library")
            }
            x, y = X.astype(WIDE), Y.astype(WIDE)
            # Blocks' inverses: |T_jj^-1||T_jj| has row sums below 2 here, |L_jj^-1||L_jj| below 5.
            right, left = np.abs(x) @ np.abs(T), np.abs(L) @ np.abs(y)
            assert np.all(np.abs(x @ T - b) <= (2 * u_low + 2 * (n + 1) * u) * right), (precision, n)
            assert np.all(np.abs(L @ y - b.T) <= (2 * u_low + 5 * (n + 1) * u) * left.max()), (precision, n)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stored", ["fp64", "fp32"])
def test_substitution_in_registers_errs_as_substitution_does(stored: str, threads: int, rng: Any) -> None:
    """|L X - B| <= (n + 1) u |L||X| for each entry, also for an ill-conditioned L and for orders joined by products."""
    host, u = HostKernels(threads, poison=True, engines=()), PRECISIONS[stored].u
    host.trsm = "kernel"
    for n, many in ((1, 1), (7, 23), (8, 24), (64, 49), (129, 200), (192, 96), (ORDER + 5, 101)):
        low, upper = (host.panel(host.buffer(host.panel_size(n, n, stored), stored), n, n) for _ in range(2))
        low[:] = np.where(np.tri(n, k=-1), 2 * rng.random((n, n)) - 1, np.nan)  # |L^-1||L| grows like 2^n
        low /= n**0.5
        upper[:] = np.where(np.tri(n, k=-1), np.nan, rng.random((n, n)) - 0.5)
        upper[np.diag_indices(n)] = 2.0
        I_L = np.where(np.tri(n, k=-1), low, 0).astype(WIDE) + np.eye(n, dtype=WIDE)
        U = np.where(np.tri(n, k=-1), 0, upper).astype(WIDE)
        around = np.full((n + 2, many + 3), np.nan, low.dtype)
        X, Y = around[1 : n + 1, 1 : many + 1], host.matrix(many, n, stored)
        X[:] = rng.random((n, many)) - 0.5
        Y[:] = X.T
        b = X.astype(WIDE)
        assert host.solve_unit_lower(low, X, stored) == PanelSolve(stored, "library")
        assert host.solve_right_upper(Y, upper, stored) == PanelSolve(stored, "library")
        x, y = X.astype(WIDE), Y.astype(WIDE)
        assert np.all(np.abs(I_L @ x - b) <= (n + 1) * u * (np.abs(I_L) @ np.abs(x))), n
        assert np.all(np.abs(y @ U - b.T) <= (n + 2) * u * (np.abs(y) @ np.abs(U))), n  # the rounded 1/u_kk
        assert np.isnan(around).sum() == around.size - n * many, "numbers beside B changed"


def test_substitution_in_registers_treats_all_columns_alike(rng: Any) -> None:
    """A column is bitwise identical in a complete strip, in a ragged strip, and on any thread."""
    host, n = HostKernels(2, poison=True, engines=()), 72
    host.trsm = "kernel"
    L = host.panel(host.buffer(host.panel_size(n, n)), n, n)
    L[:] = np.tril(rng.random((n, n)) - 0.5, -1)
    B = rng.random((n, 130)) - 0.5
    X = host.matrix(n, 130)
    X[:] = B
    host.solve_unit_lower(L, X, "fp64")
    for columns in (slice(0, 1), slice(5, 101), slice(101, 130)):
        part = host.matrix(n, columns.stop - columns.start)
        part[:] = B[:, columns]
        host.solve_unit_lower(L, part, "fp64")
        assert np.array_equal(part, X[:, columns])


@pytest.mark.parametrize("engine", HERE)
def test_solves_with_badly_conditioned_blocks_err_as_substitution_does(engine: MatrixEngine, rng: Any) -> None:
    """Factors of random matrices without pivoting: |T_jj^-1||T_jj| of some is thousands, and 10^7 after tiny pivots."""
    host, n, precision = HostKernels(poison=True, engines=[engine]), 128, engine.precision
    solves: list[PanelSolve] = []
    for tiny in (1.0, 1e-7) * 10:
        A = rng.random((n, n)) - 0.5
        for k in range(n):
            A[k + 1 :, k] /= A[k, k]
            A[k + 1 :, k + 1 :] -= np.outer(A[k + 1 :, k], A[k, k + 1 :])
        A[5, 5] *= tiny
        D = host.panel(host.buffer(host.panel_size(n, n, "fp32"), "fp32"), n, n)
        D[:] = A
        T, L = np.triu(D).astype(np.float64), np.tril(D, -1).astype(np.float64) + np.eye(n)
        b = (rng.random((n, n)) - 0.5).astype(np.float32)
        X, Y = host.matrix(n, n, "fp32"), host.matrix(n, n, "fp32")
        X[:], Y[:] = b, b
        solves += host.solve_right_upper(X, D, precision), host.solve_unit_lower(D, Y, precision)
        x, y = X.astype(np.float64), Y.astype(np.float64)
        sides = (x @ T - b, np.abs(x) @ np.abs(T)), (L @ y - b, np.abs(L) @ np.abs(y))
        for how, (off, size) in zip(solves[-2:], sides):
            u = PRECISIONS[how.operands].u
            assert np.all(np.linalg.norm(off, axis=1) <= n**0.5 * u * np.linalg.norm(size, axis=1)), how
    assert PanelSolve("fp32", "library") in solves, "badly conditioned blocks are not inverted, and this is reported"


def test_assembly_from_the_cache_can_be_put_into_what_is_compiled_here() -> None:
    """If another process has compiled the function with the assembly, this process has not initialized the parser."""
    code = (
        "import mxpeak.kernels.host.engine.matrix_engines\n"
        "import llvmlite.binding as llvm\n"
        "llvm.initialize_native_target(); llvm.initialize_native_asmprinter()\n"
        'module = llvm.parse_assembly(\'define void @f() { call void asm sideeffect "nop", ""() ret void }\')\n'
        "machine = llvm.Target.from_default_triple().create_target_machine()\n"
        "print(len(machine.emit_object(module)) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr
