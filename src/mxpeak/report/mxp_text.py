"""Write HPL-MxP's result block with the lines that scripts for NVIDIA's benchmark parse, and additional lines.

EPS is the 2^-53 of the rules. `per GPU` means per rank, also on CPUs. These scripts interpret the word FAILED after
the first block as the verdict, and a number before GFLOPS as the rate. The additional lines therefore contain neither.
"""

from __future__ import annotations

from mxpeak.precision import precision
from mxpeak.records import Result
from mxpeak.report.hpl_text import EPSILON, number_or_nan
from mxpeak.report.lu_text import depth_text, generator_text, pivoting_text, remark_lines, solves_text
from mxpeak.report.native_report import OwnReport
from mxpeak.report.text import violation_text

BANNER = " ****** HPL MxP Result    ****** \n"
DOTS = "    . . . . . . . . . . . . . . . . .          ="

HEAD = """\
HPL-MxP by mxpeak
Rate: 2/3 N^3 + 3/2 N^2 over the time of making A, balancing it if asked, LU and refinement.  Per GPU: per rank.

"""


class MxpText(OwnReport):
    """Writes HPL-MxP's report: a header, one block per case, and a last line."""

    _cases = 0

    def header(self) -> None:
        """Write the header, which defines the rate."""
        self._write(HEAD)

    def case(self, result: Result) -> None:
        """Write one case: settings, seconds, residuals by step, result block and broken rules."""
        self._cases += 1
        history = enumerate(result.validation.get("history") or [])
        steps = [f"Solver iteration {k:2d}, scaled backward error = {number_or_nan(eta):.8e}\n" for k, eta in history]
        rules = [f"  {violation_text(violation)}\n" for violation in result.rules.get("violations") or []]
        rules += [f"  {line}\n" for line in remark_lines(result)]
        admissible = "ADMISSIBLE" if result.rules.get("admissible") else "NOT ADMISSIBLE"
        self._write(
            f"test {self._cases}: {_settings(result)}{_seconds(result)}{''.join(steps)}\n"
            f"{BANNER}{_check(result)}{_rates(result)}{BANNER}{admissible}\n{''.join(rules)}\n"
        )

    def skipped(self) -> None:
        """Write a line for a case that was skipped because it did not fit into memory."""
        self._cases += 1
        self._write(f"test {self._cases}: skipped, it does not fit into memory\n\n")

    def footer(self, passed: int, failed: int, skipped: int) -> None:
        """Write the number of passed cases and of all cases."""
        self._write(f"{passed} of {passed + failed + skipped} tests PASSED\n")


def _settings(result: Result) -> str:
    """Return the lines with the settings of a case and the formula of its matrix."""
    of = result.problem
    emulated = " (rounded in software: the rate is FP32's)" if result.result.get("emulated") else ""
    settings = [
        *(of["variant"].split()[0], f"{of['precision']}{emulated}", f"generator {of['generator']}"),
        *(f"refinement {of['refine']}", f"seed {of['seed']}", depth_text(of), solves_text(result)),
        pivoting_text(result),
    ]
    lines = ", ".join(filter(None, settings)), generator_text(of)
    return "".join(f"{line}\n" for line in lines if line)


def _seconds(result: Result) -> str:
    """Return lines with the seconds of the matrix generation, the LU and the refinement on the slowest rank."""
    rows = (
        ("RNG", result.problem.get("generate_time_s")),
        ("LU", result.result.get("lu_time_s")),
        ("Iterative Solver", result.result.get("refine_time_s")),
    )
    return "".join(f"{label} seconds: MAX = {time_s:.6f}\n" for label, time_s in rows if time_s is not None)


def _check(result: Result) -> str:
    check = result.validation
    norms = check.get("norms") or {}
    rows = (
        ("    EPS       ", EPSILON),
        ("    Threshold ", check.get("threshold")),
        ("  ||Ax-b||_oo ", norms.get("residual")),
        ("  ||A   ||_oo ", norms.get("A_inf")),
        ("  ||x   ||_oo ", norms.get("x_inf")),
        ("  ||b   ||_oo ", norms.get("b_inf")),
    )
    verdict = "PASSED" if check.get("passed") else "FAILED"
    return "".join(f"{label}{DOTS} {number_or_nan(value):15.6E}\n" for label, value in rows) + (
        f"  ||Ax-b||_oo / (EPS * (||A||_oo * ||x||_oo + ||b||_oo) * N) = {number_or_nan(check.get('residual')):15.6E} "
        f"...... {verdict}\n"
    )


def _rates(result: Result) -> str:
    n, nb, P, Q = (result.problem[name] for name in ("n", "nb", "P", "Q"))
    sloppy = precision(result.problem["precision"]).bytes
    text = f"    N = {n}, NB = {nb}, NPROW = {P}, NPCOL = {Q}, SLOPPY-TYPE = {sloppy}\n"
    rows = (
        ("       GFLOPS", "rate_flops", "The HPL-MxP performance to report"),
        ("    LU GFLOPS", "lu_rate_flops", "The performance excluding the iterative solver part"),
    )
    for label, key, meaning in rows:
        if (rate := result.result.get(key)) is not None:
            gflops = rate / 1e9
            text += f"{label} = {gflops:.4e}, per GPU = {gflops / (P * Q):10.2f} ------ {meaning}\n"
    return text
