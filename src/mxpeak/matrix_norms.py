"""Norms of one's own matrices: max, one, inf and fro, of any structure, type, strides and distribution.

    mxpeak.norm(A, "one")                                  # NumPy array, never copied
    mxpeak.norm(A, "fro", structure="hermitian", uplo="lower")
    mxpeak.norms(A)                                        # all four in one pass over memory
    mxpeak.column_norms(A, "max"); mxpeak.row_norms(A, "fro")

The matrix may also be a collection of tiles (`from_tiles`), a distributed matrix in ScaLAPACK's layout
(`from_scalapack`), or in LAPACK's band storage (`from_band`).  Norms of distributed matrices are collective, and every
rank gets the same number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import make_grid
from mxpeak.comm.solo import Solo
from mxpeak.dist.matrix import DistMatrix
from mxpeak.dist.norm_matrix import CyclicMatrix, TileMatrix, cyclic, scalapack_parts, tile_matrix, whole
from mxpeak.errors import MxpeakError, UsageError
from mxpeak.inputs import Array, as_array, check_device
from mxpeak.kernels.host.norm_tiles import SMALL, small_norm
from mxpeak.kernels.host.norm_tiles import Norms as HostNorms
from mxpeak.kernels.host.team import Team
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.places import consecutive
from mxpeak.layout.structure import WHOLE, Band, Structure
from mxpeak.layout.structure import structure as structure_of
from mxpeak.perf.host import one_core_each
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.norms import KINDS, NEEDS
from mxpeak.solvers.reproducible_norms import reproducible_norms, vector_norms

#: The types whose entries are read as they lie; integers are copied to float64.
TYPES = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64")
#: Other names of the kinds: those of NumPy and LAPACK.
ALIASES: dict[Any, str] = {1: "one", np.inf: "inf", "infinity": "inf", "frobenius": "fro", "1": "one"}


Matrix = TileMatrix | CyclicMatrix
AnyMatrix = TypeVar("AnyMatrix", TileMatrix, CyclicMatrix)


class Norms(NamedTuple):
    """The four norms of a matrix."""

    max: float
    one: float
    inf: float
    fro: float


def norm(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, deterministic: bool = False, threads: int | None = None,
    device: str = "auto",
) -> float:  # fmt: skip
    """One norm of A: `max` |a_ij|, `one` = max_j Σ_i |a_ij|, `inf` = max_i Σ_j |a_ij|, or `fro` = sqrt(Σ |a_ij|²).

    `structure` says which entries are read: general, trapezoid, triangular (`uplo` lower or upper, `diag` nonunit or
    unit), symmetric, hermitian (`uplo`), band (`kl`, `ku`), hermitian-band, hessenberg.  What lies outside is never
    read.  NaN wins over Inf, and Inf over numbers; no intermediate result over- or underflows.  A vector is a column.

    `deterministic`: the same bits for the same matrix on any grid, in any storage, with any number of threads; about
    two to four times the cost.  Collective over the ranks of a distributed A.
    """
    name = _kind(kind)
    if type(A) is np.ndarray and A.nbytes <= SMALL and structure == "general" and not deterministic:
        check_device(device)
        if (uplo, diag, kl, ku, threads) == (None,) * 5 and (found := small_norm(A, NEEDS[name][0])) is not None:
            return found
    M, S = _matrix(A, structure, uplo, diag, kl, ku, device)
    return _norms(M, S, [name], deterministic, threads)[name]


def norms(
    A: Any, *, structure: str = "general", uplo: str | None = None, diag: str | None = None, kl: int | None = None,
    ku: int | None = None, deterministic: bool = False, threads: int | None = None, device: str = "auto",
) -> Norms:  # fmt: skip
    """All four norms of A in one pass over memory; see `norm`."""
    M, S = _matrix(A, structure, uplo, diag, kl, ku, device)
    return Norms(**_norms(M, S, KINDS, deterministic, threads))


def column_norms(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, threads: int | None = None, device: str = "auto",
) -> Array:  # fmt: skip
    """The norm of every column of A, each taken as a vector: its `max` (or `inf`), its sum `one`, or its length `fro`.

    In float64, one entry a column, on every rank; the same bits on any grid.  For the rest see `norm`.
    """
    name = _kind(kind)
    M, S = _matrix(A, structure, uplo, diag, kl, ku, device)
    return _vector_norms(M, S, name, "columns", threads)


def row_norms(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, threads: int | None = None, device: str = "auto",
) -> Array:  # fmt: skip
    """The norm of every row of A; see `column_norms`."""
    name = _kind(kind)
    M, S = _matrix(A, structure, uplo, diag, kl, ku, device)
    return _vector_norms(M, S, name, "rows", threads)


# --- matrices that are no single array --------------------------------------------------------------------------


def from_tiles(
    tiles: Mapping[tuple[int, int], Any] | Sequence[Sequence[Any]],
    heights: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    comm: Any = None,
) -> TileMatrix:
    """A matrix in tiles that lie anywhere in memory, of any strides; nothing is copied.

    `tiles` is {(I, J): array}, or rows of arrays, None where a tile is not stored (the unread triangle).  Heights of
    block rows and widths of block columns follow from the tiles, where one is there.  Over the ranks of `comm` (of
    mpi4py) each gives the tiles that it holds, any tiles at all, and all give the same heights and widths.
    """
    everybody = _communicator(comm)

    def build() -> TileMatrix:
        if comm is not None and (heights is None or widths is None):
            raise UsageError("over several ranks no one sees all tiles: give heights and widths")
        given = dict(tiles) if isinstance(tiles, Mapping) else _placed(tiles)
        arrays = {place: _numbers(A, f"tile {place}") for place, A in given.items() if A is not None}
        for place, A in arrays.items():
            if A.ndim != 2:
                raise UsageError(f"tile {place} has {A.ndim} dimensions; a tile has two")
        if len(types := {A.dtype.name for A in arrays.values()}) > 1:
            raise UsageError(f"tiles of one matrix have one dtype, but these have {', '.join(sorted(types))}")
        return tile_matrix(
            arrays, heights or _lengths(arrays, given, 0), widths or _lengths(arrays, given, 1), everybody
        )

    return _on_all(build, everybody)


def from_scalapack(
    local: Any, desc: Sequence[int], *, grid: tuple[int, int] = (1, 1), comm: Any = None, order: str = "row"
) -> CyclicMatrix:
    """A matrix as ScaLAPACK has it: this rank's array (column-major or flat) and its descriptor; nothing is copied.

    `grid` and `order` are those of BLACS's grid over `comm`.  Collective.
    """
    everybody = _communicator(comm)
    P, Q = grid
    if everybody.size != P * Q:
        raise UsageError(f"grid {P}x{Q} takes {P}*{Q} = {P * Q} ranks, but the communicator has {everybody.size}")
    place = make_grid(ProcessGrid(P, Q, order), everybody)
    assert place is not None

    def build() -> CyclicMatrix:
        rows, cols, lld = scalapack_parts(desc, place)
        return CyclicMatrix(
            place, rows, cols, _fortran(_numbers(local, "local"), lld, rows.local_size, cols.local_size)
        )

    return _on_all(build, everybody)


def from_band(AB: Any, kl: int, ku: int, m: int | None = None) -> TileMatrix:
    """An m×n band matrix in LAPACK's band storage, AB[ku + i - j, j] = a_ij; m = n where it is left out.

    For a symmetric or Hermitian one give the triangle that is stored: (AB, k, 0) lower, (AB, 0, k) upper.
    """
    array = _numbers(AB, "AB")
    if kl < 0 or ku < 0:
        raise UsageError(f"kl = {kl}, ku = {ku}: a band has 0 or more diagonals beside the main one")
    if array.ndim != 2 or array.shape[0] < kl + ku + 1:
        raise UsageError(f"AB has shape {array.shape}; a band of kl = {kl} and ku = {ku} takes {kl + ku + 1} rows")
    n = array.shape[1]
    m = n if m is None else m
    down, right = array.strides
    # The address of a_ij is that of AB[ku + i - j, j] for all i, j; only those in the band are ever read.
    view = np.lib.stride_tricks.as_strided(array[ku:], (m, n), (down, right - down), writeable=False)
    return TileMatrix(whole(view).tiles, consecutive(m), consecutive(n), Solo(), Band(kl, ku))


def _placed(rows: Sequence[Sequence[Any]]) -> dict[tuple[int, int], Any]:
    """Rows of tiles as {(I, J): tile}."""
    return {(k, j): A for k, row in enumerate(rows) for j, A in enumerate(row)}


def _lengths(arrays: Mapping[tuple[int, int], Array], given: Mapping[tuple[int, int], Any], axis: int) -> list[int]:
    """The heights (widths) of the block rows (columns), each from the first tile that is there."""
    found: list[int] = []
    for k in range(1 + max((place[axis] for place in given), default=-1)):
        sizes = [A.shape[axis] for place, A in arrays.items() if place[axis] == k]
        if not sizes:
            what = ("row", "heights") if axis == 0 else ("column", "widths")
            raise UsageError(f"block {what[0]} {k} has no tile, so its size is unknown; give {what[1]}")
        found.append(sizes[0])
    return found


def _fortran(local: Array, lld: int, rows: int, columns: int) -> Array:
    """The rows×columns part of a column-major array with leading dimension LLD: a view."""
    if local.ndim == 1:
        need = lld * (columns - 1) + rows if columns and rows else 0
        if local.size < need:
            raise UsageError(
                f"the local array has {local.size} entries; {columns} columns with LLD = {lld} take {need}"
            )
        step = local.strides[0]
        return np.lib.stride_tricks.as_strided(local, (rows, columns), (step, step * lld), writeable=False)
    if local.ndim != 2 or local.shape[0] < rows or local.shape[1] < columns:
        raise UsageError(
            f"the local array has shape {local.shape}, but this process has {rows}x{columns} local entries"
        )
    return local[:rows, :columns]


def _communicator(comm: Any) -> Communicator:
    if comm is None:
        return Solo()
    if hasattr(comm, "Get_rank"):
        from mxpeak.comm.mpi import Mpi

        return Mpi(comm.Dup())
    return comm  # type: ignore[no-any-return]


def _on_all(build: Callable[[], AnyMatrix], everybody: Communicator) -> AnyMatrix:
    """What `build` makes on every rank; a mistake on one of them raises on all.  Collective."""
    mistake: MxpeakError | None = None
    try:
        made = build()
    except MxpeakError as error:
        mistake = error
    if everybody.agree(mistake is None):
        return made
    raise mistake or UsageError("another rank of this matrix was given something that it cannot take")


# --- from what was asked to what computes -----------------------------------------------------------------------


def _kind(kind: Any) -> str:
    name = ALIASES.get(kind, kind) if isinstance(kind, str | int | float) else kind
    if name not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; choose one of {', '.join(KINDS)} (or 1, inf as NumPy has)")
    return str(name)


def _matrix(
    A: Any, name: str, uplo: str | None, diag: str | None, kl: int | None, ku: int | None, device: str
) -> tuple[Matrix, Structure]:
    """The matrix as tiles, and which of its entries count."""
    check_device(device)
    M = A if isinstance(A, TileMatrix | CyclicMatrix) else cyclic(A) if isinstance(A, DistMatrix) else whole(_two(A))
    if isinstance(M, TileMatrix) and M.stored != WHOLE:
        if name == "general":
            name, kl, ku = "band", M.stored.below, M.stored.above
        S = structure_of(name, *M.shape, uplo=uplo, diag=diag, kl=kl, ku=ku)
        if not S.band.within(M.stored):
            raise UsageError(
                f"only the band kl = {M.stored.below}, ku = {M.stored.above} is stored, and {name!r} would read more; "
                f"for a triangle of it say structure='band', for a symmetric one 'hermitian-band'"
            )
        return M, S
    return M, structure_of(name, *M.shape, uplo=uplo, diag=diag, kl=kl, ku=ku)


def _two(A: Any) -> Array:
    """A as two-dimensional array: a vector is a column."""
    array = _numbers(A, "A")
    if array.ndim == 1:
        return array[:, None]
    if array.ndim != 2:
        raise UsageError(f"A has {array.ndim} dimensions; norms are of matrices, and of vectors as columns")
    return array


def _numbers(values: Any, name: str) -> Array:
    """An array of a type that the kernels read, not copied unless it holds integers or lies askew."""
    array = as_array(values, name, sparse="scipy.sparse.linalg.norm", masked="of which no norm is known")
    if array.dtype.name in TYPES and array.dtype.isnative and array.flags.aligned:
        return array
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    native = array.dtype.newbyteorder("=")
    if native.name not in TYPES:
        raise UsageError(
            f"{name} has dtype {array.dtype}; norms are of {', '.join(TYPES)} and integers; convert it, for example "
            f"{name}.astype(float)"
        )
    return np.asarray(np.require(array, native, "A"))


def _norms(
    M: Matrix, S: Structure, kinds: Collection[str], deterministic: bool, threads: int | None
) -> dict[str, float]:
    compute = reproducible_norms if deterministic else four_stages.norms
    kernels, busy = _team(_threads(threads, M.everybody.size))
    with busy:  # a team does one thing at a time
        return compute(M, S, kinds, kernels)


def _vector_norms(M: Matrix, S: Structure, kind: str, by: str, threads: int | None) -> Array:
    kernels, busy = _team(_threads(threads, M.everybody.size))
    with busy:
        return np.asarray(vector_norms(M, S, kind, by, kernels))


def _threads(asked: int | None, ranks: int) -> int:
    """As many threads as asked for; else OMP_NUM_THREADS; else one a core, but one where several ranks share them."""
    if asked is not None:
        if asked < 1:
            raise UsageError(f"threads = {asked}: at least one thread computes")
        return asked
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return 1 if ranks > 1 else _cores()


@cache
def _cores() -> int:
    return len(one_core_each())


@cache
def _team(threads: int) -> tuple[HostNorms, threading.Lock]:
    return HostNorms(Team(threads)), threading.Lock()
