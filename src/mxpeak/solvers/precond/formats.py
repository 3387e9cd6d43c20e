"""The number formats of the inner iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.kernels.contract.sparse import Rows, SparseKernels
from mxpeak.precision import PRECISIONS

PRECISION_NAMES = ("mixed", "fp64", "fp32", "bf16", "fp16")
#: Formats that `mixed` tries in order to store every value exactly; bf16 precedes fp16, because a shift widens it.
NARROW = ("bf16", "fp16", "fp32")
#: Number of entries in the sample: if a format does not represent these exactly, the others need no check.
SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of the inner matrix's values and vectors; `exact` means that no value is rounded."""

    values: str
    vectors: str
    exact: bool
    note: str = ""

    @property
    def gain(self) -> float:
        """Return the factor by which one cycle can reduce the residual before rounding makes further steps useless."""
        u = PRECISIONS[self.vectors].u if self.exact else max(PRECISIONS[self.values].u, PRECISIONS[self.vectors].u)
        return 16 * u


def formats(
    kernels: SparseKernels, rows: Rows, precision: str, group: RankGroup = SERIAL, *, exact: bool = False
) -> Formats:
    """Return the formats for a precision and these values; use fp32 if a value overflows the format. Collective.

    exact   `mixed` must not round any value
    """
    if precision == "fp64":
        return Formats("fp64", "fp64", True)
    if precision == "mixed":
        narrow = narrowest(kernels, rows, group) or ("fp64" if exact else "")
        return Formats(narrow or "fp32", "fp32", bool(narrow))
    worst = group.largest(kernels.rounding(rows, precision))
    if worst == float("inf"):
        largest = group.max_abs(rows.data, np)
        note = f"{precision} ends at {PRECISIONS[precision].largest:g}, but values reach {largest:.3g}, so fp32 is used"
        return Formats("fp32", "fp32", rounding(kernels, rows, "fp32", group) == 0, note)
    return Formats(precision, "fp32", worst == 0)


def narrowest(kernels: SparseKernels, rows: Rows, group: RankGroup = SERIAL) -> str:
    """Return the first narrow format that represents every value exactly, or an empty string. Collective."""
    return next((name for name in NARROW if rounding(kernels, rows, name, group) == 0), "")


def rounding(kernels: SparseKernels, rows: Rows, name: str, group: RankGroup = SERIAL) -> float:
    """Return the largest relative rounding error of an entry in the format `name`, or a lower bound of it. Collective.

    If rounding changes a sampled entry on a rank, the rank examines only its sample. The result is 0 only if the
    format represents every entry exactly.
    """
    step = max(1, rows.data.size // SAMPLE)
    few: Array = np.ascontiguousarray(rows.data[::step])
    sample = Rows(rows.n, rows.halo, rows.indptr, rows.indices, few)
    return group.largest(kernels.rounding(sample, name) or kernels.rounding(rows, name))


def out_of_range(kernels: SparseKernels, rows: Rows, precision: str, group: RankGroup = SERIAL) -> bool:
    """Return whether a value is too large or too small for a 16-bit format. Collective."""
    narrow = precision in ("bf16", "fp16")
    return narrow and group.largest(kernels.rounding(rows, precision)) > PRECISIONS[precision].u
