"""Select the preconditioner for a matrix, with the reason, if the user requests "auto"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from math import cbrt, sqrt
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from mxpeak.distributed.csr import Csr, pattern
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.distributed.stencil import weights
from mxpeak.errors import UsageError
from mxpeak.installation import install_command
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.layout.stencil import Box, times
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.gmres_driver import GmresOptions
from mxpeak.solvers.precond.aggregation import smooth
from mxpeak.solvers.precond.band import bandwidth
from mxpeak.solvers.precond.factors import fill, fill_of_any, largest_level, no_room_for_rows, separator
from mxpeak.solvers.precond.problem import FIRST_USE
from mxpeak.solvers.precond.setup import DIVIDING, Choice, default_sweep
from mxpeak.solvers.precond.symbolic import fill_in_order
from mxpeak.solvers.precond.transversal import rows_to_diagonal
from mxpeak.solvers.recurrence_driver import METHODS

PRECONDITIONERS = ("auto", "stencil", "amg", "lu", "gs", "sgs", "jacobi", "none")
#: Preconditioners for rows that are distributed over several ranks.
OVER_RANKS = ("amg", "lu", "gs", "sgs", "jacobi", "none")
#: Preconditioners for complex matrices.
OF_COMPLEX = ("lu", "gs", "sgs", "jacobi", "none")
#: Preconditioners that are symmetric, and positive definite if A is.
SYMMETRIC = ("auto", "stencil", "amg", "lu", "sgs", "jacobi", "none")
#: Reasons for a factorization: a narrow graph, a good order of elimination, or no other preconditioner for the rows of
#: several ranks.
NARROW = "the graph of A is narrow, so factors have little fill-in"
ORDERED = "a minimum-degree order leaves little fill-in"
WIDE = "over several ranks only factors work with zeros on the diagonal"
#: Smallest fraction of off-diagonal entries with the opposite sign for which algebraic multigrid is suitable.
M_LIKE = 0.8
#: If the off-diagonal sum of every row is at most this fraction of the diagonal entry, sweeps need few steps.
DOMINATED = 0.7
#: A matrix is factored if the cubed number of rows that separate its graph into two parts is at most NARROW_GRAPH
#: times the number of entries. If multigrid is also suitable, factors are used up to FACTORED_ROWS rows; above,
#: multigrid is faster.
NARROW_GRAPH, FACTORED_ROWS = 60.0, 200_000
#: If multigrid is not suitable, the fill-in is also computed from an order of elimination. For large or dense graphs,
#: this order takes too long. It is therefore computed only for at most FEW_ENTRIES entries per row, and a separator of
#: at most SEPARATOR·sqrt(n) rows, as planar graphs have (Lipton and Tarjan 1979). The separator is estimated by the
#: mean level of a breadth-first search, which a long chain of rows makes too small. Therefore, the largest level must
#: also have at most LARGEST·sqrt(n) rows: a mesh of 40,000 rows with 200 long lines has 12.3·sqrt(n).
FEW_ENTRIES, SEPARATOR, LARGEST = 6.0, sqrt(8.0), 14.0
#: Largest ratio of |A - A^T| to |A + A^T| for which multigrid treats a matrix as symmetric.
SKEW = 0.1
#: Largest mean number of neighbors of a neighbor, relative to that of a row, for which multigrid is used. Above this
#: ratio, multigrid levels fill up.
HUBS = 4.0


def choose_preconditioner(kernels: SparseKernels, A: Csr, requested: Any, group: RankGroup = SERIAL) -> Choice:
    """Return the requested preconditioner, or the first suitable preconditioner for "auto". Collective.

    Raises a UsageError if the requested preconditioner is unknown or does not suit A.
    """
    if callable(requested):
        return Choice("user", "as asked", requested)
    if not isinstance(requested, str) or requested not in PRECONDITIONERS:
        solve = (
            ", such as the method preconditioner=ilu.solve of a factorization" if hasattr(requested, "solve") else ""
        )
        shown = repr(requested) if isinstance(requested, str) else f"an object of type {type(requested).__name__}"
        raise UsageError(
            f"preconditioner={shown} is unknown; use one of {', '.join(PRECONDITIONERS)}, or pass a function "
            f"that returns M^-1 r for a vector r{solve}"
        )
    if not group.is_serial and requested not in ("auto", *OVER_RANKS):
        raise UsageError(
            f'preconditioner="{requested}" supports only one process, but A is distributed over '
            f"{group.comm.size} ranks; use one of auto, {', '.join(OVER_RANKS)}, or pass a function "
            "that returns this rank's part of M^-1 r"
        )
    if kernels.parts == 2 and requested not in ("auto", *OF_COMPLEX):
        raise UsageError(
            f'preconditioner="{requested}" supports only real matrices, but A is complex; use one of auto, '
            f"{', '.join(OF_COMPLEX)}, or pass a function that returns M^-1 r"
        )
    zeros = np.flatnonzero(A.diagonal() == 0) + group.first
    count = int(group.sum(zeros.size))
    if requested == "auto":
        choice = _for_zero_diagonal(kernels, A, count, group) if count else _automatic(kernels, A, group)
        return replace(choice, automatic=True)
    group.collectively(lambda: _check_request(requested, zeros))
    if requested != "stencil":
        return Choice(requested, "as asked")
    if stencil := _stencil(kernels, A):
        return stencil
    raise UsageError(
        'preconditioner="stencil" needs the 27-point matrix of HPG-MxP or HPCG (26 and -1, or -1.5 and '
        '-0.5 in z) on a box with even sides, but A is another matrix; use preconditioner="auto"'
    )


def choose_for_recurrence(kernels: SparseKernels, A: Csr, options: GmresOptions, group: RankGroup) -> Choice:
    """Return the preconditioner for `cg`, `minres` or `bicgstab`; that of the first two is symmetric. Collective.

    Raises a UsageError if the requested preconditioner or, for `cg`, the diagonal of A is not suitable.
    """
    requested, method = options.preconditioner, METHODS[options.method]
    if not method.hermitian:
        return choose_preconditioner(kernels, A, requested, group)
    allowed = SYMMETRIC if method.definite else tuple(name for name in SYMMETRIC if name != "lu")
    if not group.is_serial:
        allowed = tuple(name for name in allowed if name not in ("amg", "stencil"))
    if isinstance(requested, str) and requested in PRECONDITIONERS and requested not in allowed:
        raise UsageError(
            f'preconditioner="{requested}" is not symmetric and positive definite'
            f"{'' if group.is_serial else ' over several ranks'}, as {method.name} requires; use one of "
            f"{', '.join(allowed)}"
        )
    diagonal = A.diagonal().real
    if method.definite:
        group.collectively(lambda: _check_positive(diagonal, group))
    positive = group.all((diagonal > 0).all())
    if requested == "auto" and not positive:
        return Choice("none", "the diagonal of A is not positive, so sweeps are not positive definite", symmetric=True)
    choice = choose_preconditioner(kernels, A, requested, group)
    if choice.name not in allowed and choice.user is None:
        reason = choice.reason if choice.name == "gs" else "the best symmetric preconditioner that needs no set-up"
        choice = replace(choice, name="sgs", reason=reason)
    return replace(choice, symmetric=True)


def _check_positive(diagonal: Array, group: RankGroup) -> None:
    """Raise a UsageError if a diagonal entry is not positive, so that A is not positive definite."""
    bad = np.flatnonzero(~(diagonal > 0))
    if bad.size:
        i = int(bad[0])
        raise UsageError(
            f"A is not positive definite, as cg requires: A[{group.first + i}, {group.first + i}] is {diagonal[i]:.6g} "
            f"(one of {bad.size} such entries); use mxpeak.minres, or mxpeak.gmres"
        )


def _check_request(requested: str, zeros: Array) -> None:
    """Raise a UsageError if PyAMG is missing, or if the preconditioner would divide by a zero on the diagonal."""
    if requested == "amg" and not has_pyamg():
        raise UsageError(
            f'preconditioner="amg" needs PyAMG, which is not installed; run {install_command("amg")}, or '
            'use preconditioner="gs"'
        )
    if zeros.size and requested in DIVIDING:
        raise UsageError(
            f'preconditioner="{requested}" divides by the diagonal, but A[{zeros[0]}, {zeros[0]}] is zero (one of '
            f'{zeros.size} such entries); use preconditioner="auto" (which permutes the rows), "lu" or "none", '
            "or your own function such as scipy.sparse.linalg.spilu(A).solve"
        )


def _for_zero_diagonal(kernels: SparseKernels, A: Csr, zeros: int, group: RankGroup) -> Choice:
    """Permute the rows of A to a full diagonal, and choose a preconditioner. Collective.

    With several ranks, the preconditioner is `lu`, or `none` if the rows of all ranks do not fit into memory.
    """
    permuted_note = f"{zeros} diagonal entries are zero: rows were permuted to a full diagonal; "
    if group.is_serial:
        rows = rows_to_diagonal(A)
        choice = _automatic(kernels, csr_array(A[rows]), SERIAL)
        return replace(choice, reason=permuted_note + choice.reason, rows=rows)
    if problem := no_room_for_rows(group, int(group.sum(A.nnz)), copies=2):
        return Choice("none", f"{zeros} diagonal entries are zero, by which all others except lu divide, and {problem}")

    def reason_and_fill(whole: Csr) -> tuple[str, float | None]:
        permuted = csr_array(whole[rows_to_diagonal(whole)])
        return (NARROW, None) if narrow(permuted) else (WIDE, fill_of_any(permuted))

    reason, entries = group.on_all_rows(A, reason_and_fill)
    return Choice("lu", permuted_note + reason, entries=entries)


def _automatic(kernels: SparseKernels, A: Csr, group: RankGroup) -> Choice:
    """Return the first suitable preconditioner for a matrix with a full diagonal, and the reason. Collective."""
    if group.is_serial and kernels.parts == 1 and (choice := _stencil(kernels, A)):
        return choice
    sums, sweep = row_sums(A), default_sweep(group)
    rest = group.largest(off_diagonal_ratio(sums))
    if rest <= DOMINATED:
        return Choice(sweep, f"off-diagonal sums are at most {rest:.0%} of the diagonal, so sweeps need few steps")
    share = opposite_share(sums, group) if kernels.parts == 1 else 0.0
    if kernels.device is None and (why := _reason_to_factor(A, share, group)):  # devices have no SuperLU
        return Choice("lu", why)
    if kernels.parts == 2:
        return Choice(sweep, "the graph of A is not narrow, and multigrid needs a real A")
    if share < M_LIKE:
        return Choice(
            sweep, f"{share:.0%} of the off-diagonal sum has the opposite sign, but multigrid needs {M_LIKE:.0%}"
        )
    ratio = hubs(A, group)
    if ratio > HUBS:
        return Choice(sweep, f"some rows have {ratio:.0f} times the mean number of neighbors, which fills the levels")
    if not group.all(has_pyamg()):
        return Choice(sweep, f"multigrid would suit this matrix: {install_command('amg')}")
    return Choice("amg", "off-diagonal entries have the opposite sign")


def _reason_to_factor(A: Csr, share: float, group: RankGroup) -> str:
    """Return the reason why A should be factored, or an empty string. Collective.

    The cheaper test is first, because the test for a narrow graph gathers the rows of all ranks.
    """
    if group.sum(A.shape[0]) <= FACTORED_ROWS:
        return why_little_fill(A, group, thorough=share < M_LIKE)
    if group.is_serial and not narrow(A):
        return ""
    why = _reason_against_multigrid(A, share, group)
    if not why or not (group.is_serial or narrow(A, group)):
        return ""
    return f"the graph of A is narrow, and multigrid may fail: {why}"


def _reason_against_multigrid(A: Csr, share: float, group: RankGroup) -> str:
    """Return the reason why multigrid may fail for A, or an empty string. Collective."""
    if share < M_LIKE:
        return "signs of A do not suit it"
    if skew(A, group) > SKEW:
        return "A is not symmetric"
    return "A is indefinite" if indefinite(A, group) else ""


def narrow(A: Csr, group: RankGroup = SERIAL) -> bool:
    """Return whether few rows separate the graph of A into two parts, so that its factors have little fill-in.

    Returns False if rank 0 has too little memory for all rows. Collective.
    """
    return bool(why_little_fill(A, group))


def why_little_fill(A: Csr, group: RankGroup = SERIAL, *, thorough: bool = False) -> str:
    """Return the reason why the factors of A have little fill-in, or an empty string. Collective.

    If `thorough`, compute the fill-in of a graph in which the search finds no small separator. Returns an empty string
    if rank 0 has too little memory for all rows.
    """
    if no_room_for_rows(group, int(group.sum(A.nnz))):
        return ""
    return group.on_all_rows(A if group.is_serial else pattern(A), partial(_why_little_fill, thorough=thorough))


def _why_little_fill(A: Csr, *, thorough: bool) -> str:
    """Return the reason from the graph of all rows. The bandwidth of A is an upper bound of the size of a separator.

    If a few long edges connect distant parts of a graph, a breadth-first search finds no small separator.
    """
    n, limit = A.shape[0], cbrt(NARROW_GRAPH * A.nnz)
    if bandwidth(A) <= limit or (rows := separator(A, limit)) <= limit:
        return NARROW
    if not thorough or A.nnz > FEW_ENTRIES * n or rows > SEPARATOR * sqrt(n) or largest_level(A) > LARGEST * sqrt(n):
        return ""
    return ORDERED if fill_in_order(A) <= fill(n, A.nnz) else ""


@dataclass(frozen=True, slots=True)
class RowSums:
    """The sums Σ_j a_ij and Σ_j |a_ij| of each row, and the diagonal of A."""

    plain: Array
    absolute: Array
    diagonal: Array


def row_sums(A: Csr) -> RowSums:
    """Compute the sums Σ_j a_ij and Σ_j |a_ij| of each row, and extract the diagonal."""
    ones = np.ones(A.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        return RowSums(A @ ones, abs(A) @ ones, A.diagonal())


def off_diagonal_ratio(sums: RowSums) -> float:
    """Return the largest Σ_{j≠i} |a_ij| / |a_ii| of all rows, for a diagonal without zeros."""
    with np.errstate(over="ignore"):
        return float((sums.absolute / np.abs(sums.diagonal)).max(initial=0.0) - 1.0)


def opposite_share(sums: RowSums, group: RankGroup = SERIAL) -> float:
    """Return the fraction of Σ |a_ij|, i ≠ j, in which a_ij and a_ii have opposite signs. Collective.

    The fraction is 0 for a diagonal A.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = group.sum(float((sums.absolute - np.abs(sums.diagonal)).sum()))
        same_minus_opposite = group.sum(float(((sums.plain - sums.diagonal) * np.sign(sums.diagonal)).sum()))
        return 0.5 * (1.0 - same_minus_opposite / total) if total > 0 else 0.0


