"""Test that runs whose library emulates fp64 are detected, labeled in every report, and checked for native products."""

from __future__ import annotations

from datetime import datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.bench.fp64 import Arithmetic, check_request, restored_variable, with_fp64
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.options import Run
from mxpeak.perf.emulation import CUBLAS_SCHEME, EmulationRequest, requested_emulation
from mxpeak.records import Result, document
from mxpeak.report.hpl_text import HplText
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard
from mxpeak.report.text import verdict
from tests.support.emulated_products import Product, below, by_residues, native
from tests.support.result_file import VALIDATOR

N, NB = 150, 64
CUBLAS_REQUEST = EmulationRequest("CUBLAS_EMULATE_DOUBLE_PRECISION", CUBLAS_SCHEME)


def run_with(product: Product, monkeypatch: pytest.MonkeyPatch, P: int = 1, Q: int = 1, **settings: Any) -> Result:
    """Run HPL with the reference kernels and this product; return the result."""
    monkeypatch.setattr(ReferenceKernels, "subtract_product", lambda self, C, A, B: product(C, A, B))
    config = HplConfig(
        **{"n": (N,), "nb": (NB,), "P": (P,), "Q": (Q,), "kernels": "reference", "device": "cpu", **settings}
    )
    (result,) = run_ranks(P * Q, lambda comm: hpl.run(config, comm))[0]
    assert not list(VALIDATOR.iter_errors(document([result])))
    return result


def codes(result: Result) -> set[str]:
    return {warning.code for warning in result.warnings if warning.code.startswith("fp64")}


@pytest.mark.parametrize(("P", "Q"), [(1, 1), (2, 2)])
def test_a_native_run_says_so_and_has_no_rules(monkeypatch: pytest.MonkeyPatch, P: int, Q: int) -> None:
    result = run_with(native, monkeypatch, P, Q)
    assert (result.result["fp64"], result.result["fp64_emulation"]) == ("native", None)
    assert result.result["limit"]["fp64"] == "native"
    assert result.rules == {}
    assert not codes(result)
    assert "EMULATED" not in verdict(result)


@pytest.mark.parametrize(("P", "Q"), [(1, 1), (2, 1), (2, 2)])
def test_an_emulated_run_is_detected_on_every_grid(monkeypatch: pytest.MonkeyPatch, P: int, Q: int) -> None:
    result = run_with(by_residues(55), monkeypatch, P, Q)
    assert result.status == "valid"
    assert result.result["fp64"] == result.result["limit"]["fp64"] == "emulated"
    found = result.result["fp64_emulation"]
    assert found["products"] > 0
    assert {**found, "products": 0} == {
        "scheme": None, "bits": 55, "requested_by": None, "ranks": P * Q, "products": 0, "native_products": 0
    }  # fmt: skip
    assert not codes(result)


def test_an_emulated_run_is_labeled_in_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(by_residues(55), monkeypatch)
    lines = verdict(result).splitlines()
    assert lines[0].endswith("  NOT ADMISSIBLE  FP64 EMULATED (scheme unknown, 55 bits)")
    assert any(
        line.startswith("  products of fp64 matrices were emulated (scheme unknown, 55 bits); ") for line in lines
    )
    assert lines[-1].startswith("  broken rule fp64: products of fp64 matrices were emulated, but the TOP500 counts")
    assert "FP64 EMULATED (scheme unknown, 55 bits)" in html_report(document([result]))
    assert "hpl: products of fp64 matrices are emulated (scheme unknown, 55 bits)" in " ".join(
        scoreboard([result]).split()
    )
    stream = StringIO()
    HplText(stream, {"threshold": 16.0}, datetime(2026, 11, 29)).case(result)
    shown = stream.getvalue().splitlines()
    (comment,) = [line for line in shown if "emulated" in line]
    assert comment.startswith("HPL_pdgesv() products of fp64 matrices were emulated (scheme unknown, 55 bits)")
    # A parser of HPL's report reads the line of numbers and the line of the check.
    assert [line.split()[1:5] for line in shown if line.startswith("WR")] == [[str(N), str(NB), "1", "1"]]


def test_few_bits_are_a_warning_and_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(by_residues(24), monkeypatch)
    assert result.status == "invalid"
    assert result.result["fp64_emulation"]["bits"] == 24
    assert codes(result) == {"fp64-bits"}


