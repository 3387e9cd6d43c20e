"""The rules of HPG-MxP (slides of the benchmark; Kashi et al., §3). Runs that break a rule are refused or labeled.

time         1800 s of mixed solves
memory       at least a quarter of the machine's memory
validation   standard: reduce the residual by nine orders of magnitude, on at least 4 ranks (the reference code) or
             8 (ORNL's code) if the run has as many; fullscale: reach the double solver's residual on all ranks
run type     both solvers and the validation; a standalone solver has no rating
solver       300 iterations per timed solve, restarted after 30 (ORNL's code) or 40 (the reference code)
vectors      fp32 or fp64: the rules have no solver with a Krylov basis in 16 bits, whose cycles end before the
             restart, or with multigrid vectors in 16 bits, whose corrections are stored
storage      32-bit columns: the published rules do not cover compressed columns
matrix       the benchmark's matrix; a matrix from a file may be rounded to fp32 inside the iteration
mode         --mode official; --mode explore labels its results

The rules allow any precision inside the GMRES iteration, and call fp16 "under investigation". A format that does not
represent every value exactly would change the matrix, so an official run uses a wider format instead. Most user
matrices are not exact in a format below fp64, and a run with a matrix from a file breaks the rules in any case. For
these matrices, values with the roundoff of fp32 suffice, because residuals are computed with the values of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.rules import Violation
from mxpeak.bench.sparse import auto_storages, check_storage, mode_violations
from mxpeak.bench.stencil_sizes import box_of
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.distributed.stencil import Form
from mxpeak.errors import UsageError
from mxpeak.layout.stencil import LEVELS
from mxpeak.precision import PRECISIONS

#: Iterations of a timed solve, and the restart lengths of the published codes.
ITERATIONS, RESTARTS = 300, (30, 40)
#: Ranks of the standard validation in the reference code; ORNL's code uses 8.
MIN_VALIDATION_RANKS = 4
#: Options of the benchmark's own matrix, which conflict with --matrix.
OF_BOXES = ("nx", "ny", "nz", "npx", "npy", "npz", "nonsymmetric")


def check(config: HpgMxpConfig, rank: int, ranks: int) -> None:
    """Raise an error on every rank if the configuration cannot be run."""
    check_storage(config)
    if config.matrix is None:
        box_of(config, rank, ranks)
    else:
        _check_matrix(config, config.matrix)
    _check_standalone(config)
    formats = config.mg_precisions(levels(config))
    if config.basis_precision and formats[0] == "fp64":
        raise UsageError(
            f"--krylov-precision {config.krylov_precision} stores the basis of fp32 vectors, but fp64 values on the "
            "finest level need fp64 vectors; use --precision fp32, or --krylov-precision fp64"
        )
    if config.mg_vectors:
        _check_mg_vectors(config, config.mg_vectors)
    if config.mode == "explore":
        return
    if "fp8" in (*formats, config.precision):
        raise UsageError("--mode official needs formats of 16 bits or more, but fp8 has 8 bits; use --mode explore")
    if config.value_tolerance:
        raise UsageError(
            f"--value-tolerance {config.value_tolerance:g} allows inexact stored values, but --mode "
            "official does not; use --mode explore"
        )


def _check_matrix(config: HpgMxpConfig, matrix: str) -> None:
    """Raise a UsageError if --matrix is combined with an option of the benchmark's own matrix."""
    for name in OF_BOXES:
        value = getattr(config, name)
        if value not in (None, False):
            flag = f"--{name}" if value is True else f"--{name} {value}"
            raise UsageError(
                f"--matrix {matrix} conflicts with {flag}, because the file defines the matrix and its rows "
                "are distributed evenly over the ranks; use only one of the two flags"
            )


def _check_mg_vectors(config: HpgMxpConfig, name: str) -> None:
    """Raise a UsageError if multigrid vectors in 16 bits are combined with an option that does not support them."""
    wide = "fp64" in config.mg_precisions(levels(config)) or config.vector_precision == "fp64"
    natural = config.kernels != "torch" and config.smoother in ("natural", "reference")
    conflicts = {
        "fp64 values or vectors in the inner iteration": wide and "use fp32 for both",
        "--storage rows": config.storage == "rows" and "use --storage sell",
        f"--smoother {config.smoother} on CPUs": natural and "use --smoother coloured",
        "--abft": config.abft and "remove one of the two flags",
        "--fused-restriction off": config.fused_restriction == "off" and "remove one of the two flags",
        "--matrix, whose products may exceed the largest fp16 number": (
            config.matrix is not None and name == "fp16" and "use --mg-vectors bf16"
        ),
    }
    for other, advice in conflicts.items():
        if advice:
            raise UsageError(f"--mg-vectors {name} does not support {other}; {advice}")


def without_effect(config: HpgMxpConfig) -> list[str]:
    """Return a note for each flag that has no effect on the run."""
    mixed = {
        f"--precision {config.precision}": config.precision not in ("auto", "fp64"),
        f"--mg-precision {','.join(config.mg_precision or ())}": config.mg_precision is not None,
        f"--krylov-precision {config.krylov_precision}": config.krylov_precision != HpgMxpConfig.krylov_precision,
    }
    notes = []
    if config.run_type == "double":
        notes += [
            f"{flag} has no effect: --run-type double computes in fp64" for flag, chosen in mixed.items() if chosen
        ]
    elif config.mg_precision is not None and config.precision != "auto":
        notes.append(f"--precision {config.precision} has no effect: --mg-precision sets all formats")
    if config.validation == "fullscale" and config.validation_ranks != HpgMxpConfig.validation_ranks:
        ranks = config.validation_ranks
        notes.append(f"--validation-ranks {ranks} has no effect: --validation fullscale uses all ranks")
    return notes


