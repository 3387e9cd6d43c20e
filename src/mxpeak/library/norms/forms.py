"""Create matrices from tiles, from ScaLAPACK's local arrays or from LAPACK's band storage, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from mxpeak.comm.collectives import validate_on_all
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix, scalapack_parts, tile_matrix, whole
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import Band
from mxpeak.library.communicators import communicator, grid_of
from mxpeak.library.inputs import Input
from mxpeak.library.norms.prepare import dense, integers, sizes


def from_tiles(
    tiles: Mapping[tuple[int, int], Any] | Sequence[Sequence[Any]],
    heights: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    comm: Any = None,
) -> TileMatrix:
    """Create a matrix from tiles that are anywhere in memory, without copying the tiles.

    If there are several ranks, all of them must call this function.

    Parameters
    ----------
    tiles : dict or nested sequence
        Tiles of this rank, as a dictionary {(I, J): array} or as nested rows of arrays. In nested rows, use None for a
        tile that is not stored on this rank.
    heights, widths : sequence of int, optional
        Heights of the block rows and widths of the block columns. By default, mxpeak derives these values from the
        tiles. If there are several ranks, you must pass both arguments, with the same values on all ranks.
    comm : communicator, optional
        mpi4py communicator, or "world" for all ranks that the launcher started.

    Returns
    -------
    TileMatrix
        Matrix that you can pass to `norm`, `norms`, `column_norms` and `row_norms`.

    Raises
    ------
    UsageError
        The sizes or data types of the tiles do not match, or two ranks pass the same tile.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np
    >>> M = mx.from_tiles([[np.ones((2, 2)), None], [np.ones((1, 2)), np.ones((1, 1))]])
    >>> mx.norm(M, "inf", structure="triangular", uplo="lower")
    3.0
    """
    ranks = communicator(comm)
    types: set[str] = set()

    def build() -> TileMatrix:
        if ranks.size > 1 and (heights is None or widths is None):
            raise UsageError("the sizes of the other ranks' tiles are unknown; add heights and widths")
        stored = dict(tiles) if isinstance(tiles, Mapping) else _indexed(tiles)
        arrays = {at: _tile(A, at) for at, A in stored.items() if A is not None}
        types.update(A.dtype.name for A in arrays.values())
        if len(types) > 1:
            raise UsageError(
                f"all tiles of a matrix need the same dtype, but these have {', '.join(sorted(types))}; use one dtype"
            )
        down = _lengths(arrays, stored, 0) if heights is None else sizes(heights, "heights")
        across = _lengths(arrays, stored, 1) if widths is None else sizes(widths, "widths")
        return tile_matrix({at: A.array for at, A in arrays.items()}, down, across, ranks)

    M = validate_on_all(ranks, build, lambda M: f"tiles of shape {M.shape}")
    _check_owners(M, *types)
    return M


def from_scalapack(
    local: Any, desc: Sequence[int], *, grid: tuple[int, int] = (1, 1), comm: Any = None, order: str = "row"
) -> CyclicMatrix:
    """Create a matrix from the local arrays of a ScaLAPACK matrix, without copying the arrays.

    All ranks must call this function.

    Parameters
    ----------
    local : ndarray or tensor
        Local array of this rank, which is column-major or one-dimensional.
    desc : sequence of int
        ScaLAPACK array descriptor, which consists of nine integers.
    grid : tuple of int, default (1, 1)
        Numbers of rows and columns of the BLACS process grid, (P, Q).
    comm : communicator, optional
        mpi4py communicator, or "world" for all ranks that the launcher started.
    order : {"row", "column"}, default "row"
        Order in which the ranks fill the process grid.

    Returns
    -------
    CyclicMatrix
        Matrix that you can pass to the norm functions or to `DistributedMatrix.from_blocks`.

    Raises
    ------
    UsageError
        The descriptor, the grid or the local array is invalid.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np
    >>> M = mx.from_scalapack(np.asfortranarray(np.eye(4)), [1, 0, 4, 4, 2, 2, 0, 0, 4])
    >>> mx.norm(M, "fro")
    2.0
    """
    ranks = communicator(comm)

    def shape() -> ProcessGrid:
        if len(sizes(grid, "grid")) != 2:
            raise UsageError(f"grid = {grid!r} is not valid; use two integers (P, Q)")
        P, Q = grid
        if ranks.size != P * Q:
            raise UsageError(
                f"grid {P}x{Q} needs {P}*{Q} = {P * Q} ranks, but the communicator has {ranks.size}; use a grid "
                f"with P*Q = {ranks.size}"
            )
        if order not in ("row", "column"):
            raise UsageError(f"order = {order!r} is unknown; use row or column")
        return ProcessGrid(P, Q, order)

    process = grid_of(validate_on_all(ranks, shape, repr), ranks)

    def build() -> CyclicMatrix:
        if not isinstance(desc, Sequence | np.ndarray):
            raise UsageError(f"desc = {desc!r} is not a descriptor; use the nine integers of ScaLAPACK")
        rows, cols, lld = scalapack_parts(integers(desc, "desc"), process)
        array = _fortran(dense(local, "local"), lld, rows.local_size, cols.local_size)
        return CyclicMatrix(process, rows, cols, array)

    return validate_on_all(ranks, build, lambda M: f"descriptor {[int(value) for value in desc[2:8]]}")


def from_band(AB: Any, kl: int, ku: int, m: int | None = None) -> TileMatrix:
    """Create a band matrix from an array in LAPACK band storage, without copying the array.

    Parameters
    ----------
    AB : ndarray or tensor
        Array in LAPACK band storage, with AB[ku + i - j, j] = a_ij. mxpeak copies AB only if it is a row-major tensor.
    kl, ku : int
        Numbers of diagonals below and above the main diagonal. For a symmetric or Hermitian matrix, use 0 for the
        triangle that is not stored.
    m : int, optional
        Number of rows of the matrix. By default, mxpeak uses the number of columns.

    Returns
    -------
    TileMatrix
        Matrix that you can pass to the norm functions.

    Raises
    ------
    UsageError
        AB has too few rows, or an argument is invalid.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np
    >>> mx.norm(mx.from_band(np.ones((3, 5)), 1, 1), "inf", structure="band", kl=1, ku=1)
    3.0
    """
    stored = dense(AB, "AB")
    array = stored.array
    kl, ku = sizes((kl, ku), "kl, ku")
    if array.ndim != 2 or array.shape[0] < kl + ku + 1:
        raise UsageError(
            f"AB has shape {stored.shape}, but a band with kl = {kl} and ku = {ku} has {kl + ku + 1} rows; use "
            f"{kl + ku + 1} rows"
        )
    n = array.shape[1]
    (m,) = sizes((n if m is None else m,), "m")
    if stored.is_tensor:
        return _band_of_tensor(array, kl, ku, m)
    down, right = array.strides
    # AB[ku + i - j, j] has the address of a_ij for all i and j; only entries in the band are read.
    view = np.lib.stride_tricks.as_strided(array[ku:], (m, n), (down, right - down), writeable=False)
    return TileMatrix(whole(view).tiles, consecutive(m), consecutive(n), Solo(), Band(kl, ku))


def _band_of_tensor(AB: Any, kl: int, ku: int, m: int) -> TileMatrix:
    """Return the band matrix of a tensor in LAPACK band storage.

    A row-major tensor is copied, because tensors have no negative strides. The view has the n + kl rows with entries
    of the band, so that it does not exceed the storage.
    """
    n = AB.shape[1]
    if AB.stride(1) < AB.stride(0):
        AB = AB.T.contiguous().T
    down, right = AB.stride()
    view = AB[ku:].as_strided((min(m, n + kl), n), (down, right - down))
    return replace(whole(view), row_map=consecutive(m), stored=Band(kl, ku))


def _check_owners(M: TileMatrix, dtype: str = "") -> None:
    """Raise a UsageError if two ranks have the same tile, or tiles of different types. Collective."""
    own_tiles = [(tile.row0, tile.col0) for tile in M.tiles if 0 not in tile.A.shape]
    owners: dict[tuple[int, int], int] = {}
    types: dict[str, int] = {}
    mistake = ""
    for rank, (tiles, dtype_there) in enumerate(M.comm.gather_objects((own_tiles, dtype)) or []):
        if tiles:
            types.setdefault(dtype_there, rank)
        for first in tiles:
            if owners.setdefault(first, rank) != rank:
                both = f"ranks {owners[first]} and {rank} both have the tile that begins at {first}"
                mistake = f"{both}; pass each tile on only one rank"
    if len(types) > 1:
        given = ", ".join(f"{dtype} on rank {rank}" for dtype, rank in types.items())
        mistake = f"all tiles of a matrix need the same dtype, but these have {given}; use one dtype"
    if mistake := M.comm.bcast_object(mistake):
        raise UsageError(mistake)


def _tile(values: Any, at: Any) -> Input:
    """Validate a tile and its index `at`, and return the tile as an `Input`."""
    if not (isinstance(at, tuple) and len(at) == 2 and all(isinstance(k, Integral) for k in at)):
        raise UsageError(f"{at!r} is not the index of a tile; use (I, J), the block row and block column of the tile")
    A = dense(values, f"tile {at}")
    if len(A.shape) != 2:
        raise UsageError(f"tile {at} has {len(A.shape)} dimensions; use an array with two dimensions")
    return A


def _indexed(rows: Sequence[Sequence[Any]]) -> dict[tuple[int, int], Any]:
    """Convert nested rows of tiles to a dictionary {(I, J): tile}; raise a UsageError for rows of different lengths."""
    if len(lengths := {len(row) for row in rows}) > 1:
        raise UsageError(
            f"block rows have different lengths ({min(lengths)} and {max(lengths)} tiles); use None for a "
            "tile that is not stored"
        )
    return {(k, j): A for k, row in enumerate(rows) for j, A in enumerate(row)}


def _lengths(arrays: Mapping[tuple[int, int], Input], stored: Mapping[tuple[int, int], Any], axis: int) -> list[int]:
    """Return the heights of the block rows (axis 0) or the widths of the block columns (axis 1).

    Each length is that of the first tile. Raises a UsageError if a block row or column has no tile."""
    all_lengths: list[int] = []
    for k in range(1 + max((at[axis] for at in stored), default=-1)):
        lengths = [A.shape[axis] for at, A in arrays.items() if at[axis] == k]
        if not lengths:
            block, argument = ("row", "heights") if axis == 0 else ("column", "widths")
            raise UsageError(f"block {block} {k} has no tile, so its size is unknown; add {argument}")
        all_lengths.append(lengths[0])
    return all_lengths


def _fortran(stored: Input, lld: int, rows: int, columns: int) -> Any:
    """Return a rows×columns view of a column-major array with leading dimension `lld`.

    Raises a UsageError if the array is too small.
    """
    local = stored.array
    if local.ndim == 1:
        need = lld * (columns - 1) + rows if columns and rows else 0
        if len(local) < need:
            raise UsageError(
                f"the local array has {len(local)} entries, but {columns} columns with LLD = {lld} need "
                f"{need}; use an array of {need} entries"
            )
        if stored.is_tensor:
            return local.as_strided((rows, columns), (local.stride(0), local.stride(0) * lld))
        step = local.strides[0]
        return np.lib.stride_tricks.as_strided(local, (rows, columns), (step, step * lld), writeable=False)
    if local.ndim != 2 or local.shape[0] < rows or local.shape[1] < columns:
        raise UsageError(
            f"the local array has shape {stored.shape}, but this process has {rows}x{columns} local "
            f"entries; use an array of shape ({rows}, {columns})"
        )
    return local[:rows, :columns]
