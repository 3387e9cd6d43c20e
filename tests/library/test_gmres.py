"""Test the outcomes and messages of `mxpeak.gmres`, also with several callers at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg

import mxpeak as mx
from mxpeak.errors import Outcome
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.library.sparse import results as results_of
from mxpeak.runtime import calls
from mxpeak.runtime import compile as compiling
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions, SolveResult
from mxpeak.solvers.precond.setup import Choice
from tests.support.sparse_systems import line, poisson, reached, residual, stencil, vector

# --- outcomes ------------------------------------------------------------------------------------------------------


def test_a_right_hand_side_of_zeros_gives_zeros_at_once(solve: Any) -> None:
    x, info = solve(poisson(5, 5), np.zeros(25), x0=np.ones(25))
    assert np.array_equal(x, np.zeros(25))
    assert info.converged
    assert (info.iterations, info.cycles, info.residual, info.history) == (0, 0, 0.0, (0.0,))


def test_a_start_that_is_the_solution_is_returned(solve: Any) -> None:
    A, x0 = poisson(9, 9), vector(81)
    x, info = solve(A, A @ x0, x0=x0)
    assert info.iterations == 0
    assert np.array_equal(x, x0)


def test_a_good_start_saves_steps(solve: Any) -> None:
    A, exact = poisson(12, 12), vector(144)
    b = A @ exact
    near, _ = solve(A, b, x0=exact + 1e-6 * vector(144, 5), preconditioner="gs")
    steps = [solve(A, b, x0=x0, preconditioner="gs")[1].iterations for x0 in (None, exact + 1e-6 * vector(144, 5))]
    assert steps[1] < steps[0]
    assert reached(A, near, b, 1e-9)


def test_history_falls_to_the_residual_and_counts_the_cycles() -> None:
    A, b = poisson(20, 20), vector(400)
    _, info = mx.gmres(A, b, restart=10, preconditioner="gs")
    assert len(info.history) == info.cycles + 1
    assert info.history[0] == pytest.approx(1.0)
    assert info.history[-1] == pytest.approx(info.residual, rel=1e-6)  # sums in another order
    assert all(later < earlier for earlier, later in zip(info.history, info.history[1:]))
    assert info.iterations <= 10 * info.cycles


def test_running_out_of_iterations_is_an_outcome_and_no_error(solve: Any) -> None:
    A, b = poisson(30, 30), vector(900)
    x, info = solve(A, b, preconditioner="gs", maxiter=7)
    assert not info.converged
    assert info.outcome is Outcome.UNREACHED
    assert info.iterations == 7
    assert 'maxiter=7 steps were used; use a larger maxiter, preconditioner="lu" (complete factors)' in info.message
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-6)
    assert info.residual < 1
    text = str(info)
    assert text.startswith("NOT CONVERGED: n = 900, 4380 entries, 7 iterations in 1 cycle")
    assert "the solver did not reach the tolerance; x is the best that it found" in text


def test_a_tolerance_below_roundoff_is_reported(solve: Any) -> None:
    A, b = poisson(12, 12), vector(144)
    x, info = solve(A, b, rtol=1e-17)
    assert not info.converged
    assert "as small as fp64 makes it" in info.message
    assert reached(A, x, b, 0.0)


def test_fp64_replaces_a_low_precision_that_is_too_coarse(solve: Any) -> None:
    L = poisson(15, 15)
    least = linalg.eigsh(L, k=1, sigma=0, return_eigenvectors=False)[0]
    A = sparse.csr_array(L - (least - 1e-5) * sparse.eye_array(225)) * np.pi  # rounding to bf16 is 100 times 1e-5
    b = vector(225)
    x, info = solve(A, b, precision="bf16", preconditioner="gs", restart=225)
    assert info.converged
    assert info.fallback
    assert (info.values, info.vectors) == ("fp64", "fp64")
    assert "values in bf16 and vectors in fp32 GMRES stagnated" in info.message
    assert "it continued in fp64" in str(info)
    assert reached(A, x, b, 1e-9)


def test_with_a_preconditioner_beyond_fp32_fp64_takes_over(solve: Any) -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: (r.double() if hasattr(r, "double") else r.astype(float)) * 1e60)
    assert info.converged
    assert info.fallback
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_a_start_beyond_fp64_is_replaced_by_zero_in_its_own_column_alone(solve: Any, first: int) -> None:
    A, B, X0 = poisson(9, 9), np.stack([vector(81, 3), vector(81, 4)], axis=1), np.zeros((81, 2))
    X0[:, first] = 1e300
    X, info = solve(A, B, x0=X0, preconditioner="gs")
    assert info.converged
    assert info.message.count("x0 was replaced by zero") == 1
    for j in range(2):
        assert reached(A, X[:, j], B[:, j], 1e-9)
    assert np.array_equal(X, solve(A, B, preconditioner="gs")[0])


@pytest.mark.parametrize("residuals", [(1e-10, np.nan), (np.nan, 1e-10)])
def test_one_residual_that_is_no_number_is_the_worst(residuals: tuple[float, float]) -> None:
    driver = GmresDriver(sparse_kernels(None, 1), line(3), Choice("gs", "as asked"), GmresOptions("fp64"))
    results = [SolveResult(np.ones(3), residual) for residual in residuals]
    info = results_of._info(driver, results, [1e-9] * 2, None, setup_s=0.0)
    assert np.isnan(info.residual)
    assert not info.converged


@pytest.mark.filterwarnings("ignore:not solved:mxpeak.NotSolvedWarning")
def test_a_solution_outside_the_range_of_fp64_is_reported(solve: Any) -> None:
    A = sparse.eye_array(5, format="csr") * 1e-200
    _, info = solve(A, np.full(5, 1e200))
    assert not info.converged
    assert "x is beyond the range of fp64" in info.message


def test_info_reads_well() -> None:
    A = stencil(8, 8, 8)
    info = mx.gmres(A, A @ np.ones(512))[1]
    lines = str(info).splitlines()
    assert lines[0] == f"converged: n = 512, 10648 entries, {info.iterations} iterations in {info.cycles} cycles"
    assert lines[1].strip().startswith("residual        ")
    assert lines[1].endswith("(requested: 1e-09)")
    assert lines[2] == "  precision       values bf16, vectors fp32, residuals fp64"
    assert lines[3] == "  preconditioner  stencil, 4 levels (A is the 27-point matrix of a 8x8x8 box)"
    assert lines[4].startswith("  storage         packed, 8 colors, ")
    assert lines[5].startswith("  time            set-up ")
    assert {"gs", "spmv", "ortho", "restriction", "prolongation"} <= info.times.keys()
    assert info.bytes > 2 * info.nnz
    assert info.setup_s > 0


def test_mixed_keeps_less_than_fp64() -> None:
    A = stencil(8, 8, 8)
    mixed, double = (mx.gmres(A, np.ones(512), precision=name)[1].bytes for name in ("mixed", "fp64"))
    assert mixed < 0.6 * double


# --- many callers --------------------------------------------------------------------------------------------------


def test_calls_in_several_threads_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "allowed_cores", lambda: [0, 1])
    A, residuals = poisson(15, 15), {}

    def call(seed: int) -> None:
        b = vector(225, seed)
        residuals[seed] = residual(A, mx.gmres(A, b, threads=2, preconditioner="gs")[0], b)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(residuals) == 4
    assert max(residuals.values()) <= 1.0001e-9  # sums in another order


def test_a_preconditioner_that_fails_leaves_the_next_call_unharmed() -> None:
    def fail(r: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        mx.gmres(poisson(5, 5), np.ones(25), preconditioner=fail)
    assert mx.gmres(poisson(5, 5), np.ones(25))[1].converged


def test_compiling_is_announced_once_and_loading_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "SILENT_S", 0.01)
    waited, files = threading.Event(), iter([5, 5, 5, *[6] * 1000])
    calls.compile_once("loading", ("a key of its own",), lambda: waited.wait(0.1))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(compiling, "_machine_code", lambda: next(files))
    for _ in range(2):
        calls.compile_once("first use of a test", ("another key",), lambda: waited.wait(0.2))
    assert capsys.readouterr().err.count("first use of a test: compiling its kernels") == 1


def test_the_docstrings_example_is_right_and_loads_no_mpi() -> None:
    code = (
        "import sys, mxpeak as mx, scipy.sparse as sp; "
        "x, info = mx.gmres(sp.csr_array([[2.0, 0.0], [0.0, 4.0]]), [2.0, 4.0]); "
        "print(x, info.converged, 'mpi4py' in sys.modules, 'gmres' in dir(mx))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1. 1.] True False True"
