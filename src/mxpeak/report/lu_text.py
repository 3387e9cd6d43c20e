"""Describe the results of HPL and HPL-MxP: accuracy, size, phases, and the difficulty of the linear system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mxpeak.records import Result, fp64_scheme, rate_text, three_digits
from mxpeak.report.summaries import Lines, problem_line


class LuLines(Lines):
    """The text lines that HPL and HPL-MxP share."""

    nested: ClassVar[Mapping[str, str]] = {
        "pfact": "rfact",
        "mxswp": "pfact",
        "transfer": "rfact",
        "moves": "laswp",
        **dict.fromkeys(("laswp", "trsm", "gemm"), "update"),
    }
    timers: ClassVar[tuple[str, ...]] = ("transfer", "device")
    undrawn: ClassVar[tuple[str, ...]] = ("update", "pfact", "mxswp", "moves", *timers)
    waits: ClassVar[tuple[str, ...]] = ("bcast",)
    history = "Backward error", "refinement"

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """Return lines about accuracy and size; for HPL-MxP also about LU, refinement and difficulty of the system."""
        about = [_accuracy(result.validation), _proof(result), problem_line(self, result), *_what_ran(result)]
        return [*about, _stages(result.result), _difficulty(result.problem)]

    def check_lines(self, result: Result) -> list[str]:
        """Return lines about the residual, the proof of the LU, and settings that mxpeak changed."""
        check = result.validation
        residual, threshold = three_digits(check.get("residual")), three_digits(check.get("threshold"))
        text = f"scaled residual {residual}, threshold {threshold}"
        if (steps := check.get("iterations")) is not None:
            text += f"; {steps} {'step' if steps == 1 else 'steps'} of refinement"
        if proof := check.get("lu_proof"):
            error, bound = three_digits(proof.get("error")), three_digits(proof.get("bound"))
            text += f"; the LU is {'proven' if proof.get('passed') else 'NOT proven'}: error {error}, bound {bound}"
        return [text, *_what_ran(result)]


class MxpLines(LuLines):
    """The text lines of HPL-MxP."""

    nested: ClassVar[Mapping[str, str]] = {}
    undrawn: ClassVar[tuple[str, ...]] = LuLines.timers

    def beside(self, result: Result, others: Mapping[str, float]) -> str:
        """Return the rate divided by the rate of HPL in the same run, as text; empty if HPL has no rate."""
        rate, hpl = result.result.get("rate_flops"), others.get("hpl")
        return f"{rate / hpl:.1f} × hpl" if rate and hpl else ""


def _accuracy(check: Mapping[str, Any]) -> str:
    residual, threshold, steps = check.get("residual"), check.get("threshold"), check.get("iterations")
    below = "<" if residual is not None and threshold is not None and residual < threshold else "is not below"
    compared = f"{three_digits(residual)} {below} threshold {three_digits(threshold)}"
    if steps is None:
        return f"scaled residual {compared}"
    return f"scaled backward error {compared} after {steps} {'step' if steps == 1 else 'steps'} of refinement"


def _proof(result: Result) -> str:
    """Return text about the proof of the LU, with the largest error of (A - LU) v and its rounding error bound.

    Return an empty string if the run did not check the LU.
    """
    proof = result.validation.get("lu_proof")
    if not proof:
        return ""
    error, bound = three_digits(proof.get("error")), three_digits(proof.get("bound"))
    if proof.get("passed"):
        return f"the LU is proven: error {error} within its bound {bound}"
    return f"the LU is NOT proven: {_why_unproven(proof)}"


def _why_unproven(proof: Mapping[str, Any]) -> str:
    """Return text about the first condition of the LU proof that is not met."""
    error, bound, worst, spread = (proof.get(key) for key in ("error", "bound", "worst", "spread"))
    if error is None or bound is None or worst is None or spread is None:
        return "(A - LU) v is not finite"
    if bound >= 1.0:
        return f"its bound, {three_digits(bound)} of ||Av||, is too wide to prove anything; use a wider --precision"
    if worst > 1.0:
        return f"an entry of (A - LU) v is {three_digits(worst)} times what rounding explains"
    if spread > 1.0:
        return f"the mean square of (A - LU) v over 64 rows is {three_digits(spread)} times what rounding explains"
    return f"error {three_digits(error)} beyond its bound {three_digits(bound)}"


def depth_text(problem: Mapping[str, Any]) -> str:
    """Return text about the look-ahead depth if it is not the requested depth.

    The change from the default depth 1 to 0 is not mentioned.
    """
    depth, ran = problem.get("depth"), problem.get("lookahead")
    return "" if depth == ran or (depth, ran) == (1, 0) else f"look-ahead of depth {ran} ({depth} was requested)"


def resumed_text(figures: Mapping[str, Any]) -> str:
    """Return text about the checkpoint and the times of a resumed run; empty for other runs."""
    if not (resumed := figures.get("resumed")):
        return ""
    before, after = (three_digits(resumed[name]) for name in ("before_s", "after_s"))
    return f"resumed after step {resumed['steps']}, {before} s before and {after} s after the checkpoint: not official"


def _what_ran(result: Result) -> list[str]:
    """Return lines about settings without effect, library panels, panel solves and generator."""
    library = result.problem.get("panel_library")
    panels = f"panels factored by {library}: pfact, rfact, nbmin and ndiv are not used" if library else ""
    notes = (
        *(resumed_text(result.result), fp64_text(result), depth_text(result.problem)),
        *(file_text(result), panels, solves_text(result)),
    )
    methods = (method_text(result.problem), pivoting_text(result))
    others = (*methods, *remark_lines(result), generator_text(result.problem))
    return [line for line in (*notes, *others) if line]


def fp64_text(result: Result) -> str:
    """Return text about emulated fp64 products and the checked ones; empty if the products are native."""
    if not (scheme := fp64_scheme(result.result)):
        return ""
    of = result.result.get("fp64_emulation") or {}
    products, native = of.get("products") or 0, of.get("native_products") or 0
    checked = f"; {products - native} of {products} checked products were emulated" if products else ""
    return f"products of fp64 matrices were emulated ({scheme}){checked}"


def method_text(problem: Mapping[str, Any]) -> str:
    """Return text about a scaling and a refinement of HPL-MxP that are not the defaults."""
    scaled = "rows and columns scaled before the LU" if problem.get("scaling") == "auto" else ""
    return ", ".join(filter(None, [scaled, "classical refinement" if problem.get("refine") == "classical" else ""]))


def pivoting_text(result: Result) -> str:
    """Return text about the butterflies or the pivoting of HPL-MxP with their time; empty without either."""
    method, time_s = result.problem.get("pivoting"), three_digits(result.result.get("pivoting_time_s"))
    if method == "butterfly":
        return f"random butterflies of depth {result.problem.get('butterfly_depth')} on both sides of A, {time_s} s"
    return f"partial pivoting, panels and row swaps {time_s} s" if method == "partial" else ""


def remark_lines(result: Result) -> list[str]:
    """Return the remarks of the rules on the choices of a run."""
    return [str(remark.get("text")) for remark in result.rules.get("remarks") or ()]


#: The names of settings in HPL.dat that differ from mxpeak's.
FILE_NAMES = {
    "l1_form": "L1", "u_form": "U", "equilibration": "EQUIL", "alignment": "ALIGN",
    "swap_threshold": "the swapping threshold",
}  # fmt: skip


def file_text(result: Result) -> str:
    """Return text about the settings of an HPL.dat that had no effect on the run; empty if there are none."""
    origins = {name: setting.get("origin") for name, setting in result.config.items() if isinstance(setting, Mapping)}
    unused = [name for name in result.problem.get("not_used") or () if origins.get(name) == "HPL.dat"]
    names = ", ".join(FILE_NAMES.get(name, name.upper()) for name in unused)
    return f"settings of HPL.dat without effect on this run: {names}" if names else ""


def generator_text(problem: Mapping[str, Any]) -> str:
    """Return the definition of the `ddd` matrix; empty for other generators, whose formulas are published."""
    if problem.get("generator") != "ddd":
        return ""
    theta = three_digits(problem.get("diagonal_scale"))
    return (
        f"ddd is a_ii = {theta} * sum of |a_ij|, j != i: mxpeak's definition of departure from diagonal dominance, "
        "because the rules give no formula"
    )


def solves_text(result: Result) -> str:
    """Return text about the method and the precision of the panel solves; empty if the result has no such values."""
    solves = result.result.get("panel_solves")
    if not solves:
        return ""
    operands, share = solves.get("operands"), solves.get("share")
    panels = "U12" if result.benchmark == "hpl" else "panels"
    if solves.get("method") == "library":
        text = f"{panels} solved by triangular solves in {operands}"
    elif operands in ("fp32", "fp64"):
        text = f"{panels} solved by products and inverses of diagonal blocks in {operands}"
    else:
        text = f"{panels} solved by products with {operands} operands and fp32 inverses of diagonal blocks"
    return text if share is None or share >= 0.9995 else f"{text} ({three_digits(100 * share)} % of their flops)"


def _stages(figures: Mapping[str, Any]) -> str:
    lu_s, refine_s = figures.get("lu_time_s"), figures.get("refine_time_s")
    if lu_s is None:
        return ""
    lu = f"LU {three_digits(lu_s)} s at {rate_text(figures.get('lu_rate_flops'))}"
    return lu if refine_s is None else f"{lu}, refinement {three_digits(refine_s)} s"


def _difficulty(problem: Mapping[str, Any]) -> str:
    """Return text about the difficulty of the system: convergence of GMRES without the LU, growth and condition."""
    parts, steps = [], problem.get("predicted_unpreconditioned_steps")
    if (factor := problem.get("unpreconditioned_factor")) is not None:
        needed = "" if steps is None else f", and about {steps:.0f} steps are needed"
        parts.append(f"without the LU, a GMRES step leaves {three_digits(factor)} of the residual{needed}")
    measured = [name for name in ("growth", "condition") if problem.get(name) is not None]
    parts += [f"{name} {three_digits(problem[name])}" for name in measured]
    return f"the system: {', '.join(parts)}" if parts else ""
