"""The measurements that HPG-MxP and HPCG share: timed solves, and all measurements of one storage format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar, Generic, TypeVar

from mxpeak.bench.harness import NO_PHASE, with_share
from mxpeak.bench.limits import Limit
from mxpeak.layout.stencil import Box, process_grid

#: Phases that are parts of `mg`, which records their time but not their flops and bytes.
MG_PARTS = ("gs", "restriction", "prolongation")


AnySolve = TypeVar("AnySolve")


@dataclass(frozen=True, slots=True)
class TimedSolves(Generic[AnySolve]):
    """The times and the outcomes of the timed solves, and the phases of all solves, in total and by step."""

    samples_s: list[float]
    solves: list[AnySolve]
    phases: dict[str, Any] = field(default_factory=dict)
    by_step: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of solves."""
        return len(self.samples_s)

    @property
    def time_s(self) -> float:
        """Return the total time of all solves."""
        return sum(self.samples_s)

    @property
    def finite(self) -> bool:
        """Return whether the residuals of all solves are finite."""
        return all(isfinite(solve.residual) for solve in self.solves)  # type: ignore[attr-defined]

    def motif(self, name: str) -> dict[str, Any]:
        """Return the phase of a motif.

        The phase `mg` records only time. Its flops and bytes are therefore computed as the sums over its parts.
        """
        phase: dict[str, Any] = self.phases.get(name, NO_PHASE)
        if name != "mg":
            return phase
        parts = [self.phases.get(part, NO_PHASE) for part in MG_PARTS]
        return {**phase, **{key: sum(part[key] for part in parts) for key in ("flops", "bytes")}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStorage(Generic[AnySolve]):
    """All measurements with one storage format.

    timed                     the solves that determine the rate
    readings                  the read bandwidth before and after the solves
    setup_s, optimize_s       the set-up and optimization times
    held_bytes, setup_bytes   the memory of the solver and of the set-up, over all ranks
    """

    motifs: ClassVar[Sequence[str]]
    solves_name: ClassVar[str]

    storage: str
    levels: list[dict[str, Any]]
    timed: TimedSolves[AnySolve]
    readings: Limit
    setup_s: float
    optimize_s: float
    held_bytes: int
    setup_bytes: int
    trace: list[dict[str, Any]] | None

    @property
    def minimum_rate(self) -> float:
        """Return the rate of the solves in bytes per second, from the minimum number of bytes that the motifs move."""
        return float(sum(self.timed.motif(name)["bytes"] for name in self.motifs)) / self.timed.time_s

    @property
    def limit(self) -> Limit:
        """Return the limit: the read bandwidth, or a higher rate that the solves or their SpMVs reached."""
        limit, spmv = self.readings.including(self.solves_name, self.minimum_rate), self.timed.motif("spmv")
        return limit.including("spmv", spmv["bytes"] / spmv["max_s"]) if spmv["max_s"] else limit

    def limit_section(self) -> dict[str, Any]:
        """Return the section about the limit, and the fraction of the limit that the solves reached."""
        return {"fraction_of_limit": self.limit.share(self.minimum_rate), "limit": self.limit.section()}

    def telemetry(self) -> dict[str, Any]:
        """Return the times of the phases by step, and the trace if it was recorded."""
        return {"steps": self.timed.by_step, **({} if self.trace is None else {"trace": self.trace})}

    def table(self, *names: str) -> dict[str, Any]:
        """Return the named phases, each with its share of the limit."""
        return {name: with_share(self.timed.motif(name), self.limit.rate) for name in names}


def mesh_section(box: Box) -> dict[str, Any]:
    """Return the sizes of the 27-point problem as results record them."""
    names = ("nx", "ny", "nz", "npx", "npy", "npz", "gnx", "gny", "gnz")
    sizes = {"rows": box.global_rows, "nnz": box.global_nnz, "reference_grid": box.grid == process_grid(box.ranks)}
    return {**{name: getattr(box, name) for name in names}, **sizes}
