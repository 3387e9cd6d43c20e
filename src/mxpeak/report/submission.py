"""Fill in the upload form of the HPL-MxP list (hpl-mxp.org) from a result.

The keys are the names of the form's fields. Fields that mxpeak cannot measure are null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak.precision import precision, stored_as
from mxpeak.records import Result, is_native_hpl, rate_text, three_digits, to_json
from mxpeak.report.lu_text import generator_text, remark_lines, solves_text
from mxpeak.report.text import blas_text, violation_text

SCHEMA_SUBMISSION = "mxpeak.submission/1"
JSON_NAME, TEXT_NAME = "submission.json", "submission.txt"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form: its name, its label, and the function that returns its value for a result."""

    name: str
    label: str
    answer: Callable[[Result], Any] = lambda result: None


def submission_files(results: Sequence[Result], others: Sequence[Result], report: str) -> dict[str, str]:
    """Return the submission files for the fastest admissible result, or for the fastest result if none is admissible.

    `others` contains the results of other benchmarks in the same run. `report` is the name of HPL-MxP's native report.
    """
    result = max(results, key=lambda r: (_admissible(r), r.result.get("rate_flops") or 0.0))
    body = submission(result, others, report)
    return {JSON_NAME: to_json(body), TEXT_NAME: submission_text(body)}


def submission(result: Result, others: Sequence[Result], report: str) -> dict[str, Any]:
    """Return the fields of the form by name, whether the list accepts the result, and the broken rules."""
    fields = {field.name: field.answer(result) for field in FORM}
    scores = (_gflops(r) for r in others if is_native_hpl(r) and not r.rules.get("violations"))
    hpl = [rate for rate in scores if rate is not None]
    fields |= {"outputFile": report, "hplgflops": max(hpl, default=None)}
    violations = result.rules.get("violations") or []
    return {
        "schema": SCHEMA_SUBMISSION,
        "list": "HPL-MxP",
        "admissible": _admissible(result),
        "validation": result.mark,
        "violations": list(map(violation_text, violations)),
        "run": result.run.get("id"),
        "fields": fields,
        "to_be_filled_in_by_you": [name for name, value in fields.items() if value is None],
        "emulated": bool(result.result.get("emulated")),
        "algorithm": _algorithm(result),
    }


