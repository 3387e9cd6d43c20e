"""What `auto` and `mixed` mean for a matrix: the preconditioner and the formats, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from mxpeak.distributed.stencil import weights
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import Rows, SparseKernels
from mxpeak.layout.stencil import Box, times
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import compile_once

PRECISION_NAMES = ("mixed", "fp64", "fp32", "bf16", "fp16")
PRECONDITIONERS = ("auto", "stencil", "amg", "gs", "sgs", "jacobi", "none")
#: Those that divide by the diagonal.
DIVIDING = ("stencil", "amg", "gs", "sgs", "jacobi")
#: Formats that `mixed` tries for one that holds every value exactly; bf16 before fp16, since it widens by a shift.
NARROW = ("bf16", "fp16", "fp32")
#: What is said where kernels are compiled.
FIRST_USE = "mxpeak.gmres, first use of"
#: Entries that are looked at first: where they do not fit a format, the others need not be.
SAMPLE = 4096
#: Algebraic multigrid is for matrices whose entries beside the diagonal have the other sign, by at least this share.
M_LIKE = 0.8


@dataclass(frozen=True, slots=True)
class Choice:
    """A preconditioner by name and why; `box` and `stencil` of a matrix that is the benchmarks' own."""

    name: str
    reason: str
    user: Callable[[Any], Any] | None = None
    box: Box | None = None
    stencil: tuple[float, ...] = ()


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


def preconditioner(kernels: SparseKernels, A: Csr, asked: Any) -> Choice:
    """The preconditioner that was asked for, if this matrix allows it; auto: the first that suits it."""
    if callable(asked):
        return Choice("user", "as asked", asked)
    if not isinstance(asked, str) or asked not in PRECONDITIONERS:
        solve = "; of a factorization pass its method: preconditioner=ilu.solve" if hasattr(asked, "solve") else ""
        shown = repr(asked) if isinstance(asked, str) else f"an object of type {type(asked).__name__}"
        raise UsageError(
            f"preconditioner={shown} is unknown; choose one of {', '.join(PRECONDITIONERS)}, or pass a function "
            f"that returns M^-1 r for a vector r{solve}"
        )
    zeros = np.flatnonzero(A.diagonal() == 0)
    if zeros.size and asked == "auto":
        return Choice("none", f"{zeros.size} diagonal entries are zero, by which the others divide")
    if zeros.size and asked in DIVIDING:
        raise UsageError(
            f"A[{zeros[0]}, {zeros[0]}] is zero, one of {zeros.size} such diagonal entries, by which preconditioner="
            f'"{asked}" divides; type preconditioner="none", pass a function of your own such as '
            "scipy.sparse.linalg.spilu(A).solve, or move other entries to the diagonal "
            "(scipy.sparse.csgraph.maximum_bipartite_matching)"
        )
    if asked in ("auto", "stencil"):
        found = _stencil(kernels, A)
        if found is not None or asked == "stencil":
            return found or _no_stencil()
    return _automatic(A) if asked == "auto" else _asked(asked)


def _asked(name: str) -> Choice:
    if name == "amg" and not has_pyamg():
        raise UsageError(
            'preconditioner="amg" needs PyAMG, which is not installed; type: pip install "mxpeak[amg]", '
            'or preconditioner="gs"'
        )
    return Choice(name, "as asked")


def _automatic(A: Csr) -> Choice:
    share = opposite_share(A)
    if share < M_LIKE:
        return Choice(
            "gs", f"{share:.0%} of what is beside the diagonal has the other sign: multigrid wants {M_LIKE:.0%}"
        )
    if not has_pyamg():
        return Choice("gs", 'multigrid would suit this matrix: pip install "mxpeak[amg]"')
    return Choice("amg", "entries beside the diagonal have the other sign")


def has_pyamg() -> bool:
    """Whether PyAMG can be imported."""
    return find_spec("pyamg") is not None


def opposite_share(A: Csr) -> float:
    """Σ |a_ij| over i ≠ j with the sign other than a_ii's, over the sum of all; 0 of a diagonal matrix."""
    i = rows_of_entries(A)
    beside = i != A.indices
    signs = np.sign(A.diagonal())[i]
    size = np.abs(A.data)
    total = float(size[beside].sum())
    return float(size[beside & (A.data * signs < 0)].sum()) / total if total else 0.0


# --- the benchmarks' own matrix --------------------------------------------------------------------------------------


def _no_stencil() -> Choice:
    raise UsageError(
        'preconditioner="stencil" is for the 27-point matrices of HPG-MxP and HPCG, 26 and -1 (or -1.5 and -0.5 below '
        'and above in z) on a box of even sides, x fastest; A is none of them: type preconditioner="auto"'
    )


def _stencil(kernels: SparseKernels, A: Csr) -> Choice | None:
    """Whether A is the 27-point matrix of a box that has a coarser one, entry by entry."""
    first = A.indices[: A.indptr[1]]
    if first.size != 8:
        return None
    nx, plane = int(first[2]), int(first[4])
    if nx < 2 or plane % nx or A.shape[0] % plane:
        return None
    box = Box(nx, plane // nx, A.shape[0] // plane)
    if any(side % 2 for side in box.shape) or A.nnz != box.global_nnz:
        return None
    stencil = weights(nonsymmetric=bool(A.data[4] != -1.0))
    compile_once(f"{FIRST_USE} the 27-point matrix", ("rows",), lambda: kernels.stencil_rows(Box(2, 2, 2), stencil))
    rows = kernels.stencil_rows(box, stencil)
    same = ((A.indptr, rows.indptr), (A.indices, rows.indices), (A.data, rows.data))
    if not all(np.array_equal(a, b) for a, b in same):
        return None
    return Choice("stencil", f"A is the 27-point matrix of a {times(box.shape)} box", box=box, stencil=tuple(stencil))


# --- formats ---------------------------------------------------------------------------------------------------------


def formats(kernels: SparseKernels, rows: Rows, precision: str) -> Formats:
    """The formats that a precision means for these values; what overflows a format is kept in fp32."""
    if precision == "fp64":
        return Formats("fp64", "fp64", True)
    if precision == "mixed":
        exact = narrowest(kernels, rows)
        return Formats(exact or "fp32", "fp32", bool(exact))
    worst = kernels.rounding(rows, precision)
    if worst == float("inf"):
        largest = float(np.abs(rows.data).max())
        note = f"{precision} ends at {PRECISIONS[precision].largest:g}, values at {largest:.3g}: they are kept in fp32"
        return Formats("fp32", "fp32", rounding(kernels, rows, "fp32") == 0, note)
    return Formats(precision, "fp32", worst == 0)


def narrowest(kernels: SparseKernels, rows: Rows) -> str:
    """The first format that holds every value exactly; empty if none does but fp64."""
    return next((name for name in NARROW if rounding(kernels, rows, name) == 0), "")


def rounding(kernels: SparseKernels, rows: Rows, name: str) -> float:
    """The largest relative error of a value in this format, or a lower bound other than zero of it."""
    step = max(1, rows.data.size // SAMPLE)
    few: Array = np.ascontiguousarray(rows.data[::step])
    return kernels.rounding(Rows(rows.n, rows.halo, rows.indptr, rows.indices, few), name) or kernels.rounding(
        rows, name
    )


def out_of_range(kernels: SparseKernels, rows: Rows, precision: str) -> bool:
    """Whether values in a 16-bit format would be off by more than its roundoff: too large for it, or too small."""
    narrow = precision in ("bf16", "fp16")
    return narrow and kernels.rounding(rows, precision) > PRECISIONS[precision].u
