"""Solve for all right-hand sides with one driver, and combine the results into x and the diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from mxpeak.distributed.rank_group import RankGroup
from mxpeak.errors import Outcome, SingularError
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.library.inputs import Input
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.columns import RightHandSideColumns
from mxpeak.library.sparse.info import GmresInfo, KrylovInfo, ill_conditioned_note
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions, SolveResult
from mxpeak.solvers.recurrence_driver import RecurrenceRounds


def solved(
    kernels: SparseKernels,
    set_up: Callable[[], GmresDriver],
    right_side: Input,
    vectors: tuple[Any, Any],
    options: GmresOptions,
    group: RankGroup,
    nnz: int = 0,
) -> tuple[Any, GmresInfo]:
    """Solve for all right-hand sides, and return x in the layout of b and the diagnostics. Collective.

    `set_up` returns the driver. `vectors` are b and x0 in fp64 in the memory of the kernels. `nnz` is the number of
    entries of this rank's rows, which an empty solve reports.
    """
    B, X0 = vectors
    n = int(group.sum(B.shape[0]))
    if not (n and all(right_side.shape[1:])):
        return right_side.result(B + X0), _empty(kernels, right_side, options, n, int(group.sum(nnz)), group)
    try:
        begin = perf_counter()
        driver = set_up()
        setup_s = perf_counter() - begin
        columns = RightHandSideColumns(kernels, group, B, X0, float(options.rtol), float(options.atol))
        if isinstance(driver, RecurrenceRounds):
            driver.shown = columns.shown
        results = columns.combined(driver.solve_all([(side.b, side.x0, side.tol) for side in columns.sides]))
        condition = driver.condition()
    except SingularError as error:
        raise SingularMatrixError(str(error)) from None
    return right_side.result(columns.solution(results)), _info(driver, results, columns.tols, condition, setup_s)


def _empty(
    kernels: SparseKernels, right_side: Input, options: GmresOptions, n: int, nnz: int, group: RankGroup
) -> GmresInfo:
    """Return the diagnostics for an empty matrix or no right-hand side."""
    recurrence: dict[str, Any] = {} if options.method == "gmres" else {"method": options.method}
    return (KrylovInfo if recurrence else GmresInfo)(
        outcome=Outcome.SOLVED,
        n=n,
        nnz=nnz,
        rhs=int(np.prod(right_side.shape[1:], dtype=int)),
        tol=float(options.rtol),
        reason="there is nothing to solve",
        device="cpu" if kernels.device is None else str(kernels.device.where),
        ranks=group.comm.size,
        **recurrence,
    )


def _outcome(results: list[SolveResult], tols: list[float]) -> Outcome:
    """Return the outcome of all right-hand sides: NOT_FINITE if any x is not finite, SOLVED if all are solved.

    Otherwise, the outcome is UNREACHED.
    """
    if not all(result.finite for result in results):
        return Outcome.NOT_FINITE
    solved = all(result.residual <= tol for result, tol in zip(results, tols))
    return Outcome.SOLVED if solved else Outcome.UNREACHED


def _info(
    driver: GmresDriver, results: list[SolveResult], tols: list[float], condition: float | None, setup_s: float
) -> GmresInfo:
    """Combine the results of all right-hand sides into the diagnostics. Collective."""
    problem, choice, A = driver.problem, driver.plan.choice, driver.problem.matrix.inner.A
    colours = problem.colours  # None on all ranks or on none of them
    longest = max(results, key=lambda result: result.steps)
    residual = float(np.max([result.residual for result in results]))  # NaN if any is NaN, which max may ignore
    notes = dict.fromkeys([*driver.notes, *(result.note for result in results if result.note)])
    outcome, singular = _outcome(results, tols), condition is not None and condition * PRECISIONS["fp64"].u >= 1.0
    if condition is not None and singular:
        notes[ill_conditioned_note(condition, solved=outcome is Outcome.SOLVED)] = None
    recurrence: dict[str, Any] = {}
    if isinstance(driver, RecurrenceRounds):
        recurrence = {"method": driver.method.name, "claimed": max(result.claimed for result in results)}
    return (KrylovInfo if recurrence else GmresInfo)(
        outcome=outcome,
        n=driver.n,
        nnz=driver.nnz,
        rhs=len(results),
        tol=max(tols),
        residual=residual,
        iterations=longest.steps,
        cycles=longest.cycles,
        values=A.values,
        vectors=A.vectors,
        preconditioner=choice.name,
        reason=choice.reason,
        levels=problem.levels,
        storage=A.storage,
        colours=None if colours is None else int(driver.group.largest(colours)),
        scaled=driver.plan.scaling.active,
        fallback=driver.fallback,
        message="\n".join(notes),
        bytes=int(driver.group.largest(problem.bytes)),
        device=driver.device,
        ranks=driver.group.comm.size,
        setup_s=setup_s,
        times=driver.spans.times,
        history=tuple(longest.history),
        condition=condition,
        ill_conditioned=singular,
        **recurrence,
    )