def submission_text(body: dict[str, Any]) -> str:
    """Return a submission as text: whether the list accepts it, its fields, the missing fields, and the algorithm."""
    admissible = body["admissible"]
    emulated = ["  EMULATED: the precision was rounded in software; the score is not that of the precision"]
    lines = [
        f"{body['validation']}, {'ADMISSIBLE' if admissible else 'NOT ADMISSIBLE: the list does not accept this run'}",
        *(f"  {text}" for text in body["violations"]),
        *(emulated if body["emulated"] else []),
        "",
        f"Form of the {body['list']} list, for run {body['run']}",
        "",
    ]
    labels = {field.name: field.label for field in FORM}
    fields = body["fields"].items()
    width = max(len(labels[name]) for name, value in fields if value is not None)
    for name, value in fields:
        if value is not None:
            lines.append(f"  {labels[name]:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    missing = [f"  {labels[name]}" for name, value in fields if value is None]
    lines += ["", "Fill in these fields yourself", "", *missing, "", "Algorithm", "", f"  {body['algorithm']}", ""]
    return "\n".join(lines)


def _admissible(result: Result) -> bool:
    return result.passed and bool(result.rules.get("admissible"))


def _gflops(result: Result) -> float | None:
    rate = result.result.get("rate_flops")
    return None if rate is None else rate / 1e9


def _clock_ghz(result: Result) -> float | None:
    """Return the nominal clock rate in GHz from the processor's name, or None if the name does not contain it."""
    clock = re.search(r"@ *([\d.]+) *GHz", result.machine.get("cpu_model") or "")
    return float(clock[1]) if clock else None


def _each(count: str, of: str) -> Callable[[Result], int | None]:
    """Return a function that divides one count of the machine by another; it returns None if there is a remainder."""

    def divide(result: Result) -> int | None:
        total, parts = result.machine.get(count), result.machine.get(of)
        return total // parts if total and parts and total % parts == 0 else None

    return divide


def _memory(result: Result) -> str | None:
    total = result.machine.get("memory_total_bytes")
    return None if total is None else f"{three_digits(total / 2**30)} GiB"


def _compiler(result: Result) -> str | None:
    names = {"numba": "Numba", "llvmlite": "llvmlite (LLVM)"}
    parts = [f"{name} {result.software[key]}" for key, name in names.items() if result.software.get(key)]
    return ", ".join(parts) or None


def _mpi_library(result: Result) -> str | None:
    """Return the name of the MPI library that the ranks used, or PyPI's MPICH for an older result."""
    if result.launch.get("ranks") == 1:
        return "none (one rank)"
    if result.launch.get("comm") == "torch":
        return "none (torch.distributed)"
    if library := result.software.get("mpi_library"):
        return str(library)
    return f"MPICH {result.software['mpich']}" if result.software.get("mpich") else None


def _algorithm(result: Result) -> str:
    """Return a description of how the factors were computed and used, which the rules require."""
    problem, low = result.problem, result.problem.get("precision", "fp32")
    rounded = ", rounded in software and multiplied in fp32" if result.result.get("emulated") else ""
    way = {"classical": "classical refinement"}.get(problem.get("refine", ""), "GMRES from the left")
    lu_rate, lu_s = result.result.get("lu_rate_flops"), result.result.get("lu_time_s")
    balanced = ", balanced" if problem.get("scaling") == "auto" else ""
    pivoted = " with partial pivoting" if problem.get("pivoting") == "partial" else " without pivoting"
    if problem.get("pivoting") == "butterfly":
        balanced += f", multiplied from both sides by random butterflies of depth {problem.get('butterfly_depth')}"
    remarks = "".join(f"  {line[0].upper()}{line[1:]}." for line in remark_lines(result))
    stored = stored_as(low)
    derived = f"  {text[0].upper()}{text[1:]}." if (text := generator_text(problem)) else ""
    solves = f", {method}" if (method := solves_text(result)) else ""
    return (
        f"Matrix {problem.get('generator')} of order {problem.get('n')}, seed {problem.get('seed')}, made in {stored}"
        f"{balanced} inside the clock.  Blocked right-looking LU{pivoted}, NB = {problem.get('nb')}, on a "
        f"{problem.get('P')}x{problem.get('Q')} grid, diagonal blocks factored in {stored}{solves}, "
        f"L and U stored in {stored}, the operands of the update in {low}{rounded}, "
        f"accumulated in {precision(low).accumulate}: {three_digits(lu_s)} s, {rate_text(lu_rate)}.  The factors "
        f"precondition {way} in fp64, steps: {result.validation.get('iterations')}, to a scaled backward error of "
        f"{three_digits(result.validation.get('residual'))}.{remarks}{derived}"
    )


FORM = (
    Field("firstName", "First name"),
    Field("lastName", "Last name"),
    Field("email", "Email"),
    Field("sitename", "Site name"),
    Field("segment", "Segment (Academic, Classified, Government, Industry, Research, Vendor, Other)"),
    Field("city", "City"),
    Field("country", "Country"),
    Field("sysname", "System name"),
    Field("integrator", "Integrator"),
    Field("model", "Computer model"),
    Field("processor", "Processor name and model", lambda result: result.machine.get("cpu_model")),
    Field("procfreq", "Processor frequency (GHz)", _clock_ghz),
    Field("proccores", "Processor cores per socket", _each("physical_cores", "sockets")),
    Field("sockets", "Sockets per node", lambda result: result.machine.get("sockets")),
    Field("nodemem", "Memory per node", _memory),
    Field("accelerator", "Accelerator vendor and model", lambda result: result.machine.get("device_name")),
    Field("accelcores", "Accelerator cores", lambda result: result.machine.get("device_multiprocessors")),
    Field("accelcount", "Accelerators per node", _each("device_count", "nodes")),
    Field("interconnect", "Interconnect vendor, model, connections"),
    Field("nodes", "Node count", lambda result: result.machine.get("nodes")),
    Field("hplaigflops", "HPL-MxP score (Gflop/s)", _gflops),
    Field(
        "hplaiimpl",
        "HPL-MxP implementation author and version",
        lambda result: f"The mxpeak authors, mxpeak {result.software.get('mxpeak') or ''}".rstrip(),
    ),
    Field("hplgflops", "HPL score (Gflop/s, in FP64)"),
    Field("outputFile", "HPL-MxP output file"),
    Field(
        "osname",
        "Operating system",
        lambda result: f"Linux {result.machine['kernel']}" if result.machine.get("kernel") else None,
    ),
    Field("compiler", "Compiler", _compiler),
    Field("mathlib", "Math libraries", lambda result: blas_text(result.software.get("blas") or {}) or None),
    Field("mpilib", "MPI library", _mpi_library),
)
