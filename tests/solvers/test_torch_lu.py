"""Compare whole solves by the torch backend with those by the host's kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.errors import Outcome
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.lu import Panel, PanelOutcome
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.proof import Proof, prove
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.solvers.mxp_system import MxpSystem
from mxpeak.solvers.refine import backward_error, refine_solution
from mxpeak.solvers.residual import ResidualNorms, residual_norms
from mxpeak.solvers.scaling import balance
from mxpeak.spans import Spans
from tests.support import torch_devices
from tests.support.roundoff import U
from tests.support.torch_devices import torch_device


def host() -> Kernels:
    return HostKernels(1, poison=True)


def with_torch(triton: bool = False, **choices: str) -> Callable[[], Kernels]:
    """Provide the torch backend, whose new tensors are filled with NaN."""

    def make() -> Kernels:
        kernels = TorchKernels(torch_device(triton), HostKernels(1))
        for name, choice in choices.items():
            assert hasattr(kernels, name)
            setattr(kernels, name, choice)
        return kernels

    return make


def alone() -> Grid:
    """Return the grid of one rank."""
    grid = make_grid(ProcessGrid(1, 1), Solo())
    assert grid is not None
    return grid


def array(local: Any) -> Any:
    """Return a rank's part of a matrix or a vector in fp64."""
    return np.asarray(torch_devices.array(local), dtype=np.float64)


# --- HPL


@dataclass
class Pivoted:
    """HPL's solution, its check, and the pivots of every panel."""

    x: Any
    norms: ResidualNorms
    singular: int
    pivots: list[list[float]]


def solve_hpl(
    n: int, nb: int, options: pivoted_lu.PivotedLuOptions, make: Callable[[], Kernels], zero: bool = False
) -> Pivoted:
    """Solve HPL's system of order n; with `zero`, two of its columns are equal, so that a pivot is zero."""
    kernels, pivots = make(), []
    factor_panel: Any = kernels.factor_panel

    def noting(panel: Panel, exchange: Any) -> PanelOutcome:
        outcome: PanelOutcome = factor_panel(panel, exchange)
        pivots.append(panel.pivots.tolist())
        return outcome

    kernels.factor_panel = noting  # type: ignore[method-assign]
    A = dist_matrix(alone(), n, n + 1, nb, kernels)

    def fill() -> None:
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", n).entries)
        if zero:
            A.local[:, 1:3] = 0.0

    fill()
    singular = pivoted_lu.factorize(A, options, kernels, Spans())
    x = solve_augmented(A, kernels)
    fill()
    return Pivoted(array(x), residual_norms(A, x, kernels), singular, pivots)


OPTIONS = {
    "in order": pivoted_lu.PivotedLuOptions(PanelOptions(nbmin=4), lookahead=0),
    "ahead": pivoted_lu.PivotedLuOptions(PanelOptions(pfact="left", rfact="crout", nbmin=2)),
}


@cache
def by_host(n: int, nb: int, order: str, zero: bool = False) -> Pivoted:
    return solve_hpl(n, nb, OPTIONS[order], host, zero)


@cache
def condition(n: int) -> float:
    """Return κ_2 of HPL's matrix."""
    A, whole = np.empty((n, n)), BlockCyclic(n, n, 0, 1)
    host().generate(A, whole, whole, generator("hpl", n).entries)
    return float(np.linalg.cond(A))


@pytest.mark.parametrize("order", OPTIONS)
@pytest.mark.parametrize(
    "choices", [{}, {"panel_on": "host"}, {"trsm": "inverse"}], ids=lambda choices: "-".join(choices) or "library"
)
def test_hpl_has_the_pivots_of_the_host_and_passes_its_check(choices: dict[str, str], order: str) -> None:
    for n, nb in [(0, 4), (1, 4), (37, 4), (30, 64), (131, 32)]:
        ours, theirs = solve_hpl(n, nb, OPTIONS[order], with_torch(**choices)), by_host(n, nb, order)
        assert ours.pivots == theirs.pivots
        assert ours.singular == theirs.singular == 0
        assert ours.norms.scaled(n, U) < 1.0  # HPL accepts 16; partial pivoting gives about 0.01
        if n:
            # |x - x'| <= 2·n·u·κ·|x| for two backward stable solves; a factor 10 for the growth of pivoting.
            assert np.abs(ours.x - theirs.x).max() <= 20 * n * U * condition(n) * np.abs(ours.x).max()


