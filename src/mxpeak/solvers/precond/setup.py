"""Set up a preconditioner from the matrix, before the matrix is stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mxpeak.distributed.csr import Csr
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.solvers.precond.amg import amg_levels
from mxpeak.solvers.precond.choice import Choice, default_sweep
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.factors import SparseFactors, factored
from mxpeak.solvers.precond.levels import LevelMatrices


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
