"""Write the report of Netlib HPL 2.3 in its exact layout, so that scripts that parse HPL's output work.

The report has one header, one block per case and one footer. A broadcast that HPL does not have (lib, ilib) appears as
digit 6 or 7. The report prints the look-ahead depth that ran and marks settings that mxpeak does not use. Additional
lines state emulated fp64 products, the requested depth if it did not run, and the library that factored the panels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.records import Result
from mxpeak.report.lu_text import depth_text, fp64_text, resumed_text
from mxpeak.report.native_report import OwnReport

DOUBLE_RULE = "=" * 80
RULE = "-" * 80
TIMING_RULE = "--" + "VVV--" * 14 + "VVV-"

#: Appended to the settings that mxpeak reads from HPL.dat but does not use.
NOT_USED = " (not used by mxpeak)"

#: HPL's relative machine precision, 2^-53.
EPSILON = 2.0**-53

HEAD = f"""\
{DOUBLE_RULE}
HPLinpack 2.3  --  High-Performance Linpack benchmark  --   December 2, 2018
Written by A. Petitet and R. Clint Whaley,  Innovative Computing Laboratory, UTK
Modified by Piotr Luszczek, Innovative Computing Laboratory, UTK
Modified by Julien Langou, University of Colorado Denver
{DOUBLE_RULE}

An explanation of the input/output parameters follows:
T/V    : Wall time / encoded variant.
N      : The order of the coefficient matrix A.
NB     : The partitioning blocking factor.
P      : The number of process rows.
Q      : The number of process columns.
Time   : Time in seconds to solve the linear system.
Gflops : Rate of execution for solving the linear system.

The following parameter values will be used:

"""

CASE_HEAD = f"""\
{DOUBLE_RULE}
T/V                N    NB     P     Q               Time                 Gflops
{RULE}
"""

FACT_NAMES = {"left": "    Left ", "crout": "   Crout ", "right": "   Right "}
PHASES = (
    ("rfact", "Max aggregated wall time rfact . . . : "),
    ("pfact", "+ Max aggregated wall time pfact . . : "),
    ("mxswp", "+ Max aggregated wall time mxswp . . : "),
    ("update", "Max aggregated wall time update  . . : "),
    ("laswp", "+ Max aggregated wall time laswp . . : "),
    ("ptrsv", "Max aggregated wall time up tr sv  . : "),
)

NORMS = (
    ("residual", "||Ax-b||_oo  . . . . . . . . . . . . . . . . . = "),
    ("A_inf", "||A||_oo . . . . . . . . . . . . . . . . . . . = "),
    ("A_one", "||A||_1  . . . . . . . . . . . . . . . . . . . = "),
    ("x_inf", "||x||_oo . . . . . . . . . . . . . . . . . . . = "),
    ("x_one", "||x||_1  . . . . . . . . . . . . . . . . . . . = "),
    ("b_inf", "||b||_oo . . . . . . . . . . . . . . . . . . . = "),
)


class HplText(OwnReport):
    """Writes HPL's report. If the threshold is 0 or less, the report contains no residual checks."""

    _headed = False

    @property
    def checks(self) -> bool:
        """Return whether the report contains residual checks."""
        return bool(self._settings["threshold"] > 0)

    def header(self) -> None:
        """Write the header: the parameters, including default orders and grids, and the description of the check."""
        self._write(HEAD + _parameters(self._settings) + "\n")
        if self.checks:
            self._write(
                f"{RULE}\n\n"
                "- The matrix A is randomly generated for each test.\n"
                "- The following scaled residual check will be computed:\n"
                "      ||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )\n"
                f"- The relative machine precision (eps) is taken to be      {EPSILON:21.6e}\n"
                "- Computational tests pass if scaled residuals are less than         "
                f"{self._settings['threshold']:11.1f}\n\n"
            )

    def case(self, result: Result) -> None:
        """Write the block of a case: time, rate, start and end, time by phase, and residual."""
        block = CASE_HEAD if self.checks or not self._headed else ""
        self._headed = True
        block += _result_line(result) + _phase_lines(result)
        self._write(block + (_residual_lines(result) if self.checks else f"{DOUBLE_RULE}\n"))

    def skipped(self) -> None:
        """Write HPL's error message for a case that did not fit into memory."""
        self._write(
            "HPL ERROR from process # 0, on line 173, of function HPL_pdtest:\n"
            ">>> [0,0] Memory allocation failed for A, x and b. Skip. <<<\n\n"
        )

    def footer(self, passed: int, failed: int, skipped: int) -> None:
        """Write the numbers of passed, failed and skipped cases. Without checks, passed and failed cases are summed."""
        lines = [f"\nFinished {passed + failed + skipped:6d} tests with the following results:"]
        if self.checks:
            lines.insert(0, DOUBLE_RULE)
            lines.append(f"         {passed:6d} tests completed and passed residual checks,")
            lines.append(f"         {failed:6d} tests completed and failed residual checks,")
        else:
            lines.append(f"         {passed + failed:6d} tests completed without checking,")
        lines.append(f"         {skipped:6d} tests skipped because of illegal input values.")
        self._write("\n".join([*lines, RULE, "\nEnd of Tests.", DOUBLE_RULE]) + "\n")


