"""Compare the flops of phases, summed over ranks and calls, with the formulas of the algorithms on every grid."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.transports.threads import run_ranks

N, NB = 101, 16
#: Columns of each step, and rows below it.
STEPS = [(min(NB, N - j), N - min(N, j + NB)) for j in range(0, N, NB)]
on_grids = pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2)])


def phases(benchmark: Any, config: Any, grid: tuple[int, int]) -> dict[str, Any]:
    P, Q = grid
    (result,) = run_ranks(P * Q, lambda comm: benchmark.run(config, comm))[0]
    assert result.passed
    found: dict[str, Any] = result.phases
    return found


@on_grids
def test_hpl_updates_solves_and_substitutes_with_the_right_hand_side_as_a_column(grid: tuple[int, int]) -> None:
    config = HplConfig(n=(N,), nb=(NB,), grid=(grid,), threads=1, warmup="none")
    phase = phases(hpl, config, grid)
    assert phase["gemm"]["flops"] == sum(2.0 * m * (m + 1) * jb for jb, m in STEPS)
    # After the row swaps all process rows have the same rows of U, and each solves with them.
    assert phase["trsm"]["flops"] == grid[0] * sum(jb**2 * (m + 1.0) for jb, m in STEPS)
    assert phase["ptrsv"]["flops"] == pytest.approx(float(N) ** 2, rel=1e-15)


@on_grids
def test_hpl_mxp_updates_without_it_and_refines_with_whole_matrices(grid: tuple[int, int]) -> None:
    config = HplMxpConfig(n=(N,), nb=(NB,), grid=(grid,), threads=1, warmup="none", precision=("fp32",))
    phase = phases(hpl_mxp, config, grid)
    ranks = grid[0] * grid[1]
    assert phase["gemm"]["flops"] == sum(2.0 * m**2 * jb for jb, m in STEPS)
    assert phase["trsm"]["flops"] == sum(2.0 * jb**2 * m for jb, m in STEPS)
    assert phase["factor"]["flops"] == pytest.approx(sum(2 / 3 * jb**3 for jb, _ in STEPS), rel=1e-12)
    # Each call is one of L and U, or of A; the first residual is b, as x = 0.
    assert phase["ptrsv"]["flops"] == 2.0 * N**2 * phase["ptrsv"]["calls"] / ranks
    assert phase["matvec"]["flops"] == 2.0 * N**2 * (phase["matvec"]["calls"] / ranks - 1)
