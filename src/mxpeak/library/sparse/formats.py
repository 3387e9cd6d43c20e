"""The formats of the inner iteration: what a precision means for the values of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxpeak.kernels.contract.sparse import Rows, SparseKernels
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.precision import PRECISIONS

PRECISION_NAMES = ("mixed", "fp64", "fp32", "bf16", "fp16")
#: Formats that `mixed` tries for one that holds every value exactly; bf16 before fp16, since it widens by a shift.
NARROW = ("bf16", "fp16", "fp32")
#: Entries that are looked at first: where they do not fit a format, the others need not be.
SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of the inner matrix's values and vectors; exact: no value was rounded."""

    values: str
    vectors: str
    exact: bool
    note: str = ""

    @property
    def gain(self) -> float:
        """The factor by which one cycle can reduce the residual before rounding ends it, and steps are wasted."""
        u = PRECISIONS[self.vectors].u if self.exact else max(PRECISIONS[self.values].u, PRECISIONS[self.vectors].u)
        return 16 * u


def formats(
    kernels: SparseKernels, rows: Rows, precision: str, everybody: RankGroup = SERIAL, *, whole: bool = False
) -> Formats:
    """The formats that a precision means for these values; what overflows a format is kept in fp32.  Collective.

    whole   `mixed` rounds no value
    """
    if precision == "fp64":
        return Formats("fp64", "fp64", True)
    if precision == "mixed":
        exact = narrowest(kernels, rows, everybody) or ("fp64" if whole else "")
        return Formats(exact or "fp32", "fp32", bool(exact))
    worst = everybody.largest(kernels.rounding(rows, precision))
    if worst == float("inf"):
        largest = everybody.max_abs(rows.data, np)
        note = f"{precision} ends at {PRECISIONS[precision].largest:g}, but values reach {largest:.3g}, so fp32 is used"
        return Formats("fp32", "fp32", rounding(kernels, rows, "fp32", everybody) == 0, note)
    return Formats(precision, "fp32", worst == 0)


def narrowest(kernels: SparseKernels, rows: Rows, everybody: RankGroup = SERIAL) -> str:
    """The first format that holds every value exactly; empty if none does but fp64.  Collective."""
    return next((name for name in NARROW if rounding(kernels, rows, name, everybody) == 0), "")


def rounding(kernels: SparseKernels, rows: Rows, name: str, everybody: RankGroup = SERIAL) -> float:
    """The largest relative error of a value in this format, or a lower bound other than zero of it.  Collective."""
    step = max(1, rows.data.size // SAMPLE)
    few: Array = np.ascontiguousarray(rows.data[::step])
    sample = Rows(rows.n, rows.halo, rows.indptr, rows.indices, few)
    return everybody.largest(kernels.rounding(sample, name) or kernels.rounding(rows, name))


def out_of_range(kernels: SparseKernels, rows: Rows, precision: str, everybody: RankGroup = SERIAL) -> bool:
    """Whether values in a 16-bit format would be off by more than its roundoff, too large or small.  Collective."""
    narrow = precision in ("bf16", "fp16")
    return narrow and everybody.largest(kernels.rounding(rows, precision)) > PRECISIONS[precision].u