def test_native_products_in_an_emulated_run_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library emulates the test products of 128 rows, but none of the updates, which have at most 86 rows."""
    result = run_with(below(100, by_residues(55)), monkeypatch)
    emulation = result.result["fp64_emulation"]
    assert emulation["products"] == emulation["native_products"] > 0
    assert codes(result) == {"fp64-fallback"}
    assert f"0 of {emulation['products']} checked products were emulated" in verdict(result)


def test_mxp_in_fp64_states_the_arithmetic_of_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferenceKernels, "subtract_product", lambda self, C, A, B: by_residues(55)(C, A, B))
    sizes = {"n": (N,), "nb": (NB,), "P": (1,), "Q": (1,), "kernels": "reference", "device": "cpu"}
    (result,) = hpl_mxp.run(HplMxpConfig(precision=("fp64",), **sizes), Solo())
    assert result.result["fp64"] == result.result["limit"]["fp64"] == "emulated"
    (other,) = hpl_mxp.run(HplMxpConfig(precision=("fp32",), **sizes), Solo())
    assert "fp64" not in {**other.result, **other.result["limit"]}


def test_explore_is_labeled(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with(native, monkeypatch, mode="explore")
    assert result.rules["mode"] == "explore"
    assert [each["rule"] for each in result.rules["violations"]] == ["mode"]
    assert "NOT ADMISSIBLE" in verdict(result)


def test_a_request_without_effect_is_a_warning() -> None:
    (caution,) = Arithmetic(0, 2, None, CUBLAS_REQUEST).cautions()
    assert caution.code == "fp64-request"
    assert caution.text.startswith(
        "CUBLAS_EMULATE_DOUBLE_PRECISION requests emulated fp64, but the products were native"
    )


def test_the_remedy_is_that_of_the_requested_library() -> None:
    for variable, remedy in (("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUDA 13.0"), ("OZIMMU_COMPUTE_MODE", "LD_PRELOAD")):
        (caution,) = Arithmetic(0, 2, None, EmulationRequest(variable, "Ozaki")).cautions()
        assert remedy in caution.hint


def test_emulation_that_only_the_solve_shows_is_a_warning() -> None:
    (caution,) = Arithmetic(0, 2, None, CUBLAS_REQUEST).checked(4, 1, None).cautions()
    assert caution.text == ("the test products were native, but 3 of 4 checked products of the solve were emulated")


def test_all_ranks_raise_the_error_about_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is not in the grid."""
    monkeypatch.setattr(ReferenceKernels, "subtract_product", lambda self, C, A, B: by_residues(55)(C, A, B))
    config = HplConfig(n=(N,), nb=(NB,), P=(1,), Q=(1,), idle_ranks=True, kernels="reference", device="cpu")

    def error(comm: Any) -> str:
        with pytest.raises(UsageError) as raised:
            hpl.run(config, comm, origins={"fp64": "flag"})
        return str(raised.value)

    first, second = run_ranks(2, error)
    assert first == second
    assert first.startswith("--fp64 native: a library emulates")


def test_ranks_with_different_arithmetic_are_a_warning() -> None:
    (caution,) = Arithmetic(1, 2, 55).cautions()
    assert caution.text == "fp64 is emulated on 1 of 2 ranks"


@pytest.mark.parametrize(
    ("actual", "wanted", "explicit", "error"),
    [
        (Arithmetic(0, 2), "native", True, None),
        (Arithmetic(2, 2, 55), "native", False, None),
        (Arithmetic(2, 2, 55, CUBLAS_REQUEST), "native", True, UsageError),
        (Arithmetic(2, 2, 55), "emulated", True, None),
        (Arithmetic(1, 2, 55), "emulated", True, ResourceError),
    ],
)
def test_an_arithmetic_that_was_not_requested_is_an_error(
    actual: Arithmetic, wanted: str, explicit: bool, error: type[Exception] | None
) -> None:
    if error is None:
        check_request(actual, wanted, explicit=explicit)
    else:
        with pytest.raises(error, match=f"--fp64 {wanted}"):
            check_request(actual, wanted, explicit=explicit)


def test_native_switches_the_variable_off_only_if_it_was_given() -> None:
    for origin, expected in (("default", "1"), ("flag", "0"), ("variable", "0")):
        environment = {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}
        with_fp64(Run(HplConfig(device="cpu"), {"fp64": origin}), Solo(), environment)
        assert environment == {"CUBLAS_EMULATE_DOUBLE_PRECISION": expected}
    environment = {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}
    with restored_variable(environment):
        with_fp64(Run(HplConfig(device="cpu"), {"fp64": "flag"}), Solo(), environment)
    assert environment == {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}
    environment = {}
    with_fp64(Run(HplConfig(device="cpu"), {"fp64": "flag"}), Solo(), environment)
    assert environment == {}


@pytest.mark.parametrize("mode", ["official", "explore"])
def test_auto_is_native_on_a_cpu(mode: str) -> None:
    run = with_fp64(Run(HplConfig(device="cpu", fp64="auto", mode=mode), {"fp64": "flag"}), Solo())
    assert (run.config.fp64_products, run.origins["fp64"]) == ("native", "auto")


