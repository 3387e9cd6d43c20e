"""Compare tiles by BFMMLA and SME, and the code around them, with models of their roundings."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numba
import numpy as np
import pytest
from llvmlite import ir

from mxpeak.kernels.host.engine import matrix_engines
from mxpeak.kernels.host.engine.arm import bfmmla, sme
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, ENGINES, ROWS, MatrixEngine
from tests.support.arm_tiles import product_by_bfmmla, product_by_fmopa, rounded_to_odd, software_tile, tile_of

ENGINE, SME_FP16, SME_BF16 = (
    next(engine for engine in ENGINES if engine.code == code)
    for code in (matrix_engines.BFMMLA, matrix_engines.SME_FP16, matrix_engines.SME_BF16)
)
#: The model of each engine's instruction.
MODELS = {ENGINE: product_by_bfmmla, SME_FP16: product_by_fmopa, SME_BF16: product_by_bfmmla}
U = 2.0**-24


@numba.njit
def by_software(T: Any, A: Any, lda: Any, B: Any, depths: Any) -> None:
    software_tile(T, A, lda, B, depths)


@numba.njit
def _by_instruction(code: int, T: Any, A: Any, lda: Any, B: Any, depths: Any) -> None:
    matrix_engines.tile(code, T, A, lda, B, depths)


def bf16(rng: Any, *shape: int) -> Any:
    """Random numbers of bf16 whose magnitudes span a factor of 2^12."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("k", [1, 2, 7, 32, 33, 96])
def test_a_tile_of_small_integers_is_exact(rng: Any, k: int) -> None:
    A, B = rng.integers(-64, 65, (ROWS, k)), rng.integers(-64, 65, (k, COLUMNS))
    np.testing.assert_array_equal(tile_of(by_software, ENGINE, A, B), A @ B)


@pytest.mark.parametrize("k", [5, 32, 160])
def test_a_tile_errs_by_its_sums(rng: Any, k: int) -> None:
    """|T - A B| <= (k/2 + 1)·u·|A||B|: an addition per pair, and one per two products."""
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    a, b = A.astype(np.float64), B.astype(np.float64)
    assert np.all(np.abs(tile_of(by_software, ENGINE, A, B) - a @ b) <= (k / 2 + 2) * U * (np.abs(a) @ np.abs(b)))


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


def compare_with_model(rng: Any, engine: MatrixEngine, k: int) -> None:
    """Compute a tile by an engine's instruction and by its model."""
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    T = tile_of(partial(_by_instruction, engine.code), engine, A, B)
    np.testing.assert_array_equal(T, MODELS[engine](A, B))


@pytest.mark.skipif(not bfmmla.is_available(), reason="this processor has no BFMMLA")
@pytest.mark.parametrize("k", [2, 32, 96, 320])
def test_bfmmla_equals_its_model_bitwise(rng: Any, k: int) -> None:
    compare_with_model(rng, ENGINE, k)


