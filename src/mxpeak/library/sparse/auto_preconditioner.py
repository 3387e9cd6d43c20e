"""What `auto` means for a matrix: the preconditioner, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np
from scipy.sparse import csr_array

from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.stencil import weights
from mxpeak.errors import UsageError
from mxpeak.installation import install_command
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.layout.stencil import Box, times
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.factors import fill_of_any, width
from mxpeak.library.sparse.gather import GATHERED_BYTES, MOST_GATHERED, named, no_room, pattern, stacked
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.library.sparse.transversal import rows_to_diagonal
from mxpeak.runtime.calls import compile_once

PRECONDITIONERS = ("auto", "stencil", "amg", "lu", "gs", "sgs", "jacobi", "none")
#: Those of rows that several ranks share.
OVER_RANKS = ("amg", "lu", "gs", "sgs", "jacobi", "none")
#: Those that divide by the diagonal.
DIVIDING = ("stencil", "amg", "gs", "sgs", "jacobi")
#: What is said where kernels are compiled.
FIRST_USE = "mxpeak.gmres, first use of"
#: Why a matrix is factored: its graph is narrow, or nothing else is possible for rows of ranks.
NARROW = "the graph of A is narrow, so factors have little fill-in"
WIDE = "over several ranks only factors work with zeros on the diagonal"
#: Algebraic multigrid is for matrices whose entries beside the diagonal have the other sign, by at least this share.
M_LIKE = 0.8
#: The diagonal outweighs the rest of every row by so much that sweeps need few steps.
DOMINATED = 0.7
#: A matrix is factored where a dense block of as many rows as cut its graph in two takes, cubed, no more than so many
#: times A's entries; where multigrid would do too, up to so many rows, from which on it takes less time.
NARROW_GRAPH, FACTORED_ROWS = 60.0, 200_000
#: The largest share of |A - A^T| in |A + A^T| at which multigrid takes a matrix for a symmetric one.
SKEW = 0.1
#: Jacobi sweeps that make a vector smooth, and their weight.
SWEEPS, DAMPING = 10, 2 / 3
#: Neighbours of a row's neighbour, over a row's: beyond that the levels of multigrid fill up.
HUBS = 4.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A preconditioner by name and why; `box` and `stencil` of a matrix that is the benchmarks' own.

    rows      the rows of A in the order in which they have a full diagonal, if that is another than A's
    entries   about how many entries factors have, if they are not those of a narrow graph
    """

    name: str
    reason: str
    user: Callable[[Any], Any] | None = None
    box: Box | None = None
    stencil: tuple[float, ...] = ()
    rows: Array | None = None
    entries: float | None = None


def preconditioner(kernels: SparseKernels, A: Csr, asked: Any, everybody: RankGroup = SERIAL) -> Choice:
    """The preconditioner that was asked for, if this matrix allows it; auto: the first that suits it.  Collective."""
    if callable(asked):
        return Choice("user", "as asked", asked)
    if not isinstance(asked, str) or asked not in PRECONDITIONERS:
        solve = ", such as the method preconditioner=ilu.solve of a factorization" if hasattr(asked, "solve") else ""
        shown = repr(asked) if isinstance(asked, str) else f"an object of type {type(asked).__name__}"
        raise UsageError(
            f"preconditioner={shown} is unknown; use one of {', '.join(PRECONDITIONERS)}, or pass a function "
            f"that returns M^-1 r for a vector r{solve}"
        )
    if not everybody.alone:
        return _over_ranks(kernels, A, asked, everybody)
    zeros = np.flatnonzero(A.diagonal() == 0)
    if zeros.size and asked == "auto":
        return _of_permuted(kernels, A, zeros.size)
    if zeros.size and asked in DIVIDING:
        _refuse_zeros(zeros, asked)
    if asked in ("auto", "stencil"):
        found = _stencil(kernels, A)
        if found is not None or asked == "stencil":
            return found or _no_stencil()
    return _automatic(kernels, A, everybody) if asked == "auto" else _asked(asked)


def _of_permuted(kernels: SparseKernels, A: Csr, zeros: int) -> Choice:
    """Return the choice for A with its rows permuted to a full diagonal."""
    rows = rows_to_diagonal(A)
    permuted = csr_array(A[rows])
    found = _stencil(kernels, permuted) or _automatic(kernels, permuted, SERIAL)
    return replace(found, reason=_permuted(zeros, found.reason), rows=rows)


def _permuted(zeros: int, reason: str) -> str:
    return f"{zeros} diagonal entries are zero: rows were permuted to a full diagonal; {reason}"