@pytest.mark.parametrize(("mode", "chosen"), [("official", "native"), ("explore", "emulated")])
def test_auto_emulates_only_to_explore(monkeypatch: pytest.MonkeyPatch, mode: str, chosen: str) -> None:
    auto_on(monkeypatch, [(False, True)])
    run = with_fp64(Run(HplConfig(device="cuda", fp64="auto", mode=mode), {"fp64": "flag"}), Solo())
    assert run.config.fp64_products == chosen


@pytest.mark.parametrize("other", [(False, False), (True, True)])
def test_auto_emulates_only_if_all_gpus_are_slow_and_able(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    auto_on(monkeypatch, [(False, True), other])
    run = Run(HplConfig(device="cuda", fp64="auto", mode="explore"), {"fp64": "flag"})
    assert run_ranks(2, lambda comm: with_fp64(run, comm).config.fp64_products) == ["native", "native"]


def auto_on(monkeypatch: pytest.MonkeyPatch, gpus: list[tuple[bool, bool]]) -> None:
    """Let rank k use a GPU with (fast fp64, emulation) = gpus[k]."""
    made = [SimpleNamespace(has_fast_fp64=fast, able=able) for fast, able in gpus]
    monkeypatch.setattr("mxpeak.runtime.placement.open_device", lambda name, number: made[number])
    monkeypatch.setattr("mxpeak.runtime.placement.local_rank", lambda comm: comm.rank)
    monkeypatch.setattr("mxpeak.runtime.placement.can_emulate_fp64", lambda device: device.able)


@pytest.mark.parametrize(
    ("kernels", "P", "Q"), [("reference", 1, 1), ("host", 1, 1), ("host", 2, 2), ("torch", 1, 1), ("torch", 2, 1)]
)
def test_mxpeak_emulates_on_every_backend(kernels: str, P: int, Q: int) -> None:
    n = 151 if kernels == "reference" else 307
    config = HplConfig(n=(n,), nb=(NB,), P=(P,), Q=(Q,), kernels=kernels, device="cpu", fp64="emulated", threads=1)
    (result,) = run_ranks(P * Q, lambda comm: hpl.run(config, comm))[0]
    assert not list(VALIDATOR.iter_errors(document([result])))
    assert result.status == "valid"
    assert result.validation["residual"] < 1.0
    assert result.result["fp64"] == result.result["limit"]["fp64"] == "emulated"
    emulation = result.result["fp64_emulation"]
    assert (emulation["scheme"], emulation["requested_by"]) == ("Ozaki II of mxpeak", "--fp64 emulated")
    assert (emulation["bits"], emulation["ranks"], emulation["native_products"]) == (None, P * Q, 0)
    assert emulation["products"] >= -(-n // NB) - 1
    assert "FP64 EMULATED (Ozaki II of mxpeak, bits chosen per product)" in verdict(result)
    assert not codes(result)


GEMMUL8 = {"LD_PRELOAD": "/opt/libgemmul8.so"}
OZIMMU = {"LD_PRELOAD": "/opt/libozimmu.so"}


@pytest.mark.parametrize(
    ("environment", "architecture", "expected"),
    [
        ({}, "sm_90", None),
        ({"CUBLAS_EMULATE_DOUBLE_PRECISION": "0"}, "sm_90", None),
        ({"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}, "sm_90", (CUBLAS_SCHEME, None)),
        ({"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}, "gfx942", None),
        ({"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}, "", None),
        (
            {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1", "CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT": "55"},
            "sm_120",
            (CUBLAS_SCHEME, 55),
        ),
        ({**GEMMUL8, "GEMMUL8_NUM_MOD_D": "14"}, "gfx942", ("Ozaki II of GEMMul8, 14 moduli", None)),
        ({**GEMMUL8, "GEMMUL8_NUM_MOD_D_GEMM": "15"}, "sm_90", ("Ozaki II of GEMMul8, 15 moduli", None)),
        ({**GEMMUL8, "GEMMUL8_NUM_MOD_D": "0"}, "sm_90", None),
        ({"GEMMUL8_NUM_MOD_D": "14"}, "sm_90", None),
        ({**OZIMMU, "OZIMMU_COMPUTE_MODE": "fp64_int8_9"}, "sm_90", ("Ozaki I of ozIMMU, 9 slices", None)),
        ({**OZIMMU, "OZIMMU_COMPUTE_MODE": "fp64_int8_auto"}, "sm_90", ("Ozaki I of ozIMMU, adaptive slices", None)),
        ({**OZIMMU, "OZIMMU_COMPUTE_MODE": "dgemm"}, "sm_90", None),
    ],
)
def test_requests_in_the_environment(
    environment: dict[str, str], architecture: str, expected: tuple[str, int | None] | None
) -> None:
    found = requested_emulation(environment, architecture)
    assert (None if found is None else (found.scheme, found.bits)) == expected
