"""Matrices that are no single array: tiles, ScaLAPACK's local arrays, LAPACK's band storage; nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from mxpeak.comm.solo import Solo
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix, scalapack_parts, tile_matrix, whole
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import Band
from mxpeak.library.inputs import is_tensor
from mxpeak.library.norms.arrays import integers, numbers, type_name, whole_numbers
from mxpeak.library.norms.ranks import communicator, grid_of, on_all


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
    everybody = communicator(comm)

    def build() -> TileMatrix:
        if everybody.size > 1 and (heights is None or widths is None):
            raise UsageError("over several ranks no one sees all tiles: give heights and widths")
        given = dict(tiles) if isinstance(tiles, Mapping) else _placed(tiles)
        arrays = {place: numbers(A, f"tile {place}") for place, A in given.items() if A is not None}
        for place, A in arrays.items():
            if not (isinstance(place, tuple) and len(place) == 2 and all(isinstance(k, Integral) for k in place)):
                raise UsageError(f"{place!r} is no place of a tile; write (I, J), its block row and block column")
            if A.ndim != 2:
                raise UsageError(f"tile {place} has {A.ndim} dimensions; a tile has two")
        if len(types := set(map(type_name, arrays.values()))) > 1:
            raise UsageError(f"tiles of one matrix have one dtype, but these have {', '.join(sorted(types))}")
        down = _lengths(arrays, given, 0) if heights is None else whole_numbers(heights, "heights")
        across = _lengths(arrays, given, 1) if widths is None else whole_numbers(widths, "widths")
        return tile_matrix(arrays, down, across, everybody)

    made: TileMatrix = on_all(build, everybody, lambda M: M.shape)
    _check_owners(made)
    return made


def from_scalapack(
    local: Any, desc: Sequence[int], *, grid: tuple[int, int] = (1, 1), comm: Any = None, order: str = "row"
) -> CyclicMatrix:
    """A matrix as ScaLAPACK has it: this rank's array (column-major or flat) and its descriptor; nothing is copied.

    `grid` and `order` are those of BLACS's grid over `comm`.  Collective.
    """
    everybody = communicator(comm)

    def shape() -> ProcessGrid:
        if len(whole_numbers(grid, "grid")) != 2:
            raise UsageError(f"grid = {grid!r}: give P and Q")
        P, Q = grid
        if everybody.size != P * Q:
            raise UsageError(f"grid {P}x{Q} takes {P}*{Q} = {P * Q} ranks, but the communicator has {everybody.size}")
        return ProcessGrid(P, Q, order)

    place = grid_of(on_all(shape, everybody, repr), everybody)

    def build() -> CyclicMatrix:
        if not isinstance(desc, Sequence | np.ndarray):
            raise UsageError(f"desc = {desc!r} is no descriptor: give ScaLAPACK's nine integers")
        rows, cols, lld = scalapack_parts(integers(desc, "desc"), place)
        return CyclicMatrix(place, rows, cols, _fortran(numbers(local, "local"), lld, rows.local_size, cols.local_size))

    made: CyclicMatrix = on_all(build, everybody, lambda M: [int(value) for value in (*desc[2:8],)])
    return made


def from_band(AB: Any, kl: int, ku: int, m: int | None = None) -> TileMatrix:
    """An m×n band matrix in LAPACK's band storage, AB[ku + i - j, j] = a_ij; m = n where it is left out.

    For a symmetric or Hermitian one give the triangle that is stored: (AB, k, 0) lower, (AB, 0, k) upper.
    """
    array = numbers(AB, "AB")
    kl, ku = whole_numbers((kl, ku), "kl, ku")
    if kl < 0 or ku < 0:
        raise UsageError(f"kl = {kl}, ku = {ku}: a band has 0 or more diagonals beside the main one")
    if array.ndim != 2 or array.shape[0] < kl + ku + 1:
        raise UsageError(f"AB has shape {array.shape}; a band of kl = {kl} and ku = {ku} takes {kl + ku + 1} rows")
    n = array.shape[1]
    (m,) = whole_numbers((n if m is None else m,), "m")
    if is_tensor(array):
        return _band_of_tensor(array, kl, ku, m)
    down, right = array.strides
    # The address of a_ij is that of AB[ku + i - j, j] for all i, j; only those in the band are ever read.
    view = np.lib.stride_tricks.as_strided(array[ku:], (m, n), (down, right - down), writeable=False)
    return TileMatrix(whole(view).tiles, consecutive(m), consecutive(n), Solo(), Band(kl, ku))


def _band_of_tensor(AB: Any, kl: int, ku: int, m: int) -> TileMatrix:
    """The same view of a tensor, which has no negative strides: of one that lies by rows a copy that lies by columns.

    A view of the n + kl rows in which the band has entries; it ends where the storage does.
    """
    n = AB.shape[1]
    if AB.stride(1) < AB.stride(0):
        AB = AB.T.contiguous().T
    down, right = AB.stride()
    view = AB[ku:].as_strided((min(m, n + kl), n), (down, right - down))
    return replace(whole(view), row_places=consecutive(m), stored=Band(kl, ku))


def _check_owners(M: TileMatrix) -> None:
    """Stop where two ranks give the same tile, or tiles of different types.  Collective."""
    mine = {(tile.row0, tile.col0): type_name(tile.A) for tile in M.tiles if 0 not in tile.A.shape}
    everybody = M.everybody.gather_objects(mine) or []
    owners: dict[tuple[int, int], int] = {}
    types: dict[str, int] = {}
    mistake = ""
    for rank, tiles in enumerate(everybody):
        for place, dtype in tiles.items():
            types.setdefault(dtype, rank)
            if owners.setdefault(place, rank) != rank:
                both = f"ranks {owners[place]} and {rank} both give the tile that begins at {place}"
                mistake = f"{both}: each tile belongs to one rank"
    if len(types) > 1:
        given = ", ".join(f"{dtype} on rank {rank}" for dtype, rank in types.items())
        mistake = f"tiles of one matrix have one dtype, but these have {given}"
    if mistake := M.everybody.bcast_object(mistake):
        raise UsageError(mistake)


def _placed(rows: Sequence[Sequence[Any]]) -> dict[tuple[int, int], Any]:
    """Rows of tiles as {(I, J): tile}."""
    if len(lengths := {len(row) for row in rows}) > 1:
        raise UsageError(
            f"block rows of {min(lengths)} and of {max(lengths)} tiles; write None for one that is not stored"
        )
    return {(k, j): A for k, row in enumerate(rows) for j, A in enumerate(row)}


def _lengths(arrays: Mapping[tuple[int, int], Any], given: Mapping[tuple[int, int], Any], axis: int) -> list[int]:
    """The heights (widths) of the block rows (columns), each from the first tile that is there."""
    found: list[int] = []
    for k in range(1 + max((place[axis] for place in given), default=-1)):
        sizes = [A.shape[axis] for place, A in arrays.items() if place[axis] == k]
        if not sizes:
            what = ("row", "heights") if axis == 0 else ("column", "widths")
            raise UsageError(f"block {what[0]} {k} has no tile, so its size is unknown; give {what[1]}")
        found.append(sizes[0])
    return found


def _fortran(local: Any, lld: int, rows: int, columns: int) -> Any:
    """The rows×columns part of a column-major array with leading dimension LLD: a view."""
    if local.ndim == 1:
        need = lld * (columns - 1) + rows if columns and rows else 0
        if len(local) < need:
            raise UsageError(
                f"the local array has {len(local)} entries; {columns} columns with LLD = {lld} take {need}"
            )
        if is_tensor(local):
            return local.as_strided((rows, columns), (local.stride(0), local.stride(0) * lld))
        step = local.strides[0]
        return np.lib.stride_tricks.as_strided(local, (rows, columns), (step, step * lld), writeable=False)
    if local.ndim != 2 or local.shape[0] < rows or local.shape[1] < columns:
        raise UsageError(
            f"the local array has shape {local.shape}, but this process has {rows}x{columns} local entries"
        )
    return local[:rows, :columns]
