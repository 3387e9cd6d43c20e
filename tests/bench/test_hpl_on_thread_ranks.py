"""Test that every grid, variant and order of phases of HPL solves the same system on virtual ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.broadcast import BROADCASTS
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from mxpeak.solvers.lu.row_swap import SwapOptions
from tests.support.hpl_ranks import host, solve, system
from tests.support.roundoff import U

GRIDS = [(1, 1), (1, 3), (2, 2), (2, 3), (3, 5)]


ORDERS = [PivotedLuOptions(lookahead=0), PivotedLuOptions(), PivotedLuOptions(split=0.5)]


@pytest.mark.parametrize("make", [host, ReferenceKernels], ids=["host", "reference"])
@pytest.mark.parametrize("options", ORDERS, ids=["2", "3", "6"])
def test_every_grid_and_order_of_phases_solves_the_system(make: Any, options: PivotedLuOptions) -> None:
    cases = list(product(GRIDS, [(0, 4), (1, 4), (3, 8), (11, 1), (37, 4), (61, 8), (30, 64)]))
    # Half of the sizes, the others on the next grid and with the next options; of reference kernels, slow, a third.
    share, at = (3 if make is ReferenceKernels else 2), ORDERS.index(options)
    cases = [case for turn, case in enumerate(cases) if (turn + at) % share == 0]
    for (P, Q), (n, nb) in cases:
        x, norms, singular = solve(n, nb, ProcessGrid(P, Q), options, make)
        assert singular == 0, (P, Q, n)
        assert norms.scaled(n, U) < 1.0, (P, Q, n)  # HPL accepts 16; partial pivoting gives about 0.01
        A, b = system(n)
        if n:
            # |x - x'| <= 2·n·u·κ·|x| for two backward stable solves; a factor 10 for the growth of pivoting.
            bound = 20 * n * U * np.linalg.cond(A) * np.abs(x).max()
            assert np.abs(np.array(x) - np.linalg.solve(A, b)).max() <= bound, (P, Q, n)


@pytest.mark.parametrize("bcast", list(BROADCASTS))
def test_every_broadcast_brings_the_panel(bcast: str) -> None:
    for Q in (1, 2, 3, 5, 6):
        _, norms, _ = solve(41, 4, ProcessGrid(1, Q), PivotedLuOptions(PanelOptions(bcast=bcast)))
        assert norms.scaled(41, U) < 1.0, Q


SWAPS = ["bin", "long", "mix"]


@pytest.mark.parametrize("swap", SWAPS)
def test_every_row_swap_works_on_any_number_of_process_rows(swap: str) -> None:
    """Each swap on each number of process rows in one split; together they meet every split there."""
    for P in (2, 3, 4, 5, 6, 7):
        split = (0.0, 0.3, 1.0)[(P + SWAPS.index(swap)) % 3]
        options = PivotedLuOptions(PanelOptions(nbmin=2), SwapOptions(swap, threshold=9), split=split)
        _, norms, _ = solve(37, 4, ProcessGrid(P, 2 if P < 5 else 1, "column"), options)
        assert norms.scaled(37, U) < 1.0, (P, split)


@pytest.mark.parametrize("pfact", ["left", "crout", "right"])
def test_every_panel_variant_gives_the_same_solution(pfact: str) -> None:
    plain, _, _ = solve(47, 12, ProcessGrid(1, 1), PivotedLuOptions(lookahead=0), ReferenceKernels)
    for rfact, (nbmin, ndiv) in product(("left", "crout", "right"), [(1, 2), (3, 2), (2, 5), (99, 2)]):
        options = PivotedLuOptions(PanelOptions(pfact, rfact, nbmin, ndiv))
        x, norms, _ = solve(47, 12, ProcessGrid(2, 2), options)
        assert norms.scaled(47, U) < 1.0, (rfact, nbmin, ndiv)
        # κ(A) of this system is about 1e3, times n and growth
        assert np.allclose(x, plain, rtol=1e6 * U, atol=0), (rfact, nbmin, ndiv)


@pytest.mark.parametrize("shape", [ProcessGrid(2, 4, "row", (1, 2)), ProcessGrid(4, 2, "column", (2, 1))])
def test_a_node_grid_moves_ranks_and_not_results(shape: ProcessGrid) -> None:
    x, _, _ = solve(45, 4, shape, PivotedLuOptions())
    plain, _, _ = solve(45, 4, ProcessGrid(shape.P, shape.Q), PivotedLuOptions())
    assert x == plain


def test_threads_of_a_rank_change_rounding_only() -> None:
    many, norms, _ = solve(150, 16, ProcessGrid(2, 1), PivotedLuOptions(), lambda: HostKernels(3, poison=True))
    one, _, _ = solve(150, 16, ProcessGrid(2, 1), PivotedLuOptions())
    assert norms.scaled(150, U) < 1.0
    assert np.allclose(many, one, rtol=1e6 * U, atol=0)


@pytest.mark.parametrize("grid", [(1, 1), (2, 2)])
def test_a_singular_matrix_is_named_by_its_column(grid: tuple[int, int]) -> None:
    def zero_column(A: Any, kernels: Any) -> None:
        A[:, 17:18][:] = 0.0

    with np.errstate(all="ignore"):
        _, norms, singular = solve(30, 4, ProcessGrid(*grid), PivotedLuOptions(), edit=zero_column)
    assert singular == 18
    assert not norms.scaled(30, U) < 16.0


@pytest.mark.parametrize("grid", [(1, 1), (2, 3)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_the_matrix_fails_the_check(grid: tuple[int, int], value: float) -> None:
    def spoil(A: Any, kernels: Any) -> None:
        A[12:13, 7:8][:] = value

    with np.errstate(all="ignore"):
        _, norms, _ = solve(30, 4, ProcessGrid(*grid), PivotedLuOptions(), edit=spoil)
    assert not norms.scaled(30, U) < 16.0


def test_a_wrong_update_fails_the_check() -> None:
    class Forgetful(HostKernels):
        def subtract_product(self, C: Any, A: Any, B: Any) -> None:
            super().subtract_product(C[:, 1:], A, B[:, 1:])  # one column of each update is left out

    _, norms, _ = solve(61, 8, ProcessGrid(1, 1), PivotedLuOptions(), lambda: Forgetful(1))
    assert not norms.scaled(61, U) < 16.0