def _without_diagonal(A: Csr, zeros: int, everybody: RankGroup) -> Choice:
    """Return the choice of ranks for a matrix with zeros on the diagonal: factors, if rank 0 has room.  Collective."""
    n, nnz = everybody.starts[-1], int(everybody.sum(A.nnz))
    problem = no_room(everybody, nnz, 2 * GATHERED_BYTES * nnz, "all rows")
    if n > MOST_GATHERED:
        problem = f'{n} rows exceed the {MOST_GATHERED} that rank 0 gathers without preconditioner="lu"'
    if problem:
        return Choice("none", f"{zeros} diagonal entries are zero, by which all others except lu divide, and {problem}")
    parts = everybody.comm.gather_objects(named(A, everybody))

    def decide() -> tuple[str, float | None]:
        whole = stacked(parts or [], n)
        permuted = csr_array(whole[rows_to_diagonal(whole)])
        return (NARROW, None) if narrow(permuted) else (WIDE, fill_of_any(permuted))

    why, entries = run_on_root(everybody.comm, decide)
    return Choice("lu", _permuted(zeros, why), entries=entries)


def _refuse_zeros(zeros: Array, asked: str) -> NoReturn:
    raise UsageError(
        f'preconditioner="{asked}" divides by the diagonal, but A[{zeros[0]}, {zeros[0]}] is zero (one of '
        f'{zeros.size} such entries); use preconditioner="auto" (which permutes the rows), "lu" or "none", '
        "or your own function such as scipy.sparse.linalg.spilu(A).solve"
    )


def _over_ranks(kernels: SparseKernels, A: Csr, asked: str, everybody: RankGroup) -> Choice:
    """The same for the rows of several ranks.  Collective."""
    if asked not in ("auto", *OVER_RANKS):
        raise UsageError(
            f'preconditioner="{asked}" supports only one process, but A is distributed over '
            f"{everybody.comm.size} ranks; use one of auto, {', '.join(OVER_RANKS)}, or pass a function "
            "that returns this rank's part of M^-1 r"
        )
    zeros = np.flatnonzero(A.diagonal() == 0) + everybody.first
    count = int(everybody.sum(zeros.size))
    if asked == "auto":
        if count:
            return _without_diagonal(A, count, everybody)
        return _automatic(kernels, A, everybody)
    everybody.alike(lambda: _check_pyamg(asked))
    if count and asked in DIVIDING:
        everybody.alike(lambda: _refuse_zeros(zeros, asked) if zeros.size else None)
    return Choice(asked, "as asked")


def _asked(name: str) -> Choice:
    _check_pyamg(name)
    return Choice(name, "as asked")


def _check_pyamg(name: str) -> None:
    if name == "amg" and not has_pyamg():
        raise UsageError(
            f'preconditioner="amg" needs PyAMG, which is not installed; run {install_command("amg")}, or '
            'use preconditioner="gs"'
        )


def _automatic(kernels: SparseKernels, A: Csr, everybody: RankGroup) -> Choice:
    sums, sweep = row_sums(A), sweeping(everybody)
    rest = everybody.largest(beside_diagonal(sums))
    if rest <= DOMINATED:
        return Choice(sweep, f"off-diagonal sums are at most {rest:.0%} of the diagonal, so sweeps need few steps")
    share = opposite_share(sums, everybody)
    if kernels.device is None and (why := _suits_factors(A, share, everybody)):  # devices have no SuperLU
        return Choice("lu", why)
    if share < M_LIKE:
        return Choice(
            sweep, f"{share:.0%} of the off-diagonal sum has the opposite sign, but multigrid needs {M_LIKE:.0%}"
        )
    crowd = hubs(A, everybody)
    if crowd > HUBS:
        return Choice(sweep, f"some rows have {crowd:.0f} times the mean number of neighbors, which fills the levels")
    if not everybody.all(has_pyamg()):
        return Choice(sweep, f"multigrid would suit this matrix: {install_command('amg')}")
    return Choice("amg", "off-diagonal entries have the opposite sign")


def sweeping(everybody: RankGroup) -> str:
    """The sweep that `auto` takes: the natural order, which ranks take, gains by going back too."""
    return "gs" if everybody.alone else "sgs"


def _suits_factors(A: Csr, share: float, everybody: RankGroup) -> str:
    """Why A is to be factored, if it is.  Collective.

    What is quicker to find out comes first: ranks have to gather their rows to learn whether the graph is narrow.
    """
    if everybody.sum(A.shape[0]) <= FACTORED_ROWS:
        return NARROW if narrow(A, everybody) else ""
    if everybody.alone and not narrow(A):
        return ""
    why = _unlike_multigrids(A, share, everybody)
    if not why or not (everybody.alone or narrow(A, everybody)):
        return ""
    return f"the graph of A is narrow, and multigrid may fail: {why}"


def _unlike_multigrids(A: Csr, share: float, everybody: RankGroup) -> str:
    """What keeps a matrix from being of the kind that multigrid is made for.  Collective."""
    if share < M_LIKE:
        return "signs of A do not suit it"
    if skew(A, everybody) > SKEW:
        return "A is not symmetric"
    return "A is indefinite" if indefinite(A, everybody) else ""