def _parameters(settings: Mapping[str, Any]) -> str:
    mix = f"Mix (threshold = {settings['swap_threshold']})"
    swaps = {"bin": "Binary-exchange", "long": "Spread-roll (long)", "mix": mix}
    part = settings.get("node_grid")
    nodes = "" if part is None else f", {part[0]}x{part[1]} per node"
    rows = (
        ("N", _numbers(settings["n"])),
        ("NB", _numbers(settings["nb"])),
        ("PMAP", f" {'Row' if settings['order'] == 'row' else 'Column'}-major process mapping{nodes}"),
        ("P", _numbers([P for P, _ in settings["grids"]])),
        ("Q", _numbers([Q for _, Q in settings["grids"]])),
        ("PFACT", _wrapped([FACT_NAMES[fact] for fact in settings["pfact"]])),
        ("NBMIN", _numbers(settings["nbmin"])),
        ("NDIV", _numbers(settings["ndiv"])),
        ("RFACT", _wrapped([FACT_NAMES[fact] for fact in settings["rfact"]])),
        ("BCAST", _wrapped([f"{'B' * name.startswith('long') + name:>8} " for name in settings["bcast"]])),
        ("DEPTH", _numbers([min(depth, 1) for depth in settings["depth"]])),  # the depths that mxpeak used
        ("SWAP", f" {swaps[settings['swap']]}"),
        ("L1", f" {settings['l1_form']} form{NOT_USED}"),
        ("U", f" {settings['u_form']} form{NOT_USED}"),
        ("EQUIL", f" {'yes' if settings['equilibration'] else 'no'}{NOT_USED}"),
        ("ALIGN", f" {settings['alignment']} double precision words{NOT_USED}"),
    )
    return "".join(f"{label:7}:{value}\n" for label, value in rows)


def _numbers(values: Sequence[int]) -> str:
    return _wrapped([f"{value:8d} " for value in values])


def _wrapped(cells: Sequence[str]) -> str:
    """Join the cells in lines of eight cells. As in HPL, there is no line break after the sixteenth cell."""
    lines = [cells[:8], cells[8:16], cells[16:]]
    return "\n        ".join("".join(line) for line in lines if line)


def _result_line(result: Result) -> str:
    time_s, rate = result.result.get("time_s"), result.result.get("rate_flops")
    if not time_s or rate is None:
        return ""
    of = result.problem
    note = "panels by {}: PFACT, NBMIN, NDIV and RFACT were not used"  # because the variant and the header name them
    library = f"HPL_pdgesv() {note.format(of['panel_library'])}\n\n" if of.get("panel_library") else ""
    depth = f"HPL_pdgesv() {text}\n\n" if (text := depth_text(of)) else ""
    emulated = f"HPL_pdgesv() {text}\n\n" if (text := fp64_text(result)) else ""
    resumed = f"HPL_pdgesv() {text}\n\n" if (text := resumed_text(result.result)) else ""
    return (
        f"{of['variant']}{of['n']:12d} {of['nb']:5d} {of['P']:5d} {of['Q']:5d} {time_s:18.2f}    {rate / 1e9:19.4e}\n"
        f"HPL_pdgesv() start time {time.ctime(result.run.get('start_unix'))}\n\n"
        f"HPL_pdgesv() end time   {time.ctime(result.run.get('end_unix'))}\n\n"
        f"{resumed}{emulated}{depth}{library}"
    )


def _phase_lines(result: Result) -> str:
    times = ((label, result.phases.get(key, {}).get("max_s") or 0.0) for key, label in PHASES)
    return f"{TIMING_RULE}\n" + "".join(f"{label}{time_s:18.2f}\n" for label, time_s in times if time_s > 0)


def _residual_lines(result: Result) -> str:
    residual = number_or_nan(result.validation.get("residual"))
    verdict = "PASSED" if result.validation.get("passed") else "FAILED"
    text = f"{RULE}\n||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {residual:16.8e} ...... {verdict}\n"
    if verdict == "PASSED" or math.isnan(residual):
        return text
    norms = result.validation.get("norms") or {}
    return text + "".join(f"{label}{number_or_nan(norms.get(key)):18.6f}\n" for key, label in NORMS)


def number_or_nan(value: Any) -> float:
    """Return a number as float, and NaN for None, because C's formats print NaN."""
    return math.nan if value is None else float(value)