def skew(A: Csr, group: RankGroup = SERIAL) -> float:
    """Return the sum of |A - A^T| divided by the sum of |A + A^T|. Collective.

    Each rank uses only its diagonal block.
    """
    A = A if group.is_serial else A[:, : A.shape[0]]
    T = A.T.tocsr()
    with np.errstate(over="ignore", invalid="ignore"):
        if np.array_equal(A.indptr, T.indptr) and np.array_equal(A.indices, T.indices):  # faster for the same pattern
            A, T = A.data, T.data
        difference, total = float(abs(A - T).sum()), float(abs(A + T).sum())
        difference, total = group.sum(difference), group.sum(total)
    return difference / total if total else 0.0


def indefinite(A: Csr, group: RankGroup = SERIAL) -> bool:
    """Return whether A is indefinite: v^T A v and v^T D v have different signs for a smooth v and the diagonal D of A.

    Collective.
    """
    with np.errstate(all="ignore"):
        v = smooth(A, group)
        products = v @ (A @ group.with_halo(v)), v @ (A.diagonal() * v)
        return group.sum(float(products[0])) * group.sum(float(products[1])) < 0


def hubs(A: Csr, group: RankGroup = SERIAL) -> float:
    """Return the mean row length of all neighbors, divided by the mean length of all rows. Collective."""
    lengths = np.diff(A.indptr).astype(np.float64)
    entries = group.sum(float(group.with_halo(lengths)[A.indices].sum()))
    return entries * group.sum(A.shape[0]) / group.sum(A.nnz) ** 2


def has_pyamg() -> bool:
    """Return whether PyAMG can be imported."""
    return find_spec("pyamg") is not None


def _stencil(kernels: SparseKernels, A: Csr) -> Choice | None:
    """Return the choice `stencil` if A is the 27-point matrix of a box with even sides, otherwise None."""
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
    rows = kernels.on_host(kernels.stencil_rows(box, stencil))
    same = ((A.indptr, rows.indptr), (A.indices, rows.indices), (A.data, rows.data))
    if not all(np.array_equal(a, b) for a, b in same):
        return None
    return Choice("stencil", f"A is the 27-point matrix of a {times(box.shape)} box", box=box, stencil=tuple(stencil))
