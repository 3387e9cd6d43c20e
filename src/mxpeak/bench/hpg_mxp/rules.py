"""What HPG-MxP's rules let a run do (slides of the benchmark; Kashi et al., §3): what is refused, and what is labelled.

time         1800 s of mixed solves
memory       a quarter of the machine's memory or more
validation   to nine orders of magnitude, or with fullscale to where double came
solver       300 iterations a timed solve, restarted after 30 (ORNL's code) or 40 (the reference's)
storage      32-bit columns: the published rules do not provide for compressed ones
matrix       the benchmark's own; one from a file may be rounded to fp32 inside the iteration
mode         --mode official; explore labels its results

Any precision is allowed inside GMRES's iteration.  A format that does not hold every value exactly would change the
matrix, so an official run takes a wider one.  Few matrices of users are exact in any but fp64, and a run on one breaks
the rules anyway: values that are right to fp32's roundoff will do there, as residuals are those of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.rules import Violation
from mxpeak.bench.sparse import PLAIN, check_storage, plain_storage
from mxpeak.bench.stencil_sizes import box_of
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.distributed.stencil import Form
from mxpeak.errors import UsageError
from mxpeak.layout.stencil import LEVELS
from mxpeak.precision import PRECISIONS

#: Iterations of a timed solve, and the restarts of the published codes.
ITERATIONS, RESTARTS = 300, (30, 40)
#: What describes the benchmark's own matrix, so nothing that is from a file.
OF_BOXES = ("nx", "ny", "nz", "npx", "npy", "npz", "nonsymmetric")


def check(config: HpgMxpConfig, rank: int, ranks: int) -> None:
    """Stop at what cannot be run, before anything is; on every rank alike."""
    check_storage(config)
    if config.matrix is None:
        box_of(config, rank, ranks)
    else:
        _check_alone(config, config.matrix)
    asked = config.mg_precisions(levels(config))
    if config.mode == "explore":
        return
    if "fp8" in (*asked, config.precision):
        raise UsageError("--mode official needs formats of 16 bits or more, but fp8 has 8 bits; use --mode explore")
    if config.value_tolerance:
        raise UsageError(
            f"--value-tolerance {config.value_tolerance:g} allows inexact stored values, but --mode "
            "official does not; use --mode explore"
        )


def _check_alone(config: HpgMxpConfig, matrix: str) -> None:
    """Stop at a file together with what describes the benchmark's own matrix."""
    for name in OF_BOXES:
        value = getattr(config, name)
        if value not in (None, False):
            flag = f"--{name}" if value is True else f"--{name} {value}"
            raise UsageError(
                f"--matrix {matrix} conflicts with {flag}, because the file defines the matrix and its rows "
                "are distributed evenly over the ranks; use only one of the two flags"
            )


def levels(config: HpgMxpConfig) -> int:
    """How many levels multigrid has: a matrix from a file has no coarser ones, so a cycle is one sweep."""
    return LEVELS if config.matrix is None else 1


def storages(config: HpgMxpConfig) -> tuple[str, ...]:
    """How matrices are stored for the figure, and for the one beside it where nothing was asked for but to be quick."""
    if config.storage != "auto":
        return (config.storage,)
    plain = plain_storage(config)
    both = (plain, "packed") if config.mode == "official" else ("packed", plain)
    return both[:1] if config.quick else both


def forms(config: HpgMxpConfig, storage: str) -> tuple[Form, Form]:
    """The double solver's matrices, and the mixed one's."""
    narrowest, count = "fp8" if config.mode == "explore" else "bf16", levels(config)
    values = tuple(narrowest if name == "auto" else name for name in config.mg_precisions(count))
    rounding = 0.0 if config.matrix is None else PRECISIONS["fp32"].u
    tolerance = max(config.value_tolerance, rounding)
    return (
        Form(("fp64",) * count, "fp64", storage),
        Form(values, config.krylov_precision, storage, mixed=True, tolerance=tolerance),
    )


def between(config: HpgMxpConfig, storage: str, mixed: Sequence[Mapping[str, Any]]) -> dict[str, Form]:
    """Forms that tell precision from compression, beside the mixed solver whose levels these are.

    compressed double   fp64 vectors and the mixed solver's stored values, where those have fewer bits without a loss
    fp32                values and vectors in fp32, as in ORNL's code: the mixed solver's numbers in more bits
    """
    if config.value_tolerance or config.matrix is not None or config.krylov_precision == "fp64":
        return {}  # values may be rounded: other numbers, other steps; or mixed is the compressed double itself
    values, found = tuple(level["value_precision"] for level in mixed), dict[str, Form]()
    if set(values) != {"fp64"}:
        found["compressed double"] = Form(values, "fp64", storage, mixed=True)
    if set(values) != {"fp32"}:
        found["fp32"] = Form(("fp32",) * len(values), "fp32", storage, mixed=True)
    return found


def foreseen(config: HpgMxpConfig, rt: float, storage: str) -> list[Violation]:
    """Rules that a run breaks however it goes."""
    found = []
    if config.mode != "official":
        found.append(Violation("mode", "--mode explore was chosen"))
    if storage not in PLAIN:
        found.append(
            Violation("storage", f"{storage}: its columns are compressed, which the published rules do not cover")
        )
    if rt < OFFICIAL_S:
        found.append(Violation("time", f"--rt {rt:g}: the rules require {OFFICIAL_S:g} s"))
    if config.matrix is not None:
        found.append(Violation("matrix", f"{config.matrix} is not the benchmark's matrix"))
    if config.iterations != ITERATIONS:
        found.append(Violation("solver", f"--iterations {config.iterations}: a timed solve has {ITERATIONS}"))
    if config.restart not in RESTARTS:
        allowed = " or ".join(map(str, RESTARTS))
        found.append(Violation("solver", f"--restart {config.restart}: the solver's restart is {allowed}"))
    if config.threshold > 1e-9:
        found.append(Violation("validation", f"--threshold {config.threshold:g} is above 1e-9"))
    return found