@pytest.fixture
def vector_length(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the length of this thread's vectors in streaming mode, in bytes, if the system is Linux."""
    if platform.system() != "Linux":
        yield
        return
    prctl, set_length, get_length = ctypes.CDLL(None).prctl, 63, 64
    before = prctl(get_length, 0, 0, 0, 0) & 0xFFFF
    if prctl(set_length, ctypes.c_ulong(request.param), 0, 0, 0) & 0xFFFF != request.param:
        pytest.skip(f"this processor has no vectors of {request.param} bytes in streaming mode")
    yield
    prctl(set_length, ctypes.c_ulong(before), 0, 0, 0)


@pytest.mark.skipif(not sme.is_available(), reason="this processor has no SME")
@pytest.mark.parametrize("engine", [SME_FP16, SME_BF16], ids=lambda engine: engine.name)
@pytest.mark.parametrize("k", [2, 32, 96, 320])
@pytest.mark.parametrize("vector_length", [16, 32, 64, 128, 256], indirect=True)
def test_sme_equals_its_model_bitwise(rng: Any, vector_length: None, engine: MatrixEngine, k: int) -> None:
    compare_with_model(rng, engine, k)


def test_the_model_of_outer_products_errs_by_its_roundings(rng: Any) -> None:
    """|S - A B| <= (k/2 + 1)·u·|A||B|, and the sum of two products is rounded once."""
    k = 96
    A, B = bf16(rng, ROWS, k), bf16(rng, k, COLUMNS)
    a, b = A.astype(np.float64), B.astype(np.float64)
    error = np.abs(product_by_fmopa(A, B) - a @ b)
    assert np.all(error <= (k / 2 + 1) * U * (np.abs(a) @ np.abs(b)))
    assert np.any(error > 0)
    assert product_by_fmopa(np.array([[1.0, U]]), np.array([[1.0], [1.0 + 2**-10]])) == 1 + 2 * U
    I, J = rng.integers(-64, 65, (ROWS, k)), rng.integers(-64, 65, (k, COLUMNS))
    np.testing.assert_array_equal(product_by_fmopa(I, J), I @ J)


def compiled_for(processor: str, precision: str) -> list[str]:
    """The instructions of the function of a tile."""
    module = ir.Module()
    sme.tile_function(module, precision).linkage = ""
    module.triple = "aarch64-unknown-linux-gnu"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(module.triple).create_target_machine(cpu=processor, opt=3)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(parsed, builder)
    code = machine.emit_assembly(parsed)
    return [line.strip() for line in code.splitlines() if line.startswith("\t") and not line.startswith("\t.")]


@pytest.mark.parametrize("processor", ["generic", "neoverse-v2", "apple-m4"])
@pytest.mark.parametrize(("precision", "instruction"), [("fp16", "fmopa"), ("bf16", "bfmopa")])
def test_outer_products_are_compiled_in_streaming_mode(processor: str, precision: str, instruction: str) -> None:
    lines = compiled_for(processor, precision)
    begin, end = lines.index("smstart\tsm"), lines.index("smstop\tsm")
    modes = [line for line in lines if line.startswith("sm")]
    assert modes == ["smstart\tsm", "smstart\tza", "smstop\tza", "smstop\tsm"]
    products = [at for at, line in enumerate(lines) if line.startswith(f"{instruction}\tza")]
    assert {lines[at].split()[1] for at in products} == {"za0.s,", "za1.s,"}, "left and right columns"
    assert all(begin < at < end for at in products)
    assert [line for line in lines if line.startswith("bl")] == [], "a called function could not be in streaming mode"
    saved = [line for line in lines[:begin] if line.startswith("stp\td")]
    assert len(saved) == 4, "streaming mode clears d8 to d15, which belong to the caller"


def test_an_engine_that_no_hardware_has_run_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_engines, "present", lambda: tuple(MODELS))
    assert matrix_engines.chosen() == ()
    tested = tuple(replace(engine, unproven=False) for engine in MODELS)
    monkeypatch.setattr(matrix_engines, "present", lambda: tested)
    assert matrix_engines.chosen() == tested


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


@pytest.mark.parametrize(
    ("system", "machine", "features", "available"),
    [
        ("Linux", "aarch64", 1 << 23 | 1 << 27 | 1 << 28, True),
        ("Linux", "aarch64", 1 << 23 | 1 << 28, False),
        ("Linux", "aarch64", 1 << 14, False),
        ("Linux", "x86_64", 1 << 23 | 1 << 27 | 1 << 28, False),
        ("Darwin", "arm64", {b"FEAT_SME", b"SME_F16F32", b"SME_B16F32"}, True),
        ("Darwin", "arm64", {b"FEAT_BF16"}, False),
        ("Windows", "arm64", 0, False),
    ],
)
def test_sme_needs_its_products_of_both_precisions(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, features: Any, available: bool
) -> None:
    class Library:
        class getauxval:  # noqa: N801
            def __new__(cls, entry: int) -> int:  # type: ignore[misc]
                return int(features) if entry == 26 else 0

        @staticmethod
        def sysctlbyname(name: bytes, value: Any, size: Any, new: None, length: int) -> int:
            found = name.rpartition(b".")[2] in features
            value._obj.value = int(found)
            return 0 if found else -1

    monkeypatch.setattr(sme.platform, "system", lambda: system)
    monkeypatch.setattr(sme.platform, "machine", lambda: machine)
    monkeypatch.setattr(sme.ctypes, "CDLL", lambda name: Library)
    sme.is_available.cache_clear()
    try:
        assert sme.is_available() == available
    finally:
        sme.is_available.cache_clear()
