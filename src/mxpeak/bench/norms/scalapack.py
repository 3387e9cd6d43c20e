"""Compare norms with those of ScaLAPACK on the same local arrays: rates and errors of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import NormsMatrix
from mxpeak.comm.base import Communicator
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.runtime.scalapack import LETTERS, ScaLapack, open_scalapack

#: P?LANGE computes positions in the local array in 32-bit integers.
MAX_ENTRIES = 2**31 - 1


def check_comparison(config: NormsConfig, comm: Communicator, cases: Sequence[NormsCase]) -> None:
    """Raise a UsageError if --scalapack is set but no case can be compared on these ranks."""
    if config.scalapack is None:
        return
    if config.study is not None:
        raise UsageError("--scalapack needs all ranks, but a scaling study uses some; remove one of the two flags")
    transport = config.comm if comm.name == "auto" else comm.name  # a dry run has no transport
    if comm.size > 1 and transport not in ("auto", "mpi"):
        raise UsageError(f"--scalapack needs MPI, but the ranks communicate by {transport}; use --comm mpi")
    reasons = [incomparable(case, config.kernels) for case in cases]
    if all(reasons):
        raise UsageError(f"--scalapack does not apply: {reasons[0]}")


def incomparable(case: NormsCase, kernels: str) -> str:
    """Return the reason why ScaLAPACK cannot compute the norm of a case on the same arrays, or ""."""
    if kernels == "torch":
        return "ScaLAPACK computes on CPUs; use --kernels host"
    if case.dtype not in LETTERS:
        return f"ScaLAPACK has no norms of {case.dtype}; use --dtype {' or '.join(LETTERS)}"
    if case.layout != "F":
        return f"ScaLAPACK stores matrices by columns, not in layout {case.layout}; use --layout F"
    entries = math.prod(-(-n // (case.nb * ranks)) * case.nb for n, ranks in ((case.m, case.P), (case.n, case.Q)))
    if entries > MAX_ENTRIES:
        return f"ScaLAPACK supports {MAX_ENTRIES:,} entries per rank, not {entries:,}; use a smaller -N or more ranks"
    others = {"--structure": case.structure != "general", "--trans": case.transposed, "--scope": case.vectors}
    return "".join(f"ScaLAPACK's P?LANGE has no {flag}; remove {flag}" for flag, is_set in others.items() if is_set)


@dataclass(frozen=True, slots=True)
class Compared:
    """The time and the values of ScaLAPACK's norms of a case, or the reason why they were not computed."""

    missing: str = ""
    library: str = ""
    samples_s: Sequence[float] = ()
    values: dict[str, float] | None = None

    def section(self, case: NormsCase, rate: float, read_bytes: int, errors: dict[str, float]) -> dict[str, Any]:
        """Return the section of the result. `rate` is mxpeak's, and `errors` are the scaled errors of the values."""
        if self.values is None:
            return {"missing": self.missing}
        time_s = min(self.samples_s)
        shown = {"values": self.values} if case.kind == "all" else {"value": self.values[case.kind]}
        return {
            "library": self.library,
            "rate_bytes": read_bytes / time_s,
            "speedup": rate * time_s / read_bytes,
            "time_s": time_s,
            "samples_s": list(self.samples_s),
            **shown,
            "errors": errors,
        }


class Comparison:
    """Runs ScaLAPACK's norms on the matrices of a run."""

    def __init__(self, config: NormsConfig, comm: Communicator):
        """Load the library of --scalapack. If it is missing, raise a ResourceError, or with "auto" keep the reason."""
        self._config, self._missing = config, ""
        self._library: ScaLapack | None = None
        self._context = lru_cache(maxsize=None)(self._make_context)
        try:
            self._library = open_scalapack(config.scalapack or "auto", comm)
        except ResourceError as error:
            if config.scalapack != "auto":
                raise ResourceError(f"--scalapack: {error}") from None
            self._missing = str(error)

    def run(self, case: NormsCase, A: NormsMatrix, timed: Callable[[Callable[[], None]], list[float]]) -> Compared:
        """Compute the norms of a case. `timed` runs a function repeatedly and returns the seconds. Collective."""
        library = self._library
        missing = self._missing or incomparable(case, self._config.kernels)
        if library is None or missing:
            return Compared(missing)
        context, local, values = self._context(case.P, case.Q), A.tiles[0].A, dict[str, float]()

        def compute() -> None:
            for kind in case.kinds:
                values[kind] = library.norm(kind, case.dtype, local, (case.m, case.n), case.nb, context)

        compute()
        return Compared("", str(library.path), timed(compute), values)

    def _make_context(self, P: int, Q: int) -> int:
        assert self._library is not None
        return self._library.context(ProcessGrid(P, Q, self._config.order, self._config.node_grid))
