"""Tiles by BFMMLA: the instruction compared with a model of its roundings, and all but the instruction everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numba
import numpy as np
import pytest

from mxpeak.kernels.host.engine import bfmmla, matrix_engines
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, DEPTH, ROWS, UNITS
from mxpeak.kernels.host.lu import operands
from mxpeak.kernels.host.lu.operands import LeftOperand, RightOperand
from tests.support.arm_bfmmla import product_by_bfmmla, rounded_to_odd, software_tile

ENGINE = next(unit for unit in UNITS if unit.code == matrix_engines.BFMMLA)
U = 2.0**-24


@numba.njit
def by_software(T: Any, A: Any, lda: Any, B: Any, depths: Any) -> None:
    software_tile(T, A, lda, B, depths)


@numba.njit
def by_instruction(T: Any, A: Any, lda: Any, B: Any, depths: Any) -> None:
    bfmmla.tile_bfmmla(T, A, lda, B, depths)


def tile_of(compute: Any, A: Any, B: Any) -> Any:
    """A B of a tile by compiled code, from operands in the layout of the matrix engines."""
    k = A.shape[1]
    left = LeftOperand.over(np.zeros(operands.size(ROWS, k, "left"), np.int32), ROWS, k, ENGINE)
    right = RightOperand.over(np.zeros(operands.size(k, COLUMNS, "right"), np.int32), k, COLUMNS, ENGINE)
    operands.round_left(0, 1, A.astype(np.float32), left.pairs, False)
    operands.round_right(0, 1, B.astype(np.float32), right.strips, False)
    around = np.full((ROWS + 2, COLUMNS), np.nan, np.float32)
    T, depths = around[1 : ROWS + 1], operands.pairs_along(k) * 2 // DEPTH
    compute(T.ctypes.data, left.pairs.ctypes.data, left.pairs.strides[0], right.strips.ctypes.data, depths)
    assert np.isnan(around[[0, -1]]).all(), "a tile is stored in its own rows"
    return T.copy()


def bf16(rng: Any, *shape: int) -> Any:
    """Random numbers of bf16 whose magnitudes span a factor of 2^12."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("k", [1, 2, 7, 32, 33, 96])
def test_a_tile_of_small_integers_is_exact(rng: Any, k: int) -> None:
    A, B = rng.integers(-64, 65, (ROWS, k)), rng.integers(-64, 65, (k, COLUMNS))
    np.testing.assert_array_equal(tile_of(by_software, A, B), A @ B)


@pytest.mark.parametrize("k", [5, 32, 160])
def test_a_tile_errs_by_its_sums(rng: Any, k: int) -> None:
    """|T - A B| <= (k/2 + 1)·u·|A||B|: an addition per pair, and one per two products."""
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    a, b = A.astype(np.float64), B.astype(np.float64)
    assert np.all(np.abs(tile_of(by_software, A, B) - a @ b) <= (k / 2 + 2) * U * (np.abs(a) @ np.abs(b)))


def test_numbers_are_rounded_to_odd() -> None:
    ulp = 2.0**-23
    assert rounded_to_odd(np.array([1.0]), np.array([2 * ulp])) == 1 + 2 * ulp, "an exact sum stays"
    assert rounded_to_odd(np.array([1.0]), np.array([ulp / 8])) == 1 + ulp
    assert rounded_to_odd(np.array([1.0]), np.array([2.0**-70])) == 1 + ulp, "a term that fp64 loses is not lost"
    assert rounded_to_odd(np.array([1.0]), np.array([-(2.0**-70)])) == 1 - ulp / 2
    assert rounded_to_odd(np.array([-1.0 - 2 * ulp]), np.array([2.0**-70])) == -1 - ulp
    assert rounded_to_odd(np.array([1.0 + ulp]), np.array([1.5 * ulp])) == 1 + 3 * ulp
    assert rounded_to_odd(np.array([0.0]), np.array([0.0])) == 0


def test_the_model_of_the_instruction_errs_by_its_roundings(rng: Any) -> None:
    """|S - A B| <= (k + 2)·u·|A||B|, because a rounding to odd errs by up to 2·u, and it is exact for integers."""
    k = 96
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    a, b = A.astype(np.float64), B.astype(np.float64)
    error = np.abs(product_by_bfmmla(A, B) - a @ b)
    assert np.all(error <= (k + 2) * U * (np.abs(a) @ np.abs(b)))
    assert np.any(error > 0)
    I, J = rng.integers(-64, 65, (ROWS, k)), rng.integers(-64, 65, (k, COLUMNS))
    np.testing.assert_array_equal(product_by_bfmmla(I, J), I @ J)


@pytest.mark.skipif(not bfmmla.is_available(), reason="this processor has no BFMMLA")
@pytest.mark.parametrize("k", [2, 32, 96, 320])
def test_the_instruction_equals_its_model_bitwise(rng: Any, k: int) -> None:
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    np.testing.assert_array_equal(tile_of(by_instruction, A, B), product_by_bfmmla(A, B))


def test_an_engine_that_no_hardware_has_run_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_engines, "present", lambda: (ENGINE,))
    assert matrix_engines.chosen() == ()
    monkeypatch.setattr(matrix_engines, "present", lambda: (replace(ENGINE, unproven=False),))
    assert matrix_engines.chosen() == (replace(ENGINE, unproven=False),)


@pytest.mark.parametrize(
    ("system", "machine", "cpu", "word", "available"),
    [
        ("Linux", "aarch64", "neoverse-v2", 1 << 14, True),
        ("Linux", "aarch64", "neoverse-v2", 1 << 13, False),
        ("Linux", "aarch64", "generic", 1 << 14, False),
        ("Linux", "x86_64", "neoverse-v2", 1 << 14, False),
        ("Darwin", "arm64", "apple-m2", 1 << 14, False),
    ],
)
def test_bfmmla_needs_linux_a_feature_of_the_processor_and_a_model_of_llvm(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, cpu: str, word: int, available: bool
) -> None:
    class Library:
        class getauxval:  # noqa: N801
            def __new__(cls, entry: int) -> int:  # type: ignore[misc]
                return word if entry == 26 else 0

    monkeypatch.setattr(bfmmla.platform, "system", lambda: system)
    monkeypatch.setattr(bfmmla.platform, "machine", lambda: machine)
    monkeypatch.setattr(bfmmla, "get_host_cpu_name", lambda: cpu)
    monkeypatch.setattr(bfmmla.ctypes, "CDLL", lambda name: Library)
    assert bfmmla.is_available() == available
