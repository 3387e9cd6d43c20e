"""Test that the diagonal blocks of an LU show the growth of entries, and the first block that is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.bench import lu as bench
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplCase, HplConfig
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.growth_monitor import DiagonalBlocks, GrowthReport
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.spans import Spans
from tests.support.turns import for_each

N, NB = 53, 8  # 7 blocks, the last of 5


def report_of(
    P: int, Q: int, *, pivoted: bool, plant: tuple[int, int] | None = None, value: float = np.nan
) -> GrowthReport:
    """Return the report of an LU, on which all ranks agree, with one bad entry in block `plant` of A."""

    def body(comm: Any) -> GrowthReport:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(P, Q), comm)
        assert grid is not None
        A = dist_matrix(grid, N, N + 1 if pivoted else N, NB, kernels, "fp64")
        made = generator("hpl" if pivoted else "sqrt-n", N)
        kernels.generate(A.local, A.rows, A.cols, made.entries)
        if not pivoted:
            for j in range(N):  # dominant: no growth, and no zero pivot
                A[j : j + 1, j : j + 1][...] += 2.0 * N
        if plant is not None:
            i, j = (NB * b + 3 for b in plant)
            A[i : i + 1, j : j + 1][...] = value
        blocks = DiagonalBlocks(A, kernels)
        if pivoted:
            pivoted_lu.factorize(A, pivoted_lu.PivotedLuOptions(), kernels, Spans(), blocks)
        else:
            lu.factorize(A, lu.MixedLuOptions("fp64"), kernels, Spans(), blocks)
        return blocks.report(with_l=not pivoted)

    found = [body(Solo())] if P * Q == 1 else run_ranks(P * Q, body)
    assert len(set(found)) == 1, "all ranks say the same"
    return found[0]  # type: ignore[no-any-return]


@for_each(("P", "Q"), [(1, 1), (2, 3)])
@for_each("pivoted", [False, True])
def test_finite_blocks_tell_the_largest_entry_alike_on_every_grid(P: int, Q: int, pivoted: bool) -> None:
    report, alone = report_of(P, Q, pivoted=pivoted), report_of(1, 1, pivoted=pivoted)
    assert report.not_finite is None
    assert report.largest == pytest.approx(alone.largest, rel=N * 2.0**-50)
    assert report.block == alone.block
    assert report.largest > (1.0 if pivoted else 2.0 * N - 1.0)


@for_each("value", [np.nan, np.inf, -np.inf])
@for_each("plant", [(0, 0), (3, 3), (5, 2), (2, 5), (6, 0), (0, 6), (6, 6)])
@for_each(("P", "Q"), [(1, 1), (2, 3)])
def test_without_pivoting_the_block_that_was_not_finite_is_named(
    P: int, Q: int, plant: tuple[int, int], value: float
) -> None:
    found = report_of(P, Q, pivoted=False, plant=plant, value=value)
    assert found.not_finite == plant
    assert found.step == max(plant) + 1, "where its row or column comes to the diagonal"


@for_each("plant", [(0, 0), (3, 3), (5, 2), (2, 5), (0, 6)])
@for_each(("P", "Q"), [(1, 1), (2, 3)])
def test_with_pivoting_a_block_that_is_not_finite_is_named(P: int, Q: int, plant: tuple[int, int]) -> None:
    """Rows were swapped and L is not stored: the report names a block of U at or behind the column of the entry."""
    found = report_of(P, Q, pivoted=True, plant=plant)
    assert found.not_finite is not None
    i, j = found.not_finite
    assert i <= j
    assert j >= plant[1]


def test_the_warning_says_rows_columns_and_process() -> None:
    case = HplCase(n=N, nb=NB, P=2, Q=3)
    (caution,) = bench.not_finite([GrowthReport(1.0, 0), GrowthReport(1.0, 0, (5, 6), 7)], case)
    assert caution.text == (
        "not finite: block (5, 6), rows 40 to 47, columns 48 to 52, on process (1, 0) of the grid, detected in step 7"
    )
    assert bench.not_finite([GrowthReport(1.0, 0)], case) == []


def test_a_run_that_goes_wrong_names_the_block_in_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = hpl.fill

    def spoilt(A: Any, case: Any, kernels: Any) -> None:
        fill(A, case, kernels)
        A[0:1, 20:21][...] = np.nan

    monkeypatch.setattr(hpl, "fill", spoilt)
    config = HplConfig(n=(N,), nb=(NB,), warmup="none", threads=1, device="cpu")
    (result,) = hpl.run(config, Solo())
    assert result.status == "invalid"
    assert "not-finite-block" in {caution.code for caution in result.warnings}


def test_a_run_tells_its_growth() -> None:
    config = HplConfig(n=(N,), nb=(NB,), warmup="none", threads=1, device="cpu")
    (result,) = hpl.run(config, Solo())
    growth = result.telemetry["growth"]
    assert growth["largest"] >= 0.5
    assert growth["block"][0] == growth["block"][1] < 7
