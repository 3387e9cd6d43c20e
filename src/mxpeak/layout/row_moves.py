"""Combine a panel's sequential row swaps into one permutation, and list the rows to send between process rows.

LU with partial pivoting exchanges row j0+i with row pivots[i], sequentially for i = 0, 1, …, jb-1. The combined swaps
are applied to the rest of the matrix in one operation (rocHPL §II, phase RS). They move rows into the block row j0 :
j0+jb, which becomes U. The replaced rows of the block row move to the positions outside the block row that have become
free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxpeak.layout.block_cyclic import BlockCyclic


@dataclass(frozen=True, slots=True)
class RowMoves:
    """The permutation of rows that one panel's swaps cause.

    into_u[i]     the global row whose content becomes row j0+i
    out_to[t]     a global row outside the block row that receives a row of the block row
    out_from[t]   the index, within the block row, of the row that moves to out_to[t]
    """

    into_u: list[int]
    out_to: list[int]
    out_from: list[int]


class RowOrder:
    """The permutation P of P A = L U: row i of the permuted matrix is row `rows[i]` of A."""

    def __init__(self, n: int):
        self.rows = list(range(n))

    def exchange(self, j0: int, pivots: Sequence[int]) -> None:
        """Apply the swaps of one panel, row j0+i with row pivots[i] for i = 0, 1, …, to the permutation."""
        for row, pivot in enumerate(pivots, j0):
            self.rows[row], self.rows[pivot] = self.rows[pivot], self.rows[row]

    @property
    def inverse(self) -> list[int]:
        """Return the inverse permutation P^T: the position to which each row of A has moved."""
        positions = [0] * len(self.rows)
        for i, row in enumerate(self.rows):
            positions[row] = i
        return positions


def row_moves(j0: int, pivots: Sequence[int]) -> RowMoves:
    """Return the permutation that results from the swaps of row j0+i with row pivots[i] >= j0+i, i = 0, 1, ….

    Before its swap, row j0+i contains a row of the block row. So only rows of the block row leave it.
    """
    jb = len(pivots)
    into_u = list(range(j0, j0 + jb))
    out: dict[int, int] = {}  # for each row outside the block row: the original row that it has received
    for i, pivot in enumerate(pivots):
        if pivot < j0 + jb:
            into_u[i], into_u[pivot - j0] = into_u[pivot - j0], into_u[i]
        else:
            into_u[i], out[pivot] = out.get(pivot, pivot), into_u[i]
    out_to = sorted(out)
    return RowMoves(into_u, out_to, [out[row] - j0 for row in out_to])


@dataclass(frozen=True, slots=True)
class LocalMoves:
    """The moves of one panel by process row, with local indices for this process row ("me").

    u_rows[p]      rows of U (0 … jb-1) whose content is on process row p, in increasing order
    my_sources     local rows that contain the contents of u_rows[me]
    out_rows[p]    block rows (0 … jb-1) whose content is sent to process row p
    my_targets     local rows that receive the contents of out_rows[me], in the same order
    block          local rows of the block row itself, on the process row that owns it; empty elsewhere
    """

    u_rows: list[list[int]]
    my_sources: list[int]
    out_rows: list[list[int]]
    my_targets: list[int]
    block: slice


def local_moves(moves: RowMoves, j0: int, rows: BlockCyclic) -> LocalMoves:
    """Return the moves by process row; local row indices refer to the process row of `rows`."""
    jb = len(moves.into_u)
    u_rows, my_sources = _by_process_row(range(jb), moves.into_u, rows)
    out_rows, my_targets = _by_process_row(moves.out_from, moves.out_to, rows)
    return LocalMoves(u_rows, my_sources, out_rows, my_targets, rows.local_range(j0, j0 + jb))


def _by_process_row(
    block_rows: Sequence[int], places: Sequence[int], rows: BlockCyclic
) -> tuple[list[list[int]], list[int]]:
    """Divide block rows by the owners of the global rows `places`, and return this process row's local indices."""
    if rows.P == 1:
        return [list(block_rows)], list(places)
    nb, P, me = rows.nb, rows.P, rows.p  # the loop contains what `owner` and `to_local` compute: it runs at each step
    parts: list[list[int]] = [[] for _ in range(P)]
    mine: list[int] = []
    for block_row, place in zip(block_rows, places):
        block, offset = divmod(place, nb)
        parts[block % P].append(block_row)
        if block % P == me:
            mine.append(block // P * nb + offset)
    return parts, mine
