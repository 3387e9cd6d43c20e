"""Test the comparison with ScaLAPACK: its cases, the libraries that are refused, and its results."""

from __future__ import annotations

import ctypes.util
import json
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.norms import scalapack as comparison
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.scalapack import check_comparison, incomparable
from mxpeak.cli import main as cli
from mxpeak.comm.transports.solo import DryRunCommunicator, Solo
from mxpeak.errors import ExitCode, ResourceError, UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.records import document
from mxpeak.report.text import verdict
from mxpeak.runtime import scalapack
from mxpeak.runtime.scalapack import ScaLapack, open_scalapack
from tests.support.norm_runs import N, bare, measured
from tests.support.result_file import VALIDATOR


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use one timed run per case, and no settings from outside."""
    bare(monkeypatch, tmp_path)


class Invented:
    """A fake library whose norms are those of the local array, computed by NumPy, times a factor."""

    path = Path("/opt/libscalapack.so")

    def __init__(self, factor: float = 1.0):
        self.factor, self.requests = factor, list[tuple[Any, ...]]()

    def context(self, grid: ProcessGrid) -> int:
        return 10 * grid.P + grid.Q

    def norm(self, kind: str, dtype: str, A: Any, shape: tuple[int, int], nb: int, context: int) -> float:
        self.requests.append((kind, dtype, shape, nb, context))
        norms = {
            "max": abs(A).max(),
            "one": abs(A).sum(axis=0).max(),
            "inf": abs(A).sum(axis=1).max(),
            "fro": (abs(A) ** 2).sum() ** 0.5,
        }
        return float(norms[kind] * self.factor)


def with_library(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(comparison, "open_scalapack", lambda where, comm: library)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_norms_of_both_are_in_the_result(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    library = Invented()
    with_library(monkeypatch, library)
    results = measured(kind=("one", "all"), layout=("F",), dtype=(dtype,), scalapack="auto")
    VALIDATOR.validate(json.loads(json.dumps(document(results), allow_nan=False)))
    for result, kinds in zip(results, (["one"], ["max", "one", "inf", "fro"])):
        compared = result.result["scalapack"]
        assert compared["library"] == "/opt/libscalapack.so"
        assert compared["time_s"] == min(compared["samples_s"])
        assert compared["rate_bytes"] == pytest.approx(result.problem["bytes"] / compared["time_s"])
        assert compared["speedup"] == pytest.approx(result.result["rate_bytes"] / compared["rate_bytes"])
        assert list(compared["errors"]) == kinds
        assert all(error < 10.0 for error in compared["errors"].values())
        values = compared.get("values") or {"one": compared["value"]}
        assert values == pytest.approx(result.result.get("values") or {"one": result.result["value"]}, rel=1e-6)
        assert "ScaLAPACK" in verdict(result)
        assert "times as fast" in verdict(result)
    assert set(library.requests) == {(kind, dtype, (N, N), 4, 11) for kind in ("max", "one", "inf", "fro")}


def test_a_wrong_norm_of_scalapack_is_shown_and_does_not_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, Invented(1.001))
    (result,) = measured(kind=("one",), layout=("F",), scalapack="auto")
    assert result.passed
    assert result.result["scalapack"]["errors"]["one"] > 1e6
    with_library(monkeypatch, Invented(float("nan")))
    (result,) = measured(kind=("one",), layout=("F",), scalapack="auto")
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))
    assert "infinite eps" in verdict(result)


def test_without_a_library_the_result_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalapack, "_installed", lambda: iter(()))
    (result,) = measured(kind=("one",), layout=("F",), scalapack="auto")
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))
    assert result.passed
    assert "not installed" in result.result["scalapack"]["missing"]
    assert "not compared with ScaLAPACK: ScaLAPACK is not installed" in verdict(result)
    (plain,) = measured(kind=("one",), layout=("F",))
    assert "scalapack" not in plain.result


def test_cases_that_scalapack_has_not_are_named_next_to_those_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, Invented())
    results = measured(kind=("one",), layout=("F", "C"), scalapack="auto")
    assert "value" in results[0].result["scalapack"]
    assert "use --layout F" in results[1].result["scalapack"]["missing"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"layout": "tiles"}, "not in layout tiles; use --layout F"),
        ({"dtype": "bfloat16"}, "has no norms of bfloat16"),
        ({"structure": "symmetric", "uplo": "lower"}, "has no --structure; remove --structure"),
        ({"trans": "t"}, "has no --trans"),
        ({"scope": "columns"}, "has no --scope"),
        ({"m": 2**16, "n": 2**16 - 4, "Q": 2}, "entries per rank, not 2,147,483,648; use a smaller -N or more ranks"),
    ],
)
def test_a_run_without_a_comparable_case_is_refused(values: dict[str, Any], reason: str) -> None:
    case = NormsCase(**{"m": 8, "n": 8, "nb": 4, "P": 1, "Q": 1, "layout": "F", **values})
    assert reason in incomparable(case, "host")
    with pytest.raises(UsageError, match="--scalapack does not apply: "):
        check_comparison(NormsConfig(scalapack="auto"), Solo(), [case])
    check_comparison(NormsConfig(), Solo(), [case])


def test_only_mpi_ranks_and_cpus_can_be_compared() -> None:
    case = NormsCase(m=8, n=8, nb=4, P=1, Q=1, layout="F")
    assert incomparable(case, "host") == ""
    assert "use --kernels host" in incomparable(case, "torch")
    with pytest.raises(UsageError, match="use --comm mpi"):
        measured(2, kind=("one",), layout=("F",), scalapack="auto")
    check_comparison(NormsConfig(scalapack="auto"), DryRunCommunicator(2), [case])
    with pytest.raises(UsageError, match="a scaling study uses some"):
        check_comparison(NormsConfig(scalapack="auto", study="weak"), Solo(), [case])


# --- libraries --------------------------------------------------------------------------------------------------


def invented_file(folder: Path, needs: str) -> Path:
    path = folder / "libscalapack-invented.so"
    path.write_bytes(b"\x7fELF and\0libm.so.6\0" + needs.encode() + b"\0libblas.so.3\0")
    return path


def test_a_library_for_another_mpi_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = invented_file(tmp_path, "libmpi.so.9999")
    monkeypatch.setattr(scalapack, "ScaLapack", lambda path: pytest.fail("it must not be loaded"))
    ranks = Solo()
    monkeypatch.setattr(Solo, "name", "mpi")
    with pytest.raises(ResourceError, match=r"was built for libmpi.so.9999, but the ranks use .*; use the ScaLAPACK"):
        open_scalapack(str(path), ranks)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(scalapack, "FOLDERS", ())
    with pytest.raises(ResourceError, match=r"was built for libmpi\.so\.9999"):
        open_scalapack("auto", ranks)
    monkeypatch.setattr(scalapack, "_is_loaded", lambda name: name == "libmpi.so.9999")
    monkeypatch.setattr(scalapack, "ScaLapack", lambda path: path)
    assert open_scalapack("auto", ranks) == path


def test_a_file_that_is_no_scalapack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (invented_file(tmp_path, "libm.so.6"), tmp_path / "nowhere.so", Path(ctypes.util.find_library("c"))):
        argv = ["run", "norms", "-N", "32", "--layout", "F", "--scalapack", str(path), "--threads", "1"]
        assert cli.main(argv) == ExitCode.RESOURCE
        assert f"--scalapack: {path.absolute()} " in capsys.readouterr().err


@pytest.mark.parametrize(("P", "Q", "order"), [(2, 3, "row"), (3, 2, "column")])
def test_ranks_have_their_coordinates_in_the_blacs_grid(P: int, Q: int, order: Any) -> None:
    library, requests = ScaLapack.__new__(ScaLapack), list[Any]()
    library._get = lambda what, which, handle: None  # type: ignore[assignment]
    library._map = lambda handle, ranks, leading, rows, columns: requests.append(  # type: ignore[assignment]
        (list(ranks), leading._obj.value, rows._obj.value, columns._obj.value)
    )
    grid = ProcessGrid(P, Q, order)
    library.context(grid)
    ((ranks, leading, rows, columns),) = requests
    assert (leading, rows, columns) == (P, P, Q)
    assert [grid.coords(ranks[p + q * P]) for p in range(P) for q in range(Q)] == [
        (p, q) for p in range(P) for q in range(Q)
    ]
