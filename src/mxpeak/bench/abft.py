"""--abft: what checksums of an LU found becomes part of the result; what was not mended makes it invalid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.bench.harness import Bench
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.errors import UsageError
from mxpeak.records import Caution, Result
from mxpeak.solvers.faults import Checked, Fault

#: The kernels whose matrices are checked.
CHECKED = ("host", "reference")


def check_abft(bench: Bench[LuConfig]) -> None:
    """Stop at what cannot be checked."""
    if bench.config.abft and bench.kernels.name not in CHECKED:
        raise UsageError(
            f"--abft checks matrices of the host's kernels, not of {bench.kernels.name} kernels; leave it out, or "
            "type: --kernels host"
        )


def about_checks(result: Result, case: LuCase, checked: Sequence[Checked | None]) -> None:
    """Say in a result what the checks of its runs found; what was left wrong makes it invalid."""
    known = [one for one in checked if one is not None]
    if not known:
        return
    faults = [fault for one in known for fault in one.faults]
    result.telemetry["abft"] = _as_json(known, faults)
    for fault in faults:
        hint = "test the memory of these hosts, and look at their logs of corrected errors"
        result.warnings.append(Caution("abft", said(fault, case), hint))
    if not all(one.passed for one in known):
        left = next(fault for fault in faults if not fault.corrected)
        result.status = "invalid"
        result.validation.update(passed=False, outcome=said(left, case))
        if result.rules:
            result.rules["admissible"] = False
            result.rules["violations"].append({"rule": "abft", "text": said(left, case)})


def _as_json(known: Sequence[Checked], faults: Sequence[Fault]) -> dict[str, Any]:
    return {
        "checks": sum(one.checks for one in known),
        "found": sum(one.found for one in known),
        "corrected": sum(one.corrected for one in known),
        "seconds": max(one.seconds for one in known),
        "faults": [fault.as_json() for fault in faults],
    }


def said(fault: Fault, case: LuCase) -> str:
    """A fault in words: when, where, and what became of it."""
    p, q = fault.process
    where = f"process ({p}, {q})" if q is not None else f"process row {p}"
    if fault.part == "checksum":
        return f"a checksum of row {fault.row}, {where} of the grid, was hit by step {fault.step}; the matrix was not"
    rows = f"row {fault.row}" if fault.rows == 1 else f"{fault.rows} rows from row {fault.row} on"
    place = f"{rows}, block row {fault.row // case.nb}"
    if fault.column is not None:
        place += f", column {fault.column}, block column {fault.column // case.nb}"
    became = "it was mended" if fault.corrected else "it could not be mended"
    return f"a number changed that no step had changed: {place}, on {where} of the grid, by step {fault.step}; {became}"
