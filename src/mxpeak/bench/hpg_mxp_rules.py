"""What HPG-MxP's rules let a run do (slides of the benchmark; Kashi et al., §3): what is refused, and what is labelled.

time         1800 s of mixed solves
memory       a quarter of the machine's memory or more
validation   to nine orders of magnitude, or with fullscale to where double came
storage      no rule speaks of compressed columns: an official figure is with 32-bit ones
matrix       the benchmark's own
mode         --mode official; explore labels its results

Any precision is allowed inside GMRES's iteration.  A format that does not hold every value exactly would change the
matrix, so an official run takes a wider one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxpeak.bench.mxp_rules import Violation
from mxpeak.bench.sparse_bench import OFFICIAL_RT, OFFICIAL_SHARE
from mxpeak.bench.stencil_sizes import box_of
from mxpeak.configs import HpgMxpConfig
from mxpeak.dist.stencil import Form
from mxpeak.errors import UsageError
from mxpeak.layout.stencil import LEVELS
from mxpeak.records import size_text, three_digits

#: Storages whose columns are 32-bit numbers.
PLAIN = ("ell", "sell")


def check(config: HpgMxpConfig, rank: int, ranks: int) -> None:
    """Stop at what cannot be run, before anything is; on every rank alike."""
    box_of(config, rank, ranks)
    if config.mode == "explore":
        return
    if "fp8" in (*config.mg_precisions(LEVELS), config.precision):
        raise UsageError("fp8 was asked for, but --mode official takes formats of 16 bits or more; say --mode explore")
    if config.value_tolerance:
        raise UsageError(
            f"--value-tolerance {config.value_tolerance:g} lets stored values be wrong, and --mode official does not; "
            "say --mode explore"
        )


def storages(config: HpgMxpConfig) -> tuple[str, ...]:
    """How matrices are stored for the figure, and for the one beside it where nothing was asked for."""
    if config.storage != "auto":
        return (config.storage,)
    return ("sell", "packed") if config.mode == "official" else ("packed", "sell")


def forms(config: HpgMxpConfig, storage: str) -> tuple[Form, Form]:
    """The double solver's matrices, and the mixed one's."""
    narrowest = "fp8" if config.mode == "explore" else "bf16"
    values = tuple(narrowest if name == "auto" else name for name in config.mg_precisions(LEVELS))
    return (
        Form(("fp64",) * LEVELS, "fp64", storage),
        Form(values, config.krylov_precision, storage, mixed=True, tolerance=config.value_tolerance),
    )


def foreseen(config: HpgMxpConfig, rt: float, storage: str) -> list[Violation]:
    """Rules that a run breaks however it goes."""
    found = []
    if config.mode != "official":
        found.append(Violation("mode", "--mode explore was asked for"))
    if storage not in PLAIN:
        found.append(Violation("storage", f"{storage}: its columns are compressed, which no rule speaks of"))
    if rt < OFFICIAL_RT:
        found.append(Violation("time", f"--rt {rt:g}: the rules ask for {OFFICIAL_RT:g} s"))
    if config.matrix is not None:
        found.append(Violation("matrix", f"{config.matrix} is not the benchmark's matrix"))
    if config.threshold > 1e-9:
        found.append(Violation("validation", f"--threshold {config.threshold:g} is above 1e-9"))
    return found


def of_memory(used: int, machine: Mapping[str, Any]) -> list[Violation]:
    """The rule about memory, where the machine says how much each node has."""
    present = (machine.get("memory_total_bytes") or 0) * machine["nodes"]
    if not present or used >= OFFICIAL_SHARE * present:
        return []
    share = three_digits(100 * used / present)
    text = f"the problem takes {size_text(used)}, {share} % of {size_text(present)}; the rules ask for a quarter"
    return [Violation("memory", text)]
