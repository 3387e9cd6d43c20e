"""Matrix norms in the four stages of SLATE (Parallel Norms Performance Report, 2018, §2.1), for any structure.

(1) a kernel goes over each tile; (2) what it gives is summed up within the process, whatever computed it; (3) sums are
completed along process rows or columns only; (4) the largest is found over the grid.

    max |a_ij|        one = max_j Σ_i |a_ij|        inf = max_i Σ_j |a_ij|        fro = sqrt(Σ |a_ij|²)

Sums of squares travel in Blue's three parts up to the end, so that fro neither over- nor underflows on any grid.  NaN
wins over Inf, and Inf over numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Protocol

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Vector
from mxpeak.kernels.contract.norms import NormKernels, NormParts, Tile
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import DIAGONAL, Structure

#: The norms, and what of a pass over the matrix each is made from.
KINDS = ("max", "one", "inf", "fro")
NEEDS = {"max": ("max",), "one": ("columns",), "inf": ("rows",), "fro": ("squares",)}
#: The exponents by which Blue's three sums are scaled; see `kernels.contract.NormParts`.
BIG, SMALL = 538, 600


class NormMatrix(Protocol):
    """A matrix as its norms see it: tiles, and the ranks among which they lie.

    row_places, column_places   which global row (column) each entry of this rank's sums by row (column) belongs to
    """

    @property
    def tiles(self) -> Sequence[Tile]: ...  # noqa: D102
    @property
    def row_places(self) -> IndexMap: ...  # noqa: D102
    @property
    def column_places(self) -> IndexMap: ...  # noqa: D102
    @property
    def everybody(self) -> Communicator: ...  # noqa: D102

    def sum_rows(self, by_row: Vector) -> None:
        """Complete sums by row in place: over the ranks that hold parts of the same rows."""

    def sum_columns(self, by_column: Vector) -> None:
        """Complete sums by column in place: over the ranks that hold parts of the same columns."""


def norms(A: NormMatrix, S: Structure, kinds: Collection[str], kernels: NormKernels) -> dict[str, float]:
    """Each kind of norm of A, in one pass over what is read of it.  Collective over A's ranks."""
    wants = {want for kind in kinds for want in NEEDS[kind]}
    found: dict[str, float] = {}

    parts, diagonal = _passes(A, S, wants, kernels)  # (1) and (2)
    if wants & {"rows", "columns"}:
        A.sum_rows(parts.by_row)  # (3)
        A.sum_columns(parts.by_column)
        found["inf"], found["one"] = _largest_sums(A, S, parts, diagonal, kernels)
    found["max"] = kernels.largest(kernels.vector_of([parts.top, diagonal.top, 1.0 if S.ones and S.diagonal else 0.0]))
    tops = kernels.vector_of(list(found.values()))
    A.everybody.allreduce(tops, "max")  # (4)
    found = dict(zip(found, kernels.floats(tops)))

    if "fro" in kinds:
        squares = parts.squares * (2.0 if S.mirrored else 1.0) + diagonal.squares
        A.everybody.allreduce(squares, "sum")
        plain, big, small = kernels.floats(squares)
        found["fro"] = root(plain + (S.diagonal if S.ones else 0), big, small)
    return {kind: found[kind] for kind in kinds}


def _passes(A: NormMatrix, S: Structure, wants: set[str], kernels: NormKernels) -> tuple[NormParts, NormParts]:
    """What the band gives, and what a diagonal that is read apart gives.

    Of a mirrored matrix a_ij stands in row i and column j, and for a_ji in row j and column i: so sums by row and by
    column are both needed, and its row sums are their sum.
    """
    rows, columns = A.row_places.size, A.column_places.size
    if S.mirrored and wants & {"rows", "columns"}:
        wants = wants | {"rows", "columns"}
    parts = kernels.norm_pass(A.tiles, S.band, wants, rows, columns)
    if not S.mirrored:
        nothing = kernels.vector_of([])
        return parts, NormParts(0.0, kernels.vector_of([0.0, 0.0, 0.0]), nothing, nothing)
    return parts, kernels.norm_pass(diagonal_tiles(A, S, kernels), DIAGONAL, wants - {"columns"}, rows, columns)


def diagonal_tiles(A: NormMatrix, S: Structure, kernels: NormKernels) -> Sequence[Tile]:
    """The tiles whose diagonal is read apart: none, all, or their real parts."""
    if not S.mirrored:
        return []
    return [kernels.real_part(tile) for tile in A.tiles] if S.real else A.tiles


def _largest_sums(
    A: NormMatrix, S: Structure, parts: NormParts, diagonal: NormParts, kernels: NormKernels
) -> tuple[float, float]:
    """The largest of this rank's complete sums by row, and by column."""
    if S.mirrored:  # row i and column i meet on one rank
        A.sum_rows(diagonal.by_row)
        by_row = parts.by_row + diagonal.by_row
        rows, columns = kernels.places(A.row_places), kernels.places(A.column_places)
        largest = kernels.largest(kernels.meeting(by_row, rows, parts.by_column, columns))
        return largest, largest
    by_row, by_column = parts.by_row, parts.by_column
    if S.ones and len(by_row):
        by_row = by_row + kernels.below(kernels.places(A.row_places), S.diagonal)
    if S.ones and len(by_column):
        by_column = by_column + kernels.below(kernels.places(A.column_places), S.diagonal)
    return kernels.largest(by_row), kernels.largest(by_column)


def root(plain: float, big: float, small: float) -> float:
    """sqrt(plain + 2^(2·BIG)·big + 2^(-2·SMALL)·small), of which each is representable (Blue 1978)."""
    if not math.isfinite(plain + big + small):
        return plain + big + small
    large, tiny = math.sqrt(big), math.sqrt(small)
    return math.hypot(math.sqrt(plain), _scaled(large, BIG), math.ldexp(tiny, -SMALL))


def _scaled(x: float, exponent: int) -> float:
    """x·2^exponent, inf where that is more than fp64 holds."""
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
