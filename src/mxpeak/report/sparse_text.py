"""Describe the results of HPG-MxP and HPCG: the problem, its validation, and the rates by both flop counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from mxpeak.precision import PRECISIONS
from mxpeak.records import Result, rate_text, size_text, three_digits
from mxpeak.report.summaries import Lines

#: The motifs of HPG-MxP in the table of mixed and double precision.
MOTIFS = ("gs", "spmv", "ortho", "restriction", "prolongation", "update")

Section = Mapping[str, Any]


class SparseLines(Lines, ABC):
    """The text lines that HPG-MxP and HPCG share."""

    undrawn: ClassVar[tuple[str, ...]] = ("halo",)
    waits = ("ortho", "ddot")

    def case(self, problem: Section) -> str:
        """Return a short description of a case, such as 104x104x104 1x1x2 fp16/fp32 packed."""
        return sparse_case_text(problem)

    def parts(self, problem: Section) -> list[str]:
        """Return the parts of a case for a page: mesh, ranks, formats and storage."""
        local, grid = (_box(problem, prefix).replace("x", "×") for prefix in ("n", "np"))
        mesh = [str(problem["matrix"])] if problem.get("matrix") else [f"mesh {local}" * bool(local)]
        storage, *others = _choices(problem)
        parts = [*mesh, f"ranks {grid}" * bool(grid), _distinct(problem), f"storage {storage}" * bool(storage), *others]
        return list(filter(None, parts))

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """Return lines about validation, size and other rates. If `verbose`, also about memory and more rates."""
        return [
            *self.rates(result),
            *self.checks(result.validation),
            problem_text(result.problem, result.result.get("time_s")),
            memory_text(result.problem) if verbose else "",
            *self.figures(result, verbose=verbose),
        ]

    def check_lines(self, result: Result) -> list[str]:
        """Return lines about the validation, other rates, and the precisions."""
        precisions = precision_text(result.problem.get("precision"))
        lines = [*self.rates(result), *self.checks(result.validation), *self.figures(result, verbose=True)]
        return [*lines, *([f"precisions: {precisions}"] if precisions else [])]

    def motifs(self, result: Result) -> list[tuple[str, ...]]:
        """Return the table of times in mixed and double precision by motif."""
        return motif_rows(result.result, result.phases)

    def memory(self, problem: Section) -> str:
        """Return text about the memory of a case."""
        return memory_text(problem)

    def rates(self, result: Result) -> list[str]:
        """Return the lines directly below the headline, with the rate by other flop counts; empty by default."""
        return []

    @abstractmethod
    def checks(self, check: Section) -> list[str]:
        """Return lines about the outcome of the validation."""

    @abstractmethod
    def figures(self, result: Result, *, verbose: bool) -> list[str]:
        """Return lines with other rates and, if `verbose`, with rates in other storage formats."""


class HpgMxpLines(SparseLines):
    """The text lines of HPG-MxP."""

    def rates(self, result: Result) -> list[str]:
        """Return the rates by both flop counts, or the raw rates of a standalone solver."""
        return [line for line in (unrated(result), _countings(result.result)) if line]

    def checks(self, check: Section) -> list[str]:
        """Return one line per validation with the iterations of the mixed and the double solver, and the penalty."""
        if check.get("type") == "none":
            steps, residual = _count(check.get("iterations")), three_digits(check.get("residual"))
            return [f"no validation; residual {residual} after {steps} iterations"]
        return [_solvers(check), *([_solvers(check["fullscale"])] if check.get("fullscale") else [])]

    def figures(self, result: Result, *, verbose: bool) -> list[str]:
        """Return a line with the speed-up over double precision.

        If `verbose`, further lines contain the causes of the speed-up and the rates of other storage formats.
        """
        figures = result.result
        more = [_between(figures), *_other_storage(figures)] if verbose else []
        return [line for line in (_speedup(result), *more) if line]

    def notes(self, result: Result) -> list[str]:
        """Return notes about the rates by both flop counts, and about the precisions of the mixed solver."""
        together = TOGETHER if result.result.get("speedup") is not None and compresses(result) else ""
        precisions = precision_text(result.problem.get("precision"))
        precisions = f"values and vectors {precisions}" if precisions in PRECISIONS else precisions
        second = f"{precisions}{together and f'; the speed-up over double comes {together}'}" if precisions else ""
        return [line for line in (unrated(result), _countings(result.result, raw=False), second) if line]

    def beside(self, result: Result, others: Mapping[str, float]) -> str:
        """Return the speed-up over double precision as text, or an empty string if it was not measured."""
        speedup = result.result.get("speedup")
        return "" if speedup is None else f"{speedup:.1f} × double"


class HpcgLines(SparseLines):
    """The text lines of HPCG."""

    undrawn = (*SparseLines.undrawn, "gs", "restriction", "prolongation", "allreduce")  # parts of mg and ddot

    def checks(self, check: Section) -> list[str]:
        """Return two lines: the scaled residual with the iterations, and the outcome of HPCG's tests."""
        return [_cg_sets(check), _tests(check)]

    def figures(self, result: Result, *, verbose: bool) -> list[str]:
        """Return lines with HPCG's other ratings and the rates of other storage formats; empty unless `verbose`."""
        figures = result.result
        return [line for line in (_ratings(figures), *_other_storage(figures)) if line] if verbose else []


