"""Record in a result the faults that --abft detects. Uncorrected faults make the result invalid."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from mxpeak.bench.harness import Bench
from mxpeak.bench.rules import Violation, break_rule
from mxpeak.configs.lu import LuCase
from mxpeak.errors import UsageError
from mxpeak.records import Caution, Result, three_digits
from mxpeak.solvers.abft.lu_faults import Fault, FaultSummary
from mxpeak.solvers.abft.solve_faults import SolveChecks, SolveFault

#: The kernels that support --abft.
CHECKED = ("host", "reference")


#: Advice about a fault.
HINT = "test the memory of these hosts, and check their logs for corrected errors"


def check_abft(bench: Bench[Any]) -> None:
    """Raise a UsageError for kernels that do not support --abft."""
    if bench.config.abft and bench.kernels.name not in CHECKED:
        raise UsageError(
            f"--abft supports only the host kernels, not the {bench.kernels.name} kernels; remove --abft, "
            "or use --kernels host"
        )


def record_faults(result: Result, case: LuCase, checked: Sequence[FaultSummary | None]) -> None:
    """Record the faults of LU runs in a result. An uncorrected fault makes the result invalid."""
    checks = [of_run for of_run in checked if of_run is not None]
    if not checks:
        return
    faults = [fault for of_run in checks for fault in of_run.faults]
    result.telemetry["abft"] = {
        "checks": sum(of_run.checks for of_run in checks),
        "found": sum(of_run.detected for of_run in checks),
        "corrected": sum(of_run.corrected for of_run in checks),
        "seconds": max(of_run.seconds for of_run in checks),
        "seconds_after": max(of_run.after_s for of_run in checks),
        "faults": [fault.as_json() for fault in faults],
    }
    passed = all(of_run.passed for of_run in checks)
    wrong = None if passed else fault_text(next(fault for fault in faults if not fault.corrected), case)
    if wrong is not None:
        result.validation["outcome"] = wrong
    _record(result, [fault_text(fault, case) for fault in faults], wrong)


def record_solve_faults(result: Result, checks: SolveChecks | None) -> None:
    """Record the faults of iterative solves in a result. Any fault makes the result invalid."""
    if checks is None:
        return
    result.telemetry["abft"] = {
        "checks": checks.checks,
        "found": checks.detected,
        "corrected": 0,
        "seconds": checks.seconds,
        "faults": [fault.as_json() for fault in checks.faults],
    }
    texts = list(map(solve_fault_text, checks.faults))
    _record(result, texts, texts[0] if texts else None)


def _record(result: Result, texts: Sequence[str], wrong: str | None) -> None:
    """Add a warning for each text, and make the result invalid if `wrong`, the text of the decisive fault, is given."""
    result.warnings += [Caution("abft", text, HINT) for text in texts]
    if wrong is not None:
        result.status = "invalid"
        result.validation["passed"] = False
        if result.rules:
            break_rule(result.rules, Violation("abft", wrong))


def fault_text(fault: Fault, case: LuCase) -> str:
    """Return a message about a fault of an LU run: its time and place, and whether it was corrected."""
    p, q = fault.process
    where = f"process ({p}, {q})" if q is not None else f"process row {p}"
    if fault.part == "checksum":
        return f"a checksum of row {fault.row}, {where} of the grid, changed by step {fault.step}; the matrix is intact"
    rows = f"row {fault.row}" if fault.rows == 1 else f"{fault.rows} rows starting at row {fault.row}"
    place = f"{rows}, block row {fault.row // case.nb}"
    if fault.column is not None:
        place += f", column {fault.column}, block column {fault.column // case.nb}"
    became = "it was corrected" if fault.corrected else "it could not be corrected"
    return f"a number changed unexpectedly: {place}, on {where} of the grid, by step {fault.step}; {became}"


def solve_fault_text(fault: SolveFault) -> str:
    """Return a message about a fault of an iterative solve: the kind of fault, the rank and the step."""
    when = f"{fault.solve}, by step {fault.step}"
    if fault.part == "matrix":
        return f"a number changed unexpectedly: {fault.array}, on rank {fault.rank}; {when}"
    if fault.part == "directions":
        what = "a search direction is not conjugate to the previous one, not orthogonal to r, or its p^T A p differs"
        return f"{what}: {_off_by(fault, 'their product')}; {when}"
    off = _off_by(fault, "the residual")
    return f"the updated residual is not b - A x: {off}, most on rank {fault.rank}; {when}"


def _off_by(fault: SolveFault, what: str) -> str:
    """Return a text with the deviation and the rounding limit of a fault, or a text that `what` is not finite."""
    difference, limit = fault.difference, fault.limit
    if difference is None or limit is None or not (isfinite(difference) and isfinite(limit)):
        return f"{what} is not finite"
    return f"off by {three_digits(difference)}, more than rounding explains ({three_digits(limit)})"
