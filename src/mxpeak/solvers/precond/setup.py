"""The selected preconditioner, and its set-up from the matrix, before the matrix is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.layout.stencil import Box
from mxpeak.solvers.precond.amg import amg_levels
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.factors import SparseFactors, factored
from mxpeak.solvers.precond.levels import LevelMatrices

#: Preconditioners that divide by the diagonal.
DIVIDING = ("stencil", "amg", "gs", "sgs", "jacobi")
#: Preconditioners that sweep over the rows of the matrix.
SWEEPING = ("gs", "sgs", "stencil", "amg")
#: Preconditioners whose sweeps include the halo rows if there are several ranks.
OVERLAPPING = ("sgs", "amg")
#: Preconditioners whose application takes longer than storing its result, or may change from step to step.
STORED = ("lu", "amg", "user")


@dataclass(frozen=True, slots=True)
class Choice:
    """A preconditioner by name, and the reason for it; `box` and `stencil` describe the matrix of the benchmarks.

    symmetric   M must be symmetric, for which multigrid sweeps in both directions
    automatic   `auto` selected this preconditioner and may replace it
    rows        the permutation of the rows that gives a full diagonal, or None for the original rows of A
    entries     an estimate of the number of entries of the factors, or None for the estimate for a narrow graph
    """

    name: str
    reason: str
    user: Callable[[Any], Any] | None = None
    box: Box | None = None
    stencil: tuple[float, ...] = ()
    rows: Array | None = None
    entries: float | None = None
    automatic: bool = False
    symmetric: bool = False


def default_sweep(group: RankGroup) -> str:
    """Return the sweep of `auto`; several ranks use the natural order, in which a backward sweep saves steps."""
    return "gs" if group.is_serial else "sgs"


@dataclass(frozen=True, slots=True)
class PreconditionerSetup:
    """Levels or factors, with the final choice of the preconditioner; `name` is the phase whose time is recorded."""

    choice: Choice
    levels: Sequence[LevelMatrices] = ()
    factors: SparseFactors | None = None
    name: str = ""
    time_s: float = 0.0


def set_up(
    kernels: SparseKernels, A: Csr, A_s: Csr, choice: Choice, scaling: Equilibration, vectors: str
) -> PreconditionerSetup:
    """Return factors or levels of A and A_s = D_r A D_c if the preconditioner needs them. Collective.

    If neither is possible, an automatic choice becomes a sweep, or `none` if the diagonal has zeros.
    """
    begin, group = time.perf_counter(), scaling.group
    levels, factors = list[LevelMatrices](), None
    if choice.name == "lu":
        name, instead = "factor", "auto"
        factors, problem = factored(A_s, vectors, group, choice.entries)
    elif choice.name == "amg":
        name, instead = "hierarchy", "gs"
        levels, problem = amg_levels(kernels, A, A_s, scaling, automatic=choice.automatic)
    else:
        return PreconditionerSetup(choice)
    if problem and not choice.automatic:
        raise UsageError(
            f'preconditioner="{choice.name}" is not possible for this matrix: {problem}; use preconditioner="{instead}"'
        )
    if problem:
        full = choice.name == "amg" or group.all(A_s.diagonal().all())
        choice = replace(choice, name=default_sweep(group) if full else "none", reason=problem)
    return PreconditionerSetup(choice, levels, factors, name, time.perf_counter() - begin)