def narrow(A: Csr, everybody: RankGroup = SERIAL) -> bool:
    """Whether few rows cut the graph of A in two, so that its factors do not fill up much.

    Rank 0 finds out for all; not where it has no room for all rows.  Collective.
    """
    if everybody.alone:
        return bool(width(A) ** 3 <= NARROW_GRAPH * A.nnz)
    n, nnz = everybody.starts[-1], int(everybody.sum(A.nnz))
    if n > MOST_GATHERED or no_room(everybody, nnz, GATHERED_BYTES * nnz, "all rows"):
        return False
    parts = everybody.comm.gather_objects(named(pattern(A), everybody))
    return run_on_root(everybody.comm, lambda: narrow(stacked(parts or [], n)))


@dataclass(frozen=True, slots=True)
class RowSums:
    """Σ_j a_ij and Σ_j |a_ij| of every row, and the diagonal."""

    plain: Array
    absolute: Array
    diagonal: Array


def row_sums(A: Csr) -> RowSums:
    """Of all entries of each row."""
    ones = np.ones(A.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        return RowSums(A @ ones, abs(A) @ ones, A.diagonal())


def beside_diagonal(sums: RowSums) -> float:
    """The largest Σ |a_ij| / |a_ii| over i ≠ j of all rows; the diagonal has no zeros."""
    with np.errstate(over="ignore"):
        return float((sums.absolute / np.abs(sums.diagonal)).max(initial=0.0) - 1.0)


def opposite_share(sums: RowSums, everybody: RankGroup = SERIAL) -> float:
    """Σ |a_ij| over i ≠ j with the sign other than a_ii's, over that of all; 0 of a diagonal matrix.  Collective."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = everybody.sum(float((sums.absolute - np.abs(sums.diagonal)).sum()))
        surplus = everybody.sum(
            float(((sums.plain - sums.diagonal) * np.sign(sums.diagonal)).sum())
        )  # what has the same sign, less
        return 0.5 * (1.0 - surplus / total) if total > 0 else 0.0


def skew(A: Csr, everybody: RankGroup = SERIAL) -> float:
    """The sum of |A - A^T| over that of |A + A^T|; of ranks, of the blocks that are a rank's own.  Collective."""
    A = A if everybody.alone else A[:, : A.shape[0]]
    T = A.T.tocsr()
    with np.errstate(over="ignore", invalid="ignore"):
        if np.array_equal(A.indptr, T.indptr) and np.array_equal(A.indices, T.indices):  # a symmetric pattern: quicker
            A, T = A.data, T.data
        apart, together = float(abs(A - T).sum()), float(abs(A + T).sum())
        apart, together = everybody.sum(apart), everybody.sum(together)
    return apart / together if together else 0.0


def indefinite(A: Csr, everybody: RankGroup = SERIAL) -> bool:
    """Whether a smooth vector proves so: v^T A v has not the sign of v^T D v, v what Jacobi sweeps leave of ones.

    Collective.
    """
    diagonal = A.diagonal()
    v = np.ones(A.shape[0])
    with np.errstate(all="ignore"):
        for _ in range(SWEEPS):
            v -= DAMPING * (A @ everybody.with_halo(v)) / diagonal
        products = v @ (A @ everybody.with_halo(v)), v @ (diagonal * v)
        return everybody.sum(float(products[0])) * everybody.sum(float(products[1])) < 0


def hubs(A: Csr, everybody: RankGroup = SERIAL) -> float:
    """How many entries a row has that is met along an entry, over those of the mean row.  Collective."""
    lengths = np.diff(A.indptr).astype(np.float64)
    met = everybody.sum(float(everybody.with_halo(lengths)[A.indices].sum()))
    return met * everybody.sum(A.shape[0]) / everybody.sum(A.nnz) ** 2


def has_pyamg() -> bool:
    """Whether PyAMG can be imported."""
    return find_spec("pyamg") is not None


# --- the benchmarks' own matrix --------------------------------------------------------------------------------------


def _no_stencil() -> Choice:
    raise UsageError(
        'preconditioner="stencil" needs the 27-point matrix of HPG-MxP or HPCG (26 and -1, or -1.5 and '
        '-0.5 in z) on a box with even sides, but A is another matrix; use preconditioner="auto"'
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
    rows = kernels.on_host(kernels.stencil_rows(box, stencil))
    same = ((A.indptr, rows.indptr), (A.indices, rows.indices), (A.data, rows.data))
    if not all(np.array_equal(a, b) for a, b in same):
        return None
    return Choice("stencil", f"A is the 27-point matrix of a {times(box.shape)} box", box=box, stencil=tuple(stencil))
