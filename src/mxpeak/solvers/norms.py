"""Matrix norms in the four stages of SLATE (Parallel Norms Performance Report, 2018, §2.1), for any structure.

(1) A kernel reads each tile. (2) The sums of the tiles are added within each process. (3) The sums are completed along
process rows or columns only. (4) The maximum is computed over the grid.

    max |a_ij|        one = max_j Σ_i |a_ij|        inf = max_i Σ_j |a_ij|        fro = sqrt(Σ |a_ij|²)

Sums of squares remain in Blue's three parts until the end, so that fro neither overflows nor underflows on any grid.
NaN takes precedence over Inf, and Inf over numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Indices, Matrix, Vector
from mxpeak.kernels.contract.norms import DOWN, UP, NormKernels, NormParts, Tile
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import DIAGONAL, Structure

#: Partial results of a pass. Each norm is the maximum of its partial result, or the root of the sum for squares.
PARTIAL = {"max": "max", "one": "columns", "inf": "rows", "fro": "squares"}


class NormMatrix(Protocol):
    """Interface of a matrix of tiles that are distributed over ranks.

    row_map, column_map   the global row (column) of each entry of this rank's row (column) sums
    """

    @property
    def tiles(self) -> Sequence[Tile]: ...  # noqa: D102
    @property
    def row_map(self) -> IndexMap: ...  # noqa: D102
    @property
    def column_map(self) -> IndexMap: ...  # noqa: D102
    @property
    def comm(self) -> Communicator: ...  # noqa: D102

    def sum_rows(self, by_row: Vector) -> None:
        """Complete the row sums: add `by_row` in place over all ranks that store parts of the same rows."""

    def sum_columns(self, by_column: Vector) -> None:
        """Complete the column sums: add `by_column` in place over all ranks that store parts of the same columns."""


def distributed_norms(A: NormMatrix, S: Structure, kinds: Collection[str], kernels: NormKernels) -> dict[str, float]:
    """Return the norms of A that `kinds` names, computed in one pass over its entries. Collective over A's ranks."""
    xp, wants = kernels.xp, {PARTIAL[kind] for kind in kinds}
    values: dict[str, float] = {}

    parts, diagonal = _passes(A, S, wants, kernels)  # stages (1) and (2)
    if wants & {"rows", "columns"}:
        A.sum_rows(parts.by_row)  # stage (3)
        A.sum_columns(parts.by_column)
        values["inf"], values["one"] = _largest_sums(A, S, parts, diagonal, kernels)
    values["max"] = largest(fp64([parts.top, diagonal.top, 1.0 if S.ones and S.diagonal else 0.0], xp), xp)
    tops = fp64(list(values.values()), xp)
    A.comm.allreduce(tops, "max")  # stage (4)
    values = dict(zip(values, tops.tolist()))

    if "fro" in kinds:
        squares = parts.squares * (2.0 if S.mirrored else 1.0) + diagonal.squares
        A.comm.allreduce(squares, "sum")
        plain, big, small = squares.tolist()
        values["fro"] = root(plain + (S.diagonal if S.ones else 0), big, small)
    return {kind: values[kind] for kind in kinds}


def _passes(A: NormMatrix, S: Structure, wants: set[str], kernels: NormKernels) -> tuple[NormParts, NormParts]:
    """Return the partial results of the band, and of a diagonal that is read separately.

    A mirrored matrix stores only a_ij of each pair a_ij = a_ji. The entry a_ij is added to row i and column j, and the
    entry a_ji to row j and column i. The row sums of the matrix are therefore the row sums plus the column sums of the
    band.
    """
    rows, columns = A.row_map.size, A.column_map.size
    if S.mirrored and wants & {"rows", "columns"}:
        wants = wants | {"rows", "columns"}
    parts = kernels.norm_pass(A.tiles, S.band, wants, rows, columns)
    if not S.mirrored:
        return parts, NormParts(0.0, fp64([0.0, 0.0, 0.0], kernels.xp), *[fp64([], kernels.xp)] * 2)
    return parts, kernels.norm_pass(diagonal_tiles(A, S), DIAGONAL, wants - {"columns"}, rows, columns)


def diagonal_tiles(A: NormMatrix, S: Structure) -> Sequence[Tile]:
    """Return the tiles whose diagonal is read separately: none, all, or views of their real parts."""
    if not S.mirrored:
        return []
    return [replace(tile, A=tile.A.real) for tile in A.tiles] if S.real else A.tiles


def _largest_sums(
    A: NormMatrix, S: Structure, parts: NormParts, diagonal: NormParts, kernels: NormKernels
) -> tuple[float, float]:
    """Return the largest complete row sum and column sum of this rank."""
    xp = kernels.xp
    if S.mirrored:
        A.sum_rows(diagonal.by_row)
        same = largest(_sums_of_both(A, parts.by_row + diagonal.by_row, parts.by_column, xp), xp)
        return same, same
    by_row, by_column = parts.by_row, parts.by_column
    if S.ones and len(by_row):
        by_row = by_row + ones_before(S.diagonal, A.row_map, xp)
    if S.ones and len(by_column):
        by_column = by_column + ones_before(S.diagonal, A.column_map, xp)
    return largest(by_row, xp), largest(by_column, xp)


def _sums_of_both(A: NormMatrix, by_row: Vector, by_column: Vector, xp: Any) -> Vector:
    """Return by_row[i] + by_column[i] for each global index i that is both a row and a column of this rank."""
    rows, columns = global_indices(A.row_map, xp), global_indices(A.column_map, xp)
    if not len(rows) or not len(columns):
        return fp64([], xp)
    k = xp.minimum(xp.searchsorted(columns, rows), xp.asarray(len(columns) - 1))  # both arrays are sorted
    return (by_row + by_column[k])[columns[k] == rows]


def fp64(values: Sequence[Any], xp: Any) -> Vector:
    """Return an fp64 array of Python numbers, or of rows of numbers."""
    return xp.asarray(values, dtype=xp.float64)


def largest(x: Vector, xp: Any) -> float:
    """Return max x_i, which is NaN if x contains NaN, and 0 for an empty vector."""
    return float(xp.max(x)) if len(x) else 0.0


def global_indices(index_map: IndexMap, xp: Any) -> Indices:
    """Return the global index of each local index."""
    return index_map.to_global(xp.arange(index_map.size))


def whole(values: Matrix, index_map: IndexMap, size: int, xp: Any) -> Matrix:
    """Return a vector of full length with this rank's values at their global indices, and zeros elsewhere."""
    full = xp.zeros((*values.shape[:-1], size), dtype=xp.float64)
    full[..., global_indices(index_map, xp)] = values
    return full


def ones_before(end: int, index_map: IndexMap, xp: Any) -> Vector:
    """Return a vector with 1 for global indices below `end`, and 0 otherwise."""
    return xp.astype(global_indices(index_map, xp) < end, xp.float64)


def root(plain: float, big: float, small: float) -> float:
    """Return the square root of plain + big/DOWN² + small/UP² without overflow or underflow (Blue 1978)."""
    if not math.isfinite(plain + big + small):
        return plain + big + small
    return math.hypot(math.sqrt(plain), math.sqrt(big) / DOWN, math.sqrt(small) / UP)