def unrated(result: Result) -> str | None:
    """Return text about a standalone solver of HPG-MxP, or None if both solvers ran."""
    solver = result.problem.get("run_type", "benchmark")
    if solver == "benchmark":
        return None
    kind = "raw" if solver == "mixed" else "double"
    counted = [rate_text(result.result.get(f"{kind}_rate_flops{suffix}")) for suffix in ("", "_ornl")]
    return (
        f"standalone {solver} solver: no validation, penalty, speed-up or rating; raw rate by the flop count of the "
        f"reference code {counted[0]}, of ORNL {counted[1]}"
    )


def sparse_case_text(problem: Section) -> str:
    """Return a short description of a case, such as 104x104x104 1x1x2 fp16/fp32 packed."""
    parts = [problem["matrix"]] if problem.get("matrix") else [_box(problem, "n"), _box(problem, "np")]
    parts += [_distinct(problem), *_choices(problem)]
    return " ".join(part for part in parts if part)


def problem_text(problem: Section, time_s: float | None) -> str:
    """Return the problem as text: mesh, ranks, number of rows, formats, storage and measured time."""
    local, grid = _box(problem, "n"), _box(problem, "np")
    mesh = [f"{local} per rank" if local else "", f"{grid} ranks" if grid else ""]
    parts = [problem["matrix"]] if problem.get("matrix") else mesh
    parts += [rows_text(problem["rows"])] if problem.get("rows") is not None else []
    parts += [precision_text(problem.get("precision")), *_choices(problem)]
    parts += ["" if time_s is None else f"time {three_digits(time_s)} s"]
    return ", ".join(part for part in parts if part)


def rows_text(rows: int) -> str:
    """Return a number of rows as text, such as 2197 rows or 2.25 million rows."""
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if rows >= 0.9995 * size:
            return f"{three_digits(rows / size)} {word} rows"
    return f"{rows} rows"


def _distinct(problem: Section) -> str:
    """Return the distinct formats of all parts, such as bf16/fp32."""
    formats = _formats(problem.get("precision"))
    return "/".join(dict.fromkeys(name for names in formats.values() for name in names))


#: Names of the parts of a solver that have their own formats.
PARTS = {"mg": "multigrid values", "krylov": "Krylov values", "mg_vectors": "multigrid vectors"}


def precision_text(precision: Any) -> str:
    """Return the formats by part, such as "values bf16, vectors fp32", or one format if all parts have the same one."""
    formats = {part: "/".join(names) for part, names in _formats(precision).items()}
    if len(set(formats.values())) == 1:
        return next(iter(formats.values()))
    if "mg" in formats and formats["mg"] == formats.get("krylov"):
        formats = {"values": formats["mg"], **{part: formats[part] for part in formats if part not in ("mg", "krylov")}}
    return ", ".join(f"{PARTS.get(part, part)} {names}" for part, names in formats.items())


def _formats(precision: Any) -> dict[str, list[str]]:
    """Return the distinct formats of each part of the solver. If `precision` is a string, the part is named ""."""
    parts = precision if isinstance(precision, Mapping) else {"": precision}
    lists = {part: [names] if isinstance(names, str) else names or [] for part, names in parts.items()}
    return {part: list(dict.fromkeys(names)) for part, names in lists.items() if names}