def test_hpl_with_tritons_kernels_solves_the_same_system() -> None:
    n, nb = 37, 8
    ours, theirs = solve_hpl(n, nb, OPTIONS["ahead"], with_torch(triton=True)), by_host(n, nb, "ahead")
    assert ours.pivots == theirs.pivots
    assert ours.norms.scaled(n, U) < 1.0


def test_hpl_names_a_singular_column_as_the_host_does() -> None:
    ours = solve_hpl(37, 8, OPTIONS["in order"], with_torch(), zero=True)
    assert ours.singular == by_host(37, 8, "in order", zero=True).singular == 2
    assert not np.isfinite(ours.x).all()


# --- HPL-MxP


@dataclass
class Mixed:
    """HPL-MxP's factors and solution, its true backward error, and the proof."""

    LU: Any
    x: Any
    outcome: Outcome
    steps: int
    eta: float
    proof: Proof
    singular: int


def solve_mixed(
    n: int,
    nb: int,
    low: str,
    make: Callable[[], Kernels],
    *,
    name: str = "sqrt-n",
    lookahead: int = 1,
    scaling: bool = False,
    method: str = "gmres",
) -> Mixed:
    """Solve a generated system of order n in a low precision, refined to fp64."""
    kernels, grid = make(), alone()
    system = GeneratedSystem(grid, n, nb, generator(name, n), kernels)
    A = dist_matrix(grid, n, n, nb, kernels, stored_as(low))
    system.store(A)
    balanced = [balance(A, kernels)] if scaling else []
    singular = lu.factorize(A, lu.MixedLuOptions(low, lookahead=lookahead), kernels, Spans())
    mxp = MxpSystem(system, A, 1.0, kernels, Spans(), balanced)
    mxp.A_inf = mxp.equations.max_abs(system.row_sums())
    x, done = refine_solution(mxp, method)
    eta = backward_error(mxp, mxp.equations.max_abs(mxp.residual(x)), x)
    proof = prove(system, A, low, kernels, balanced, 77)
    return Mixed(array(A.local), array(x), done.outcome, done.steps, eta, proof, singular)


@cache
def mixed_by_host(n: int, nb: int, low: str, **options: Any) -> Mixed:
    return solve_mixed(n, nb, low, host, **options)


def check_against_the_host(n: int, nb: int, low: str, make: Callable[[], Kernels], **options: Any) -> None:
    """Check the same validation, steps within one, and factors that differ by no more than their errors."""
    ours, theirs = solve_mixed(n, nb, low, make, **options), mixed_by_host(n, nb, low, **options)
    for solved in (ours, theirs):
        assert (solved.outcome, solved.singular) == (Outcome.SOLVED, 0)
        assert solved.eta <= 1.0
        assert solved.proof.passed
    assert abs(ours.steps - theirs.steps) <= 1
    # Both factor the same A with |ΔA| <= 2·u_low·|L||U| + N·u·|L||U|; these systems are well conditioned, so errors
    # of factors relative to the diagonal are little larger: a factor 4 for both, and for |L||U| against |U|.
    u = format_of("fp64" if low == "fp64" else "fp32").u * n + (0.0 if low == "fp64" else 2.0 * format_of(low).u)
    assert np.abs(ours.LU - theirs.LU).max() <= 4.0 * u * np.abs(theirs.LU).max()


@pytest.mark.parametrize("low", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_every_precision_refines_as_on_the_host(low: str) -> None:
    for (n, nb), lookahead in product([(1, 4), (61, 8), (30, 64), (149, 32)], (0, 1)):
        check_against_the_host(n, nb, low, with_torch(), lookahead=lookahead)


def test_every_generator_makes_the_system_of_the_host() -> None:
    for name in ("sqrt-n", "gaussian", "ddd", "fasi-higham", "icl"):
        check_against_the_host(97, 16, "fp16", with_torch(), name=name)


@pytest.mark.parametrize("method", ["gmres", "classical"])
def test_balancing_and_inverses_reach_the_same_solution(method: str) -> None:
    check_against_the_host(127, 16, "bf16", with_torch(trsm="inverse"), scaling=True, method=method)


@pytest.mark.parametrize("low", ["fp32", "fp16", "fp8"])
def test_tritons_kernels_solve_the_same_system(low: str) -> None:
    check_against_the_host(37, 16, low, with_torch(triton=True, gemm="triton"))