def _check_standalone(config: HpgMxpConfig) -> None:
    """Raise a UsageError if a standalone solver is combined with an option that needs a rating."""
    if not config.standalone:
        return
    needs = {
        "--validation": ("validates both solvers", config.validation != "standard" and config.validation),
        "--min-gflops": ("applies to the rating", config.min_gflops and f"{config.min_gflops:g}"),
        "--scaling-study": ("compares ratings", config.study),
        "--target": ("stops a run by its rating", config.target and f"{config.target:g}"),
        "--mg-vectors": ("applies to the mixed solver", config.run_type == "double" and config.mg_vectors),
        "--max-slowdown": ("compares ratings", config.max_slowdown and f"{config.max_slowdown:g}"),
        "--validation-ranks": (
            "sets the ranks of the validation",
            config.validation_ranks != HpgMxpConfig.validation_ranks and config.validation_ranks,
        ),
    }
    for flag, (why, value) in needs.items():
        if value:
            raise UsageError(
                f"{flag} {value} {why}, but --run-type {config.run_type} runs one solver and has none; remove {flag}, "
                "or use --run-type benchmark"
            )


def levels(config: HpgMxpConfig) -> int:
    """Return the number of multigrid levels; a matrix from a file has one level, so a cycle is one sweep."""
    return LEVELS if config.matrix is None else 1


def storages(config: HpgMxpConfig) -> tuple[str, ...]:
    """Return the storage formats to measure, the official one first."""
    return auto_storages(config) if config.storage == "auto" else (config.storage,)


def forms(config: HpgMxpConfig, storage: str) -> tuple[Form, Form]:
    """Return the storage forms (precisions and layout) of the double solver and of the mixed solver."""
    narrowest, count = "fp8" if config.mode == "explore" else "bf16", levels(config)
    values = tuple(narrowest if name == "auto" else name for name in config.mg_precisions(count))
    rounding = 0.0 if config.matrix is None else PRECISIONS["fp32"].u
    tolerance = max(config.value_tolerance, rounding)
    return (
        Form(("fp64",) * count, "fp64", storage),
        Form(
            values,
            config.vector_precision,
            storage,
            mixed=True,
            tolerance=tolerance,
            basis=config.basis_precision,
            mg_vectors=config.mg_vectors,
        ),
    )


def solvers_of(config: HpgMxpConfig, both: tuple[Form, Form]) -> Sequence[Form]:
    """Return the forms of the solvers that run: both (double and mixed), or the one of a standalone solver."""
    return both if not config.standalone else (both[config.run_type == "mixed"],)


def between(config: HpgMxpConfig, storage: str, mixed: Sequence[Mapping[str, Any]]) -> dict[str, Form]:
    """Return storage forms between those of the double and the mixed solver, by name.

    Timing these forms shows how much of the speed-up comes from narrower matrix values (compression), and how much
    from fp32 arithmetic (precision).

    compressed double   the matrix values as the mixed solver stores them, and fp64 vectors; omitted if these are fp64
    fp32                matrix values and vectors in fp32, as in ORNL's code; omitted if the mixed solver stores fp32

    `mixed` describes the levels of the mixed solver. The result is empty if matrix values may be rounded, because
    rounding changes the number of steps. It is also empty if the mixed solver has fp64 vectors, because its form is
    then compressed double.
    """
    if config.value_tolerance or config.matrix or config.krylov_precision != "fp32" or config.mg_vectors:
        return {}  # rounded numbers change the number of steps; with fp64 vectors, mixed equals compressed double
    values, forms_between = tuple(level["value_precision"] for level in mixed), dict[str, Form]()
    if set(values) != {"fp64"}:
        forms_between["compressed double"] = Form(values, "fp64", storage, mixed=True)
    if set(values) != {"fp32"}:
        forms_between["fp32"] = Form(("fp32",) * len(values), "fp32", storage, mixed=True)
    return forms_between


def foreseen(config: HpgMxpConfig, rt: float, storage: str) -> list[Violation]:
    """Return the published rules that a run breaks independently of its measurements."""
    broken = mode_violations(config, storage)
    if config.standalone:
        broken.append(Violation("run type", f"--run-type {config.run_type} has no validation and no rating"))
    if rt < OFFICIAL_S:
        broken.append(Violation("time", f"--rt is {rt:g} s, but the rules require {OFFICIAL_S:g} s"))
    if config.matrix is not None:
        broken.append(Violation("matrix", f"{config.matrix} is not the benchmark's matrix"))
    if config.basis_precision and config.run_type != "double":
        text = "stores the basis in 16 bits, which the published rules do not cover"
        broken.append(Violation("vectors", f"--krylov-precision {config.krylov_precision} {text}"))
    if config.mg_vectors and config.run_type != "double":
        text = "stores the multigrid vectors in 16 bits, which the published rules do not cover"
        broken.append(Violation("vectors", f"--mg-vectors {config.mg_vectors} {text}"))
    if config.iterations != ITERATIONS:
        broken.append(Violation("solver", f"--iterations is {config.iterations}, but a timed solve has {ITERATIONS}"))
    if config.restart not in RESTARTS:
        allowed = " or ".join(map(str, RESTARTS))
        broken.append(Violation("solver", f"--restart is {config.restart}, but the published solver uses {allowed}"))
    if config.threshold > 1e-9:
        broken.append(Violation("validation", f"--threshold {config.threshold:g} is above 1e-9"))
    return broken


def few_ranks(validated: int, ranks: int) -> list[Violation]:
    """Return a violation if fewer ranks than in both published codes ran the validation, otherwise []."""
    least = min(MIN_VALIDATION_RANKS, ranks)
    if validated >= least:
        return []
    return [Violation("validation", f"{validated} of {ranks} ranks validated; the reference code uses {least}")]