def memory_text(problem: Section) -> str:
    """Return text about the memory of the mixed solver, and the cube of the double solver that needs as much memory.

    Return an empty string if the memory is unknown.
    """
    mixed, side = (problem.get("memory_bytes") or {}).get("mixed"), problem.get("larger_mesh")
    if mixed is None:
        return ""
    cube = f"; in the same memory, double precision alone holds {side}x{side}x{side} per rank"
    return f"memory {size_text(mixed)}{'' if side is None else cube}"


def _box(problem: Section, prefix: str) -> str:
    sides = [problem.get(prefix + axis) for axis in "xyz"]
    return "" if None in sides else "x".join(map(str, sides))


#: Texts about optimizations that are off.
OFF = {"overlap": "no overlap", "zero_guess": "full sweeps from zero", "fused_restriction": "unfused restriction"}
#: Texts about the order of sweeps, and the default orders by storage. That of `packed` depends on the benchmark.
SWEEPS = {"coloured": "colored sweeps", "natural": "natural sweeps", "reference": "sweeps in the reference order"}
DEFAULT_SWEEPS = {"rows": ["natural"], "ell": ["coloured"], "sell": ["coloured"], "packed": ["natural", "coloured"]}


def _choices(problem: Section) -> list[str]:
    """Return the storage format, "nonsymmetric" or an empty string, and the differences from the defaults."""
    storage, smoother = problem.get("storage") or "", problem.get("smoother") or ""
    ran = problem.get("optimizations") or {}
    off = [] if smoother in DEFAULT_SWEEPS.get(storage, SWEEPS) else [SWEEPS.get(smoother, "")]
    off += [text for name, text in OFF.items() if ran.get(name) is False]
    off += ["not the reference's grid"] if problem.get("reference_grid") is False else []
    return [storage, "nonsymmetric" if problem.get("nonsymmetric") else "", *off]


def _solvers(check: Section) -> str:
    """Return text with the iterations n_ir (mixed) and n_d (double), and the penalty min(1, n_d / n_ir)."""
    solvers = f"{_solver('mixed', check, always=True)}, {_solver('double', check)}"
    text = f"{solvers}: penalty {three_digits(check.get('penalty'))}"
    if (error := check.get("max_error")) is not None:
        text += f"; max |x - 1| {three_digits(error)}"
    if (ranks := check.get("ranks")) is not None:
        text += f" ({check.get('type')} validation on {ranks} {'rank' if ranks == 1 else 'ranks'})"
    return text


def _solver(name: str, check: Section, *, always: bool = False) -> str:
    """Return the iterations of a solver as text, with the residual if `always` or if it is above the threshold."""
    steps, threshold = _count(check.get(f"{name}_iterations")), check.get("threshold")
    residual = check.get(f"{name}_residual")
    if residual is None or threshold is None or not residual <= threshold:
        return f"{name} {steps} iterations to {three_digits(residual)}, not {three_digits(threshold)}"
    return f"{name} {steps} iterations to {three_digits(residual)}" if always else f"{name} {steps}"


def _cg_sets(check: Section) -> str:
    residual, threshold = check.get("residual"), check.get("threshold")
    within = "<=" if residual is not None and threshold is not None and residual <= threshold else "is not within"
    compared = f"{three_digits(residual)} {within} threshold {three_digits(threshold)}"
    return f"scaled residual {compared} after {_count(check.get('iterations'))} iterations"


def _tests(check: Section) -> str:
    """Return text with the outcome of HPCG's CG, symmetry and norms tests."""
    cg, symmetry, norms = (check.get(name) or {} for name in ("cg", "symmetry", "norms"))
    steps = [
        f"{_count(way.get('iterations'))} of {_count(way.get('expected'))}"
        for way in (cg.get(name) or {} for name in ("unpreconditioned", "preconditioned"))
    ]
    departures = [f"{name} {three_digits(symmetry.get(name))}" for name in ("spmv", "mg")]
    return (
        f"tests: CG {_mark(cg)} ({steps[0]} steps, preconditioned {steps[1]}), "
        f"symmetry {_mark(symmetry)} ({', '.join(departures)}), "
        f"norms {_mark(norms)} (variance {three_digits(norms.get('variance'))})"
    )


def _mark(test: Section) -> str:
    passed = test.get("passed")
    return "not run" if passed is None else "PASSED" if passed else "FAILED"


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def motif_rows(figures: Section, phases: Mapping[str, Section]) -> list[tuple[str, ...]]:
    """Return the rows of a table: per motif, the seconds per solve in mixed and double precision, and the speed-up.

    The speed-ups include the penalty. The first row is the header. The list is empty if double precision was not
    measured.
    """
    double = figures.get("double_phases") or {}
    speedups = figures.get("speedup_by_motif") or {}
    rows: list[tuple[str, ...]] = [("motif", "mixed s/solve", "double s/solve", "speedup")]
    for name in filter(double.__contains__, MOTIFS):
        mixed_s = _per_solve(phases.get(name), figures.get("solves"))
        double_s = _per_solve(double[name], figures.get("double_solves"))
        rows.append((name, mixed_s, double_s, three_digits(speedups.get(name))))
    return rows if len(rows) > 1 else []


def _per_solve(phase: Section | None, solves: int | None) -> str:
    time_s = (phase or {}).get("time_s")
    return three_digits(time_s / solves) if time_s is not None and solves else "none"


#: The causes of a speed-up if no measurement separates lower precision from compression.
TOGETHER = "from precision and compression together"


def _speedup(result: Result) -> str:
    figures = result.result
    if figures.get("speedup") is None:
        return ""
    double = rate_text(figures.get("double_rate_flops"))
    text = f"{three_digits(figures['speedup'])} times the double-precision rate of {double}"
    return f"{text}, {TOGETHER} (--precision fp32: from precision alone)" if compresses(result) else text


def compresses(result: Result) -> bool:
    """Return whether the speed-up combines lower precision and compression without a measurement that separates them.

    This is the case if stored values have fewer bits than fp32, and no run with fp32 values was measured.
    """
    formats = _formats(result.problem.get("precision"))
    values = {name for part in PARTS for name in formats.get(part, [])}
    between = result.result.get("between") or {}
    return "fp32" not in between and any(name in PRECISIONS and PRECISIONS[name].bytes < 4 for name in values)


def _between(figures: Section) -> str:
    """Return text with the speed-ups of compressed double and of fp32 values; empty if not measured."""
    between = figures.get("between") or {}
    parts = []
    if (double := between.get("compressed double")) and double.get("speedup") is not None:
        times = three_digits(double["speedup"])
        parts.append(f"{times} times double with the same stored values ({rate_text(double['rate_flops'])})")
    if (fp32 := between.get("fp32")) and fp32.get("over_double") is not None:
        times = three_digits(fp32["over_double"])
        parts.append(f"with fp32 values {times} times double ({rate_text(fp32['rate_flops'])})")
    return "; ".join(parts)


def _countings(figures: Section, *, raw: bool = True) -> str:
    """Return text with the rates by both flop counts. If `raw`, the rates before the penalty are included.

    The reference code counts about 1.85 times as many flops in multigrid as ORNL's code.
    """
    names = (
        ("of the reference code", "rate_flops_reference", "raw_rate_flops"),
        ("of ORNL", "rate_flops_ornl", "raw_rate_flops_ornl"),
    )
    parts = [
        f"{name} {rate_text(figures[key])}"
        + (f" (raw {rate_text(figures[raw_key])})" if raw and figures.get(raw_key) is not None else "")
        for name, key, raw_key in names
        if figures.get(key) is not None
    ]
    return f"rate by the flop count {', '.join(parts)}" if parts else ""


def _ratings(figures: Section) -> str:
    """Return text with HPCG's other rates: raw, with convergence overhead, and the rating of HPCG 2.4."""
    names = (
        ("raw", "raw_rate_flops"),
        ("with convergence overhead", "rate_flops_with_convergence"),
        ("HPCG 2.4 rating", "rate_flops_2_4"),
    )
    return ", ".join(f"{name} {rate_text(figures[key])}" for name, key in names if figures.get(key) is not None)


def _other_storage(figures: Section) -> list[str]:
    """Return a line with the rate of each other storage format, labeled official or explore."""
    lines = []
    for other in figures.get("beside") or ():
        how = "/".join(part for part in (other.get("storage"), precision_text(other.get("precision"))) if part)
        text = f"also measured, {other.get('label')}, {how}: {rate_text(other.get('rate_flops'))}"
        raw, speedup = other.get("raw_rate_flops"), other.get("speedup")
        text += "" if raw is None else f" (raw {rate_text(raw)})"
        if (ornl := other.get("rate_flops_ornl")) is not None:
            text += f", by the flop count of ORNL {rate_text(ornl)}"
        lines.append(text if speedup is None else f"{text}, {three_digits(speedup)} times double")
    return lines
